"""PROCESS:CPU against a sample of the conformance kit: a fifth of the cases for the transport to the child, and few operators."""

from __future__ import annotations

from hetero_tests.samples import make_kit_tests

from hetero_core.conformance.catalogue import choose_checks

_EVERY = {("contract", "concurrency", "export"): 5, ("operators",): 200}
"""Levels -> one of so many checks is tried, as most of them start a child of their own; `nox -s process` tries all."""
CHECKS = [check for levels, every in _EVERY.items() for check in choose_checks(levels, ())[::every]]

opened_target, test_check = make_kit_tests("PROCESS:CPU", CHECKS)
