"""GPU on a simulated card against the contract of every device.

It runs a sample of onnx's cases; test_backend_cases.py runs more of them on such a card, and `nox -s kit` runs all of both.
"""

from __future__ import annotations

from collections.abc import Iterator

import hetero_cupy
import pytest
from hetero_cupy.device import GpuDevice
from hetero_tests.fake_runtime import FakeRuntime
from hetero_tests.samples import IS_WHOLE, require_check, sample_cases

from hetero_core import hookimpl
from hetero_core.conformance.catalogue import choose_checks
from hetero_core.conformance.check import Check, Target
from hetero_core.conformance.runner import SharedCore, make_target

# Kinds of checks that say more of the toolkit's kernels than of the card; one in three runs.
_SAMPLED = ("contrib.", "graphs.", "models.")


def choose_sample() -> list[Check]:
    """Returns the checks of the default session, or all of them in the session of the whole kit."""
    checks = sample_cases(choose_checks(), 12)
    if IS_WHOLE:
        return list(checks)
    sampled = {check.name for kind in _SAMPLED for check in [check for check in checks if check.name.startswith(kind)][2::3]}
    return [check for check in checks if check.name in sampled or not check.name.startswith(_SAMPLED)]


CHECKS = choose_sample()


class MakeBelieve:
    """The plugin with simulated cards in the place of CuPy's."""

    requires_api = hetero_cupy.requires_api

    @hookimpl
    def create_device(self, name: str) -> object:
        return GpuDevice(name, FakeRuntime())


@pytest.fixture(scope="module")
def opened_target() -> Iterator[tuple[Target, SharedCore]]:
    target = make_target("CARD", plugin=MakeBelieve())
    with SharedCore(target) as shared:
        yield target, shared


@pytest.mark.parametrize("check", CHECKS, ids=[check.name for check in CHECKS])
def test_check(check: Check, opened_target: tuple[Target, SharedCore]) -> None:
    require_check(check, *opened_target)
