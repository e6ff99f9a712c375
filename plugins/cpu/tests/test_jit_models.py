"""Whole models by machine code: no silent fallback, and two threads give the same answer as a single thread."""

from __future__ import annotations

import pytest

from hetero_core import Core
from hetero_core.testing.compare import assert_same
from hetero_core.testing.models import light_inputs, light_model

pytest.importorskip("llvmlite", reason="machine code is made by llvmlite")

from hetero_cpu.machine.compiler import find_width

if not find_width():
    pytest.skip("no machine code for this processor", allow_module_level=True)


@pytest.mark.parametrize("name", ["inception_v1", "shufflenet", "squeezenet"])
def test_all_convolutions_are_machine_code_with_1_and_2_threads(name: str) -> None:
    """A mistaken refusal would only show as a slower run, since NumPy would compute the node."""
    model = light_model(name)
    inputs = light_inputs(model)
    answers = []
    with Core() as core:
        for threads in (1, 2):
            loaded = core.load_network(model, "CPU", {"CPU_KERNELS": "JIT", "INFERENCE_NUM_THREADS": threads})
            assert loaded.get_metric("CPU_FOREIGN_STEPS") == 0
            assert loaded.get_metric("CPU_NATIVE_STEPS") >= sum(node.op_type == "Conv" for node in model.graph.node)
            answers.append(list(loaded.infer(inputs).values()))
    assert_same(*answers)
