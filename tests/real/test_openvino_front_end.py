"""rapidocr-openvino, unmodified, behind the front end's runner: it reads what it reads with OpenVINO."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("rapidocr_openvino") is None:
    pytest.skip("rapidocr-openvino is not installed; nox -s real installs it", allow_module_level=True)

HERE = Path(__file__).parent
COUNT = 50


def read_pages(*runner: str) -> dict[str, Any]:
    words = [sys.executable, *runner, "read_pages.py", str(COUNT)]
    ended = subprocess.run(words, cwd=HERE, capture_output=True, text=True, timeout=1800)
    assert ended.returncode == 0, ended.stderr[-2000:]
    document: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return document


@pytest.fixture(scope="module")
def original() -> dict[str, Any]:
    return read_pages()


@pytest.mark.parametrize("device", ["CPU", "HETERO:OPENVINO,CPU", "AUTO"])
def test_rapidocr_reads_pages_as_with_openvino(device: str, original: dict[str, Any]) -> None:
    assert original["class"].startswith("openvino.")
    answer = read_pages("-m", "hetero_core.frontends.openvino", "-d", device)
    assert answer["class"].startswith("hetero_core.")
    assert sum(len(page) for page in original["pages"]) > 2 * COUNT
    for number, (page, expected) in enumerate(zip(answer["pages"], original["pages"], strict=True)):
        assert [text for text, _, _ in page] == [text for text, _, _ in expected], f"page {number}"
        for (text, score, box), (_, expected_score, expected_box) in zip(page, expected, strict=True):
            assert score == pytest.approx(expected_score, abs=1e-3), f"page {number}, {text}"
            assert box == expected_box, f"page {number}, {text}"
    sys.stderr.write(f"{device}: the first page after {answer['first']:.2f} s, with OpenVINO {original['first']:.2f} s\n")
