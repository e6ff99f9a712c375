"""Fixtures for the tests of all packages: a small heap, and onnx's node cases, which are computed once for all sessions."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# With `--pyargs hetero_core.conformance` from another folder, pytest reads this file but not pyproject.toml's `pythonpath`.
sys.path.insert(0, str(Path(__file__).parent / "tests/shared"))

from hetero_tests.node_cases import share_node_cases  # found by the line above
from hetero_tests.processor import describe_processor  # as above

from hetero_core.devices.processors import grants_flag  # as above
from hetero_core.testing import backend_cases  # as above

backend_cases._load_kind = share_node_cases(backend_cases._load_kind)


def pytest_report_header() -> str:
    """Returns a header line with the processor."""
    return describe_processor(grants_flag)


@pytest.fixture
def small_heap() -> Iterator[None]:
    """Excludes objects of earlier tests from a test's garbage collections: a collection takes a millisecond instead of 250 ms."""
    gc.freeze()
    yield
    gc.unfreeze()
