"""TORCH keeps the contract of every device: on the processor, and with separate memory, as accelerators have."""

from __future__ import annotations

import hetero_torch
import pytest
from hetero_torch.device import TorchDevice
from hetero_torch.installation import open_torch

from hetero_core import hookimpl
from hetero_core.conformance.catalogue import choose_checks
from hetero_core.conformance.runner import make_target, run_checks
from hetero_core.conformance.suite import DeviceConformance


class OwnMemory:
    """The plugin, on a processor that has separate memory."""

    requires_api = hetero_torch.requires_api

    @hookimpl
    def create_device(self, name: str) -> object:
        return TorchDevice(name, open_torch(), shares_memory=False)


class TestTorch(DeviceConformance):
    device = "TORCH"


@pytest.mark.parametrize("level", ["contract", "hetero"])
def test_device_with_its_own_memory_keeps_the_contract(level: str) -> None:
    target = make_target("TENSOR", plugin=OwnMemory())
    failed = {
        outcome.check.name: outcome.reason
        for outcome in run_checks(choose_checks(levels=[level]), target)
        if outcome.status == "failed"
    }
    assert failed == {}
