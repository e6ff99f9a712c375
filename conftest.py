"""For the tests of all packages: a small heap, and onnx's node cases, which are computed once in a run of all sessions."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# pytest started in another folder, with `--pyargs hetero_core.conformance`, reads this file but not pyproject.toml's `pythonpath`.
sys.path.insert(0, str(Path(__file__).parent / "tests/shared"))

from hetero_tests.node_cases import share_node_cases  # found by the line above
from hetero_tests.processor import describe_processor  # as above

from hetero_core.devices.processors import grants_flag  # as above
from hetero_core.testing import backend_cases  # as above

backend_cases._load_kind = share_node_cases(backend_cases._load_kind)


def pytest_report_header() -> str:
    """Says which kind of processor the tests ran on."""
    return describe_processor(grants_flag)


@pytest.fixture
def small_heap() -> Iterator[None]:
    """Leaves what earlier tests hold out of the collections that a test asks for: each takes a millisecond in place of a quarter second."""
    gc.freeze()
    yield
    gc.unfreeze()
