"""Capabilities that a device names and does not have, planted in a device that is otherwise without fault; a check names each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from hetero_core import hookimpl
from hetero_core.conformance.catalogue import choose_checks
from hetero_core.conformance.runner import make_target, run_checks
from hetero_core.contract import DeviceName, Payload, QueryResult, freeze_mapping
from hetero_core.errors import NotImplementedByDeviceError
from hetero_core.network.graph import Network
from hetero_core.testing.plain_device import PlainDevice


def list_failed(plugin: object) -> dict[str, str]:
    outcomes = run_checks(choose_checks((), ["capabilities.*"]), make_target("PLANTED", plugin=plugin), limit=120)
    return {outcome.check.name: outcome.reason for outcome in outcomes if outcome.status == "failed"}


class Naming(PlainDevice):
    """Names capabilities."""

    def __init__(self, *capabilities: str) -> None:
        self._capabilities = capabilities

    @hookimpl
    def metrics(self) -> Mapping[str, Any]:
        return {"OPTIMIZATION_CAPABILITIES": self._capabilities}


def test_device_that_names_what_it_does_is_right() -> None:
    assert list_failed(Naming("FP64", "FP16", "FP32", "WINOGRAD")) == {}


class Modest(Naming):
    """Says that it takes everything."""

    @hookimpl
    def query_network(self, device: DeviceName, network: Network) -> QueryResult:
        return QueryResult(supported=freeze_mapping((node.name, str(device)) for node in network.nodes), refused=freeze_mapping(()))


class Boasting(PlainDevice):
    """Exports nothing, and has the hook."""

    @hookimpl
    def export_network(self, executable: Any) -> Payload:
        raise NotImplementedByDeviceError("this device keeps its code to itself")


NAMED, TAKEN, EXPORT = (
    f"capabilities.{name}" for name in ("named_precision_is_taken", "taken_precision_is_named", "export_is_named_where_it_works")
)
FAULTS: Mapping[str, tuple[Callable[[], object], str, str]] = {
    "INT8 named and refused": (lambda: Naming("FP32", "INT8"), NAMED, "names INT8, and the device takes none of"),
    "BF16 named and refused": (lambda: Naming("FP32", "BF16"), NAMED, "names BF16, and the device takes none of"),
    "a precision taken and not named": (
        lambda: Modest("FP32", "INT8", "BF16", "FP16"),
        TAKEN,
        "takes all 9 networks of FP64, and OPTIMIZATION_CAPABILITIES does not name it",
    ),
    "an export that is named and does not work": (Boasting, EXPORT, "cannot export: this device keeps its code to itself"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_capability_is_caught(fault: str) -> None:
    plant, name, message = FAULTS[fault]
    failed = list_failed(plant())
    assert list(failed) == [name]
    assert message in failed[name]
