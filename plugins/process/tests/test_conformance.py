"""PROCESS:CPU against a sample of the conformance kit: a fifth of the cases for the transport to the child, and few operators."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hetero_tests.samples import require_check

from hetero_core.conformance.catalogue import choose_checks
from hetero_core.conformance.check import Check
from hetero_core.conformance.runner import SharedCore, Target, make_target

_EVERY = {("contract", "concurrency", "export"): 5, ("operators",): 200}
"""Levels -> one of so many checks is tried, as most of them start a child of their own; `nox -s process` tries all."""
CHECKS = [check for levels, every in _EVERY.items() for check in choose_checks(levels, ())[::every]]


@pytest.fixture(scope="module")
def opened_target() -> Iterator[tuple[Target, SharedCore]]:
    target = make_target("PROCESS:CPU")
    with SharedCore(target) as shared:
        yield target, shared


@pytest.mark.parametrize("check", CHECKS, ids=[check.name for check in CHECKS])
def test_check(check: Check, opened_target: tuple[Target, SharedCore]) -> None:
    require_check(check, *opened_target)
