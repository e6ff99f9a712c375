"""Memories of two plugins: the distribution is part of a memory's name, so equal names of two plugins make no common memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest
from hetero_template.device import TemplateDevice, TemplateExecutable

from hetero_core import Core, Executable, Network, hookimpl
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


CHIP = """
from hetero_core import hookimpl
from hetero_core.kernels.program import compile_program
from hetero_template.device import TemplateDevice, TemplateExecutable

class Device(TemplateDevice):
    @hookimpl
    def load_network(self, network):
        return TemplateExecutable(network, compile_program(network), memory="chip:0")

@hookimpl
def create_device(name):
    return Device(name)
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
