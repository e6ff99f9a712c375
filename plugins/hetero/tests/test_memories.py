"""Memories of two plugins: the distribution is part of a memory's name, so that a name which both chose makes no common memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx.parser
import pytest
from hetero_hetero.routing import plan_route
from hetero_template.device import TemplateDevice, TemplateExecutable

from hetero_core import Core, Executable, Network, hookimpl
from hetero_core.devices.provenance import Provenance
from hetero_core.kernels.program import compile_program

MODEL = '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { [here] a = Neg (x) [there] y = Exp (a) }'


class Chip(TemplateDevice):
    @hookimpl
    def load_network(self, network: Network) -> Executable:
        return TemplateExecutable(network, compile_program(network), memory="chip:0")


@pytest.fixture
def loaded() -> Iterator[Any]:
    with Core() as core:
        for name in ("A", "B"):
            core.register_plugin(name, Chip(name))
        network = core.read_network(onnx.parser.parse_model(MODEL)).with_affinity({"here": "A", "there": "B"})
        yield core.load_network(network, "HETERO:A,B", {"PERF_COUNT": True})


def test_memory_of_one_plugin_under_two_names_is_shared(loaded: Any) -> None:
    request = loaded.create_infer_request()
    assert np.allclose(request.infer({"x": np.zeros(2, np.float32)})["y"], 1)
    assert [entry.node for entry in request.perf_counts if entry.targets] == ["x", "y"]


def test_memories_that_two_distributions_name_alike_are_two(loaded: Any) -> None:
    first, second = loaded.executable.stages
    second.provenance = Provenance("B", "another-distribution", "1.0", "another")
    route = plan_route(loaded.inputs, loaded.outputs, (first, second), {})
    assert [(transfer.value, transfer.origin, transfer.readers) for transfer in route.steps[0].transfers] == [("a", "A", ("B",))]
