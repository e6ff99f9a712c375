"""`hetero inspect` without -d: the devices that run a whole model, the nodes that other devices refuse, and the cure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import hetero_template
import numpy as np
import onnx
import onnx.parser
import pytest

from hetero_core import Core, hookimpl
from hetero_core.cli.inspect import advise, ask_device, ask_installed_devices, format_verdicts
from hetero_core.cli.main import main
from hetero_core.errors import DeviceUnavailableError

MODEL = """<ir_version: 8, opset_import: ["": 17]>
chain (float[n, 2] x) => (float[n, 2] y) { [up] a = Neg (x) [middle] b = Relu (a) [last] c = Abs (b) [end] y = Relu (c) }"""
CUSTOM = """<ir_version: 8, opset_import: ["": 17, "com.acme": 1]>
odd (float[2] x) => (float[2] y) { [known] a = Relu (x) [twist] b = com.acme.Twist (a) [again] y = com.acme.Twist (b) }"""


class Absent:
    """A plugin with an unavailable device."""

    @hookimpl
    def create_device(self) -> object:
        raise DeviceUnavailableError("the card is missing; plug it in")


@pytest.fixture
def core() -> Iterator[Core]:
    """A Core in which TEMPLATE refuses Relu, LEFT refuses Neg, and RIGHT refuses Abs and Relu."""
    with Core() as opened:
        for name in ("LEFT", "RIGHT"):
            opened.register_plugin(name, hetero_template)
        opened.register_plugin("ABSENT", Absent())
        opened.set_config({"TEMPLATE_REFUSED_OPERATORS": "Relu"}, "TEMPLATE")
        opened.set_config({"TEMPLATE_REFUSED_OPERATORS": "Neg"}, "LEFT")
        opened.set_config({"TEMPLATE_REFUSED_OPERATORS": "Abs,Relu"}, "RIGHT")
        yield opened


def read(core: Core, text: str) -> Any:
    return core.read_network(onnx.parser.parse_model(text))


def test_device_that_refuses_has_its_first_node_and_a_split(core: Core) -> None:
    network = read(core, MODEL)
    rows = ask_installed_devices(core, network, lambda _: nullcontext(lambda _: None))
    by_device = {row["device"]: row for row in rows}
    assert "HETERO" not in by_device  # runs no node itself
    assert by_device["CPU"]["whole"]
    template = by_device["TEMPLATE"]
    assert (template["whole"], template["taken"]) == (False, 2)
    assert template["first"] == {
        "node": "middle",
        "operator": "Relu-14",
        "reason": "operator Relu is refused by TEMPLATE_REFUSED_OPERATORS",
    }
    assert "the card is missing; plug it in" in by_device["ABSENT"]["error"]
    text = format_verdicts(rows, advise(core, network, rows), 4)
    assert text.startswith("runs whole on: CPU")
    assert "  ABSENT cannot be used: " in text
    assert "  TEMPLATE takes 2 of 4 nodes\n    refuses Relu-14, 2 of them, as 'middle': operator Relu is refused" in text


def test_devices_that_run_the_model_together_are_named_and_do(core: Core) -> None:
    network = read(core, MODEL)
    rows = [ask_device(core, network, device) for device in ("RIGHT", "LEFT")]
    (advice,) = advise(core, network, rows)
    assert advice["device"] == "HETERO:LEFT,RIGHT"
    assert core.query_network(network, advice["device"]).refused == {}


def test_custom_operator_is_reported_with_its_cure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "odd.onnx")
    onnx.save(onnx.parser.parse_model(CUSTOM), path)
    assert main(["inspect", path]) == 0
    text = capsys.readouterr().out
    assert "runs whole on: no installed device" in text
    assert (
        "no device takes 'twist' (com.acme:Twist-1), 2 of 3 nodes; it is a custom operator: make it known with Core.add_extension"
        in text
    )
    assert main(["inspect", path, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [each["nodes"] for each in answer["advice"]] == [["twist", "again"]]
    assert {row["device"]: row["first"]["node"] for row in answer["devices"] if row["error"] is None}["CPU"] == "twist"


def test_wrong_device_is_reported_before_a_wrong_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "missing.onnx", "-d", "CPUU"]) == 3
    assert "did you mean 'CPU'?" in capsys.readouterr().err


def test_named_device_tells_its_slow_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "g (int64[400,400] x) => (int64[400,400] y) { [heavy] y = MatMul (x, x) }"
    path = tmp_path / "heavy.onnx"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}'), path)
    assert main(["inspect", str(path), "-d", "CPU", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["devices"]
    with Core() as core:
        loaded = core.load_network(path, "CPU")
        loaded.infer([np.ones((400, 400), np.int64)])
        assert tuple(row["slow"]) == loaded.get_metric("SLOW_NODES")
    assert main(["inspect", str(path), "-d", "CPU"]) == 0
    assert ("slow: 'heavy' takes most of a run; taken by" in capsys.readouterr().out) is bool(row["slow"])
