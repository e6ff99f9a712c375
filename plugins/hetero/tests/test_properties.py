"""The configuration of HETERO, as the devices of its list receive it."""

from __future__ import annotations

import pytest

from hetero_core import Core
from hetero_core.composing.properties import configure_children
from hetero_core.contract import DeviceName


@pytest.mark.parametrize("is_measured", [False, True])
def test_every_device_is_told_that_the_whole_is_measured(core: Core, is_measured: bool) -> None:
    device = DeviceName("HETERO", arguments="TEMPLATE,CPU")
    config = {"PERF_COUNT": is_measured, "INFERENCE_NUM_THREADS": 1}
    configs = configure_children(core, device, ["TEMPLATE", "CPU"], config)
    assert {child: keys.get("PERF_COUNT") for child, keys in configs.items()} == dict.fromkeys(
        ["TEMPLATE", "CPU"], True if is_measured else None
    )
