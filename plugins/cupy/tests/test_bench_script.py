"""The script for a machine with a card: it names what is missing, and its checks run on a fake card."""

from __future__ import annotations

import importlib.util
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "tests" / "bench" / "gpu.py"


def run_script(*flags: str) -> subprocess.CompletedProcess[str]:
    """Runs it as it is run there: with nothing on the path."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [sys.executable, *flags, str(SCRIPT)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=1500)


def test_without_a_card_it_says_so_and_ends_with_3() -> None:
    if importlib.util.find_spec("cupy") is not None:
        pytest.skip("CuPy is installed")
    ended = run_script()
    assert ended.returncode == 3, ended.stderr
    assert ended.stdout.startswith("gpu.py: nothing was measured: device GPU is not available: CuPy is not installed; pip install")


def test_its_checks_run_on_a_fake_card_and_an_error_is_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Runs it in this process, which has onnx's cases already."""
    report = tmp_path / "gpu.md"
    arguments = (
        *("--dry", "--cases", "^test_relu|^test_basic_conv", "--checks", "cancel.*", "--output", str(report)),
        *("--models", "residual", "nothing", "--batches", "1", "--dtypes", "float16", "--row-seconds", "0"),
    )
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *arguments])
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    printed = capsys.readouterr().out
    assert ended.value.code == 1, printed
    assert report.read_text() == printed
    for line in (
        "card of make-believe 0, compute capability 9.0, make-believe 0",
        "copies of six sizes come back; 64 MiB: ",
        "full card: left out: this one has no limit",
        "conformance kit: ",
        "backend suite: 4 right, 0 refused, 0 wrong",
        "residual on HETERO:CARD,CPU, halves: ",
        "| residual | 1 | float16 | ",
    ):
        assert any(row.startswith(line) for row in printed.splitlines()), line
    assert {line for line in printed.splitlines() if "WRONG" in line} == {"| nothing | WRONG: KeyError: 'nothing' |"}
