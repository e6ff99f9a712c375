"""`hetero visualize` and `hetero query --explain`: every format, refusals, times, and errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hetero_core.cli.main import main

# Only 'far' is on CPU; it separates 'first', 'second' from 'near', 'join'.
MODEL = """<ir_version: 8, opset_import: ["": 17]>
diamond (float[2, 3] x) => (float[2, 3] y) {
    [first] a = Relu (x) [second] b = Abs (a) [near] c = Neg (b) [far] d = Exp (b)
    [join] e = Add (c, d) [last] f = Relu (e) [tail] y = Abs (f) }"""
SPLIT = ["-d", "HETERO:TEMPLATE,CPU", "-c", "TEMPLATE_REFUSED_OPERATORS=Exp"]
REASON = "operator Exp is refused by TEMPLATE_REFUSED_OPERATORS"


def draw(model: str, target: Path, *arguments: str) -> str:
    assert main(["visualize", model, *(arguments or SPLIT), "-o", str(target)]) == 0
    return target.read_text(encoding="utf-8")


def test_page_is_one_file_with_the_nodes_and_reasons(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = draw(model, tmp_path / "plan.html")
    assert text.startswith("<!doctype html>")
    assert '"device":"TEMPLATE"' in text
    assert REASON in text
    out = capsys.readouterr().out
    assert (
        f"wrote '{tmp_path / 'plan.html'}': network 'diamond' on HETERO:TEMPLATE,CPU, 3 subgraphs, {len(text.encode())} bytes"
        in out
    )


def test_format_follows_the_file_extension(model: str, tmp_path: Path) -> None:
    assert draw(model, tmp_path / "plan.DOT").startswith('digraph "diamond" {')
    assert draw(model, tmp_path / "plan.mmd").startswith("flowchart TB\n")
    assert f"far (Exp-13), TEMPLATE: {REASON}" in draw(model, tmp_path / "plan.txt")


def test_json_equals_the_output_of_query(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drawn = json.loads(draw(model, tmp_path / "plan.json"))
    capsys.readouterr()
    assert main(["query", model, *SPLIT, "--json"]) == 0
    assert drawn == json.loads(capsys.readouterr().out)["plan"]
    assert drawn["conflicts"] == [{"node": "second", "subgraph": 2, "path": ["second", "far", "join"]}]


def test_answer_counts_subgraphs_and_bytes(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "plan.txt"
    assert main(["visualize", model, *SPLIT, "-o", str(target), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "network": "diamond",
        "device": "HETERO:TEMPLATE,CPU",
        "file": str(target),
        "bytes": target.stat().st_size,
        "subgraphs": 3,
        "refused": {},
    }


def test_refusals_of_one_device_are_drawn_and_end_with_1(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "plan.mmd"
    assert main(["visualize", model, "-d", "TEMPLATE", "-c", "TEMPLATE_REFUSED_OPERATORS=Exp", "-o", str(target)]) == 1
    assert "1 of 7 nodes are refused; 'hetero query' lists why" in capsys.readouterr().out
    assert "7 nodes, 1 refused" in target.read_text()


def test_times_of_a_run_are_drawn(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", model, *SPLIT, "-c", "PERF_COUNT=YES", "--random", "--json"]) == 0
    times = tmp_path / "times.json"
    times.write_text(capsys.readouterr().out)
    timed = [row["seconds"] for row in json.loads(times.read_text())["subgraphs"] if row["steps"]]
    milliseconds, seconds = [f"{each * 1000:.3f} ms" for each in timed], [f'"seconds":{each}' for each in timed]
    assert len(milliseconds) == 3
    for name in ("plan.html", "plan.mmd"):
        text = draw(model, tmp_path / name, *SPLIT, "--timings", str(times))
        assert [each for each in (milliseconds if name == "plan.mmd" else seconds) if each not in text] == []


def row(**changes: object) -> dict[str, object]:
    return {
        "subgraph": 0,
        "stage_device": "TEMPLATE",
        "seconds": 0.1,
        "steps": 2,
        "transfer_seconds": 0,
        "transfer_bytes": 0,
    } | changes


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("no json", "expected what 'hetero run --json -c PERF_COUNT=YES' prints"),
        ({"network": "diamond", "outputs": []}, "expected what 'hetero run --json -c PERF_COUNT=YES' prints"),
        ({"network": "other", "subgraphs": []}, "times of network 'other'; this is network 'diamond'"),
        (
            {"network": "diamond", "subgraphs": [row(stage_device="CPU")]},
            "subgraph 0 on CPU; this split has {0: 'TEMPLATE'",
        ),
        ({"network": "diamond", "subgraphs": [row(subgraph=9)]}, "subgraph 9 on TEMPLATE; this split has {0:"),
    ],
)
def test_times_of_something_else_are_an_error(
    fields: object, message: str, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times = tmp_path / "times.json"
    times.write_text(fields if isinstance(fields, str) else json.dumps(fields))
    assert main(["visualize", model, *SPLIT, "-o", str(tmp_path / "plan.mmd"), "--timings", str(times)]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "plan.mmd").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "plan.htm"], "-o plan.htm: the ending says the format; known are .dot, .html, .json, .mmd, .txt"),
        (["-o", "plan"], "-o plan: the ending says the format; known are .dot, .html"),
        ([], "the following arguments are required: -o/--output"),
        (["-o", "plan.txt", "--timings", "times.json"], "--timings has a meaning only for .html, .mmd"),
        (["-o", "plan.mmd", "--timings", "missing.json"], "--timings missing.json: No such file or directory"),
        (["-o", "missing/plan.mmd"], "cannot write 'missing/plan.mmd': there is no folder missing"),
    ],
)
def test_wrong_option_is_an_error_that_says_what_to_do(
    arguments: list[str],
    message: str,
    model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["visualize", model, *SPLIT, *arguments]) == 2
    assert message in capsys.readouterr().err


def test_split_that_a_node_has_no_device_for_is_an_error(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["-d", "HETERO:TEMPLATE", "-c", "TEMPLATE_REFUSED_OPERATORS=Exp", "-o", str(tmp_path / "plan.mmd")]
    assert main(["visualize", model, *arguments]) == 2
    assert "there is no split to draw: 1 nodes have no device; 'hetero query' lists why" in capsys.readouterr().err


def test_explained_node_has_every_device_with_its_answer(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["query", model, *SPLIT, "--explain", "far", "--explain", "second"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "node 'far' (Exp-13) of network 'diamond'" in lines
    assert f"    TEMPLATE  no   {REASON}" in lines
    assert "    CPU       yes  would take it; the node goes to TEMPLATE" in lines
    assert "    with subgraph 2, second -> far -> join would leave at second, pass subgraph 1 on CPU, and return at join" in lines
    assert "    d: float32[2,3], 24 bytes, subgraph 1 -> subgraph 2" in lines


def test_explained_node_that_a_pin_decides(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["query", model, "-d", "HETERO:TEMPLATE,CPU", "--pin", "op:Exp=CPU", "--explain", "far"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "  pin       CPU" in lines
    assert "    TEMPLATE  yes  would take it; the node is pinned to CPU" in lines


def test_times_of_a_split_inside_a_split_are_drawn(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nested = ["-d", "HETERO:(HETERO:TEMPLATE,CPU),CPU", "--pin", "far=CPU", "-c", "TEMPLATE_REFUSED_OPERATORS=Neg"]
    assert main(["run", model, *nested, "-c", "PERF_COUNT=YES", "--random", "--json"]) == 0
    times = tmp_path / "times.json"
    times.write_text(capsys.readouterr().out)
    rows = json.loads(times.read_text())["subgraphs"]
    assert [(row["path"], row["subgraph"], row["device"], row["stage_device"]) for row in rows if row["steps"]] == [
        ("0/0", 0, "TEMPLATE", "HETERO:TEMPLATE,CPU"),
        ("1", 1, "CPU", "CPU"),
        ("2/0", 2, "CPU", "HETERO:TEMPLATE,CPU"),
        ("2/1", 2, "TEMPLATE", "HETERO:TEMPLATE,CPU"),
    ]
    text = draw(model, tmp_path / "plan.mmd", *nested, "--timings", str(times))
    third = sum(row["seconds"] for row in rows if row["subgraph"] == 2 and row["steps"])
    assert f"{third * 1000:.3f} ms" in text
