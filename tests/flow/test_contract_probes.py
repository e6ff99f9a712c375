"""The contract on devices unlike the plugins here: separate memory, asynchronous engines, preset outputs."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hetero_core import Core, Network

_spec = importlib.util.spec_from_file_location("probes", Path(__file__).with_name("probes.py"))
assert _spec is not None
assert _spec.loader is not None
probes = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(probes)

CHAIN = "g (float[4] x) => (float[4] y) { a = Relu(x) b = Neg(a) c = Abs(b) d = Add(c, b) y = Relu(d) }"
X = np.array([1, -2, 3, -4], np.float32)
# By hand: a = max(x,0), b = -a, c = a, d = 0.
ZERO = np.zeros(4, np.float32)


def test_values_stay_in_device_memory_between_nodes(core: Core, read: Callable[..., Network]) -> None:
    device = probes.FakeDevice("F")
    core.register_plugin("FAKE", device)
    loaded = core.load_network(read("g (float[4] x) => (float[4] y) { a = Relu(x) b = Neg(a) y = Add(b, a) }"), "FAKE")
    assert [spec.memory for spec in (*loaded.inputs, *loaded.outputs)] == ["fake:F", "fake:F"]
    np.testing.assert_array_equal(loaded.infer({"x": X})["y"], ZERO)
    assert device.moved == ["from_host x", "to_host"]


def test_each_crossing_is_one_counted_transfer(core: Core, read: Callable[..., Network]) -> None:
    device = probes.FakeDevice("F")
    core.register_plugin("FAKE", device)
    loaded = core.load_network(read(CHAIN), "HETERO:FAKE,CPU", {"PERF_COUNT": True})
    assert [subgraph[0] for subgraph in loaded.get_metric("HETERO_SUBGRAPHS")] == ["FAKE", "CPU", "FAKE"]
    request = loaded.create_infer_request()
    np.testing.assert_array_equal(request.infer({"x": X})["y"], ZERO)
    # Transfers: x in, b out to CPU, c in, y out. b also stays on the device for its second reader.
    assert device.moved == ["from_host x", "to_host", "from_host c", "to_host"]
    transfers = [entry for entry in request.perf_counts if entry.operator == "transfer"]
    # Four floats each; the host's array gives the size in both directions.
    assert [(entry.node, entry.nbytes, entry.source, entry.targets, entry.path) for entry in transfers] == [
        ("x", 16, "host", ("FAKE",), ()),
        ("b", 16, "FAKE", ("CPU",), (0,)),
        ("c", 16, "CPU", ("FAKE",), (1,)),
        ("y", 16, "FAKE", ("host",), (2,)),
    ]
    assert request.profile is not None
    assert request.profile.copied_bytes == 64


def test_copies_of_a_device_with_a_whole_network_are_timed(core: Core, read: Callable[..., Network]) -> None:
    core.register_plugin("FAKE", probes.FakeDevice("F"))
    text = "g (float[4] x) => (float[4] y) { a = Relu(x) b = Neg(a) y = Add(b, a) }"
    request = core.load_network(read(text), "FAKE", {"PERF_COUNT": True}).create_infer_request()
    np.testing.assert_array_equal(request.infer({"x": X})["y"], ZERO)
    assert [(entry.node, entry.nbytes, entry.source, entry.targets) for entry in request.perf_counts] == [
        ("x", 16, "host", ("FAKE",)),
        ("y", 16, "FAKE", ("host",)),
    ]


def test_value_for_two_stages_in_one_memory_is_moved_once(core: Core, read: Callable[..., Network]) -> None:
    text = "g (float[4] x) => (float[4] y, float[4] z) { a = Abs(x) b = Relu(a) c = Abs(b) d = Neg(c) y = Add(d, a) z = Sin(a) }"
    device = probes.FakeDevice("F")
    core.register_plugin("FAKE", device)
    loaded = core.load_network(read(text), "HETERO:FAKE,CPU")
    result = loaded.infer({"x": X})
    np.testing.assert_array_equal(result["y"], ZERO)
    np.testing.assert_allclose(result["z"], np.sin(np.abs(X)), rtol=1e-6)
    assert device.moved.count("from_host a") == 1


def test_two_memories_exchange_through_the_host(core: Core, read: Callable[..., Network]) -> None:
    first, second = probes.FakeDevice("A"), probes.FakeDevice("B")
    core.register_plugin("A", first)
    core.register_plugin("B", second)
    network = read("g (float[4] x) => (float[4] y) { a = Relu(x) b = Neg(a) y = Relu(b) }").with_affinity(
        {"Neg_1": "B", "op:Relu": "A"}
    )
    loaded = core.load_network(network, "HETERO:A,B")
    np.testing.assert_array_equal(loaded.infer({"x": X})["y"], ZERO)
    assert first.moved == ["from_host x", "to_host", "from_host b", "to_host"]
    assert second.moved == ["from_host a", "to_host"]


def test_engine_fills_the_array_of_the_caller_in_place(core: Core, read: Callable[..., Network]) -> None:
    core.register_plugin("ENGINE", probes.EngineDevice())
    loaded = core.load_network(read(CHAIN), "ENGINE")
    request = loaded.create_infer_request()
    mine = np.full(4, 7, np.float32)
    request.set_tensor("y", mine)
    result = request.infer({"x": X})
    assert result["y"] is mine
    np.testing.assert_array_equal(mine, ZERO)


def test_engine_runs_asynchronously_on_its_own_threads(core: Core, read: Callable[..., Network]) -> None:
    core.register_plugin("ENGINE", probes.EngineDevice())
    request = core.load_network(read(CHAIN), "ENGINE").create_infer_request()
    seen: list[Any] = []
    request.set_callback(lambda _, error: seen.append(error))
    for _ in range(5):
        request.start_async({"x": X})
        assert request.wait(60)
        np.testing.assert_array_equal(request.get_tensor("y"), ZERO)
    assert seen == [None] * 5


@pytest.mark.parametrize("device", ["HETERO:ENGINE,CPU", "HETERO:TEMPLATE,ENGINE", "HETERO:CPU,ENGINE,TEMPLATE"])
def test_engine_is_a_part_of_a_split(core: Core, read: Callable[..., Network], device: str) -> None:
    core.register_plugin("ENGINE", probes.EngineDevice())
    network = read(CHAIN).with_affinity({"op:Neg": "ENGINE", "op:Abs": "ENGINE"})
    loaded = core.load_network(network, device)
    assert len(loaded.get_metric("EXECUTION_DEVICES")) == (1 if device == "HETERO:ENGINE,CPU" else 2)
    np.testing.assert_array_equal(loaded.infer({"x": X})["y"], ZERO)


def test_state_stays_in_the_memory_of_a_device_from_run_to_run(core: Core, read: Callable[..., Network]) -> None:
    device = probes.FakeDevice("F")
    core.register_plugin("FAKE", device)
    network = read("g (float[4] x, float[4] past) => (float[4] y, float[4] present) { present = Add(x, past) y = Neg(present) }")
    request = core.load_network(network.with_state({"present": "past"}), "FAKE").create_infer_request()
    for turn in (1, 2, 3):
        np.testing.assert_array_equal(request.infer({"x": X})["y"], -turn * X)
    assert device.moved == ["from_host past", "from_host x", "to_host", "from_host x", "to_host", "from_host x", "to_host"]
    np.testing.assert_array_equal(request.states["past"].value, 3 * X)


def test_state_stays_in_the_memory_of_the_stage_that_uses_it(core: Core, read: Callable[..., Network]) -> None:
    device = probes.FakeDevice("F")
    core.register_plugin("FAKE", device)
    network = read("g (float[4] x, float[4] past) => (float[4] y, float[4] present) { present = Add(x, past) y = Abs(present) }")
    request = core.load_network(network.with_state({"present": "past"}), "HETERO:FAKE,CPU").create_infer_request()
    for turn in (1, 2):
        np.testing.assert_array_equal(request.infer({"x": X})["y"], np.abs(turn * X))
    assert device.moved == ["from_host past", "from_host x", "to_host", "from_host x", "to_host"]
    np.testing.assert_array_equal(request.states["past"].value, 2 * X)


def test_state_of_another_device_crosses_the_host_once_per_run(core: Core, read: Callable[..., Network]) -> None:
    device = probes.FakeDevice("F")
    core.register_plugin("FAKE", device)
    network = read("g (float[4] x, float[4] past) => (float[4] y, float[4] present) { y = Add(x, past) present = Abs(y) }")
    request = core.load_network(network.with_state({"present": "past"}), "HETERO:FAKE,CPU").create_infer_request()
    past = np.zeros(4, np.float32)
    for _ in range(2):
        np.testing.assert_array_equal(request.infer({"x": X})["y"], X + past)
        past = np.abs(X + past)
    assert device.moved == ["from_host x", "from_host past", "to_host"] * 2


@pytest.mark.parametrize("threads", [1, 2])
def test_states_work_on_an_asynchronous_engine(core: Core, read: Callable[..., Network], threads: int) -> None:
    core.register_plugin("ENGINE", probes.EngineDevice(threads))
    network = read("g (float[4] x, float[4] past) => (float[4] y, float[4] present) { present = Add(x, past) y = Neg(present) }")
    request = core.load_network(network.with_state({"present": "past"}), "ENGINE").create_infer_request()
    request.set_tensor("y", np.zeros(4, np.float32))
    for turn in (1, 2, 3):
        request.start_async({"x": X})
        request.wait()
        np.testing.assert_array_equal(request.get_tensor("y"), -turn * X)
