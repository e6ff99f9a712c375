"""Capabilities that a device names and does not have, planted in a device that is otherwise without fault; a check names each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from hetero_core import hookimpl
from hetero_core.conformance.catalogue import choose_checks
from hetero_core.conformance.runner import make_target, run_checks
from hetero_core.contract import Payload
from hetero_core.errors import NotImplementedByDeviceError
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


@pytest.mark.parametrize("capability", ["INT8", "BF16"])
def test_precision_that_is_named_and_refused_is_caught(capability: str) -> None:
    failed = list_failed(Naming("FP32", capability))
    assert list(failed) == ["capabilities.named_precision_is_taken"]
    assert f"names {capability}, and the device takes none of" in failed["capabilities.named_precision_is_taken"]


def test_export_that_is_named_and_does_not_work_is_caught() -> None:
    class Boasting(PlainDevice):
        @hookimpl
        def export_network(self, executable: Any) -> Payload:
            raise NotImplementedByDeviceError("this device keeps its code to itself")

    failed = list_failed(Boasting())
    assert list(failed) == ["capabilities.export_is_named_where_it_works"]
    assert "cannot export: this device keeps its code to itself" in failed["capabilities.export_is_named_where_it_works"]
