"""Samples of the conformance kit and of drawn models for the default sessions; `nox -s kit` sets WHOLE_KIT to run all."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import settings

from hetero_core.conformance.check import Check, Target
from hetero_core.conformance.runner import FAILED, SKIPPED, SharedCore, make_target, run_check

IS_WHOLE = bool(os.environ.get("WHOLE_KIT"))
"""True in the session that runs all checks."""
DRAWS = settings(deadline=None, max_examples=100 if IS_WHOLE else 20)
"""The settings of tests that compare drawn models with an oracle."""
_CASES = ("operators.", "hetero.halves_of_", "choices.")


def sample_cases(checks: Sequence[Check], every: int) -> tuple[Check, ...]:
    """Returns the checks in their order, with only every `every`-th check of onnx's backend suite and of the configuration's choices.

    The cases are sorted by name, so that the cases of an operator are adjacent, and a sample contains some of each larger group.
    """
    if IS_WHOLE:
        return tuple(checks)
    chosen = {
        check.name
        for kind in _CASES
        for check in [candidate for candidate in checks if candidate.name.startswith(kind)][every // 2 :: every]
    }
    return tuple(check for check in checks if check.name in chosen or not check.name.startswith(_CASES))


def make_kit_tests(device: str, checks: Sequence[Check]) -> tuple[Any, Any]:
    """Returns the fixture that opens a device for a module, to be named `opened_target`, and the test of each check."""

    @pytest.fixture(scope="module")
    def opened_target() -> Iterator[tuple[Target, SharedCore]]:
        target = make_target(device)
        with SharedCore(target) as shared:
            yield target, shared

    @pytest.mark.parametrize("check", checks, ids=[check.name for check in checks])
    def test_check(check: Check, opened_target: tuple[Target, SharedCore]) -> None:
        require_check(check, *opened_target)

    return opened_target, test_check


def require_check(check: Check, target: Target, shared: SharedCore) -> None:
    """Runs a check like the suite for authors; fails or skips the test with its reason."""
    outcome = run_check(check, target, shared=shared)
    if outcome.status == SKIPPED:
        pytest.skip(outcome.reason)
    assert outcome.status != FAILED, f"{check.name}: {outcome.reason}"
