"""`hetero tune`: devices measured in child processes, the tables, the stored result, and the file of pins."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from hetero_core.cli.main import main

MODEL = """<ir_version: 8, opset_import: ["": 17]>
pair (float[n, 32] x) => (float[n, 32] y) { [first] a = Exp (x) [middle] b = Tanh (a) [last] y = Abs (b) }"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(MODEL), path)
    return str(path)


def test_tables_are_printed_and_the_result_is_stored(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["tune", model, "-d", "HETERO:TEMPLATE,CPU", "--shape", "n=4", "--budget", "60"]
    assert main([*command, "--write", str(tmp_path / "pins.toml")]) == 0
    text = capsys.readouterr().out
    assert text.startswith("placement measured in ")
    assert ["SEGMENT", "NODES", "FROM", "...", "TO", "TEMPLATE", "CPU", "CHOSEN"] in [line.split() for line in text.splitlines()]
    rows = [line.split() for line in text.splitlines()]
    assert {"TEMPLATE", "CPU"} <= {row[0] for row in rows if row}
    assert "TRANSFER" in text  # TEMPLATE has a memory of its own
    assert main([*command, "--json"]) == 0
    placement = json.loads(capsys.readouterr().out)["placement"]
    assert placement["is_kept"]
    assert sum(candidate["seconds"] is not None for candidate in placement["candidates"]) >= 2
    # `query --cost` shows the stored times of every node.
    assert main(["query", model, "-d", "HETERO:TEMPLATE,CPU", "--shape", "n=4", "--cost", "--json"]) == 0
    for row in json.loads(capsys.readouterr().out)["nodes"]:
        assert (row["device"] in row["able"], row["able"]) == (True, ["TEMPLATE", "CPU"])
        assert row["node"] in placement["segments"][row["segment"]]["nodes"]
        assert row["seconds"].keys() == {"TEMPLATE", "CPU"}
    # --affinity reads the file and gives the same split.
    assert main(["query", model, "-d", "HETERO:TEMPLATE,CPU", "--affinity", str(tmp_path / "pins.toml"), "--json"]) == 0
    pinned = json.loads(capsys.readouterr().out)["plan"]["device_of_node"]
    chosen = placement["candidates"][placement["chosen"]]["devices"]
    assert [pinned[segment["nodes"][0]] for segment in placement["segments"]] == chosen


def test_network_that_reads_texts_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = tmp_path / "texts.onnx"
    text = """<ir_version: 8, opset_import: ["": 17]> texts (string[n] x) => (float[n] y) {
        small = StringNormalizer <case_change_action = "LOWER"> (x) n = Cast <to = 1> (small) y = Abs (n) }"""
    onnx.save(onnx.parser.parse_model(text), path)
    np.savez(tmp_path / "texts.npz", x=np.array(["1", "-2E1"]))
    command = ["tune", str(path), "-d", "HETERO:TEMPLATE,CPU", "-i", str(tmp_path / "texts.npz"), "--budget", "20", "--json"]
    assert main(command) == 0
    placement = json.loads(capsys.readouterr().out)["placement"]
    assert sum(candidate["seconds"] is not None for candidate in placement["candidates"]) >= 2


def test_fit_prints_what_each_device_may_hold(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", model, "-d", "CPU,TEMPLATE"]) == 2
    assert "open sizes without a bound: n. Say the largest of each" in capsys.readouterr().err
    assert main(["fit", model, "-d", "CPU,TEMPLATE", "-c", "hetero_memory={}"]) == 2
    assert "fit finds the limits itself" in capsys.readouterr().err
    assert main(["fit", model, "-d", "CPU,TEMPLATE", "--shape", "n=4"]) == 0
    text = capsys.readouterr().out
    assert "TEMPLATE has no part: the devices before it hold all nodes" in text
    command = next(line.split() for line in text.splitlines() if line.startswith("  hetero run"))
    assert command == ["hetero", "run", model, "--random", "-d", "CPU", "--shape", "n=4"]
    assert main(command[1:]) == 0
    capsys.readouterr()
    refusing = json.dumps({"TEMPLATE": {"TEMPLATE_REFUSED_OPERATORS": "Exp,Tanh,Abs"}})
    words = ["fit", model, "-d", "TEMPLATE,CPU", "--shape", "n=4", "-c", f"DEVICE_PROPERTIES={refusing}"]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert "TEMPLATE has no part: it refuses the nodes that are left to it, as 'first': operator Exp is refused" in text
    command = next(line for line in text.splitlines() if line.startswith("  hetero run"))
    assert main(shlex.split(command)[1:]) == 0
    capsys.readouterr()
    # Both devices compute in the machine's memory. An input and an output of 4 * 32 floats, and two inner values.
    assert main(["fit", model, "-d", "CPU,TEMPLATE", "--shape", "n=4", "--json"]) == 0
    fields = json.loads(capsys.readouterr().out)
    assert (fields["device"], fields["config"], set(fields["plan_devices"].values())) == ("CPU", {}, {"CPU"})
    (held,) = fields["memory"]
    assert (held["weights"], held["border"], held["arena"], held["total"]) == (0, 1024, 1024, 2048)
    assert held["limit"] == pytest.approx(0.9 * fields["free"]["CPU"], rel=0.2)


def test_device_that_splits_nothing_is_refused(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["query", model, "-d", "CPU", "--cost"]) == 2
    assert "--cost compares the devices of a list" in capsys.readouterr().err
    assert main(["tune", model, "-d", "CPU"]) == 2
    assert "CPU splits none. Use a device as HETERO:ORT,CPU" in capsys.readouterr().err
