"""Utilisation: what NVIDIA's library says, and None where it is not there or has no driver."""

from __future__ import annotations

import importlib.util
import inspect
import os

import pytest
from hetero_cupy.utilisation import read_utilisation


def test_nobody_says_it_without_a_driver() -> None:
    if os.path.exists("/proc/driver/nvidia/version"):
        pytest.skip("there is a driver")
    assert read_utilisation("0000:00:00.0") is None


@pytest.mark.skipif(importlib.util.find_spec("pynvml") is None, reason="nvidia-ml-py is not installed")
def test_library_has_what_is_called() -> None:
    import pynvml

    assert len(inspect.signature(pynvml.nvmlDeviceGetUtilizationRates).parameters) == 1
    assert len(inspect.signature(pynvml.nvmlDeviceGetHandleByPciBusId).parameters) == 1
    assert hasattr(pynvml.c_nvmlUtilization_t, "gpu")
