"""The budget of one run of a split network: who gets how many threads, and that the sum stays within it."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import onnx.parser
import pytest
from hetero_hetero.schedule import Flow, divide_threads, find_concurrent_stages, plan_schedule

from hetero_core import Core, Executable, Network, QueryResult, RunContext, hookimpl
from hetero_core.contract import CancelToken, Payload
from hetero_core.errors import ConfigValueError
from hetero_core.network.writer import pack_network, unpack_network

CHAIN = """
<ir_version: 8, opset_import: ["": 17]>
g (float[1] x) => (float[1] y) { [a] u = Relu(x) [b] v = Abs(u) [c] w = Neg(v) [d] y = Relu(w) }
"""
SIDES = """
<ir_version: 8, opset_import: ["": 17]>
g (float[1] x) => (float[1] y, float[1] z) { [b] y = Abs(x) [c] z = Neg(x) }
"""
PINS = {"a": "ONE", "b": "ONE", "c": "TWO", "d": "ONE"}
X = np.array([2], np.float32)


@pytest.mark.parametrize(
    ("threads", "predecessors", "lanes", "given", "expected"),
    [
        # A chain: nothing runs beside anything.
        (4, [(), (0,), (1,)], "ABA", (None,) * 3, (4, 4, 4)),
        # A diamond: its ends have all, its two sides half.
        (4, [(), (0,), (0,), (1, 2)], "AABA", (None,) * 4, (4, 2, 2, 4)),
        (5, [(), (0,), (0,), (1, 2)], "AABA", (None,) * 4, (5, 2, 2, 5)),
        (1, [(), (0,), (0,), (1, 2)], "AABA", (None,) * 4, (1, 1, 1, 1)),
        # Two sides on one lane take turns.
        (4, [(), (0,), (0,), (1, 2)], "ABBA", (None,) * 4, (4, 4, 4, 4)),
        (8, [(), (), ()], "ABC", (None,) * 3, (2, 2, 2)),
        # What one has been given is not there for the others.
        (8, [(), (), ()], "ABC", (4, None, None), (4, 2, 2)),
        (8, [(), (), ()], "ABC", (7, None, None), (7, 1, 1)),
        (8, [(), ()], "AB", (8, None), (8, 1)),
        (8, [(), (0,)], "AB", (3, None), (3, 8)),
        (4, [], "", (), ()),
    ],
)
def test_threads_are_divided_by_lane(
    threads: int,
    predecessors: Sequence[tuple[int, ...]],
    lanes: str,
    given: tuple[int | None, ...],
    expected: tuple[int, ...],
) -> None:
    assert divide_threads(threads, predecessors, list(lanes), given) == expected


def draw_graph(seed: int) -> tuple[list[tuple[int, ...]], list[str]]:
    draw = random.Random(seed)
    count = draw.randint(1, 9)
    predecessors = [tuple(sorted(draw.sample(range(index), draw.randint(0, min(index, 2))))) for index in range(count)]
    return predecessors, [draw.choice("ABC") for _ in range(count)]


@pytest.mark.parametrize("seed", range(40))
def test_stages_are_concurrent_where_no_path_joins_two_lanes(seed: int) -> None:
    predecessors, lanes = draw_graph(seed)
    reach = [{index} for index in range(len(lanes))]
    for index, before in enumerate(predecessors):
        for one in before:
            reach[index] |= reach[one]
    expected = {
        index
        for pair in combinations(range(len(lanes)), 2)
        if lanes[pair[0]] != lanes[pair[1]] and pair[0] not in reach[pair[1]]
        for index in pair
    }
    assert find_concurrent_stages(predecessors, lanes) == expected


@pytest.mark.parametrize("budget", [1, 2, 3, 5])
@pytest.mark.parametrize("seed", range(10))
def test_threads_of_running_stages_never_exceed_the_budget(seed: int, budget: int) -> None:
    predecessors, lanes = draw_graph(seed)
    draw = random.Random(seed)
    given = [draw.choice((None, None, draw.randint(1, budget))) for _ in lanes]
    shares = divide_threads(budget, predecessors, lanes, given)
    running: list[int] = []
    ran: list[int] = []
    sums: list[int] = []

    def run(index: int) -> None:
        running.append(index)
        sums.append(sum(shares[one] for one in running))
        assert len({lanes[one] for one in running}) == len(running)
        # A thread that comes to help while this stage runs: whatever may start beside it does, within this call.
        flow._work()
        running.remove(index)
        ran.append(index)

    flow = Flow(plan_schedule(predecessors, lanes, threads=shares, budget=budget), run, lambda task: None, CancelToken())
    flow.run()
    assert sorted(ran) == list(range(len(lanes)))
    assert max(sums) <= budget


class Noting:
    """A device that notes the configuration of its loads; its stages may be made to meet."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.threads: dict[str, tuple[int, int]] = {}
        self.before: Any = lambda: None

    @hookimpl
    def query_network(self, network: Network) -> QueryResult:
        return QueryResult({node.name: self._name for node in network.nodes})

    @hookimpl
    def load_network(self, network: Network, config: Mapping[str, Any]) -> Executable:
        self.threads["".join(node.name for node in network.nodes)] = (config["INFERENCE_NUM_THREADS"], config["NUM_STREAMS"])
        return NotingExecutable(network, self)

    @hookimpl
    def export_network(self, executable: Any) -> Payload:
        return Payload(pack_network(executable.network))

    @hookimpl
    def import_network(self, payload: Payload, config: Mapping[str, Any]) -> Executable:
        return self.load_network(unpack_network(payload.sections), config)


