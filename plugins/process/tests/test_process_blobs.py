"""Blobs of a device in another process: equal to the device's own blobs, and imported with the trust of the caller."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hetero_core import Core, Network
from hetero_core.errors import DeviceCrashedError, UntrustedBlobError

GOOD = {"x": np.array([1.0, -2.0], np.float32)}


def require_right(network: Any) -> None:
    np.testing.assert_array_equal(network.infer(GOOD)["y"], [-1.0, 2.0])


def test_blob_is_that_of_the_device(core: Core, read: Callable[[str], Network], tmp_path: Path) -> None:
    network = core.load_network(
        read("g (float[n] x) => (float[n] y) { h = Neg (x) y = Exp (h) }"), "PROCESS:CPU", {"CPU_KERNELS": "NUMPY"}
    )
    network.export_network(tmp_path / "network.blob")
    again = core.import_network(tmp_path / "network.blob", "PROCESS:CPU", trust=True)
    np.testing.assert_array_equal(again.infer(GOOD)["y"], network.infer(GOOD)["y"])


@pytest.mark.parametrize("is_trusted", [False, True])
def test_optional_code_of_a_blob_is_used_only_if_trusted(
    core: Core, negation: Network, load: Callable[..., Any], tmp_path: Path, is_trusted: bool
) -> None:
    load(BREAKING_HOW="RAISE").export_network(tmp_path / "network.blob")
    again = core.import_network(tmp_path / "network.blob", "PROCESS:BREAKING", trust=is_trusted)
    assert again.get_metric("IS_COMPILED_AGAIN") is not is_trusted
    require_right(again)
    os.kill(again.get_metric("PID"), signal.SIGKILL)
    with pytest.raises(DeviceCrashedError, match="SIGKILL"):
        again.infer(GOOD)
    require_right(again)
    assert again.get_metric("IS_COMPILED_AGAIN") is not is_trusted


def test_code_that_a_blob_needs_is_refused_without_trust(core: Core, load: Callable[..., Any], tmp_path: Path) -> None:
    load(BREAKING_HOW="EXIT").export_network(tmp_path / "network.blob")
    with pytest.raises(UntrustedBlobError, match="compiled"):
        core.import_network(tmp_path / "network.blob", "PROCESS:BREAKING")
    require_right(core.import_network(tmp_path / "network.blob", "PROCESS:BREAKING", trust=True))
