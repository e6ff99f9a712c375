"""Stages at the same time: proved by devices that wait for each other, never by clocks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx.parser
import pytest
from hetero_hetero.schedule import Flow, plan_schedule

from hetero_core import Core, Executable, Network, QueryResult, RunContext, hookimpl
from hetero_core.contract import CancelToken
from hetero_core.errors import InferenceError, RequestCancelledError

BRANCHES = "g (float[2] x) => (float[2] y) { a = Relu(x) b = Abs(a) c = Neg(a) d = Relu(b) e = Relu(c) y = Add(d, e) }"
X = np.array([1, -2], np.float32)
OPERATORS: Mapping[str, Callable[..., Any]] = {"Relu": lambda v: np.maximum(v, 0), "Abs": np.abs, "Neg": np.negative, "Add": np.add}


class Meeting:
    """A device that calls a function of the test before it computes each node."""

    def __init__(self, before: Callable[[Any], None], *, holds_lock: bool = False) -> None:
        self.before, self._holds_lock = before, holds_lock

    @hookimpl
    def metrics(self) -> Mapping[str, Any]:
        return {"HOLDS_INTERPRETER_LOCK": self._holds_lock}

    @hookimpl
    def query_network(self, device: Any, network: Network) -> QueryResult:
        return QueryResult({node.name: str(device) for node in network.nodes})

    @hookimpl
    def load_network(self, network: Network) -> Executable:
        return MeetingExecutable(network, self)


class MeetingExecutable(Executable):
    def __init__(self, network: Network, device: Meeting) -> None:
        self.inputs, self.outputs, self._network, self._device = network.inputs, network.outputs, network, device

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        values = {spec.name: value for spec, value in zip(self.inputs, inputs, strict=True)}
        for node in self._network.nodes:
            self._device.before(node)
            values[node.outputs[0]] = OPERATORS[node.op_type](*(values[name] for name in node.inputs))
        return tuple(values[spec.name] for spec in self.outputs)


@pytest.fixture(autouse=True)
def four_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the machine has: with one alone no two stages may run at the same time."""
    for module in ("device", "metrics"):
        monkeypatch.setattr(f"hetero_core.devices.{module}.count_processors", lambda: 4)


@pytest.fixture
def core() -> Iterator[Core]:
    with Core() as opened:
        yield opened


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


def test_error_in_one_branch_names_its_stage_and_ends_the_other(core: Core) -> None:
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
    """Threads that never come must not be waited for."""
    schedule = plan_schedule([(), (0,), (0,), (1, 2)], ["A", "B", "C", "A"], threads=[1] * 4, budget=4)
    ran: list[int] = []
    Flow(schedule, ran.append, lambda task: None, CancelToken()).run()
    assert ran == [0, 1, 2, 3]


def test_flow_keeps_order_and_lanes_with_many_helpers() -> None:
    predecessors = [tuple(sorted({(index * 7) % index, (index * 3) % index})) if index else () for index in range(60)]
    lanes = ["ABC"[index % 3] for index in range(60)]
    schedule = plan_schedule(predecessors, lanes, threads=[1] * 60, budget=3)
    done: set[int] = set()
    busy: dict[str, int] = {}
    faults: list[str] = []
    lock = threading.Lock()

    def run(index: int) -> None:
        with lock:
            faults.extend(f"{index} before {one}" for one in predecessors[index] if one not in done)
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


def test_requests_follow_one_another_through_the_devices_of_a_chain() -> None:
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
        # Were one request to run at a time, nobody would come to the meeting, and it would break.
        assert all(request.wait(60) for request in requests)
        assert [request.get_tensor("y").tolist() for request in requests] == [[-value, 0] for value in range(4)]
