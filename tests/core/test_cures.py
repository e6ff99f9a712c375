"""Refused loads: the error suggests device strings, and the network loads on each suggested device string."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from hetero_core import Core, Network
from hetero_core.devices.cures import find_cure
from hetero_core.devices.query import GENERAL_CURE
from hetero_core.errors import UnsupportedNodesError
from hetero_core.network.graph import Node
from hetero_core.testing.plain_device import PlainDevice

TEXT = "g (float[2] x) => (float[2] y) { [first] a = Neg(x) [second] b = Abs(a) [third] y = Relu(b) }"
X = np.array([1, -2], np.float32)
Y = [1, 2]
Read = Callable[..., Network]


class PickyDevice(PlainDevice):
    """Accepts only nodes of some operators, and counts its queries."""

    def __init__(self, operators: str, error: Exception | None = None) -> None:
        self.operators, self.error, self.queries = operators.split(), error, 0

    def find_refusal(self, node: Node, network: Network) -> str | None:
        self.queries += 1
        if self.error is not None:
            raise self.error
        return None if node.op_type in self.operators else f"only {self.operators}"


class FewDevices(Core):
    """A Core that hides most installed devices."""

    names: tuple[str, ...] = ()

    @property
    def device_names(self) -> tuple[str, ...]:
        """The sorted names of the devices that the test made visible."""
        return tuple(sorted(self.names))


@pytest.fixture
def few() -> Iterator[FewDevices]:
    with FewDevices() as core:
        core.register_plugin("PICKY", PickyDevice("Neg"))
        core.names = ("PICKY",)
        yield core


def find_error(core: Core, network: Network, device: str, config: dict[str, Any] | None = None) -> UnsupportedNodesError:
    with pytest.raises(UnsupportedNodesError) as caught:
        core.load_network(network, device, config)
    assert str(caught.value) == f"{caught.value.args[0]}\n{caught.value.cure}"
    return caught.value


def register(core: FewDevices, **operators: str) -> dict[str, PickyDevice]:
    devices = {name: PickyDevice(names_of_operators) for name, names_of_operators in operators.items()}
    for name, device in devices.items():
        core.register_plugin(name, device)
    core.names = (*core.names, *devices)
    return devices


def test_suggested_devices_load_the_network(core: Core, read: Read) -> None:
    network, config = read(TEXT), {"TEMPLATE_REFUSED_OPERATORS": "Abs"}
    error = find_error(core, network, "TEMPLATE", config)
    assert error.cure == "Load it with 'HETERO:TEMPLATE,CPU' or with 'CPU', which take it."
    for device in ("HETERO:TEMPLATE,CPU", "CPU"):
        answer = core.load_network(network, device, config if "TEMPLATE" in device else None).infer({"x": X})["y"]
        assert answer.tolist() == Y


def test_device_is_added_to_the_requested_list(few: FewDevices, read: Read) -> None:
    register(few, OTHER="Relu", WHOLE="Neg Abs Relu")
    few.names = (*few.names, "HETERO")
    error = find_error(few, read(TEXT), "HETERO:PICKY,OTHER")
    assert error.cure == "Load it with 'HETERO:PICKY,OTHER,WHOLE' or with 'WHOLE', which take it."
    assert few.load_network(read(TEXT), "HETERO:PICKY,OTHER,WHOLE").infer({"x": X})["y"].tolist() == Y


def test_several_devices_cure_together(few: FewDevices, read: Read) -> None:
    register(few, AAA="Sub", BBB="Abs", CCC="Relu Mul")
    few.names = (*few.names, "HETERO")
    assert find_error(few, read(TEXT), "PICKY").cure == "Load it with 'HETERO:PICKY,BBB,CCC', which takes it."
    assert few.load_network(read(TEXT), "HETERO:PICKY,BBB,CCC").infer({"x": X})["y"].tolist() == Y


def test_without_hetero_only_whole_devices_are_named(few: FewDevices, read: Read) -> None:
    register(few, HALF="Abs Relu")
    # HALF takes only a part of the network. Without HETERO that does not help.
    assert find_error(few, read(TEXT), "PICKY").cure == GENERAL_CURE
    register(few, WHOLE="Neg Abs Relu")
    assert find_error(few, read(TEXT), "PICKY").cure == "Load it with 'WHOLE', which takes it."


def test_nodes_that_no_device_takes_are_named(few: FewDevices, read: Read) -> None:
    register(few, OTHER="Abs")
    few.names = (*few.names, "HETERO")
    assert find_error(few, read(TEXT), "PICKY").cure == (
        "No device takes 'third' (Relu-14), 1 of 3 nodes; the plugin of another device may take it, and 'hetero query' shows every "
        "reason."
    )


def test_engines_are_named_without_a_query(few: FewDevices, read: Read) -> None:
    register(few, OTHER="Abs")
    few.names = (*few.names, "HETERO", "OPENVINO", "ORT")
    assert find_error(few, read(TEXT), "PICKY").cure == (
        "No device that was asked takes 'third' (Relu-14). 'hetero inspect' asks OPENVINO and ORT, too."
    )


def test_device_without_alternatives_keeps_the_general_advice(few: FewDevices, read: Read) -> None:
    assert find_error(few, read(TEXT), "PICKY").cure == GENERAL_CURE


def test_device_whose_query_fails_is_left_out(few: FewDevices, read: Read) -> None:
    few.register_plugin("BROKEN", PickyDevice("", ZeroDivisionError("broken")))
    register(few, WHOLE="Neg Abs Relu")
    few.names = ("BROKEN", *few.names)
    assert find_error(few, read(TEXT), "PICKY").cure == "Load it with 'WHOLE', which takes it."


def test_loads_within_a_load_ask_no_further_device(core: Core, read: Read, caplog: pytest.LogCaptureFixture) -> None:
    onlooker = PickyDevice("Neg Abs Relu")
    core.register_plugin("AONLOOKER", onlooker)
    network = read(TEXT)
    assert core.load_network(network, "AUTO:TEMPLATE,CPU", {"TEMPLATE_REFUSED_OPERATORS": "Abs"}).infer({"x": X})["y"].tolist() == Y
    assert (
        core.load_network(network, "HETERO:TEMPLATE,CPU", {"TEMPLATE_REFUSED_OPERATORS": "Abs"}).infer({"x": X})["y"].tolist() == Y
    )
    assert onlooker.queries == 0
    find_error(core, network, "TEMPLATE", {"TEMPLATE_REFUSED_OPERATORS": "Abs"})
    assert onlooker.queries == 3


def test_cure_of_a_device_in_another_process_is_found_here(core: Core, read: Read) -> None:
    error = find_error(core, read(TEXT), "PROCESS:TEMPLATE", {"TEMPLATE_REFUSED_OPERATORS": "Abs"})
    assert error.cure == "Load it with 'CPU', which takes it."
    assert "HETERO" not in error.args[0]


def test_no_device_is_asked_after_some_seconds(few: FewDevices, read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    devices = register(few, WHOLE="Neg Abs Relu")
    monkeypatch.setattr("hetero_core.devices.cures._SECONDS", -1.0)
    assert find_cure(few, read(TEXT), "PICKY", ["second"], splitter="HETERO") == ""
    assert devices["WHOLE"].queries == 0
