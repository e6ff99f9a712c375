"""A file holds one idea: none is longer than 400 lines."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
LIMIT = 400


def list_sources() -> list[Path]:
    """Returns the Python files of the repository; what tools leave in hidden and build folders is none of ours."""
    return [
        file
        for file in sorted(ROOT.rglob("*.py"))
        if not any(part.startswith(".") or part in ("build", "dist") for part in file.relative_to(ROOT).parts)
    ]


def test_no_python_file_is_longer_than_the_limit() -> None:
    lines_of_file = {str(file.relative_to(ROOT)): len(file.read_text().splitlines()) for file in list_sources()}
    assert {file: lines for file, lines in lines_of_file.items() if lines > LIMIT} == {}