class NotingExecutable(Executable):
    operators: Mapping[str, Any] = {"Relu": lambda v: np.maximum(v, 0), "Abs": np.abs, "Neg": np.negative, "Add": np.add}

    def __init__(self, network: Network, device: Noting) -> None:
        self.inputs, self.outputs, self.network, self._device = network.inputs, network.outputs, network, device

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        self._device.before()
        values = {spec.name: value for spec, value in zip(self.inputs, inputs, strict=True)}
        for node in self.network.nodes:
            values[node.outputs[0]] = self.operators[node.op_type](*(values[name] for name in node.inputs))
        return tuple(values[spec.name] for spec in self.outputs)


@pytest.fixture
def noting(core: Core, monkeypatch: pytest.MonkeyPatch) -> tuple[Noting, Noting]:
    for module in ("device", "metrics"):
        monkeypatch.setattr(f"hetero_core.devices.{module}.count_processors", lambda: 8)
    devices = Noting("ONE"), Noting("TWO")
    core.register_plugin("ONE", devices[0])
    core.register_plugin("TWO", devices[1])
    return devices


def load(core: Core, model: str, config: Mapping[str, Any]) -> Any:
    network = core.read_network(onnx.parser.parse_model(model))
    pins = {name: device for name, device in PINS.items() if name in {node.name for node in network.nodes}}
    return core.load_network(network.with_affinity(pins), "HETERO:ONE,TWO", config)


def list_threads(noting: tuple[Noting, Noting]) -> dict[str, int]:
    return {nodes: threads for device in noting for nodes, (threads, _) in device.threads.items()}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, {"ab": 8, "c": 8, "d": 8}),
        ({"INFERENCE_NUM_THREADS": 6}, {"ab": 6, "c": 6, "d": 6}),
        ({"NUM_STREAMS": 2}, {"ab": 4, "c": 4, "d": 4}),
        ({"PERFORMANCE_HINT": "THROUGHPUT"}, {"ab": 1, "c": 1, "d": 1}),
    ],
)
def test_chain_gives_every_stage_the_threads_of_a_stream(
    core: Core, noting: tuple[Noting, Noting], config: dict[str, Any], expected: dict[str, int]
) -> None:
    load(core, CHAIN, config)
    assert list_threads(noting) == expected
    assert {streams for device in noting for _, streams in device.threads.values()} == {1}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, {"b": 4, "c": 4}),
        ({"CPU_THREADS_NUM": 3}, {"b": 1, "c": 1}),
        ({"NUM_STREAMS": 2}, {"b": 2, "c": 2}),
        ({"DEVICE_PROPERTIES": {"TWO": {"INFERENCE_NUM_THREADS": 6}}}, {"b": 2, "c": 6}),
        ({"DEVICE_PROPERTIES": {"TWO": {"INFERENCE_NUM_THREADS": 1}}}, {"b": 7, "c": 1}),
    ],
)
def test_stages_beside_each_other_divide_the_threads(
    core: Core, noting: tuple[Noting, Noting], config: dict[str, Any], expected: dict[str, int]
) -> None:
    load(core, SIDES, config)
    assert list_threads(noting) == expected


def test_limit_that_a_device_was_set_holds_within_a_split(core: Core, noting: tuple[Noting, Noting]) -> None:
    core.set_config({"INFERENCE_NUM_THREADS": 3, "PERFORMANCE_HINT": "THROUGHPUT"}, "TWO")
    load(core, SIDES, {})
    assert list_threads(noting) == {"b": 4, "c": 3}


def test_imported_split_divides_the_threads_of_this_process(core: Core, noting: tuple[Noting, Noting], tmp_path: Any) -> None:
    load(core, SIDES, {"INFERENCE_NUM_THREADS": 2}).export_network(tmp_path / "g.blob")
    assert list_threads(noting) == {"b": 1, "c": 1}
    core.import_network(tmp_path / "g.blob", "HETERO")
    assert list_threads(noting) == {"b": 4, "c": 4}
    core.import_network(tmp_path / "g.blob", "HETERO", {"NUM_STREAMS": 2})
    assert list_threads(noting) == {"b": 2, "c": 2}


def test_more_threads_for_a_device_than_a_run_has_are_refused(core: Core, noting: tuple[Noting, Noting]) -> None:
    message = (
        "DEVICE_PROPERTIES of device HETERO:ONE,TWO give TWO INFERENCE_NUM_THREADS=5; one run of the whole has 4, which is "
        "INFERENCE_NUM_THREADS of HETERO:ONE,TWO divided by its streams"
    )
    with pytest.raises(ConfigValueError, match=message):
        load(core, SIDES, {"NUM_STREAMS": 2, "DEVICE_PROPERTIES": {"TWO": {"INFERENCE_NUM_THREADS": 5}}})


def test_split_network_answers_with_its_own_streams(core: Core, noting: tuple[Noting, Noting]) -> None:
    network = load(core, SIDES, {"PERFORMANCE_HINT": "THROUGHPUT", "INFERENCE_NUM_THREADS": 3})
    assert network.get_config("NUM_STREAMS") == 3
    # Two devices, one behind the other, for each stream.
    assert network.get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == 6
    assert core.get_metric("HETERO:ONE,TWO", "RANGE_FOR_STREAMS") == (1, 8)
