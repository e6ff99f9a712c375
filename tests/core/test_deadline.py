"""DEADLINE: runs, loads, imports and queries end in time even if the device hangs; late results are dropped."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from hetero_cpu.device import CpuDevice
from hetero_cpu.executable import CpuExecutable
from hetero_cpu.plan.passes import transform_network

from hetero_core import (
    Core,
    DeviceName,
    Executable,
    ExecutableNetwork,
    Extension,
    InferRequest,
    Network,
    Payload,
    QueryResult,
    hookimpl,
)
from hetero_core.errors import ClosedError, ConfigValueError, DeadlineExceededError, UnsupportedNodesError
from hetero_core.network.writer import unpack_network

from .conftest import LIMIT, HandDevice

SOON = {"DEADLINE": 0.05}
"""For what never ends by itself: however slow the machine, the time is over some day."""
EVER = {"DEADLINE": 3600.0}
ADD = "g (float[1] x) => (float[1] y) { [add] y = Add(x, x) }"
ENDLESS = """
g (int64 n, float[1] x) => (float[1] y) {
  [loop] y = Loop (n, , x) <body = b (int64 i, bool c, float[1] before) => (bool d, float[1] after) {
    d = Identity (c) [step] after = Neg (before) }>
}
"""
EMPTY = """
g (int64 n, float[1] x) => (float[1] y) {
  [loop] y = Loop (n, , x) <body = b (int64 i, bool c, float[1] z) => (bool c, float[1] z) { }>
}
"""
X = np.array([3], np.float32)


def load_for(seconds: float, core: Core, network: Network, device: str) -> ExecutableNetwork:
    """Loads without a deadline; the deadline holds for the runs only."""
    loaded = core.load_network(network, device, EVER)
    loaded.deadline = seconds
    return loaded


Run = Callable[[Any, dict[str, Any]], dict[str, Any]]


def infer_network(network: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    outputs: dict[str, Any] = network.infer(inputs)
    return outputs


def infer_request(network: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    outputs: dict[str, Any] = network.create_infer_request().infer(inputs)
    return outputs


def wait_for_request(network: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    request = network.create_infer_request()
    request.start_async(inputs)
    assert request.wait(LIMIT)
    return {spec.name: request.get_tensor(spec.name) for spec in network.outputs}


def await_request(network: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    outputs: dict[str, Any] = asyncio.run(network.create_infer_request().infer_async(inputs))
    return outputs


EVERY_WAY = pytest.mark.parametrize("run", [infer_network, infer_request, wait_for_request, await_request])


@EVERY_WAY
def test_run_of_a_device_that_does_not_poll_ends_in_time(
    core: Core, hand: HandDevice, read: Callable[..., Network], run: Run
) -> None:
    network = load_for(0.05, core, read(ADD), "HAND")
    with pytest.raises(
        DeadlineExceededError, match=r"a run of network 'g' on HAND has not ended within DEADLINE=0.05 s: "
    ) as caught:
        run(network, {"x": X})
    assert isinstance(caught.value, TimeoutError)
    assert "It was set aside with its working memory, and what the device returns is dropped" in str(caught.value)


@EVERY_WAY
def test_run_within_the_deadline_returns_its_outputs(core: Core, hand: HandDevice, read: Callable[..., Network], run: Run) -> None:
    hand.is_free = True
    assert run(core.load_network(read(ADD), "HAND", EVER), {"x": X})["y"].tolist() == [6]


@EVERY_WAY
@pytest.mark.parametrize("text", [ENDLESS, EMPTY])
def test_infinite_loop_and_its_thread_end_at_the_deadline(core: Core, read: Callable[..., Network], run: Run, text: str) -> None:
    network = load_for(0.05, core, read(text), "CPU")
    node = r"it was in node '(loop|step|Identity_0)' \((Loop|Neg|Identity)-\d+\)"
    with pytest.raises(DeadlineExceededError, match=f"on CPU has not ended .*: ({node}|it had not begun|the device was at work)"):
        run(network, {"n": np.array(2**62), "x": X})
    wait_until(lambda: not network.thread_of_run)


def wait_until(is_true: Callable[[], bool]) -> None:
    ended = threading.Event()
    for _ in range(LIMIT * 100):
        if is_true():
            return
        ended.wait(0.01)
    raise AssertionError("it never became true")


def test_node_of_a_late_run_is_named(core: Core, read: Callable[..., Network]) -> None:
    begun, ended = threading.Event(), threading.Event()

    def wait_in_node(x: Any) -> Any:
        begun.set()
        assert ended.wait(LIMIT)
        return x

    core.add_extension(Extension("com.acme", "Wait", 1, wait_in_node, lambda types, attributes: (types[0],)), "CPU")  # type: ignore[arg-type,return-value]  # typed by its input
    network = load_for(0.5, core, read("g (float[1] x) => (float[1] y) { a = Neg (x) [slow] y = com.acme.Wait (a) }"), "CPU")
    with pytest.raises(DeadlineExceededError, match=r"within DEADLINE=0.5 s: it was in node 'slow' \(com.acme:Wait"):
        network.infer({"x": X})
    ended.set()


def test_late_result_is_dropped_and_the_next_run_has_own_memory(core: Core, hand: HandDevice, read: Callable[..., Network]) -> None:
    network = load_for(0.5, core, read(ADD), "HAND")
    request = network.create_infer_request()
    with pytest.raises(DeadlineExceededError):
        request.infer({"x": X})
    late = hand.next_run()
    assert late.context.cancelled(), "the device is told"
    assert len(network.thread_of_run) == 1
    hand.is_free, network.deadline = True, LIMIT
    assert request.infer({"x": X + 1})["y"].tolist() == [8]
    late.end()
    wait_until(lambda: not network.thread_of_run)
    assert request.get_tensor("y").tolist() == [8]


def test_callback_of_a_late_run_is_called_once_with_the_error(core: Core, hand: HandDevice, read: Callable[..., Network]) -> None:
    calls: list[BaseException | None] = []
    request = load_for(0.05, core, read(ADD), "HAND").create_infer_request()
    request.set_callback(lambda _, error: calls.append(error))
    request.start_async({"x": X})
    with pytest.raises(DeadlineExceededError):
        request.wait(LIMIT)
    hand.is_free = True
    hand.next_run().end()
    assert [type(error) for error in calls] == [DeadlineExceededError]


def test_threads_of_the_device_are_free_again_after_late_runs(core: Core, hand: HandDevice, read: Callable[..., Network]) -> None:
    # HAND has four threads for asynchronous runs.
    network = load_for(0.05, core, read(ADD), "HAND")
    for _ in range(6):
        with pytest.raises(DeadlineExceededError):
            wait_for_request(network, {"x": X})
    hand.is_free = True
    assert wait_for_request(core.load_network(read(ADD), "HAND", EVER), {"x": X})["y"].tolist() == [6]


def test_stages_of_a_split_network_share_the_time_of_the_whole(core: Core, hand: HandDevice, read: Callable[..., Network]) -> None:
    text = "g (float[1] x) => (float[1] y) { [first] a = Neg (x) [slow] y = Add(a, a) }"
    network = load_for(0.5, core, read(text).with_affinity({"first": "CPU", "slow": "HAND"}), "HETERO:CPU,HAND")
    with pytest.raises(DeadlineExceededError, match="a run of network 'g' on HETERO:CPU,HAND has not ended within DEADLINE=0.5 s"):
        network.infer({"x": X})
    run = hand.next_run()
    assert run.context.cancelled()


def test_core_closes_during_a_late_run(read: Callable[..., Network], caplog: pytest.LogCaptureFixture) -> None:
    device = HandDevice()
    core = Core()
    core.register_plugin("HAND", device)
    network = load_for(0.05, core, read(ADD), "HAND")
    for run in (infer_network, wait_for_request):
        with pytest.raises(DeadlineExceededError):
            run(network, {"x": X})
    core.close()
    assert "'g' on HAND) is not closed: " in caplog.text
    assert " runs have not returned after they were cancelled" in caplog.text
    with pytest.raises(ClosedError):
        network.infer({"x": X})
    device.is_free = True
    while not device.runs.empty():
        device.next_run().end()


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), "-inf"])
def test_invalid_deadline_is_refused(core: Core, read: Callable[..., Network], value: Any) -> None:
    with pytest.raises(ConfigValueError, match="DEADLINE of device CPU: expected a number of 0.001 or more, got "):
        core.load_network(read(ADD), "CPU", {"DEADLINE": value})


class StuckDevice(CpuDevice):
    """CPU that blocks in a hook until the test releases it, and records the names of closed networks."""

    def __init__(self) -> None:
        super().__init__("STUCK")
        self.go_on = threading.Event()
        self.stuck_in = ""
        self.entered = 0
        self.closed: list[str] = []

    def _stay(self, hook: str) -> None:
        if hook == self.stuck_in:
            self.entered += 1
            assert self.go_on.wait(LIMIT)

    @hookimpl
    def query_network(self, device: DeviceName, network: Network) -> QueryResult:
        self._stay("query_network")
        return QueryResult({node.name: "STUCK" for node in network.nodes})

    @hookimpl
    def load_network(self, device: DeviceName, network: Network) -> Executable:
        self._stay("load_network")
        closed = self.closed

        class Noting(CpuExecutable):
            def close(self) -> None:
                closed.append(network.name)

        return Noting(transform_network(network), {})

    @hookimpl
    def import_network(self, device: DeviceName, payload: Payload, config: Mapping[str, Any]) -> Executable:
        self._stay("import_network")
        return self.load_network(device, unpack_network(payload.sections))


@pytest.fixture
def stuck(core: Core) -> Iterator[StuckDevice]:
    device = StuckDevice()
    core.register_plugin("STUCK", device)
    yield device
    device.go_on.set()


def export(core: Core, network: Network, device: str) -> bytes:
    stream = io.BytesIO()
    core.load_network(network, device).export_network(stream)
    return stream.getvalue()


HOOKS: Mapping[str, tuple[str, Callable[[Core, Network, bytes, str], Any]]] = {
    "query_network": ("a query about network 'g'", lambda core, network, _, device: core.query_network(network, device, SOON)),
    "load_network": ("loading network 'g'", lambda core, network, _, device: core.load_network(network, device, SOON)),
    "import_network": (
        "importing network 'g'",
        lambda core, _, blob, device: core.import_network(blob, device.partition(":")[0], SOON),
    ),
}


@pytest.mark.parametrize("device", ["STUCK", "HETERO:STUCK"])
@pytest.mark.parametrize("hook", HOOKS)
def test_slow_hook_is_named_and_abandoned(
    core: Core, stuck: StuckDevice, read: Callable[..., Network], hook: str, device: str
) -> None:
    network = read(ADD)
    blob = export(core, network, device)
    stuck.stuck_in = hook
    action, call = HOOKS[hook]
    with pytest.raises(DeadlineExceededError) as caught:
        call(core, network, blob, device)
    assert str(caught.value).startswith(f"{action} on {device} has not ended within DEADLINE=0.05 s: ")
    assert "It was set aside, and its thread goes on" in str(caught.value)
    if stuck.entered:
        assert f"it is in {hook} of plugin STUCK (" in str(caught.value)
    assert [thread.name for thread in threading.enumerate() if thread.daemon and f"hetero-{device}" in thread.name]
    stuck.stuck_in = ""
    assert core.load_network(network, device).infer({"x": X})["y"].tolist() == [6]


def test_late_network_is_closed(core: Core, stuck: StuckDevice, read: Callable[..., Network]) -> None:
    stuck.stuck_in = "load_network"
    with pytest.raises(DeadlineExceededError):
        core.load_network(read(ADD), "STUCK", {"DEADLINE": 0.5})
    assert stuck.closed == []
    stuck.go_on.set()
    wait_until(lambda: stuck.closed == ["g"])


def test_late_load_of_a_split_network_stops_at_the_next_part(core: Core, stuck: StuckDevice, read: Callable[..., Network]) -> None:
    text = "g (float[1] x) => (float[1] y) { [one] a = Neg (x) [two] b = Abs(a) [three] y = Neg(b) }"
    network = read(text).with_affinity({"one": "STUCK", "two": "CPU", "three": "STUCK"})
    stuck.stuck_in = "load_network"
    with pytest.raises(DeadlineExceededError):
        core.load_network(network, "HETERO:STUCK,CPU", {"DEADLINE": 0.5})
    assert stuck.entered == 1
    stuck.go_on.set()
    wait_until(lambda: stuck.closed == ["g/0"])
    assert stuck.entered == 1


def test_error_of_a_load_with_deadline_is_the_devices_own(core: Core, read: Callable[..., Network]) -> None:
    with pytest.raises(UnsupportedNodesError, match="operator com.acme:Odd has no kernel") as caught:
        core.load_network(read("g (float[1] x) => (y) { y = com.acme.Odd (x) }"), "CPU", EVER)
    assert any("raised by plugin CPU" in note for note in caught.value.__notes__)


def test_runs_with_a_deadline_have_the_right_results(core: Core, read: Callable[..., Network]) -> None:
    loaded = core.load_network(read(ADD), "CPU", EVER)
    request: InferRequest = loaded.create_infer_request()
    assert [request.infer({"x": X + n})["y"].tolist() for n in range(3)] == [[6], [8], [10]]
    assert threading.current_thread().name == "MainThread"
