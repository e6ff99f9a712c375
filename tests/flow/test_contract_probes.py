"""A device with a memory of its own: values and states move only to readers in another memory, and only once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hetero_template.device import TemplateArray, TemplateDevice

from hetero_core import Core, Network, hookimpl

REFUSED = {"TEMPLATE_REFUSED_OPERATORS": "Abs,Sin"}
X = np.array([1, -2, 3, -4], np.float32)
# By hand: a = max(x,0), b = -a, c = a, d = 0.
ZERO = np.zeros(4, np.float32)


class FakeDevice(TemplateDevice):
    """Records each transfer."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.moved: list[str] = []

    @hookimpl
    def to_host(self, array: TemplateArray) -> Any:
        self.moved.append("to_host")
        return super().to_host(array)

    @hookimpl
    def from_host(self, array: Any, spec: Any) -> TemplateArray:
        self.moved.append(f"from_host {spec.name}")
        return super().from_host(array, spec)


def test_copies_of_a_device_with_a_whole_network_are_timed(core: Core, read: Callable[..., Network]) -> None:
    core.register_plugin("FAKE", FakeDevice("FAKE"))
    text = "g (float[4] x) => (float[4] y) { a = Relu(x) b = Neg(a) y = Add(b, a) }"
    request = core.load_network(read(text), "FAKE", {"PERF_COUNT": True}).create_infer_request()
    np.testing.assert_array_equal(request.infer({"x": X})["y"], ZERO)
    assert [(entry.node, entry.nbytes, entry.source, entry.targets) for entry in request.perf_counts if entry.targets] == [
        ("x", 16, "host", ("FAKE",)),
        ("y", 16, "FAKE", ("host",)),
    ]


def test_value_for_two_stages_in_one_memory_is_moved_once(core: Core, read: Callable[..., Network]) -> None:
    text = "g (float[4] x) => (float[4] y, float[4] z) { a = Abs(x) b = Relu(a) c = Abs(b) d = Neg(c) y = Add(d, a) z = Sin(a) }"
    device = FakeDevice("FAKE")
    core.register_plugin("FAKE", device)
    loaded = core.load_network(read(text), "HETERO:FAKE,CPU", REFUSED)
    result = loaded.infer({"x": X})
    np.testing.assert_array_equal(result["y"], ZERO)
    np.testing.assert_allclose(result["z"], np.sin(np.abs(X)), rtol=1e-6)
    assert device.moved.count("from_host a") == 1


def test_two_memories_exchange_through_the_host(core: Core, read: Callable[..., Network]) -> None:
    first, second = FakeDevice("A"), FakeDevice("B")
    core.register_plugin("A", first)
    core.register_plugin("B", second)
    network = read("g (float[4] x) => (float[4] y) { a = Relu(x) b = Neg(a) y = Relu(b) }").with_affinity(
        {"Neg_1": "B", "op:Relu": "A"}
    )
    loaded = core.load_network(network, "HETERO:A,B")
    np.testing.assert_array_equal(loaded.infer({"x": X})["y"], ZERO)
    assert first.moved == ["from_host x", "to_host", "from_host b", "to_host"]
    assert second.moved == ["from_host a", "to_host"]


def test_state_stays_in_the_memory_of_a_device_from_run_to_run(core: Core, read: Callable[..., Network]) -> None:
    device = FakeDevice("FAKE")
    core.register_plugin("FAKE", device)
    network = read("g (float[4] x, float[4] past) => (float[4] y, float[4] present) { present = Add(x, past) y = Neg(present) }")
    request = core.load_network(network.with_state({"present": "past"}), "FAKE").create_infer_request()
    for turn in (1, 2, 3):
        np.testing.assert_array_equal(request.infer({"x": X})["y"], -turn * X)
    assert device.moved == ["from_host past", "from_host x", "to_host", "from_host x", "to_host", "from_host x", "to_host"]
    np.testing.assert_array_equal(request.states["past"].value, 3 * X)


def test_state_stays_in_the_memory_of_the_stage_that_uses_it(core: Core, read: Callable[..., Network]) -> None:
    device = FakeDevice("FAKE")
    core.register_plugin("FAKE", device)
    network = read("g (float[4] x, float[4] past) => (float[4] y, float[4] present) { present = Add(x, past) y = Abs(present) }")
    request = core.load_network(network.with_state({"present": "past"}), "HETERO:FAKE,CPU", REFUSED).create_infer_request()
    for turn in (1, 2):
        np.testing.assert_array_equal(request.infer({"x": X})["y"], np.abs(turn * X))
    assert device.moved == ["from_host past", "from_host x", "to_host", "from_host x", "to_host"]
    np.testing.assert_array_equal(request.states["past"].value, 2 * X)


def test_state_of_another_device_crosses_the_host_once_per_run(core: Core, read: Callable[..., Network]) -> None:
    device = FakeDevice("FAKE")
    core.register_plugin("FAKE", device)
    network = read("g (float[4] x, float[4] past) => (float[4] y, float[4] present) { y = Add(x, past) present = Abs(y) }")
    request = core.load_network(network.with_state({"present": "past"}), "HETERO:FAKE,CPU", REFUSED).create_infer_request()
    past = np.zeros(4, np.float32)
    for _ in range(2):
        np.testing.assert_array_equal(request.infer({"x": X})["y"], X + past)
        past = np.abs(X + past)
    assert device.moved == ["from_host x", "from_host past", "to_host"] * 2
