"""Random graphs from the command line; `nox -s graphs` is the long run."""

from __future__ import annotations

import json

import pytest

from hetero_core.cli.main import main


def test_command_line_draws_the_given_number_of_graphs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conformance", "TEMPLATE", "--level", "graphs", "--cases", "3", "--seed", "5", "--json"]) == 0
    counts = json.loads(capsys.readouterr().out)["levels"]["graphs"]
    assert counts["failed"] == 0
    assert counts["passed"] + counts["skipped"] == 3


@pytest.mark.parametrize("number", ["0", "-1", "many"])
def test_number_of_graphs_is_a_number(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conformance", "TEMPLATE", "--level", "graphs", f"--cases={number}"]) == 2
    assert f"expected a whole number of 1 or more, got {number}" in capsys.readouterr().err
