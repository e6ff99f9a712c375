"""A short endurance run with a fixed seed; `nox -s endurance` is the long run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ENDURANCE = Path(__file__).parents[1] / "endurance"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc")


def run_script(name: str, *arguments: str) -> str:
    command = [sys.executable, str(ENDURANCE / name), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.endswith("\n0 findings\n")
    return ended.stdout


def test_failing_devices_cause_no_hang_and_no_wrong_result() -> None:
    # So few measurements show no growth; the session `endurance` looks for it.
    printed = run_script("soak.py", "--seed", "5", "--minutes", "0.02", "--rate", "0.02", "--warm-up", "500", "--samples", "2")
    for kind in ("async", "cancel", "import", "infer", "load", "loop", "queue", "register"):
        assert re.search(rf"^done, \d+:.* \d+ {kind}\b", printed, re.MULTILINE), f"nothing of {kind} succeeded:\n{printed}"
    assert re.search(r"^injected, [1-9]", printed, re.MULTILINE)
