"""Short endurance runs with fixed seeds; `nox -s endurance` has the long runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ENDURANCE = Path(__file__).parents[1] / "endurance"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, kills and /proc")


def run_script(name: str, *arguments: str) -> str:
    command = [sys.executable, str(ENDURANCE / name), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.endswith("\n0 findings\n")
    return ended.stdout


def test_killed_compilations_leave_only_valid_cache_entries() -> None:
    printed = run_script("kill.py", "--seed", "5", "--compiles", "12", "--networks", "3", "--processes", "2")
    killed = re.search(r"(\d+) killed,", printed)
    assert killed
    assert int(killed[1]) >= 3
    assert "second clean run: 9 hits, 0 misses, then {'.blob': 9}" in printed


def test_failing_devices_cause_no_hang_and_no_wrong_result() -> None:
    # So few measurements show no growth; the session `endurance` looks for it.
    printed = run_script("soak.py", "--seed", "5", "--minutes", "0.02", "--rate", "0.02", "--warm-up", "500", "--samples", "2")
    for kind in ("async", "cancel", "import", "infer", "load", "loop", "queue", "register"):
        assert re.search(rf"^done, \d+:.* \d+ {kind}\b", printed, re.MULTILINE), f"nothing of {kind} succeeded:\n{printed}"
    assert re.search(r"^injected, [1-9]", printed, re.MULTILINE)
