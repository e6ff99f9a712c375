"""OPENVINO passes the checks of the conformance kit for the contract; its operators have tests of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hetero_tests.samples import require_check

from hetero_core.conformance.catalogue import choose_checks
from hetero_core.conformance.check import Check
from hetero_core.conformance.runner import SharedCore, Target, make_target

pytest.importorskip("openvino", reason="needs the engine: pip install 'hetero-openvino[test]'")

CHECKS = choose_checks(("contract", "concurrency", "export"), ())


@pytest.fixture(scope="module")
def opened_target() -> Iterator[tuple[Target, SharedCore]]:
    target = make_target("OPENVINO")
    with SharedCore(target) as shared:
        yield target, shared


@pytest.mark.parametrize("check", CHECKS, ids=[check.name for check in CHECKS])
def test_check(check: Check, opened_target: tuple[Target, SharedCore]) -> None:
    require_check(check, *opened_target)
