"""Light models by name, in every command with a model argument."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from hetero_core.cli.main import main
from hetero_core.testing.models import light_model

NAME = "squeezenet"
COMMANDS = {
    "compare": ("-d", "TEMPLATE", "-d", "CPU", "--outputs", "--runs", "1"),
    "compile": ("-d", "TEMPLATE", "-o", "out.blob"),
    "inspect": ("-d", "TEMPLATE"),
    "query": ("-d", "TEMPLATE"),
    # A check that fails for every existing model.
    "reduce": ("-o", "small.onnx", "--check", f"{sys.executable} -c 'import os, sys; sys.exit(os.path.exists(sys.argv[1]))'"),
    "run": ("-d", "TEMPLATE", "--random"),
    "visualize": ("-d", "TEMPLATE", "-o", "plan.txt"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_takes_a_light_model_by_name(
    command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([command, NAME, *COMMANDS[command], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["network"] == light_model(NAME).graph.name


@pytest.mark.parametrize("command", COMMANDS)
def test_word_that_is_no_file_and_no_model_lists_the_models(
    command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([command, "squeezenets", *COMMANDS[command]]) == 2
    assert "there is no file 'squeezenets', and no model of this name, did you mean 'squeezenet'? these are alexnet," in (
        capsys.readouterr().err
    )
