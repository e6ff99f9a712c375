"""The script for the first machine with a card: it says what is missing, and its checks run on a card of make-believe."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "tests" / "bench" / "gpu.py"


def run_script(*arguments: str, flags: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Runs it as it is run there: with nothing on the path."""
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "OUT")}
    command = [sys.executable, *flags, str(SCRIPT), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=1500)


def test_without_a_card_it_says_so_and_ends_with_3() -> None:
    if importlib.util.find_spec("cupy") is not None:
        pytest.skip("CuPy is installed")
    ended = run_script()
    assert ended.returncode == 3, ended.stderr
    assert ended.stdout.startswith("gpu.py: nothing was measured: device GPU is not available: CuPy is not installed; pip install")


def test_without_packages_it_names_them_and_ends_with_3() -> None:
    # -S: nothing of what is installed is there.
    ended = run_script(flags=("-S",))
    assert ended.returncode == 3, ended.stderr
    names = "numpy onnx ml_dtypes pluggy importlib-metadata threadpoolctl"
    assert ended.stdout.startswith(
        f"gpu.py: nothing was measured: missing {names}; on a machine with a network: pip install {names};"
    )


def test_package_that_another_one_needs_is_named(tmp_path: Path) -> None:
    (tmp_path / "pluggy.py").write_text("import some_thing.inner")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ended = subprocess.run([sys.executable, str(SCRIPT)], env=environment, capture_output=True, text=True, check=False, timeout=900)
    assert (ended.returncode, ended.stdout.split(";")[0]) == (3, "gpu.py: nothing was measured: missing some-thing")


def test_folder_without_wheels_is_an_error(tmp_path: Path) -> None:
    ended = run_script("--wheels", str(tmp_path))
    assert (ended.returncode, ended.stderr) == (1, f"there is no wheel in {tmp_path}\n")


def test_its_checks_run_on_a_card_of_make_believe(tmp_path: Path) -> None:
    report = tmp_path / "gpu.md"
    ended = run_script(
        *("--dry", "--cases", "^test_relu|^test_basic_conv", "--checks", "cancel.*", "--output", str(report)),
        *("--models", "squeezenet", "--batches", "1", "--dtypes", "float16"),
    )
    assert ended.returncode == 0, ended.stderr + ended.stdout
    assert report.read_text() == ended.stdout
    for line in (
        "card of make-believe 0, compute capability 9.0, make-believe 0; python 3.",
        "run of three small operators: ",
        "| squeezenet | 1 | float16 | ",
        "squeezenet on HETERO:CARD,CPU, halves: ",
        "conformance kit: ",
        "backend suite: 4 right, 0 refused, 0 wrong",
        "copies of six sizes come back; 64 MiB: ",
        "squeezenet, 2 requests of 2 runs: ",
        "full card: left out: this one has no limit",
    ):
        assert any(found.startswith(line) for found in ended.stdout.splitlines()), line
    assert "WRONG" not in ended.stdout


def test_what_fails_is_a_row_and_ends_with_1() -> None:
    ended = run_script(
        "--dry", "--models", "nothing", "--batches", "1", "--dtypes", "float32", "--cases", "^none$", "--checks", "cancel.*"
    )
    assert ended.returncode == 1, ended.stderr
    assert "| nothing | WRONG: ValueError: no light model 'nothing'" in ended.stdout
