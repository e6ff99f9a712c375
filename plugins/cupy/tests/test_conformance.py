"""GPU on a simulated card against the contract of every device.

It runs a sample of onnx's cases; test_backend_cases.py runs all of them on such a card, and `nox -s kit` runs the whole kit.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hetero_cupy.device import GpuDevice
from hetero_tests.fake_runtime import FakeRuntime
from hetero_tests.samples import require_check, sample_cases

from hetero_core import hookimpl
from hetero_core.conformance.catalogue import choose_checks
from hetero_core.conformance.check import Check
from hetero_core.conformance.runner import SharedCore, Target, make_target

CHECKS = sample_cases(choose_checks(), 12)


class MakeBelieve:
    """The plugin with simulated cards in the place of CuPy's."""

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
