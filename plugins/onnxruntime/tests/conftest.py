"""A Core for the tests of ORT."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hetero_core import Core


@pytest.fixture(scope="module")
def core() -> Iterator[Core]:
    """A Core that the tests of a file share, since it takes a while to open the engine."""
    with Core() as opened:
        yield opened
