"""Devices with `start`: errors at the start, and the cases in which the core must not call `start`."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Mapping
from typing import Any
from weakref import finalize

import numpy as np
import pytest
from hetero_template.device import TemplateArray, TemplateDevice

from hetero_core import Core, Executable, ExecutableNetwork, Network, QueryResult, RunContext, hookimpl
from hetero_core.contract import DeviceName
from hetero_core.errors import ClosedError, InferenceError

X = np.array([3], np.float32)


class Starting(Executable):
    """Ends each run inside `start`, or raises `failure`."""

    def __init__(self, network: Network) -> None:
        self.inputs, self.outputs = network.inputs, network.outputs
        self.failure: BaseException | None = None
        self.told: Any = None
        self.started = 0

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        return (inputs[0] * 2,)

    def start(self, inputs: tuple[Any, ...], context: RunContext, done: Callable[..., None]) -> None:
        self.started += 1
        if self.failure is not None:
            raise self.failure
        done(self.run(inputs, context), self.told)


class StartingDevice:
    @hookimpl
    def query_network(self, network: Network) -> QueryResult:
        return QueryResult({node.name: "STARTING" for node in network.nodes})

    @hookimpl
    def load_network(self, network: Network) -> Executable:
        return Starting(network)


@pytest.fixture
def network(core: Core, read: Callable[[str], Network]) -> ExecutableNetwork:
    core.register_plugin("STARTING", StartingDevice())
    return core.load_network(read("g (float[1] x) => (float[1] y) { y = Add(x, x) }"), "STARTING")


def test_error_of_start_is_raised_like_an_error_of_run(network: ExecutableNetwork) -> None:
    request, executable = network.create_infer_request(), network.executable
    assert isinstance(executable, Starting)
    executable.failure = OverflowError("no queue")
    message = "network 'g' failed on STARTING .*: OverflowError: no queue"
    with pytest.raises(InferenceError, match=message) as caught:
        request.start_async({"x": X})
    assert caught.value.__cause__ is executable.failure
    with pytest.raises(InferenceError, match=message):
        asyncio.run(request.infer_async({"x": X}))
    assert request.wait(0)
    executable.failure = None
    request.start_async({"x": X})
    assert request.wait(60)
    assert request.get_tensor("y").tolist() == [6]


def test_closed_network_is_not_started(network: ExecutableNetwork) -> None:
    request, executable = network.create_infer_request(), network.executable
    assert isinstance(executable, Starting)
    network.close()
    with pytest.raises(ClosedError, match="network 'g' on STARTING is closed; load it again"):
        request.start_async({"x": X})
    assert executable.started == 0
    assert request.wait(0)


@pytest.mark.parametrize("config", [{}, {"PERF_COUNT": True}, {"DEADLINE": 60.0}], ids=["plain", "measured", "deadline"])
@pytest.mark.parametrize("device", ["STARTING", "CPU"])
def test_network_is_freed_without_the_garbage_collector(
    core: Core, read: Callable[[str], Network], device: str, config: dict[str, Any]
) -> None:
    core.register_plugin("STARTING", StartingDevice())
    loaded = core.load_network(read("g (float[1] x) => (float[1] y) { y = Add(x, x) }"), device, config)
    request, is_freed = loaded.create_infer_request(), threading.Event()
    finalize(loaded.executable, is_freed.set)
    gc.collect()
    gc.disable()
    try:
        request.start_async({"x": X})
        assert request.wait(60)
        request.infer({"x": X})
        core.close()
        del loaded, request
        # A thread of the run, of the device or of the DEADLINE timer may hold the executable until it ends.
        assert is_freed.wait(60)
    finally:
        gc.enable()


class Remote(TemplateDevice):
    @hookimpl
    def to_host(self, array: TemplateArray) -> Any:
        raise OverflowError("the card is gone")


def test_error_of_the_transfer_home_ends_the_run(core: Core, read: Callable[[str], Network]) -> None:
    core.register_plugin("REMOTE", Remote("REMOTE"))
    request = core.load_network(read("g (float[1] x) => (float[1] y) { y = Add(x, x) }"), "REMOTE").create_infer_request()
    request.start_async({"x": X})
    with pytest.raises(InferenceError, match="network 'g' failed on REMOTE .*: OverflowError: the card is gone"):
        request.wait(60)


class SingleThread(TemplateDevice):
    """Copies outputs to the host on the thread that computes."""

    @hookimpl
    def load_network(self, device: DeviceName, network: Network, config: Mapping[str, Any], query: Any) -> Executable:
        loaded = super().load_network(device, network, config, query)
        self.queue = loaded._queue  # type: ignore[attr-defined]  # TEMPLATE's
        return loaded

    @hookimpl
    def to_host(self, array: TemplateArray) -> Any:
        return self.queue.submit(super().to_host, array).result(30)


def test_transfer_home_may_wait_for_the_thread_of_the_device(core: Core, read: Callable[[str], Network]) -> None:
    core.register_plugin("SINGLE", SingleThread("SINGLE"))
    network = core.load_network(read("g (float[1] x) => (float[1] y) { y = Add(x, x) }"), "SINGLE")
    assert network.infer({"x": X})["y"].tolist() == [6]
    requests = [network.create_infer_request() for _ in range(4)]
    for request in requests:
        request.start_async({"x": X})
    assert [request.wait(60) and request.get_tensor("y").tolist() for request in requests] == [[6]] * 4


class Gated(Starting):
    """Computes after `gate` is set or the run is cancelled; records whether it was closed during a run."""

    def __init__(self, network: Network) -> None:
        super().__init__(network)
        self.began, self.gate = threading.Event(), threading.Event()
        self.is_in_run = False
        self.was_closed_in_run: bool | None = None
        self.drops = False

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        self.is_in_run = True
        self.began.set()
        while not self.gate.wait(0.01) and not context.cancelled():
            pass
        self.is_in_run = False
        return (inputs[0] * 2,)

    def start(self, inputs: tuple[Any, ...], context: RunContext, done: Callable[..., None]) -> None:
        self.began.set()
        if not self.drops:
            threading.Thread(target=lambda: done(self.run(inputs, context), None)).start()

    def close(self) -> None:
        self.was_closed_in_run = self.is_in_run


@pytest.fixture(params=["infer", "start_async"])
def running(request: pytest.FixtureRequest, network: ExecutableNetwork, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Starts a gated run. Yields the executable, a function that waits for the end of the run, and the list of its outputs."""
    gated = Gated(network)  # type: ignore[arg-type]  # it has inputs and outputs
    monkeypatch.setattr(network, "executable", gated)
    monkeypatch.setattr(network, "run_device", gated.run)
    outputs: list[Any] = []
    job = network.create_infer_request()
    if request.param == "infer":
        thread = threading.Thread(target=lambda: outputs.append(job.infer({"x": X})["y"].tolist()))
        thread.start()
        end = thread.join
    else:
        job.start_async({"x": X})
        end = lambda: outputs.append(job.wait(60) and job.get_tensor("y").tolist())  # noqa: E731  # as join above
    assert gated.began.wait(60)
    yield gated, end, outputs
    gated.gate.set()


