"""The page of planted faults has a row for each fault that the tests plant, with the check that finds it and words of its message."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "planted-faults.md"
FILES = (
    "test_planted_loads.py",
    "test_planted_bugs.py",
    "test_planted_runs.py",
    "test_planted_values.py",
    "test_planted_meaning.py",
    "test_planted_traces.py",
    "test_planted_capabilities.py",
    "test_planted_facts.py",
)


def read_planted() -> dict[str, tuple[str, str]]:
    """Returns fault -> check and words of its message, in the order of the tests."""
    planted: dict[str, tuple[str, str]] = {}
    for file in FILES:
        spec = importlib.util.spec_from_file_location(file.removesuffix(".py"), Path(__file__).parent / file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        assert planted.keys().isdisjoint(module.FAULTS), "a fault has one name"
        planted |= {fault: (check, message) for fault, (_, check, message) in module.FAULTS.items()}
        planted |= getattr(module, "OF_PROCESSES", {})
    return planted


def test_page_lists_every_planted_fault_with_check_and_message() -> None:
    rows = re.findall(r"^\| ([^|]+) \| `([\w.]+)` \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    assert {fault: (check, message) for fault, check, message in rows} == read_planted()
    assert len(rows) == len({fault for fault, _, _ in rows})
