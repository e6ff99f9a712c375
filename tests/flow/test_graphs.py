"""Drawn graphs from outside: the command line, and the record with which a long run goes on; the long run is `nox -s graphs`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hetero_core.cli.main import main

RUN = Path(__file__).parents[1] / "graphs" / "run.py"


def try_seeds(record: Path, seeds: str, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(RUN), "TEMPLATE", "--reference", "", "--seeds", seeds, "--record", str(record), *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)


def test_second_run_goes_on_where_the_first_one_stopped(tmp_path: Path) -> None:
    record = tmp_path / "graphs.json"
    first = try_seeds(record, "0:2")
    assert (first.returncode, first.stderr) == (0, "")
    again = try_seeds(record, "0:3", "-c", "PERF_COUNT=NO")
    assert again.returncode == 0
    second = try_seeds(record, "1:4")
    assert second.returncode == 0
    written = json.loads(record.read_text())
    assert written["TEMPLATE"]["ranges"] == [[0, 4]]
    assert sum(written["TEMPLATE"]["counts"].values()) == 4
    assert written["TEMPLATE"]["failures"] == {}
    # Another configuration is another subject.
    assert written["TEMPLATE PERF_COUNT=NO"]["ranges"] == [[0, 3]]
    assert "TEMPLATE: seeds 0 to 3: " in second.stdout


def test_command_line_draws_as_many_graphs_as_it_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conformance", "TEMPLATE", "--level", "graphs", "--cases", "3", "--seed", "5", "--json"]) == 0
    counts = json.loads(capsys.readouterr().out)["levels"]["graphs"]
    assert counts["failed"] == 0
    assert counts["passed"] + counts["skipped"] == 3


@pytest.mark.parametrize("number", ["0", "-1", "many"])
def test_number_of_graphs_is_a_number(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conformance", "TEMPLATE", "--level", "graphs", f"--cases={number}"]) == 2
    assert f"expected a whole number of 1 or more, got {number}" in capsys.readouterr().err
