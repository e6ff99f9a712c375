"""ORT passes the checks of the conformance kit for the contract; its operators have tests of their own."""

from __future__ import annotations

from hetero_tests.samples import make_kit_tests

from hetero_core.conformance.catalogue import choose_checks

CHECKS = choose_checks(("contract", "concurrency", "export"), ())

opened_target, test_check = make_kit_tests("ORT", CHECKS)