def test_close_waits_for_a_run_under_way(network: ExecutableNetwork, running: Any) -> None:
    gated, end, outputs = running
    closing = threading.Thread(target=network.close)
    closing.start()
    gated.gate.set()
    closing.join()
    end()
    assert gated.was_closed_in_run is False
    assert outputs == [[6]]


def test_close_cancels_a_run_that_takes_too_long(network: ExecutableNetwork, running: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hetero_core.runtime.request.CLOSE_SECONDS", 0.0)
    monkeypatch.setattr("hetero_core.runtime.request.CANCEL_SECONDS", 60.0)
    gated, end, _ = running
    network.close()
    assert gated.was_closed_in_run is False
    end()


def test_network_may_be_closed_by_the_callback_of_its_run(network: ExecutableNetwork) -> None:
    request = network.create_infer_request()
    request.set_callback(lambda *_: network.close())
    request.start_async({"x": X})
    assert request.wait(5)


def test_exclusive_networks_of_a_device_with_start_take_turns(core: Core, read: Callable[[str], Network]) -> None:
    text = "g (float[1] x) => (float[1] y) { y = Add(x, x) }"
    entered, may_leave = threading.Semaphore(0), threading.Event()

    class Held(Starting):
        def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
            entered.release()
            assert may_leave.wait(60)
            return super().run(inputs, context)

    class HeldDevice(StartingDevice):
        @hookimpl
        def load_network(self, network: Network) -> Executable:
            return Held(network)

    core.register_plugin("HELD", HeldDevice())
    networks = [core.load_network(read(text), "HELD", {"EXCLUSIVE_ASYNC_REQUESTS": True}) for _ in range(2)]
    requests = [network.create_infer_request() for network in networks]
    for request in requests:
        request.start_async({"x": X})
    assert entered.acquire(timeout=900)
    assert not entered.acquire(blocking=False)
    may_leave.set()
    for request in requests:
        request.wait()
        assert request.get_tensor("y").tolist() == [6]
    assert [network.executable.started for network in networks if isinstance(network.executable, Starting)] == [0, 0]


def test_higher_priority_goes_first_among_exclusive_networks(core: Core, read: Callable[[str], Network]) -> None:
    entered, may_leave = threading.Semaphore(0), threading.Event()
    order: list[str] = []

    class Held(Starting):
        def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
            entered.release()
            assert may_leave.wait(60)
            return super().run(inputs, context)

    class HeldDevice(StartingDevice):
        @hookimpl
        def load_network(self, network: Network) -> Executable:
            return Held(network)

    core.register_plugin("HELD", HeldDevice())
    requests = {}
    for name in ("LOW", "MEDIUM", "HIGH", "DEFAULT"):
        config = {"EXCLUSIVE_ASYNC_REQUESTS": True, "MODEL_PRIORITY": name}
        loaded = core.load_network(read("g (float[1] x) => (float[1] y) { y = Add(x, x) }"), "HELD", config)
        requests[name] = [loaded.create_infer_request() for _ in range(2)]
        for request in requests[name]:
            request.set_callback(lambda *_, name=name: order.append(name))
    # The first request is running when the rest is queued.
    requests["LOW"][0].start_async({"x": X})
    assert entered.acquire(timeout=900)
    for name, index in (("LOW", 1), ("MEDIUM", 0), ("HIGH", 0), ("DEFAULT", 0), ("HIGH", 1), ("MEDIUM", 1)):
        requests[name][index].start_async({"x": X})
    may_leave.set()
    for name, index in (("LOW", 0), ("LOW", 1), ("MEDIUM", 0), ("HIGH", 0), ("DEFAULT", 0), ("HIGH", 1), ("MEDIUM", 1)):
        assert requests[name][index].wait(60)
    assert order == ["LOW", "HIGH", "HIGH", "MEDIUM", "DEFAULT", "MEDIUM", "LOW"]
