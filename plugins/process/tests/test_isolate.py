"""ISOLATE=YES: any device in a process of its own, under its usual name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hetero_core import Core, Network
from hetero_core.errors import ConfigValueError, DeviceCrashedError, DeviceNotFoundError

GOOD = {"x": np.array([1.0, -2.0], np.float32)}
BAD = {"x": np.array([13.0, 1.0], np.float32)}


def require_right(network: Any) -> None:
    np.testing.assert_array_equal(network.infer(GOOD)["y"], [-1.0, 2.0])


def test_isolate_means_the_same_as_process_in_front_of_the_name(core: Core, negation: Network, tmp_path: Path) -> None:
    network = core.load_network(negation, "breaking", {"isolate": "YES", "BREAKING_HOW": "EXIT"})
    assert str(network.device) == "PROCESS:BREAKING"
    assert network.get_metric("PID") != os.getpid()
    with pytest.raises(DeviceCrashedError, match="status 3"):
        network.infer(BAD)
    require_right(network)
    assert set(core.query_network(negation, "BREAKING", {"ISOLATE": True}).supported.values()) == {"PROCESS:BREAKING"}
    network.export_network(tmp_path / "network.blob")
    require_right(core.import_network(tmp_path / "network.blob", "BREAKING", {"ISOLATE": "YES"}, trust=True))
    assert core.load_network(negation, "BREAKING").get_metric("PID") == os.getpid()


def test_isolate_of_a_device_holds_in_a_list_with_its_other_keys(own_core: Core, negation: Network) -> None:
    own_core.set_config({"ISOLATE": "YES", "BREAKING_HOW": "EXIT"}, "BREAKING")
    split = own_core.load_network(negation, "HETERO:BREAKING,CPU")
    with pytest.raises(DeviceCrashedError, match="status 3"):
        split.infer(BAD)
    require_right(split)


def test_isolate_for_all_devices_isolates_the_outermost_device(own_core: Core, negation: Network) -> None:
    own_core.set_config({"ISOLATE": "YES"})
    network = own_core.load_network(negation, "HETERO:BREAKING,CPU")
    assert str(network.device) == "PROCESS:HETERO:BREAKING,CPU"
    require_right(network)


def test_isolate_without_the_plugin_names_the_package_to_install(own_core: Core, negation: Network) -> None:
    own_core.unregister_plugin("PROCESS")
    with pytest.raises(DeviceNotFoundError, match=r"BREAKING cannot have ISOLATE=YES.*pip install hetero-process"):
        own_core.load_network(negation, "BREAKING", {"ISOLATE": "YES"})
    with pytest.raises(ConfigValueError, match="ISOLATE"):
        own_core.load_network(negation, "BREAKING", {"ISOLATE": "MAYBE"})
