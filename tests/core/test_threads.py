"""Thread budget: its division by keys and hint, the configuration of the device, and the number of concurrent runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from typing import Any

import numpy as np
import pytest

from hetero_core import AsyncInferQueue, Core, Executable, Network, QueryResult, RunContext, hookimpl
from hetero_core.devices.threads import resolve_threads, share_threads
from hetero_core.errors import ClosedError, ConfigKeyError, ConfigValueError, RequestCancelledError
from hetero_core.runtime.executors import ExecutorManager

TEXT = "g (float[1] x) => (float[1] y) { y = Add(x, x) }"
X = np.ones(1, np.float32)
LIMIT = 60
PLAIN: Mapping[str, Any] = {
    "INFERENCE_NUM_THREADS": None,
    "NUM_STREAMS": None,
    "PERFORMANCE_HINT": "LATENCY",
    "PERFORMANCE_HINT_NUM_REQUESTS": 0,
    "EXCLUSIVE_ASYNC_REQUESTS": False,
}


@pytest.mark.parametrize(
    ("config", "highest", "threads", "streams", "share"),
    [
        ({}, 8, 8, 1, 8),
        ({"INFERENCE_NUM_THREADS": 3}, 8, 3, 1, 3),
        ({"PERFORMANCE_HINT": "THROUGHPUT"}, 8, 8, 8, 1),
        ({"PERFORMANCE_HINT": "THROUGHPUT"}, 3, 8, 3, 2),
        ({"PERFORMANCE_HINT": "THROUGHPUT", "INFERENCE_NUM_THREADS": 5}, 8, 5, 5, 1),
        ({"NUM_STREAMS": "AUTO"}, 8, 8, 8, 1),
        ({"NUM_STREAMS": "AUTO", "INFERENCE_NUM_THREADS": 4}, 1, 4, 1, 4),
        ({"NUM_STREAMS": 3}, 8, 8, 3, 2),
        ({"NUM_STREAMS": 2, "PERFORMANCE_HINT": "THROUGHPUT"}, 8, 8, 2, 4),
        # A device that does not compute on the processors may have more streams than processors.
        ({"NUM_STREAMS": 20}, 64, 8, 20, 1),
        ({"PERFORMANCE_HINT": "THROUGHPUT"}, 64, 8, 8, 1),
        ({"PERFORMANCE_HINT": "THROUGHPUT", "PERFORMANCE_HINT_NUM_REQUESTS": 2}, 8, 8, 2, 4),
        ({"PERFORMANCE_HINT": "THROUGHPUT", "PERFORMANCE_HINT_NUM_REQUESTS": 20}, 8, 8, 8, 1),
        ({"PERFORMANCE_HINT": "LATENCY", "PERFORMANCE_HINT_NUM_REQUESTS": 2}, 8, 8, 1, 8),
        ({"NUM_STREAMS": "AUTO", "PERFORMANCE_HINT_NUM_REQUESTS": 3}, 8, 8, 3, 2),
        ({"NUM_STREAMS": 4, "PERFORMANCE_HINT_NUM_REQUESTS": 2}, 8, 8, 4, 2),
        ({"EXCLUSIVE_ASYNC_REQUESTS": True, "PERFORMANCE_HINT": "THROUGHPUT"}, 8, 8, 1, 8),
        ({"EXCLUSIVE_ASYNC_REQUESTS": True, "NUM_STREAMS": "AUTO"}, 8, 8, 1, 8),
        ({"EXCLUSIVE_ASYNC_REQUESTS": True, "NUM_STREAMS": 1}, 8, 8, 1, 8),
    ],
)
def test_budget_is_divided_by_keys_and_hint(config: dict[str, Any], highest: int, threads: int, streams: int, share: int) -> None:
    resolved = resolve_threads({**PLAIN, **config}, device="X", processors=8, find_range=lambda: (1, highest))
    assert (resolved["INFERENCE_NUM_THREADS"], resolved["NUM_STREAMS"]) == (threads, streams)
    assert share_threads(resolved)["INFERENCE_NUM_THREADS"] == share
    assert share == max(1, threads // streams)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"INFERENCE_NUM_THREADS": 9},
            "configuration key INFERENCE_NUM_THREADS of device X: expected an int of 1 to 8, the processors that this process may use, "
            "got 9; leave it out to use all of them",
        ),
        ({"NUM_STREAMS": 9}, "configuration key NUM_STREAMS of device X: expected an int of 1 to 8 or AUTO, got 9"),
        (
            {"NUM_STREAMS": 4, "INFERENCE_NUM_THREADS": 2},
            "NUM_STREAMS=4 of device X are more streams than INFERENCE_NUM_THREADS=2 has threads for; each stream needs one",
        ),
        (
            {"NUM_STREAMS": 2, "EXCLUSIVE_ASYNC_REQUESTS": True},
            "NUM_STREAMS=2 and EXCLUSIVE_ASYNC_REQUESTS=True of device X contradict each other: exclusive networks share one stream; "
            "give one of the two keys",
        ),
    ],
)
def test_impossible_division_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigValueError) as caught:
        resolve_threads({**PLAIN, **config}, device="X", processors=8, find_range=lambda: (1, 8))
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("INFERENCE_NUM_THREADS", 0, "expected an int of 1 or more, got 0"),
        ("CPU_THREADS_NUM", "-2", "expected an int of 1 or more, got '-2'"),
        ("INFERENCE_NUM_THREADS", "AUTO", "expected an int of 1 or more, got 'AUTO'"),
        ("NUM_STREAMS", 0, "expected an int of 1 or more or AUTO, got 0"),
        ("CPU_THROUGHPUT_STREAMS", "many", "expected an int of 1 or more or AUTO, got 'many'"),
        ("PERFORMANCE_HINT", "FAST", "expected one of LATENCY, THROUGHPUT, UNDEFINED, got 'FAST'"),
        ("EXCLUSIVE_ASYNC_REQUESTS", 2, "expected a bool (True, False, YES, NO, ON, OFF), got 2"),
        ("INFERENCE_NUM_THREADS", 10**6, "the processors that this process may use, got 1000000"),
    ],
)
def test_wrong_value_is_refused_at_load(core: Core, read: Callable[..., Network], key: str, value: Any, complaint: str) -> None:
    with pytest.raises(ConfigValueError) as caught:
        core.load_network(read(TEXT), "CPU", {key: value})
    assert complaint in str(caught.value)
    assert "of device CPU: " in str(caught.value)


class Counting:
    """A device with four streams that records the configuration of each load and the maximum of concurrent runs."""

    def __init__(self, streams: int = 4) -> None:
        self.streams = streams
        self.configs: list[Mapping[str, Any]] = []
        self.lock = threading.Lock()
        self.entered = threading.Semaphore(0)
        self.leave = threading.Event()
        self.running = 0
        self.most = 0

    @hookimpl
    def metrics(self) -> Mapping[str, Any]:
        return {"RANGE_FOR_STREAMS": (1, self.streams)}

    @hookimpl
    def query_network(self, network: Network) -> QueryResult:
        return QueryResult({node.name: "COUNTING" for node in network.nodes})

    @hookimpl
    def load_network(self, network: Network, config: Mapping[str, Any]) -> Executable:
        self.configs.append(config)
        return CountingExecutable(network, self)


class CountingExecutable(Executable):
    def __init__(self, network: Network, device: Counting) -> None:
        self.inputs, self.outputs, self._device = network.inputs, network.outputs, device

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        device = self._device
        with device.lock:
            device.running += 1
            device.most = max(device.most, device.running)
        device.entered.release()
        assert device.leave.wait(LIMIT)
        with device.lock:
            device.running -= 1
        return (inputs[0] * 2,)


@pytest.fixture
def counting(core: Core) -> Any:
    device = Counting()
    core.register_plugin("COUNTING", device)
    yield device
    device.leave.set()


def start_all(*networks: Any, count: int = 12) -> list[Any]:
    requests = [network.create_infer_request() for _ in range(count) for network in networks]
    for request in requests:
        request.start_async({"x": X})
    return requests


def wait_all(requests: list[Any]) -> None:
    for request in requests:
        assert request.wait(LIMIT)
        assert request.get_tensor("y").tolist() == [2]


def enter(device: Counting, count: int) -> None:
    """Waits until `count` runs have begun; the remaining runs are queued."""
    for _ in range(count):
        assert device.entered.acquire(timeout=LIMIT)


@pytest.mark.parametrize("streams", [1, 2, 4])
def test_as_many_runs_as_streams_are_under_way_and_never_more(
    core: Core, counting: Counting, read: Callable[..., Network], streams: int
) -> None:
    network = core.load_network(read(TEXT), "COUNTING", {"NUM_STREAMS": streams})
    requests = start_all(network)
    enter(counting, streams)
    assert not counting.entered.acquire(blocking=False)
    counting.leave.set()
    wait_all(requests)
    assert counting.most == streams
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("hetero-COUNTING_")]
    assert len(threads) == streams


def test_networks_with_different_settings_share_no_threads(core: Core, counting: Counting, read: Callable[..., Network]) -> None:
    narrow = core.load_network(read(TEXT), "COUNTING", {"NUM_STREAMS": 1})
    wide = core.load_network(read(TEXT), "COUNTING", {"NUM_STREAMS": 3})
    requests = start_all(narrow, wide)
    enter(counting, 4)
    assert not counting.entered.acquire(blocking=False)
    counting.leave.set()
    wait_all(requests)
    assert counting.most == 4


def test_exclusive_networks_of_a_device_take_turns(core: Core, counting: Counting, read: Callable[..., Network]) -> None:
    networks = [core.load_network(read(TEXT), "COUNTING", {"EXCLUSIVE_ASYNC_REQUESTS": "YES"}) for _ in range(3)]
    requests = start_all(*networks)
    enter(counting, 1)
    assert not counting.entered.acquire(blocking=False)
    counting.leave.set()
    wait_all(requests)
    assert counting.most == 1


def test_exclusive_network_does_not_wait_for_a_normal_network(core: Core, counting: Counting, read: Callable[..., Network]) -> None:
    alone = core.load_network(read(TEXT), "COUNTING", {"EXCLUSIVE_ASYNC_REQUESTS": True})
    free = core.load_network(read(TEXT), "COUNTING")
    requests = start_all(alone, free)
    enter(counting, 2)
    counting.leave.set()
    wait_all(requests)
    assert counting.most == 2


def test_device_gets_threads_per_stream_and_network_reports_all(
    core: Core, counting: Counting, read: Callable[..., Network], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hetero_core.devices.device.count_processors", lambda: 6)
    network = core.load_network(read(TEXT), "COUNTING", {"CPU_THROUGHPUT_STREAMS": "2", "CPU_THREADS_NUM": "5"})
    assert (counting.configs[0]["INFERENCE_NUM_THREADS"], counting.configs[0]["NUM_STREAMS"]) == (2, 2)
    assert (network.get_config("INFERENCE_NUM_THREADS"), network.get_config("NUM_STREAMS")) == (5, 2)
    assert network.get_config("COUNTING_THROUGHPUT_STREAMS") == 2
    old = core.load_network(read(TEXT), "COUNTING", {"counting_throughput_streams": 2, "cpu_threads_per_stream": "3"})
    assert (old.get_config("INFERENCE_NUM_THREADS"), old.get_config("NUM_STREAMS")) == (6, 2)
    assert (counting.configs[1]["INFERENCE_NUM_THREADS"], counting.configs[1]["NUM_STREAMS"]) == (3, 2)
    alone = core.load_network(read(TEXT), "COUNTING", {"CPU_THREADS_PER_STREAM": 3})
    assert (alone.get_config("INFERENCE_NUM_THREADS"), alone.get_config("NUM_STREAMS")) == (3, 1)
    assert network.get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == len(AsyncInferQueue(network)) == 2
    hinted = core.load_network(read(TEXT), "COUNTING", {"PERFORMANCE_HINT": "THROUGHPUT"})
    assert (hinted.get_config("INFERENCE_NUM_THREADS"), hinted.get_config("NUM_STREAMS")) == (6, 4)
    assert len(AsyncInferQueue(hinted)) == 4
    plain = core.load_network(read(TEXT), "COUNTING")
    assert (plain.get_config("INFERENCE_NUM_THREADS"), len(AsyncInferQueue(plain))) == (6, 1)
    assert core.get_config("COUNTING", "INFERENCE_NUM_THREADS") == 6
    core.set_config({"PERFORMANCE_HINT": "THROUGHPUT"}, "COUNTING")
    assert core.get_config("COUNTING", "NUM_STREAMS") == 4


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"CPU_THREADS_PER_STREAM": 0}, "expected an int of 1 or more, and NUM_STREAMS as one beside it, got 0 and 1"),
        ({"CPU_THREADS_PER_STREAM": 1, "NUM_STREAMS": "AUTO"}, "got 1 and 'AUTO'; INFERENCE_NUM_THREADS says"),
        ({"CPU_THREADS_PER_STREAM": 1, "PERFORMANCE_HINT": "throughput"}, "got 1 and the hint THROUGHPUT"),
        (
            {"CPU_THREADS_PER_STREAM": 1, "INFERENCE_NUM_THREADS": 2},
            "INFERENCE_NUM_THREADS of device COUNTING is given twice: 1 and 2",
        ),
    ],
)
def test_threads_of_a_stream_need_the_number_of_streams(
    core: Core, counting: Counting, config: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigValueError, match=message):
        core.resolve_config("COUNTING", config)


def test_streams_key_of_another_device_is_unknown(core: Core, counting: Counting) -> None:
    with pytest.raises(ConfigKeyError, match="device COUNTING has no configuration key 'TEMPLATE_THROUGHPUT_STREAMS'"):
        core.resolve_config("COUNTING", {"TEMPLATE_THROUGHPUT_STREAMS": 1})


def test_device_that_states_its_requests_has_as_many_streams(core: Core) -> None:
    assert core.get_metric("TEMPLATE", "RANGE_FOR_ASYNC_INFER_REQUESTS") == (1, 1, 1)
    assert core.get_metric("TEMPLATE", "RANGE_FOR_STREAMS") == (1, 1)
    with pytest.raises(ConfigValueError, match="NUM_STREAMS of device TEMPLATE: expected an int of 1 to 1 or AUTO, got 2"):
        core.query_network("unread.onnx", "TEMPLATE", {"NUM_STREAMS": 2})


def test_close_waits_for_running_and_cancels_queued_requests(counting: Counting, read: Callable[..., Network], core: Core) -> None:
    networks = [core.load_network(read(TEXT), "COUNTING", {"NUM_STREAMS": count}) for count in (1, 2, 3)]
    networks += [core.load_network(read(TEXT), "COUNTING", {"EXCLUSIVE_ASYNC_REQUESTS": True}) for _ in range(2)]
    requests = start_all(*networks, count=40)
    # Requests are started round-robin. Each network runs its number of streams; the two exclusive networks share a single stream.
    running = [requests[turn * len(networks) + place] for place, count in enumerate((1, 2, 3, 1)) for turn in range(count)]
    enter(counting, len(running))
    closing = threading.Thread(target=core.close)
    closing.start()
    for request in requests:
        if request not in running:
            with pytest.raises(RequestCancelledError, match="the Core was closed before a request on network 'g' began"):
                request.wait(LIMIT)
    assert closing.is_alive()
    assert not any(request.wait(0) for request in running)
    counting.leave.set()
    closing.join(LIMIT)
    assert not closing.is_alive()
    wait_all(running)
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("hetero-COUNTING")]
    with pytest.raises(ClosedError, match="this Core is closed"):
        core.load_network(read(TEXT), "COUNTING")


def test_executors_are_refused_after_the_end() -> None:
    manager = ExecutorManager()
    executor, entered, leave = manager.create_executor("X", workers=1), threading.Event(), threading.Event()
    running = executor.submit(lambda: (entered.set(), leave.wait(LIMIT)))
    assert entered.wait(LIMIT)
    queued = executor.submit(lambda: None)
    closing = threading.Thread(target=manager.close)
    closing.start()
    with pytest.raises(CancelledError):
        queued.result(LIMIT)
    leave.set()
    closing.join(LIMIT)
    assert running.result(LIMIT) == (None, True)
    with pytest.raises(ClosedError, match="cannot start a request on X: its Core is closed"):
        executor.submit(print)
    with pytest.raises(ClosedError, match="cannot make threads for Y: its Core is closed"):
        manager.create_executor("Y", workers=1)


def test_settings_of_threads_stay_on_their_machine(core: Core, read: Callable[..., Network], tmp_path: Any) -> None:
    path = tmp_path / "g.blob"
    core.load_network(read(TEXT), "CPU", {"INFERENCE_NUM_THREADS": 1, "EXCLUSIVE_ASYNC_REQUESTS": True}).export_network(path)
    assert b"EXCLUSIVE_ASYNC_REQUESTS" not in path.read_bytes()
    core.set_config({"EXCLUSIVE_ASYNC_REQUESTS": True}, "CPU")
    imported = core.import_network(path, "CPU")
    assert imported.get_config("EXCLUSIVE_ASYNC_REQUESTS") is True
    assert imported.get_config("INFERENCE_NUM_THREADS") == core.get_config("CPU", "INFERENCE_NUM_THREADS")
    changed = core.import_network(path, "CPU", {"EXCLUSIVE_ASYNC_REQUESTS": False, "INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1})
    assert (changed.get_config("EXCLUSIVE_ASYNC_REQUESTS"), changed.get_config("INFERENCE_NUM_THREADS")) == (False, 1)
