"""Pins to roles: resolved by the kinds of the listed devices, or by the lists in HETERO_ROLES."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hetero_core import Core, Network
from hetero_core.errors import AffinityError, ConfigValueError

TEXT = "g (float[2] x) => (float[2] y) { [first] a = Abs (x) [second] y = Neg (a) }"
X = np.array([1, -2], np.float32)
PINS = {"first": "accelerator", "second": "Host"}
AddDevice = Callable[..., Any]
Read = Callable[..., Network]


@pytest.fixture
def machine(core: Core, add_device: AddDevice) -> Core:
    """A Core with CARD and SPARE, two accelerators, and PLAIN, of no kind."""
    add_device("CARD").kind = add_device("SPARE").kind = "accelerator"
    add_device("PLAIN")
    return core


@pytest.mark.parametrize(
    ("devices", "config", "expected"),
    [
        ("CPU,CARD", {}, {"first": "CARD", "second": "CPU"}),
        ("SPARE,CARD,CPU", {}, {"first": "SPARE", "second": "CPU"}),
        ("TEMPLATE.1,CARD", {}, {"first": "CARD", "second": "TEMPLATE.1"}),
        ("CPU,TEMPLATE,CARD", {}, {"first": "CARD", "second": "CPU"}),
        ("SPARE,CARD,CPU", {"accelerator": "GPU, card"}, {"first": "CARD", "second": "CPU"}),
        ("CPU,PLAIN", {"ACCELERATOR": "PLAIN"}, {"first": "PLAIN", "second": "CPU"}),
        ("CPU,CARD", {"accelerator": "CPU", "host": "CARD"}, {"first": "CPU", "second": "CARD"}),
    ],
)
def test_role_goes_to_the_first_device_that_has_it(
    machine: Core, read: Read, devices: str, config: dict[str, Any], expected: dict[str, str]
) -> None:
    network = read(TEXT).with_affinity(PINS)
    result = machine.query_network(network, f"HETERO:{devices}", {"HETERO_ROLES": config} if config else None)
    assert dict(result.supported) == expected


def test_engine_is_an_accelerator_by_its_id(machine: Core, read: Read, add_device: AddDevice) -> None:
    engine = add_device("ENGINE")
    engine.kind = "engine"
    network = read(TEXT).with_affinity({"first": "host"})
    assert machine.query_network(network, "HETERO:CARD,ENGINE").supported["first"] == "ENGINE"
    with pytest.raises(AffinityError, match="role ACCELERATOR, which no device of the list ENGINE, CPU has"):
        machine.query_network(network.with_affinity({"first": "accelerator"}), "HETERO:ENGINE,CPU")


def test_role_of_the_users_own_needs_a_list(machine: Core, read: Read) -> None:
    network = read(TEXT).with_affinity({"first": "npu"})
    with pytest.raises(AffinityError, match="node 'first' .* is pinned to npu, which is not in the list"):
        machine.query_network(network, "HETERO:CPU,CARD")
    result = machine.query_network(network, "HETERO:CPU,CARD", {"HETERO_ROLES": {"npu": "NPU,CARD"}})
    assert result.supported["first"] == "CARD"


@pytest.mark.parametrize(
    ("roles", "error", "message"),
    [
        (None, AffinityError, "pins to the role ACCELERATOR, which no device of the list CPU, TEMPLATE has. Add a device"),
        ({"accelerator": "GPU"}, AffinityError, "no device of the list CPU, TEMPLATE has (HETERO_ROLES names GPU)"),
        (
            {"accelerator": 3},
            ConfigValueError,
            "HETERO_ROLES: the role accelerator expects names of devices, as in 'GPU,CPU', got 3",
        ),
    ],
)
def test_role_without_a_device_is_an_error(machine: Core, read: Read, roles: Any, error: type[Exception], message: str) -> None:
    network = read(TEXT).with_affinity({"first": "accelerator"})
    with pytest.raises(error, match=re.escape(message)):
        machine.load_network(network, "HETERO:CPU,TEMPLATE", {"HETERO_ROLES": roles} if roles else None)


def test_device_of_the_name_of_a_role_wins(machine: Core, read: Read, add_device: AddDevice) -> None:
    add_device("HOST")
    network = read(TEXT).with_affinity(PINS)
    assert dict(machine.query_network(network, "HETERO:CPU,CARD,HOST").supported) == {"first": "CARD", "second": "HOST"}


def test_loaded_and_exported_network_with_roles_runs(core: Core, read: Read) -> None:
    network = read(TEXT).with_affinity(PINS)
    loaded = core.load_network(network, "HETERO:TEMPLATE,CPU", {"HETERO_ROLES": {"accelerator": "TEMPLATE", "host": "CPU"}})
    assert loaded.get_metric("HETERO_SUBGRAPHS") == (("TEMPLATE", ("first",)), ("CPU", ("second",)))
    blob = io.BytesIO()
    loaded.export_network(blob)
    for executable in (loaded, core.import_network(blob.getvalue())):
        assert executable.infer({"x": X})["y"].tolist() == [-1, -2]
