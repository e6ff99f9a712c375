"""A decoder with open lengths, split at random over OPENVINO, ORT and CPU in a child process, so that a crash of an engine is a failure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("openvino", reason="needs the engines: nox -s engines")
pytest.importorskip("onnxruntime", reason="needs the engines: nox -s engines")

SCRIPT = Path(__file__).with_name("decoder.py")


def test_decoder_divided_200_times_is_right_and_reproducible() -> None:
    ended = subprocess.run(
        [sys.executable, str(SCRIPT), "--divisions", "200"], capture_output=True, text=True, check=False, timeout=3600
    )
    sys.stdout.write(ended.stdout)
    assert ended.returncode == 0, f"exit code {ended.returncode}\n{ended.stdout[-3000:]}\n{ended.stderr[-2000:]}"
    assert ended.stdout.startswith("200 divisions")
