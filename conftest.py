"""Fixtures for the tests of all packages: a small heap, and a cache of the installed plugins."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest

# With `--pyargs hetero_core.conformance` from another folder, pytest reads this file but not pyproject.toml's `pythonpath`.
sys.path.insert(0, str(Path(__file__).parent / "tests/shared"))

from hetero_tests.installed_plugins import share_installed_plugins  # found by the line above
from hetero_tests.processor import describe_processor  # as above

from hetero_core.devices.processors import grants_flag  # as above

share_installed_plugins()


def pytest_report_header() -> str:
    """Returns a header line with the processor."""
    return describe_processor(grants_flag)


def pytest_collection_finish() -> None:
    """Excludes all modules and collected tests from garbage collections: a collection takes a millisecond instead of 250 ms."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def small_heap() -> None:
    """Excludes objects of earlier tests from the garbage collections of a test."""
    gc.collect()
    gc.freeze()
