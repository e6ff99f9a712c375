"""Concurrent stages, checked by devices that wait for each other instead of clocks; and the threads of each stage."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import onnx.parser
import pytest
from hetero_hetero.schedule import Flow, Schedule, divide_threads, find_concurrent_stages

from hetero_core import Core, Executable, Network, hookimpl
from hetero_core.contract import CancelToken, DeviceName, Payload
from hetero_core.errors import ConfigValueError, InferenceError, RequestCancelledError
from hetero_core.network.graph import Node
from hetero_core.network.writer import unpack_network
from hetero_core.testing.plain_device import PlainDevice, PlainExecutable

BRANCHES = "g (float[2] x) => (float[2] y) { a = Relu(x) b = Abs(a) c = Neg(a) d = Relu(b) e = Relu(c) y = Add(d, e) }"
X = np.array([1, -2], np.float32)
CHAIN = """
<ir_version: 8, opset_import: ["": 17]>
g (float[1] x) => (float[1] y) { [a] u = Relu(x) [b] v = Abs(u) [c] w = Neg(v) [d] y = Relu(w) }
"""
SIDES = """
<ir_version: 8, opset_import: ["": 17]>
g (float[1] x) => (float[1] y, float[1] z) { [b] y = Abs(x) [c] z = Neg(x) }
"""
PINS = {"a": "ONE", "b": "ONE", "c": "TWO", "d": "ONE"}


class Meeting(PlainDevice):
    """A device that calls a function of the test before each node, and records the threads of its loads."""

    def __init__(self, before: Callable[[Any], None] = lambda node: None, *, holds_lock: bool = False) -> None:
        self.before, self._holds_lock = before, holds_lock
        self.threads: dict[str, tuple[int, int]] = {}

    @hookimpl
    def metrics(self) -> Mapping[str, Any]:
        return {"HOLDS_INTERPRETER_LOCK": self._holds_lock}

    @hookimpl
    def load_network(self, device: DeviceName, network: Network, config: Mapping[str, Any]) -> Executable:
        self.threads["".join(node.name for node in network.nodes)] = (config["INFERENCE_NUM_THREADS"], config["NUM_STREAMS"])
        return MeetingExecutable(network, self)

    @hookimpl
    def import_network(self, device: DeviceName, payload: Payload, config: Mapping[str, Any]) -> Executable:
        return self.load_network(device, unpack_network(payload.sections), config)


class MeetingExecutable(PlainExecutable):
    def __init__(self, network: Network, device: Meeting) -> None:
        super().__init__(network)
        self._device = device

    def compute(self, node: Node, inputs: list[Any]) -> Any:
        self._device.before(node)
        return super().compute(node, inputs)


@pytest.fixture(autouse=True)
def four_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulates four processors, as with a single processor no two stages may run at the same time."""
    monkeypatch.setattr("hetero_core.devices.device.count_processors", lambda: 4)


