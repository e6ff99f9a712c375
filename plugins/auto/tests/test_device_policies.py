"""AUTO_DEVICE_POLICY: the device that each policy and a function choose, and which devices are loaded for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hetero_core import Core, Network
from hetero_core.errors import ConfigValueError

Feed = Callable[[float], dict[str, Any]]
answers: list[Any] = []
"""What `choose` returns next."""
asked: list[tuple[str, ...]] = []


def choose(network: Network, devices: tuple[str, ...]) -> Any:
    """The function of the tests."""
    assert [node.op_type for node in network.nodes] == ["Add", "Add"]
    asked.append(devices)
    return answers[-1]


FUNCTION = {"AUTO_DEVICE_POLICY": f"{__name__}:choose"}
A, B, C = "A", "B", "C"


@pytest.fixture
def devices(add_device: Any) -> dict[str, Any]:
    """A, an accelerator; B and C, processors."""
    made = {name: add_device(name) for name in (A, B, C)}
    made[A].kind = "accelerator"
    made[B].kind = made[C].kind = "processor"
    return made


def find_device(core: Core, network: Network, feed: Feed, device: str, config: dict[str, Any]) -> tuple[str, ...]:
    loaded = core.load_network(network, device, config)
    assert loaded.infer(feed(2))["y"].tolist() == [6]
    result: tuple[str, ...] = loaded.get_metric("EXECUTION_DEVICES")
    return result


@pytest.mark.parametrize(("policy", "expected"), [("PREFER_CPU", B), ("prefer_cpu", B), ("MIN_OVERALL_POWER", A)])
def test_first_device_of_the_policy_stays_alone(
    core: Core, devices: dict[str, Any], network: Network, feed: Feed, policy: str, expected: str
) -> None:
    assert find_device(core, network, feed, "AUTO:A,B,C", {"AUTO_DEVICE_POLICY": policy}) == (expected,)
    assert {name: device.loads for name, device in devices.items()} == {**dict.fromkeys(devices, 0), expected: 1}


def test_processor_that_refuses_a_node_is_passed_over(core: Core, devices: dict[str, Any], network: Network, feed: Feed) -> None:
    devices[B].refused = devices[C].refused = ("Add",)
    assert find_device(core, network, feed, "AUTO:A,B,C", {"AUTO_DEVICE_POLICY": "PREFER_CPU"}) == (A,)


def test_precision_does_not_change_the_order_of_a_policy(core: Core, devices: dict[str, Any], network: Network, feed: Feed) -> None:
    devices[B].capabilities = ("FP16",)
    assert find_device(core, network, feed, "AUTO:A,B,C", {"AUTO_DEVICE_POLICY": "PREFER_CPU"}) == (B,)


def test_max_performance_measures_each_listed_device(core: Core, devices: dict[str, Any], network: Network, feed: Feed) -> None:
    config = {"AUTO_DEVICE_POLICY": "MAX_PERFORMANCE", "ENABLE_STARTUP_FALLBACK": False}
    find_device(core, network, feed, "AUTO:A,B,C", config)
    assert all(device.loads == 1 for device in devices.values())


@pytest.mark.parametrize(("answer", "expected"), [("C", "C"), (["C", "A"], "C"), (("A",), "A")])
def test_function_chooses_the_device(
    core: Core, devices: dict[str, Any], network: Network, feed: Feed, answer: Any, expected: str
) -> None:
    answers.append(answer)
    config = {**FUNCTION, "DEVICE_PROPERTIES": {"B": {"SCRIPT_LEVEL": 3}}}
    assert find_device(core, network, feed, "AUTO:A,B,C", config) == (expected,)
    assert asked[-1] == (A, B, C)
    assert sum(device.loads for device in devices.values()) == 1


def test_next_device_of_the_function_takes_over_in_a_failure(
    core: Core, devices: dict[str, Any], network: Network, feed: Feed
) -> None:
    answers.append(["C", "A"])
    loaded = core.load_network(network, "AUTO:A,B,C", FUNCTION)
    devices[C].fails_from = 0
    assert loaded.infer(feed(2))["y"].tolist() == [6]
    assert (devices[A].loads, devices[B].loads) == (1, 0)


@pytest.mark.parametrize("answer", ["D", [], ["A", "D"], None, 3])
def test_wrong_answer_of_the_function_is_named(core: Core, devices: dict[str, Any], network: Network, answer: Any) -> None:
    answers.append(answer)
    with pytest.raises(ConfigValueError, match=r":choose returned .*; expected one or several of the devices A, B, C"):
        core.load_network(network, "AUTO:A,B,C", FUNCTION)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"AUTO_DEVICE_POLICY": "PREFER_CPUS"}, "got 'PREFER_CPUS', did you mean 'PREFER_CPU'"),
        ({"AUTO_DEVICE_POLICY": "no_such_module:f"}, "no_such_module:f cannot be imported: No module named"),
        (
            {"AUTO_DEVICE_POLICY": f"{__name__}:no_such_function"},
            "cannot be imported: module .* has no attribute 'no_such_function'",
        ),
        (
            {"AUTO_DEVICE_POLICY": "PREFER_CPU", "AUTO_MEASURE": True},
            "uses one device, unmeasured, and AUTO_MEASURE=YES contradicts it",
        ),
        (
            {"AUTO_DEVICE_POLICY": "MAX_PERFORMANCE", "AUTO_MEASURE": False},
            "measures each device, and AUTO_MEASURE=NO contradicts it",
        ),
        (
            {"AUTO_DEVICE_POLICY": "MIN_OVERALL_POWER", "PERFORMANCE_HINT": "CUMULATIVE_THROUGHPUT"},
            "unmeasured, and PERFORMANCE_HINT=CUMULATIVE_THROUGHPUT contradicts it",
        ),
    ],
)
def test_unknown_and_contradicting_values_are_errors(
    core: Core, devices: dict[str, Any], network: Network, config: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigValueError, match=message):
        core.load_network(network, "AUTO:A,B,C", config)
