"""Applications, unmodified, behind the front end's runner: their results are those that they have with ONNX Runtime."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sessions import TIMES

HERE = Path(__file__).parent
DEVICES = ("CPU", "HETERO:ORT,CPU", "AUTO")
COUNTS = {"rapidocr": 50, "magika": 50, "silero": 50, "nudenet": 10, "onnx-asr": 2, "tokens": 4, "scores": 10}
PACKAGES = {
    "rapidocr": "rapidocr_onnxruntime",
    "magika": "magika",
    "silero": "silero_vad",
    "nudenet": "nudenet",
    "onnx-asr": "onnx_asr",
    "tokens": "optimum",
    "scores": "optimum",
}


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    subprocess.run([sys.executable, "models.py", str(folder)], cwd=HERE, check=True, capture_output=True)
    return folder


def run_application(name: str, folder: Path, *runner: str) -> dict[str, Any]:
    words = [sys.executable, *runner, "applications.py", name, str(COUNTS[name]), str(folder)]
    run = subprocess.run(words, cwd=HERE, capture_output=True, text=True, timeout=1800)
    assert run.returncode == 0, run.stderr[-2000:]
    document: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return document


@pytest.mark.parametrize("name", COUNTS)
def test_application_has_the_results_of_onnxruntime(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    if importlib.util.find_spec(PACKAGES[name]) is None:
        pytest.skip(f"{PACKAGES[name]} is not installed; nox -s real installs it")
    folder = request.getfixturevalue("models") if PACKAGES[name] == "optimum" else tmp_path
    original = run_application(name, folder)
    assert original["class"].startswith("onnxruntime.")
    assert len(original["results"]) >= COUNTS[name]
    for device in DEVICES:
        replaced = run_application(name, folder, "-m", "hetero_core.frontends.onnxruntime", "-d", device)
        assert replaced["class"].startswith("hetero_core.")
        for index, (answer, expected) in enumerate(zip(replaced["results"], original["results"], strict=True)):
            assert_same(answer, expected, f"{name}, sample {index} on {device}")
        times = f"first result after {replaced['first']:.2f} s, with ONNX Runtime {original['first']:.2f} s"
        TIMES.append(f"{name} on {device}: {len(original['results'])} samples, {times}")


def assert_same(answer: Any, expected: Any, where: str) -> None:
    """Texts, tokens and intervals are equal; scores and boxes agree to a thousandth."""
    if isinstance(expected, list):
        assert len(answer) == len(expected), f"{where}: {answer} instead of {expected}"
        for item, other in zip(answer, expected, strict=True):
            assert_same(item, other, where)
    elif isinstance(expected, dict):
        assert_same([*answer.items()], [*expected.items()], where)
    elif isinstance(expected, float):
        assert answer == pytest.approx(expected, rel=1e-3, abs=1e-4), where
    else:
        assert answer == expected, where
