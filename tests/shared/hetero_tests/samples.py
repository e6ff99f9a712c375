"""Samples of the conformance kit for the default sessions; `nox -s kit` sets WHOLE_KIT, with which nothing is left out."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

from hetero_core.conformance.check import Check
from hetero_core.conformance.runner import FAILED, SKIPPED, SharedCore, Target, run_check

IS_WHOLE = bool(os.environ.get("WHOLE_KIT"))
"""True in the session that tries everything."""
_CASES = ("operators.", "hetero.halves_of_")


def sample_cases(checks: Sequence[Check], every: int) -> tuple[Check, ...]:
    """Returns the checks in their order, but of those that are made of the cases of onnx's backend suite one in `every`.

    The cases are sorted by name, so that those of one operator stand together and a sample has some of each larger group.
    """
    if IS_WHOLE:
        return tuple(checks)
    chosen = {check.name for kind in _CASES for check in [one for one in checks if one.name.startswith(kind)][::every]}
    return tuple(check for check in checks if check.name in chosen or not check.name.startswith(_CASES))


def require_check(check: Check, target: Target, shared: SharedCore) -> None:
    """Runs one check, as the suite that authors use does; fails or skips the test with its reason."""
    outcome = run_check(check, target, shared=shared)
    if outcome.status == SKIPPED:
        pytest.skip(outcome.reason)
    assert outcome.status != FAILED, f"{check.name}: {outcome.reason}"
