"""The start of a process: modules that a run does not need are not imported. They are counted, no time is taken."""

from __future__ import annotations

import subprocess
import sys

import pytest

RUN = """
import sys
import numpy, onnx.parser
before = set(sys.modules)
from hetero_core import Core
model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { a = Relu(x) y = Neg(a) }')
with Core() as core:
    network = core.load_network(model, "CPU", {"CPU_KERNELS": sys.argv[1]})
    assert network.infer({"x": numpy.array([1, -1], numpy.float32)})["y"].tolist() == [-1, 0]
print(*sorted(set(sys.modules) - before))
"""


@pytest.mark.parametrize("kernels", ["NUMPY", "JIT"])
def test_first_answer_parses_no_metadata_as_a_mail(kernels: str) -> None:
    if kernels == "JIT":
        pytest.importorskip("llvmlite", reason="machine code is made by llvmlite")
        from hetero_cpu.machine.compiler import find_width

        if not find_width():
            pytest.skip("no machine code is made for this processor")
    # The first process compiles what the second one finds.
    for _ in range(2):
        ended = subprocess.run([sys.executable, "-c", RUN, kernels], capture_output=True, text=True, timeout=900, check=True)
    modules = ended.stdout.split()
    assert "hetero_cpu.device" in modules
    assert not {"email.policy", "importlib_metadata._adapters", "llvmlite", "hetero_core.conformance"} & set(modules)
