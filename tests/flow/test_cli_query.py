"""`hetero query`: device of each node, refusals with reasons, the plan as text, JSON and DOT."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import onnx.parser
import pytest

from hetero_core.cli.main import main

# `twice` and `last` have the same operator, with a node of a different operator between them.
MODEL = """<ir_version: 8, opset_import: ["": 17]>
sandwich (float[2, 3] x) => (float[2, 3] y) { [twice] a = Add (x, x) [middle] b = Relu (a) [last] y = Add (b, x) }"""
UNKNOWN = """<ir_version: 8, opset_import: ["": 17, "com.acme": 1]>
odd (float[2] x) => (float[2] y) { [known] a = Relu (x) [twist] y = com.acme.Twist (a) }"""


def save(text: str, folder: Path) -> str:
    path = folder / "model.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    return str(path)


@pytest.fixture
def model(tmp_path: Path) -> str:
    return save(MODEL, tmp_path)


SPLIT = ["-d", "HETERO:TEMPLATE,CPU", "-c", "TEMPLATE_REFUSED_OPERATORS=Relu"]


def test_split_is_shown_with_nodes_subgraphs_bytes_and_reasons(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["query", model, *SPLIT]) == 0
    text = capsys.readouterr().out
    assert [line.split() for line in text.splitlines()[:4]] == [
        ["NODE", "OPERATOR", "DEVICE"],
        ["twice", "Add-14", "TEMPLATE"],
        ["middle", "Relu-14", "CPU"],
        ["last", "Add-14", "TEMPLATE"],
    ]
    assert "3 nodes in 3 subgraphs on 2 devices" in text
    assert "a: float32[2,3], 24 bytes, subgraph 0 -> subgraph 1" in text
    assert "middle (Relu-14), TEMPLATE: operator Relu is refused by TEMPLATE_REFUSED_OPERATORS" in text


def test_trace_of_the_selection_is_printed_step_by_step(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["query", model, *SPLIT, "--trace-selection"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("Policy LARGEST_FIRST\n")
    assert "Device TEMPLATE\n  Possible roots: [twice,last]\n  1. Take root [twice]\n" in text
    assert "Cannot merge [middle]" in text
    assert main(["query", model, *SPLIT, "--trace-selection", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["plan"]["selection"].strip() == text.strip()


def test_trace_of_a_device_that_selects_nothing_is_refused(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["query", model, "-d", "CPU", "--trace-selection"]) == 2
    assert "CPU selects none. Use a device as HETERO:GPU,CPU" in capsys.readouterr().err
    assert main(["query", model, *SPLIT, "--trace-selection", "--explain", "last"]) == 2
    assert "argument --explain: not allowed with argument --trace-selection" in capsys.readouterr().err


def test_split_in_json_has_the_plan(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["query", model, *SPLIT, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["supported"] == {"twice": "TEMPLATE", "middle": "CPU", "last": "TEMPLATE"}
    assert answer["refused"] == {}
    assert [(each["device"], each["nodes"]) for each in answer["plan"]["subgraphs"]] == [
        ("TEMPLATE", ["twice"]),
        ("CPU", ["middle"]),
        ("TEMPLATE", ["last"]),
    ]
    assert sum(each["bytes"] for each in answer["plan"]["boundaries"]) == 72


def test_pins_decide(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["query", model, "-d", "HETERO:TEMPLATE,CPU", "--pin", "op:Add=CPU", "--pin", "twice=TEMPLATE", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["supported"] == {"twice": "TEMPLATE", "middle": "TEMPLATE", "last": "CPU"}


@pytest.mark.parametrize("command", [["query"], ["run", "--random"], ["compile", "-o", "out.blob"]])
def test_pin_option_overrides_the_same_pattern_of_a_file(
    command: list[str], model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pins.toml").write_text('[affinity]\n"op:Add" = "CPU"\ntwice = "CPU"\n')
    arguments = ["-d", "HETERO:TEMPLATE,CPU", "--affinity", "pins.toml", "--pin", "twice=TEMPLATE", "--json"]
    assert main([command[0], model, *command[1:], *arguments]) == 0
    if command == ["query"]:
        assert json.loads(capsys.readouterr().out)["supported"] == {"twice": "TEMPLATE", "middle": "TEMPLATE", "last": "CPU"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-d", "HETERO:TEMPLATE,CPU", "--affinity", "none.toml"], "cannot read pins from 'none.toml': No such file"),
        (["-d", "CPU", "--pin", "last=CPU"], "--pin and --affinity need a device that splits networks"),
        (["-d", "HETERO:TEMPLATE,CPU", "--pin", "lats=CPU"], "matches none of the 3 nodes, did you mean 'last'?"),
        (["-d", "HETERO:TEMPLATE,CPU", "--pin", "last=HETERO"], "which is not in the list"),
        (["-d", "HETERO:TEMPLATE,CPU", "--pin", "last"], "--pin last: expected PATTERN=DEVICE"),
        (["-d", "HETERO:TEMPLATE,CPU", "--pin", "last=CPU", "--pin", "last=TEMPLATE"], "--pin gives 'last' twice"),
        (["-d", "CPU", "-c", "PERF_COUNT"], "-c PERF_COUNT: expected KEY=VALUE"),
        (["-d", "CPU", "-c", "PERF_CONT=YES"], "did you mean 'PERF_COUNT'?"),
        (["-d", "CPU", "-c", "PERF_COUNT=MAYBE"], "expected a bool"),
        (["-d", "HETERO"], "give them in order of priority, as in 'HETERO:GPU,CPU'"),
        (["-d", "HETERO:"], "is incomplete"),
    ],
)
def test_wrong_option_is_an_error_that_says_what_to_do(
    arguments: list[str], message: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["query", model, *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("device", ["CPUU", "HETERO:TEMPLATE,CPUU"])
def test_unknown_device_ends_with_3_and_a_near_miss(device: str, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["query", model, "-d", device, "--json"]) == 3
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["type"] == "DeviceNotFoundError"
    assert "did you mean 'CPU'?" in error["message"]


@pytest.mark.parametrize("device", ["CPU", "HETERO:TEMPLATE,CPU"])
def test_refused_nodes_end_with_1_and_their_reasons(device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save(UNKNOWN, tmp_path)
    assert main(["query", path, "-d", device]) == 1
    text = capsys.readouterr().out
    assert f"network 'odd' on {device}: 1 of 2 nodes taken, 1 refused" in text
    assert "'twist' (com.acme:Twist-1): " in text
    assert main(["query", path, "-d", device, "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert list(answer["refused"]) == ["twist"]
    assert answer["plan"] is None


def test_long_lists_are_cut_and_verbose_shows_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = " ".join(f"[n{index}] v{index + 1} = Relu (v{index})" for index in range(50))
    path = save(f'<ir_version: 8, opset_import: ["": 17]> chain (float[2] v0) => (float[2] v50) {{ {body} }}', tmp_path)
    assert main(["query", path, "-d", "CPU"]) == 0
    text = capsys.readouterr().out
    assert "... and 10 more; -v lists all" in text
    assert "\nn40 " not in text
    assert main(["query", path, "-d", "CPU", "-v"]) == 0
    assert "\nn49 " in capsys.readouterr().out
