"""Memories of two plugins: the distribution is part of a memory's name, so equal names of two plugins make no common memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
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


CHIP = """
from dataclasses import replace

from hetero_core import Executable, hookimpl
from hetero_core.devices.query import query_by_transform
from hetero_core.kernels.program import compile_program

class Array:
    def __init__(self, elements):
        self.elements, self.nbytes = elements, elements.nbytes

class Device:
    @hookimpl
    def query_network(self, device, network):
        return query_by_transform(device, network, lambda same: same, lambda node, _: None)

    @hookimpl
    def load_network(self, network):
        return Loaded(network)

    @hookimpl
    def to_host(self, array):
        assert type(array) is Array, "an array of another distribution"
        return array.elements.copy()

    @hookimpl
    def from_host(self, array):
        return Array(array.copy())

class Loaded(Executable):
    def __init__(self, network):
        self.inputs = tuple(replace(spec, memory="chip:0") for spec in network.inputs)
        self.outputs = tuple(replace(spec, memory="chip:0") for spec in network.outputs)
        self.program = compile_program(network)

    def run(self, inputs, context):
        assert all(type(value) is Array for value in inputs), "an array of another distribution"
        return tuple(map(Array, self.program.run(tuple(value.elements for value in inputs))))

@hookimpl
def create_device():
    return Device()
"""


def test_plugins_with_equal_memory_names_share_no_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("one", "two"):
        (tmp_path / f"chip_{name}.py").write_text(CHIP)
        folder = tmp_path / f"chip_{name}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: chip-{name}\nVersion: 1.0\n")
        (folder / "RECORD").write_text(f"chip_{name}.py,,\n")
        (folder / "entry_points.txt").write_text(f"[hetero_core.devices]\nCHIP_{name.upper()} = chip_{name}\n")
    with Core() as core:
        network = core.read_network(onnx.parser.parse_model(MODEL)).with_affinity({"here": "CHIP_ONE", "there": "CHIP_TWO"})
        request = core.load_network(network, "HETERO:CHIP_ONE,CHIP_TWO", {"PERF_COUNT": True}).create_infer_request()
        assert np.allclose(request.infer({"x": np.zeros(2, np.float32)})["y"], 1)
        moved = [(entry.node, entry.source, *entry.targets) for entry in request.perf_counts if entry.targets]
    assert moved == [("x", "host", "CHIP_ONE"), ("a", "CHIP_ONE", "CHIP_TWO"), ("y", "CHIP_TWO", "host")]
