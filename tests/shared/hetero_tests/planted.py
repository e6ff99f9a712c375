"""Devices with a planted fault, and the checks of the conformance kit that find it."""

from __future__ import annotations

from collections.abc import Callable

from hetero_core import Network
from hetero_core.conformance.catalogue import choose_checks
from hetero_core.conformance.runner import make_target, run_checks
from hetero_core.contract import Executable
from hetero_core.testing.plain_device import PlainDevice


def list_failed(plugin: object, *patterns: str) -> dict[str, str]:
    """Runs the checks whose names match; returns the reasons of those that failed."""
    outcomes = run_checks(choose_checks((), patterns), make_target("PLANTED", plugin=plugin), limit=120)
    return {outcome.check.name: outcome.reason for outcome in outcomes if outcome.status == "failed"}


def device_with(executable: Callable[[Network], Executable]) -> PlainDevice:
    """Returns a device whose networks are made by this function."""

    class Planted(PlainDevice):
        def make_executable(self, network: Network) -> Executable:
            return executable(network)

    return Planted()
