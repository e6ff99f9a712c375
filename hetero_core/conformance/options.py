"""The options of the conformance kit for pytest, announced as an entry point.

pytest imports this file in each run on a machine with hetero installed, so the file imports nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options."""
    group = parser.getgroup("hetero", "conformance of hetero devices")
    group.addoption("--hetero-device", metavar="DEVICE", help="the device that hetero_core.conformance checks, as CPU or GPU.1")
    group.addoption("--hetero-level", action="append", metavar="LEVEL", help="only checks of this level; may be repeated")
    group.addoption("--hetero-check", action="append", metavar="GLOB", help="only checks whose names match; may be repeated")
    group.addoption("--hetero-seed", type=int, metavar="N", help="what random inputs and cuts are drawn from (default 0)")
    group.addoption("--hetero-cases", type=int, metavar="N", help="how many graphs the level graphs draws (default 30)")
    group.addoption("--hetero-reference", metavar="DEVICE", help="the device beside it in the level hetero")
