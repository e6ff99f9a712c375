"""HETERO over devices that start runs by themselves, have a memory of their own and no `run`."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import onnx.parser
import pytest

from hetero_core import Core, Executable, Network, RunContext, hookimpl
from hetero_core.contract import DeviceName, Done
from hetero_core.errors import InferenceError, RequestCancelledError
from hetero_core.kernels.program import compile_program
from hetero_core.network.types import ValueSpec
from hetero_core.testing.plain_device import PlainDevice

CHAIN = "chain (float[2] x) => (float[2] y) { a = Neg (x) b = Neg (a) c = Neg (b) y = Neg (c) }"
BRANCHES = "branches (float[2] x) => (float[2] y) { a = Abs (x) b = Neg (a) c = Neg (a) y = Add (b, c) }"
SECONDS = 60


class Boxed:
    """An array in the memory of a device."""

    def __init__(self, memory: str, elements: Any) -> None:
        self.memory, self.elements, self.nbytes = memory, elements, elements.nbytes

    def open(self, memory: str) -> Any:
        assert memory == self.memory, f"an array of {self.memory} came to {memory} without a transfer"
        return self.elements


class Queue(PlainDevice):
    """A device with a single queue. `meet(count)` is called on its thread before run number `count`, from 0."""

    def __init__(self, meet: Callable[[int], None] = lambda count: None) -> None:
        self.meet = meet
        self.runs = 0
        self.threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="queue")

    @hookimpl
    def load_network(self, device: DeviceName, network: Network) -> Executable:
        return Started(self, network, f"{device.name.lower()}:0")

    @hookimpl
    def to_host(self, array: Boxed) -> Any:
        return array.elements.copy()

    @hookimpl
    def from_host(self, array: Any, spec: ValueSpec) -> Boxed:
        return Boxed(spec.memory, array.copy())

    def begin(self, work: Callable[[], None]) -> None:
        self.threads.submit(work)


class Started(Executable):
    """Starts runs, and has no `run`."""

    def __init__(self, queue: Queue, network: Network, memory: str) -> None:
        self.network, self.queue, self.memory = network, queue, memory
        self.inputs = tuple(replace(spec, memory=memory) for spec in network.inputs)
        self.outputs = tuple(replace(spec, memory=memory) for spec in network.outputs)
        self.program = compile_program(network)
        self.is_closed = False

    def start(self, inputs: tuple[Any, ...], context: RunContext, done: Done) -> None:
        values = tuple(value.open(self.memory) for value in inputs)
        self.queue.begin(lambda: self.compute(values, done))

    def compute(self, values: tuple[Any, ...], done: Done) -> None:
        count, self.queue.runs = self.queue.runs, self.queue.runs + 1
        try:
            self.queue.meet(count)
            assert not self.is_closed, "the engine is used after it was closed"
            outputs = self.program.run(values)
        except BaseException as error:  # noqa: BLE001  # whoever waits is told
            done(None, error)
        else:
            done(tuple(Boxed(self.memory, value) for value in outputs), None)

    def close(self) -> None:
        self.is_closed = True


def load(core: Core, text: str, places: str, config: Mapping[str, Any] | None = None, **devices: object) -> Any:
    """Loads a network split over these devices: `places` names the device of each node, by its first letter."""
    for name, device in devices.items():
        core.register_plugin(name, device)
    network = core.read_network(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}'))
    pins = {
        node.name: next(name for name in devices if name[0] == letter) for node, letter in zip(network.nodes, places, strict=True)
    }
    return core.load_network(network.with_affinity(pins), f"HETERO:{','.join(devices)}", config)


def start_all(loaded: Any, count: int) -> list[Any]:
    requests = [loaded.create_infer_request() for _ in range(count)]
    for index, request in enumerate(requests):
        request.start_async({"x": np.full(2, index, np.float32)})
    return requests


def require_results(requests: list[Any], sign: int = 1) -> None:
    for index, request in enumerate(requests):
        assert request.wait(SECONDS)
        assert request.get_tensor("y").tolist() == [sign * index, sign * index]


def test_requests_overlap_on_two_devices(core: Core) -> None:
    behind = threading.Event()

    def meet_first(count: int) -> None:
        if count == 1:
            # The first request is held by the second device.
            behind.set()

    def meet_second(count: int) -> None:
        assert behind.wait(SECONDS), "the first device does not go on while the second one works"

    loaded = load(core, CHAIN, "AABB", AHEAD=Queue(meet_first), BEHIND=Queue(meet_second))
    requests = start_all(loaded, 10)
    require_results(requests)
    loaded.close()


def test_cancelled_request_ends_at_once_and_leaves_the_others(core: Core) -> None:
    entered, leave = threading.Event(), threading.Event()

    def hold(count: int) -> None:
        entered.set()
        assert leave.wait(SECONDS)

    behind = Queue()
    loaded = load(core, CHAIN, "AABB", AHEAD=Queue(hold), BEHIND=behind)
    requests = start_all(loaded, 10)
    assert entered.wait(SECONDS)
    for request in requests[::2]:
        request.cancel()
        with pytest.raises(RequestCancelledError):
            request.wait(0)
    leave.set()
    for index in range(1, 10, 2):
        assert requests[index].wait(SECONDS)
        assert requests[index].get_tensor("y").tolist() == [index, index]
    loaded.close()
    assert behind.runs == 5
    assert [request.is_running for request in requests] == [False] * 10


def test_error_of_a_stage_names_it_and_the_request_works_on(core: Core) -> None:
    def fail(count: int) -> None:
        if count == 1:
            raise OverflowError("no room")

    loaded = load(core, CHAIN, "AABB", AHEAD=Queue(), BEHIND=Queue(fail))
    request = loaded.create_infer_request()
    for turn in range(3):
        request.start_async({"x": np.full(2, turn, np.float32)})
        if turn == 1:
            with pytest.raises(InferenceError, match=r"OverflowError: no room; in stage 1 of 2 on BEHIND, nodes Neg_2, Neg_3"):
                request.wait(SECONDS)
        else:
            assert request.wait(SECONDS)
            assert request.get_tensor("y").tolist() == [turn, turn]


def test_runs_that_were_started_wait_for_no_garbage_collector(core: Core) -> None:
    loaded = load(core, CHAIN, "AABB", AHEAD=Queue(), BEHIND=Queue())
    gc.collect()
    # Contexts of earlier tests with runs that never ended.
    earlier = {id(thing) for thing in gc.get_objects() if type(thing) is RunContext}
    gc.disable()
    try:
        require_results(start_all(loaded, 3))
        loaded.infer({"x": np.ones(2, np.float32)})
        loaded.close()
        things = [thing for thing in gc.get_objects() if type(thing) in (Boxed, RunContext)]
    finally:
        gc.enable()
    assert not [thing for thing in things if id(thing) not in earlier]


@pytest.mark.parametrize("is_started", [True, False])
def test_branches_on_two_devices_work_at_the_same_time(core: Core, *, is_started: bool) -> None:
    barrier = threading.Barrier(2, timeout=SECONDS)
    loaded = load(core, BRANCHES, "PABP", PLAIN=PlainDevice(), AHEAD=Queue(_meet(barrier)), BEHIND=Queue(_meet(barrier)))
    request = loaded.create_infer_request()
    for value in (1, -2, 3):
        if is_started:
            request.start_async({"x": np.full(2, value, np.float32)})
            assert request.wait(SECONDS)
        else:
            request.infer({"x": np.full(2, value, np.float32)})
        assert request.get_tensor("y").tolist() == [-2 * abs(value)] * 2


def _meet(barrier: threading.Barrier) -> Callable[[int], None]:
    def meet(count: int) -> None:
        barrier.wait()

    return meet


def test_imported_network_keeps_the_times_of_its_stages(core: Core, tmp_path: Any) -> None:
    loaded = load(core, CHAIN, "AABB", {"PERF_COUNT": True}, AHEAD=Queue(), BEHIND=Queue())
    loaded.export_network(tmp_path / "split.blob")
    imported = core.import_network(tmp_path / "split.blob", "HETERO")
    requests = start_all(imported, 10)
    require_results(requests)
    moved = [(entry.node, entry.source, *entry.targets) for entry in requests[0].perf_counts if entry.targets]
    assert moved == [("x", "host", "AHEAD"), ("b", "AHEAD", "BEHIND"), ("y", "BEHIND", "host")]
