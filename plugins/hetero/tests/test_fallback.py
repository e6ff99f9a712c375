"""A device that claims a part and fails to load it: an error with stage, device and cause, or, with NEXT, the next device."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hetero_core import Core, Network, hookimpl
from hetero_core.errors import (
    AffinityError,
    DeviceNotFoundError,
    DeviceUnavailableError,
    LoadError,
    UnsupportedNodesError,
)

SANDWICH = """g (float[4] x) => (float[4] y) { [first] a = Relu (x) [middle] b = Exp (a) [last] y = Neg (b) }"""
X = np.array([0.5, -1, 2, -3], np.float32)
NEXT = {"HETERO_FALLBACK": "NEXT"}


def fail_at(operator: str, error: Exception) -> Callable[[Network], Exception | None]:
    return lambda part: error if any(node.op_type == operator for node in part.nodes) else None


def compute_sandwich() -> np.ndarray[Any, Any]:
    return -np.exp(np.maximum(X.astype(np.float64), 0))


def test_strict_failure_names_its_stage_and_closes_loaded_stages(
    core: Core, read: Callable[..., Network], add_device: Callable[..., Any]
) -> None:
    cause = MemoryError("2 GiB wanted")
    first = add_device("A", refused=["Exp"], fail=fail_at("Neg", cause))
    second = add_device("B")
    with pytest.raises(LoadError) as caught:
        core.load_network(read(SANDWICH), "HETERO:A,B")
    assert str(caught.value) == (
        "cannot load stage 2 of 3 of network 'g' on A, nodes 'last' (Neg-13): MemoryError: 2 GiB wanted; "
        "HETERO_FALLBACK=NEXT would move on to the next device"
    )
    assert caught.value.__cause__ is cause
    assert any("raised by plugin A" in note for note in caught.value.__notes__)
    assert first.closed == [("first",)]
    assert second.closed == [("middle",)]


def test_strict_failure_keeps_type_and_fields_of_hetero_errors(
    core: Core, read: Callable[..., Network], add_device: Callable[..., Any]
) -> None:
    refusals = {"middle": {"A": "too wide"}}
    cause = UnsupportedNodesError("1 of 3 nodes are refused", refusals)
    add_device("A", fail=fail_at("Exp", cause))
    with pytest.raises(
        UnsupportedNodesError, match=r"cannot load stage 0 of 1 .* on A, nodes .*: 1 of 3 nodes are refused; "
    ) as caught:
        core.load_network(read(SANDWICH), "HETERO:A,CPU", {"HETERO_FALLBACK": "STRICT"})
    assert caught.value is not cause
    assert caught.value.refusals == refusals
    assert caught.value.__cause__ is cause
    assert str(cause) == "1 of 3 nodes are refused"


def test_next_device_gets_the_part_and_others_stay_loaded(
    core: Core, read: Callable[..., Network], add_device: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    first = add_device("A", refused=["Exp"], fail=fail_at("Neg", RuntimeError("no room")))
    second = add_device("B")
    with caplog.at_level(logging.WARNING):
        loaded = core.load_network(read(SANDWICH), "HETERO:A,B", NEXT)
    assert loaded.get_metric("HETERO_SUBGRAPHS") == (("A", ("first",)), ("B", ("middle", "last")))
    assert loaded.get_metric("HETERO_PLAN").refusals == {
        "middle": {"A": "no kernel"},
        "last": {"A": "failed to load: RuntimeError: no room"},
    }
    assert first.loaded == [("first",), ("last",)]
    assert first.closed == []
    assert second.loaded == [("middle",), ("middle", "last")]
    assert second.closed == [("middle",)]
    assert "nodes 'last' (Neg-13): RuntimeError: no room; its nodes go to the next device" in caplog.text
    np.testing.assert_allclose(loaded.infer({"x": X})["y"], compute_sandwich(), rtol=1e-6)


def test_device_that_always_fails_ends_with_nothing(
    core: Core, read: Callable[..., Network], add_device: Callable[..., Any]
) -> None:
    device = add_device("A", refuse=lambda node, part: "too long" if len(part.nodes) > 2 and node.op_type == "Neg" else None)
    device._fail = lambda _: DeviceUnavailableError("the driver is gone")
    loaded = core.load_network(read(SANDWICH), "HETERO:A,TEMPLATE", NEXT)
    assert loaded.get_metric("EXECUTION_DEVICES") == ("TEMPLATE",)
    assert loaded.get_metric("HETERO_PLAN").refusals == {
        "first": {"A": "failed to load: the driver is gone"},
        "middle": {"A": "failed to load: the driver is gone"},
        "last": {"A": "too long"},
    }


def test_part_without_another_device_is_an_error_with_reasons(
    core: Core, read: Callable[..., Network], add_device: Callable[..., Any]
) -> None:
    cause = RuntimeError("no room")
    add_device("A", fail=fail_at("Exp", cause))
    second = add_device("B", refused=["Relu"])
    with pytest.raises(UnsupportedNodesError, match="cannot load network 'g' on HETERO:A,B: 1 of 3 nodes are refused") as caught:
        core.load_network(read(SANDWICH), "HETERO:A,B", NEXT)
    assert caught.value.refusals == {"first": {"A": "failed to load: RuntimeError: no room", "B": "no kernel"}}
    assert caught.value.__cause__ is cause
    assert second.loaded == []


def test_pinned_nodes_do_not_move_on(core: Core, read: Callable[..., Network], add_device: Callable[..., Any]) -> None:
    device = add_device("A", fail=fail_at("Neg", RuntimeError("no room")))
    with pytest.raises(
        LoadError, match=r"stage 1 of 2 .* on A, nodes 'last' \(Neg-13\): RuntimeError: no room; all of its nodes are pinned to A"
    ):
        core.load_network(read(SANDWICH).with_affinity({"last": "A"}), "HETERO:A,TEMPLATE", NEXT)
    # At first A has all nodes; the unpinned nodes move on before the pinned node is tried alone.
    assert device.loaded == [("first", "middle", "last"), ("last",)]


class GoneFactory:
    """A plugin without its driver: it counts no device and claims no node."""

    @hookimpl
    def create_device(self) -> object:
        raise DeviceUnavailableError("device GONE is not available: no driver; install one")


def test_unavailable_device_is_an_error_without_next(core: Core, read: Callable[..., Network]) -> None:
    core.register_plugin("GONE", GoneFactory())
    for call in (core.load_network, core.query_network):
        with pytest.raises(DeviceUnavailableError, match="device GONE is not available: no driver; install one") as caught:
            call(read(SANDWICH), "HETERO:GONE,CPU")
        assert "HETERO_FALLBACK=NEXT would let HETERO:GONE,CPU go on without it" in caught.value.__notes__


@pytest.mark.parametrize("devices", ["HETERO:GONE,CPU", "HETERO:CPU,GONE", "HETERO:(HETERO:GONE,CPU),CPU"])
def test_next_goes_on_without_a_device_that_cannot_be_used(
    core: Core, read: Callable[..., Network], caplog: pytest.LogCaptureFixture, devices: str
) -> None:
    core.register_plugin("GONE", GoneFactory())
    with caplog.at_level(logging.WARNING):
        loaded = core.load_network(read(SANDWICH), devices, NEXT)
    assert "goes on without GONE: device GONE is not available: no driver; install one" in caplog.text
    np.testing.assert_allclose(loaded.infer({"x": X})["y"], compute_sandwich(), rtol=1e-6)
    if "(" not in devices:
        assert loaded.get_metric("EXECUTION_DEVICES") == ("CPU",)
        reason = "cannot be used: device GONE is not available: no driver; install one"
        assert loaded.get_metric("HETERO_PLAN").refusals == {name: {"GONE": reason} for name in ("first", "middle", "last")}


def test_properties_of_a_device_that_cannot_be_used_wait_for_it(core: Core, read: Callable[..., Network]) -> None:
    core.register_plugin("GONE", GoneFactory())
    config = {**NEXT, "DEVICE_PROPERTIES": {"GONE": {"GONE_LEVEL": 3}}}
    assert core.load_network(read(SANDWICH), "HETERO:GONE,CPU", config).get_metric("EXECUTION_DEVICES") == ("CPU",)


def test_pin_to_an_unusable_device_is_an_error_under_next(core: Core, read: Callable[..., Network]) -> None:
    core.register_plugin("GONE", GoneFactory())
    network = read(SANDWICH).with_affinity({"middle": "GONE"})
    with pytest.raises(
        AffinityError,
        match=r"node 'middle' \(Exp-13\) is pinned to GONE, which cannot be used: device GONE is not available: no driver",
    ):
        core.load_network(network, "HETERO:GONE,CPU", NEXT)


def test_list_of_unavailable_devices_is_refused_with_all_reasons(core: Core, read: Callable[..., Network]) -> None:
    core.register_plugin("GONE", GoneFactory())
    with pytest.raises(UnsupportedNodesError, match="3 of 3 nodes are refused") as caught:
        core.load_network(read(SANDWICH), "HETERO:GONE", NEXT)
    assert caught.value.refusals["first"] == {"GONE": "cannot be used: device GONE is not available: no driver; install one"}


def test_device_that_is_not_installed_is_an_error_under_next_too(core: Core, read: Callable[..., Network]) -> None:
    with pytest.raises(DeviceNotFoundError, match="no plugin announces device 'CPUX', did you mean 'CPU'"):
        core.load_network(read(SANDWICH), "HETERO:CPUX,CPU", NEXT)


def test_inner_list_moves_on_by_itself(core: Core, read: Callable[..., Network], add_device: Callable[..., Any]) -> None:
    add_device("A", fail=fail_at("Exp", RuntimeError("no room")))
    loaded = core.load_network(read(SANDWICH), "HETERO:(HETERO:A,TEMPLATE),CPU", NEXT)
    assert loaded.get_metric("EXECUTION_DEVICES") == ("TEMPLATE",)
    np.testing.assert_allclose(loaded.infer({"x": X})["y"], compute_sandwich(), rtol=1e-6)
