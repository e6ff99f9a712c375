"""HETERO_PLACEMENT=MEASURED on devices that are slow at some operators: the choice, the entry in the store, and failures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest
from hetero_hetero.placement import measured

from hetero_core import Core, Executable, Network
from hetero_core.errors import ConfigValueError
from hetero_core.network.graph import Node
from hetero_core.plan import Placement
from hetero_core.testing.plain_device import PlainDevice, PlainExecutable

Read = Callable[[str], Network]

CHAIN = """g (float[16, 16] x) => (float[16, 16] y) {
    [m0] a = MatMul (x, x) [m1] b = MatMul (a, a) [m2] c = MatMul (b, b)
    [r0] d = Relu (c) [r1] e = Relu (d) [r2] y = Relu (e)
}"""
MEASURED = {"HETERO_PLACEMENT": "MEASURED", "HETERO_PLACEMENT_BUDGET": 6}
SECONDS = 0.001


def wait(seconds: float) -> None:
    ends = perf_counter() + seconds
    while perf_counter() < ends:
        continue


class Clock:
    """A simulated clock: it advances with computations, and by a microsecond for each reading."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def look(self) -> float:
        self.spend(1e-6)
        return self.seconds

    def spend(self, seconds: float) -> None:
        self.seconds += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A simulated clock for measuring the devices of this process."""
    clock = Clock()
    monkeypatch.setattr(measured, "perf_counter", clock.look)
    return clock


class SlowDevice(PlainDevice):
    """Takes longer for some operators and counts loads. `fail` is called before each run of a node, `spend` lets time pass."""

    def __init__(self, slow: str, fail: Callable[[Node], None] = lambda _: None, *, spend: Callable[[float], None] = wait) -> None:
        self.slow, self.fail, self.spend, self.loads = slow, fail, spend, 0

    def make_executable(self, network: Network) -> Executable:
        self.loads += 1
        return SlowExecutable(network, self)


class SlowExecutable(PlainExecutable):
    def __init__(self, network: Network, device: SlowDevice) -> None:
        super().__init__(network)
        self._device = device

    def compute(self, node: Node, inputs: list[Any]) -> Any:
        self._device.fail(node)
        self._device.spend(SECONDS if node.op_type == self._device.slow else SECONDS / 100)
        return super().compute(node, inputs)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def register(core: Core, **devices: SlowDevice) -> None:
    for name, device in devices.items():
        core.register_plugin(name, device)


def measure(core: Core, network: Network, device: str = "HETERO:PRODUCTS,SIGNS", **config: Any) -> tuple[Placement, dict[str, str]]:
    plan = core.query_network(network, device, {**MEASURED, **config}).plan
    assert plan is not None
    assert plan.placement is not None
    return plan.placement, dict(plan.device_of_node)


def test_each_half_goes_to_its_fast_device_with_equal_results(core: Core, read: Read, clock: Clock) -> None:
    register(core, PRODUCTS=SlowDevice("Relu", spend=clock.spend), SIGNS=SlowDevice("MatMul", spend=clock.spend))
    network = read(CHAIN)
    placement, device_of_node = measure(core, network)
    assert device_of_node == {f"m{i}": "PRODUCTS" for i in range(3)} | {f"r{i}": "SIGNS" for i in range(3)}
    titles = [candidate.title for candidate in placement.candidates]
    assert titles[:2] == ["PRODUCTS", "SIGNS"]
    assert placement.chosen is not None
    assert placement.candidates[placement.chosen].title.startswith("MIXED")
    x = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)
    loaded = core.load_network(network, "HETERO:PRODUCTS,SIGNS", MEASURED)
    assert [stage[0] for stage in loaded.get_metric("HETERO_SUBGRAPHS")] == ["PRODUCTS", "SIGNS"]
    expected = core.load_network(network, "CPU").infer({"x": x})["y"]
    np.testing.assert_allclose(loaded.infer({"x": x})["y"], expected, rtol=1e-3)


def test_device_that_is_slow_at_everything_gets_nothing(core: Core, read: Read, clock: Clock) -> None:
    register(core, SLOW=SlowDevice("MatMul", spend=clock.spend), FAST=SlowDevice("none", spend=clock.spend))
    placement, device_of_node = measure(core, read(CHAIN.replace("Relu", "Abs")), "HETERO:SLOW,FAST")
    assert {device_of_node[f"m{index}"] for index in range(3)} == {"FAST"}
    # Three products with equal constants but unequal names are measured once.
    assert [segment.twin for segment in placement.segments[:3]] == [0, 0, 0]


def test_second_core_measures_nothing_until_it_is_asked_to(core: Core, read: Read, clock: Clock) -> None:
    network = read(CHAIN)
    register(core, PRODUCTS=SlowDevice("Relu", spend=clock.spend), SIGNS=SlowDevice("MatMul", spend=clock.spend))
    first, device_of_node = measure(core, network)
    with Core() as fresh_core:
        products = SlowDevice("Relu", spend=clock.spend)
        register(fresh_core, PRODUCTS=products, SIGNS=SlowDevice("MatMul", spend=clock.spend))
        placement, same = measure(fresh_core, network)
        assert (products.loads, placement.is_kept, same) == (0, True, device_of_node)
        assert placement.candidates == first.candidates
        assert not measure(fresh_core, network, HETERO_PLACEMENT="MEASURED_ANEW", HETERO_PLACEMENT_BUDGET=0)[0].is_kept
        assert products.loads > 0
        assert not measure(fresh_core, network, HETERO_MIN_SUBGRAPH_SIZE=2, HETERO_PLACEMENT_BUDGET=0)[0].is_kept


def test_placement_set_for_the_device_is_measured_once(core: Core, read: Read) -> None:
    # Devices that are registered only in this process are measured in this process, with the caller's settings.
    register(core, PRODUCTS=SlowDevice("Relu"), SIGNS=SlowDevice("MatMul"))
    core.set_config({**MEASURED, "HETERO_PLACEMENT_BUDGET": 0.2}, "HETERO:PRODUCTS,SIGNS")
    plan = core.load_network(read(CHAIN), "HETERO:PRODUCTS,SIGNS").get_metric("HETERO_PLAN")
    assert plan.placement is not None
    assert plan.placement.candidates[plan.placement.chosen].seconds is not None


def test_overlapping_requests_are_measured_apart_from_single(core: Core, read: Read) -> None:
    register(core, PRODUCTS=SlowDevice("Relu"), SIGNS=SlowDevice("MatMul"))
    network = read(CHAIN)
    asked = {"HETERO_PLACEMENT_OBJECTIVE": "THROUGHPUT", "NUM_STREAMS": 2, "HETERO_PLACEMENT_BUDGET": 0.5}
    placement, _ = measure(core, network, **asked)
    assert [(candidate.title, candidate.error) for candidate in placement.candidates][:2] == [("PRODUCTS", ""), ("SIGNS", "")]
    assert all(candidate.rounds for candidate in placement.candidates[:2])
    assert measure(core, network, **asked)[0].is_kept
    assert not measure(core, network, HETERO_PLACEMENT_BUDGET=0)[0].is_kept


def test_pins_of_the_network_hold(core: Core, read: Read, clock: Clock) -> None:
    register(core, PRODUCTS=SlowDevice("Relu", spend=clock.spend), SIGNS=SlowDevice("MatMul", spend=clock.spend))
    network = read(CHAIN).with_affinity({"m1": "SIGNS"})
    plan = core.query_network(network, "HETERO:PRODUCTS,SIGNS", MEASURED).plan
    assert plan is not None
    assert plan.device_of_node["m1"] == "SIGNS"
    assert dict(plan.pins) == {"m1": "SIGNS"}


def test_interrupt_gives_the_best_so_far(core: Core, read: Read) -> None:
    def interrupt(node: Node) -> None:
        runs.append(node.name)
        if len(runs) > 40:
            raise KeyboardInterrupt

    runs: list[str] = []
    register(core, PRODUCTS=SlowDevice("none"), SIGNS=SlowDevice("MatMul", interrupt))
    placement, device_of_node = measure(core, read(CHAIN))
    assert not placement.is_complete
    assert placement.chosen is not None
    assert not placement.candidates[placement.chosen].title.startswith("MIXED") or placement.candidates[placement.chosen].rounds
    assert set(device_of_node.values()) <= {"PRODUCTS", "SIGNS"}


def test_device_that_fails_is_passed_over_and_named(core: Core, read: Read) -> None:
    def fail(node: Node) -> None:
        raise RuntimeError(f"no current at {node.name}")

    register(core, PRODUCTS=SlowDevice("none"), SIGNS=SlowDevice("none", fail))
    placement, device_of_node = measure(core, read(CHAIN))
    assert set(device_of_node.values()) == {"PRODUCTS"}
    assert "no current at m0" in placement.candidates[1].error
    assert "no current at" in placement.segments[0].failures["SIGNS"]


def test_open_size_is_refused_with_the_cure_or_read_from_a_file(core: Core, read: Read, folder: Path) -> None:
    register(core, PRODUCTS=SlowDevice("Relu"), SIGNS=SlowDevice("MatMul"))
    network = read(CHAIN.replace("16, 16", "n, n"))
    with pytest.raises(ConfigValueError, match=r"input x: float32\[n,n\] cannot be drawn: .* HETERO_PLACEMENT_INPUTS"):
        measure(core, network)
    np.savez(folder / "inputs.npz", x=np.ones((8, 8), np.float32))
    placement, _ = measure(core, network, HETERO_PLACEMENT_INPUTS=str(folder / "inputs.npz"), HETERO_PLACEMENT_BUDGET=0)
    assert placement.candidates[0].error == ""


def test_budget_of_no_seconds_still_times_each_device_once(core: Core, read: Read) -> None:
    register(core, PRODUCTS=SlowDevice("none"), SIGNS=SlowDevice("MatMul"))
    placement, device_of_node = measure(core, read(CHAIN), HETERO_PLACEMENT_BUDGET=0)
    assert not placement.is_complete
    assert [candidate.title for candidate in placement.candidates] == ["PRODUCTS", "SIGNS"]
    assert set(device_of_node.values()) == {"PRODUCTS"}