def load_branches(core: Core, first: Meeting, second: Meeting, **config: Any) -> Any:
    """Loads two branches, b-d on M1 and c-e on M2, between a and y on CPU."""
    core.register_plugin("M1", first)
    core.register_plugin("M2", second)
    network = core.read_network(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {BRANCHES}'))
    a, b, c, d, e, y = (node.name for node in network.nodes)
    pins = {a: "CPU", y: "CPU", b: "M1", d: "M1", c: "M2", e: "M2"}
    return core.load_network(network.with_affinity(pins), "HETERO:M1,M2,CPU", {"PERF_COUNT": True, **config})


def test_two_branches_on_two_devices_run_at_the_same_time(core: Core) -> None:
    barrier = threading.Barrier(2, timeout=900)
    loaded = load_branches(core, Meeting(lambda node: barrier.wait()), Meeting(lambda node: barrier.wait()))
    for _ in range(5):
        assert loaded.infer({"x": X})["y"].tolist() == [1, 0]


def test_devices_that_hold_the_interpreter_s_lock_are_not_spread(core: Core) -> None:
    threads: set[int] = set()
    devices = [Meeting(lambda node: threads.add(threading.get_ident()), holds_lock=True) for _ in range(2)]
    loaded = load_branches(core, *devices)
    assert loaded.infer({"x": X})["y"].tolist() == [1, 0]
    assert threads == {threading.get_ident()}


def test_error_in_a_branch_names_its_stage_and_ends_both(core: Core) -> None:
    entered, leave = threading.Event(), threading.Event()

    def fail(node: Any) -> None:
        assert entered.wait(60)
        leave.set()
        raise OverflowError("no room")

    def wait(node: Any) -> None:
        entered.set()
        assert leave.wait(60)

    devices = Meeting(fail), Meeting(wait)
    loaded = load_branches(core, *devices)
    request = loaded.create_infer_request()
    with pytest.raises(InferenceError, match="no room; in stage [12] of 4 on M1"):
        request.infer({"x": X})
    for device in devices:
        device.before = lambda node: None
    assert request.infer({"x": X})["y"].tolist() == [1, 0]


def test_cancel_ends_a_request_whose_branches_wait(core: Core) -> None:
    entered, leave = threading.Barrier(3, timeout=900), threading.Event()

    def wait(node: Any) -> None:
        if not leave.is_set():
            entered.wait()
            assert leave.wait(60)

    loaded = load_branches(core, Meeting(wait), Meeting(wait))
    request = loaded.create_infer_request()
    request.start_async({"x": X})
    entered.wait()
    request.cancel()
    with pytest.raises(RequestCancelledError):
        request.wait(60)
    leave.set()
    assert request.infer({"x": X})["y"].tolist() == [1, 0]


def test_flow_ends_without_any_helper() -> None:
    """The flow does not wait for helper threads that never start."""
    schedule = Schedule(((), (0,), (0,), (1, 2)), ["A", "B", "C", "A"], [1] * 4, 4)
    ran: list[int] = []
    Flow(schedule, ran.append, lambda task: None, CancelToken()).run()
    assert ran == [0, 1, 2, 3]


def test_flow_keeps_order_and_lanes_with_many_helpers() -> None:
    predecessors = [tuple(sorted({(index * 7) % index, (index * 3) % index})) if index else () for index in range(60)]
    lanes = ["ABC"[index % 3] for index in range(60)]
    schedule = Schedule(tuple(predecessors), lanes, [1] * 60, 3)
    done: set[int] = set()
    busy: dict[str, int] = {}
    faults: list[str] = []
    lock = threading.Lock()

    def run(index: int) -> None:
        with lock:
            faults.extend(f"{index} before {stage}" for stage in predecessors[index] if stage not in done)
            faults.extend([f"lane {lanes[index]} twice"] if busy.get(lanes[index]) else [])
            busy[lanes[index]] = 1
        with lock:
            busy[lanes[index]] = 0
            done.add(index)

    def submit(task: Callable[[], None]) -> None:
        thread = threading.Thread(target=task)
        threads.append(thread)
        thread.start()

    threads: list[threading.Thread] = []
    Flow(schedule, run, submit, CancelToken()).run()
    for thread in threads:
        thread.join()
    assert faults == []
    assert done == set(range(60))


def test_requests_overlap_on_the_devices_of_a_chain() -> None:
    meeting = threading.Barrier(2)
    text = "g (float[2] x) => (float[2] y) { [a] u = Relu(x) [b] y = Neg(u) }"
    with Core() as core:
        for name in ("ONE", "TWO"):
            core.register_plugin(name, Meeting(lambda node: meeting.wait(60)))
        network = core.read_network(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}'))
        loaded = core.load_network(network.with_affinity({"a": "ONE", "b": "TWO"}), "HETERO:ONE,TWO", {"NUM_STREAMS": 1})
        assert loaded.get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == 2
        requests = [loaded.create_infer_request() for _ in range(4)]
        for value, request in enumerate(requests):
            request.start_async({"x": np.array([value, -1], np.float32)})
        # If a single request ran at a time, the barrier would break.
        assert all(request.wait(60) for request in requests)
        assert [request.get_tensor("y").tolist() for request in requests] == [[-value, 0] for value in range(4)]


@pytest.mark.parametrize(
    ("threads", "predecessors", "lanes", "fixed", "expected"),
    [
        # A chain: no two stages are concurrent.
        (4, [(), (0,), (1,)], "ABA", (None,) * 3, (4, 4, 4)),
        # A diamond: its ends get all threads, its two sides a half each.
        (4, [(), (0,), (0,), (1, 2)], "AABA", (None,) * 4, (4, 2, 2, 4)),
        (5, [(), (0,), (0,), (1, 2)], "AABA", (None,) * 4, (5, 2, 2, 5)),
        (1, [(), (0,), (0,), (1, 2)], "AABA", (None,) * 4, (1, 1, 1, 1)),
        # Two sides on the same lane take turns.
        (4, [(), (0,), (0,), (1, 2)], "ABBA", (None,) * 4, (4, 4, 4, 4)),
        (8, [(), (), ()], "ABC", (None,) * 3, (2, 2, 2)),
        # Fixed threads are not divided.
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
    fixed: tuple[int | None, ...],
    expected: tuple[int, ...],
) -> None:
    assert divide_threads(threads, predecessors, list(lanes), fixed) == expected


def draw_graph(seed: int) -> tuple[list[tuple[int, ...]], list[str]]:
    draw = random.Random(seed)
    count = draw.randint(1, 9)
    predecessors = [tuple(sorted(draw.sample(range(index), draw.randint(0, min(index, 2))))) for index in range(count)]
    return predecessors, [draw.choice("ABC") for _ in range(count)]


@pytest.mark.parametrize("seed", range(40))
def test_stages_of_two_unconnected_lanes_are_concurrent(seed: int) -> None:
    predecessors, lanes = draw_graph(seed)
    reach = [{index} for index in range(len(lanes))]
    for index, before in enumerate(predecessors):
        for stage in before:
            reach[index] |= reach[stage]
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
    fixed = [draw.choice((None, None, draw.randint(1, budget))) for _ in lanes]
    shares = divide_threads(budget, predecessors, lanes, fixed)
    running: list[int] = []
    ran: list[int] = []
    sums: list[int] = []

    def run(index: int) -> None:
        running.append(index)
        sums.append(sum(shares[stage] for stage in running))
        assert len({lanes[stage] for stage in running}) == len(running)
        # Acts as a helper thread while this stage runs: each stage that may be concurrent starts within this call.
        flow._work()
        running.remove(index)
        ran.append(index)

    flow = Flow(Schedule(tuple(predecessors), lanes, shares, budget), run, lambda task: None, CancelToken())
    flow.run()
    assert sorted(ran) == list(range(len(lanes)))
    assert max(sums) <= budget


@pytest.fixture
def noting(core: Core, monkeypatch: pytest.MonkeyPatch) -> tuple[Meeting, Meeting]:
    monkeypatch.setattr("hetero_core.devices.device.count_processors", lambda: 8)
    devices = Meeting(), Meeting()
    core.register_plugin("ONE", devices[0])
    core.register_plugin("TWO", devices[1])
    return devices


def load(core: Core, model: str, config: Mapping[str, Any]) -> Any:
    network = core.read_network(onnx.parser.parse_model(model))
    pins = {name: device for name, device in PINS.items() if name in {node.name for node in network.nodes}}
    return core.load_network(network.with_affinity(pins), "HETERO:ONE,TWO", config)


def list_threads(noting: tuple[Meeting, Meeting]) -> dict[str, int]:
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
    core: Core, noting: tuple[Meeting, Meeting], config: dict[str, Any], expected: dict[str, int]
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
    core: Core, noting: tuple[Meeting, Meeting], config: dict[str, Any], expected: dict[str, int]
) -> None:
    load(core, SIDES, config)
    assert list_threads(noting) == expected


def test_limit_that_a_device_was_set_holds_within_a_split(core: Core, noting: tuple[Meeting, Meeting]) -> None:
    core.set_config({"INFERENCE_NUM_THREADS": 3, "PERFORMANCE_HINT": "THROUGHPUT"}, "TWO")
    load(core, SIDES, {})
    assert list_threads(noting) == {"b": 4, "c": 3}


def test_imported_split_divides_the_threads_of_this_process(core: Core, noting: tuple[Meeting, Meeting], tmp_path: Any) -> None:
    load(core, SIDES, {"INFERENCE_NUM_THREADS": 2}).export_network(tmp_path / "g.blob")
    assert list_threads(noting) == {"b": 1, "c": 1}
    core.import_network(tmp_path / "g.blob", "HETERO")
    assert list_threads(noting) == {"b": 4, "c": 4}
    core.import_network(tmp_path / "g.blob", "HETERO", {"NUM_STREAMS": 2})
    assert list_threads(noting) == {"b": 2, "c": 2}


def test_more_threads_for_a_device_than_a_run_has_are_refused(core: Core, noting: tuple[Meeting, Meeting]) -> None:
    message = (
        "DEVICE_PROPERTIES of device HETERO:ONE,TWO give TWO INFERENCE_NUM_THREADS=5; one run of the whole has 4, which is "
        "INFERENCE_NUM_THREADS of HETERO:ONE,TWO divided by its streams"
    )
    with pytest.raises(ConfigValueError, match=message):
        load(core, SIDES, {"NUM_STREAMS": 2, "DEVICE_PROPERTIES": {"TWO": {"INFERENCE_NUM_THREADS": 5}}})


def test_split_network_answers_with_its_own_streams(core: Core, noting: tuple[Meeting, Meeting]) -> None:
    network = load(core, SIDES, {"PERFORMANCE_HINT": "THROUGHPUT", "INFERENCE_NUM_THREADS": 3})
    assert network.get_config("NUM_STREAMS") == 3
    # Two devices in sequence, for each stream.
    assert network.get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == 6
    assert core.get_metric("HETERO:ONE,TWO", "RANGE_FOR_STREAMS") == (1, 8)
