"""The script for the first machine with a card: it says why where there is none, and its checks run on a card of make-believe."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "tests" / "bench" / "gpu.py"


def run_script(*arguments: str) -> subprocess.CompletedProcess[str]:
    # The paths of this process, so that it finds what these tests find.
    code = "\n".join(
        (
            "import runpy, sys",
            f"sys.path[:] = {sys.path!r}",
            f"sys.argv[:] = {['gpu.py', *arguments]!r}",
            f"runpy.run_path({str(SCRIPT)!r}, run_name='__main__')",
        )
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=240)


def test_without_a_card_it_says_so_and_ends_with_3() -> None:
    if importlib.util.find_spec("cupy") is not None:
        pytest.skip("CuPy is installed")
    ended = run_script()
    assert ended.returncode == 3, ended.stderr
    assert ended.stdout.startswith("gpu.py: nothing was measured: device GPU is not available: CuPy is not installed; pip install")


def test_its_checks_run_on_a_card_of_make_believe() -> None:
    ended = run_script("--make-believe", "--cases", "^test_relu|^test_basic_conv", "--models")
    assert ended.returncode == 0, ended.stderr
    assert "backend suite, plain: 4 right, 0 refused, 0 wrong" in ended.stdout
    assert "backend suite, both: 4 right, 0 refused, 0 wrong" in ended.stdout
    assert "one run of three small operators, recorded:" in ended.stdout
