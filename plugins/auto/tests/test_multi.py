"""MULTI: the device of each request, and the right answer to each request while devices fail, come or go."""

from __future__ import annotations

import io
import logging
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import onnx.parser
import pytest

from hetero_core import Core, Network
from hetero_core.errors import (
    ClosedError,
    ConfigKeyError,
    DeviceNameError,
    DeviceNotFoundError,
    InferenceError,
    LoadError,
    RequestCancelledError,
    UnsupportedNodesError,
)
from hetero_core.runtime.queue import AsyncInferQueue

LIMIT = 60
Feed = Callable[[float], dict[str, Any]]


def run_all(queue: AsyncInferQueue, feed: Feed, count: int) -> dict[int, float]:
    """Returns the answers to this many requests, by number."""
    answers: dict[int, float] = {}

    def keep(request: Any, number: int) -> None:
        assert number not in answers
        answers[number] = float(request.get_tensor("y")[0])

    queue.set_callback(keep)
    for number in range(count):
        queue.start_async(feed(number), number)
    queue.wait_all()
    return answers


@pytest.mark.parametrize("policy", ["DEVICE_PRIORITY", "ROUND_ROBIN", "MEASURED"])
def test_ten_thousand_requests_get_their_own_answers(
    core: Core, add_device: Any, network: Network, feed: Feed, policy: str
) -> None:
    first, second = add_device("A"), add_device("B")
    loaded = core.load_network(network, "MULTI:A(2),B(3)", {"SCHEDULE_POLICY": policy})
    answers = run_all(AsyncInferQueue(loaded, 16), feed, 10_000)
    assert answers == {number: 3.0 * number for number in range(10_000)}
    assert sorted([*first.runs, *second.runs]) == list(range(10_000))
    assert loaded.get_metric("REQUESTS_OF_DEVICES") == {"A": len(first.runs), "B": len(second.runs)}


def test_one_device_runs_requests_in_the_order_of_their_start(core: Core, add_device: Any, network: Network, feed: Feed) -> None:
    device = add_device("A")
    run_all(AsyncInferQueue(core.load_network(network, "MULTI:A(1)"), 8), feed, 500)
    assert device.runs == list(range(500))


def test_two_devices_work_at_the_same_time(core: Core, add_device: Any, network: Network, feed: Feed) -> None:
    first, second = add_device("A"), add_device("B")
    first.gate.clear()
    second.gate.clear()
    loaded = core.load_network(network, "MULTI:A,B")
    requests = [loaded.create_infer_request() for _ in range(5)]
    for number, request in enumerate(requests):
        request.start_async(feed(number))
    assert first.entered.acquire(timeout=LIMIT)
    assert second.entered.acquire(timeout=LIMIT)
    assert (first.runs, second.runs) == ([0], [1])
    second.gate.set()
    for request in requests[1:]:
        assert request.wait(LIMIT)
    assert (first.runs, second.runs) == ([0], [1, 2, 3, 4])
    first.gate.set()
    assert [float(request.get_tensor("y")[0]) for request in requests if request.wait(LIMIT)] == [0, 3, 6, 9, 12]


def test_count_is_how_many_requests_a_device_is_given_at_once(core: Core, add_device: Any, network: Network, feed: Feed) -> None:
    first, second = add_device("A"), add_device("B")
    first.gate.clear()
    second.gate.clear()
    loaded = core.load_network(network, "MULTI:A(2),B")
    assert loaded.get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == 3
    requests = [loaded.create_infer_request() for _ in range(3)]
    for number, request in enumerate(requests):
        request.start_async(feed(number))
    streams = first.configs[0]["NUM_STREAMS"]
    for device, count in ((first, streams), (second, 1)):
        for _ in range(count):
            assert device.entered.acquire(timeout=LIMIT)
    assert (sorted(first.runs), second.runs) == (list(range(streams)), [2])
    first.gate.set()
    second.gate.set()
    assert all(request.wait(LIMIT) for request in requests)
    assert (first.loads, second.loads) == (1, 1)


def test_blocking_callers_use_both_devices(core: Core, add_device: Any, network: Network, feed: Feed) -> None:
    first, second = add_device("A"), add_device("B")
    first.gate.clear()
    second.gate.clear()
    loaded = core.load_network(network, "MULTI:A,B")
    answers: dict[int, float] = {}
    threads = [
        threading.Thread(target=lambda n=n: answers.update({n: float(loaded.infer(feed(n))["y"][0])}), name=f"caller {n}")
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    assert first.entered.acquire(timeout=LIMIT)
    assert second.entered.acquire(timeout=LIMIT)
    first.gate.set()
    second.gate.set()
    for thread in threads:
        thread.join(LIMIT)
    assert answers == {0: 0, 1: 3, 2: 6, 3: 9}


@pytest.mark.parametrize("seed", range(20))
def test_no_request_is_lost_when_a_device_fails_after_100(
    core: Core, add_device: Any, network: Network, feed: Feed, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    draw = random.Random(seed)
    broken, sound = add_device("BROKEN"), add_device("SOUND")
    broken.fails_from = 100
    order = draw.choice(["BROKEN({}),SOUND({})", "SOUND({}),BROKEN({})"]).format(draw.randint(1, 4), draw.randint(1, 4))
    policy = draw.choice(["DEVICE_PRIORITY", "ROUND_ROBIN"])
    loaded = core.load_network(network, f"MULTI:{order}", {"SCHEDULE_POLICY": policy})
    with caplog.at_level(logging.WARNING):
        answers = run_all(AsyncInferQueue(loaded, draw.randint(2, 12)), feed, 1000)
    assert answers == {number: 3.0 * number for number in range(1000)}
    served = loaded.get_metric("REQUESTS_OF_DEVICES")
    assert sum(served.values()) == 1000
    if loaded.get_metric("EXECUTION_DEVICES") == ("SOUND",):
        assert served == {"BROKEN": 100, "SOUND": 900}
        assert "goes on without BROKEN, which failed 2 times in a row where SOUND did not" in caplog.text
        assert broken.closed == 1
    assert sound.closed == 0


def test_request_that_fails_everywhere_fails_alone(core: Core, add_device: Any, network: Network, feed: Feed) -> None:
    first, second = add_device("A"), add_device("B")
    first.poison = second.poison = 7
    loaded = core.load_network(network, "MULTI:A,B")
    for _ in range(3):
        with pytest.raises(InferenceError, match="failed on A .*the driver fell over") as caught:
            loaded.infer(feed(7))
        assert any("B failed at the request, too" in note for note in caught.value.__notes__)
    assert loaded.get_metric("EXECUTION_DEVICES") == ("A", "B")
    assert loaded.infer(feed(1))["y"].tolist() == [3]
    request = loaded.create_infer_request()
    request.start_async(feed(7))
    with pytest.raises(InferenceError, match="failed on A"):
        request.wait(LIMIT)


def test_single_failed_request_does_not_drop_a_device(core: Core, add_device: Any, network: Network, feed: Feed) -> None:
    first, _ = add_device("A"), add_device("B")
    first.poison = 7
    loaded = core.load_network(network, "MULTI:A,B")
    for number in (7, 1, 7, 2):
        assert loaded.infer(feed(number))["y"].tolist() == [3 * number]
    assert loaded.get_metric("REQUESTS_OF_DEVICES") == {"A": 2, "B": 2}
    assert loaded.get_metric("EXECUTION_DEVICES") == ("A", "B")


def test_devices_are_added_and_taken_away_under_load(core: Core, add_device: Any, network: Network, feed: Feed) -> None:
    first, second = add_device("A"), add_device("B")
    loaded = core.load_network(network, "MULTI:A")
    request = loaded.create_infer_request()
    first.gate.clear()
    request.start_async(feed(1))
    assert first.entered.acquire(timeout=LIMIT)
    loaded.set_config({"MULTI_DEVICE_PRIORITIES": "A,B(2)"})
    assert loaded.infer(feed(2))["y"].tolist() == [6]
    assert (first.runs, second.runs) == ([1], [2])
    assert loaded.get_config("MULTI_DEVICE_PRIORITIES") == "A,B(2)"
    assert loaded.get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == 3
    loaded.set_config({"MULTI_DEVICE_PRIORITIES": "B"})
    assert (first.closed, first.loads, second.loads) == (0, 1, 1)
    first.gate.set()
    assert request.wait(LIMIT)
    assert request.get_tensor("y").tolist() == [3]
    assert loaded.get_metric("EXECUTION_DEVICES") == ("B",)
    assert first.closed == 1


def test_list_that_cannot_be_loaded_changes_nothing(core: Core, add_device: Any, network: Network, feed: Feed) -> None:
    add_device("A")
    second = add_device("B")
    second.load_error = LoadError("no memory")
    loaded = core.load_network(network, "MULTI:A")
    for wrong, error in (("A,B", LoadError), ("A,NOWHERE", DeviceNotFoundError), ("A,,", DeviceNameError)):
        with pytest.raises(error):
            loaded.set_config({"MULTI_DEVICE_PRIORITIES": wrong})
    assert loaded.infer(feed(1))["y"].tolist() == [3]
    assert loaded.get_metric("EXECUTION_DEVICES") == ("A",)


def test_fixed_key_is_refused_with_the_changeable_keys(core: Core, add_device: Any, network: Network) -> None:
    add_device("A")
    keys = "DEADLINE, LOG_LEVEL, MEMORY_LIMIT, MODEL_PRIORITY"
    message = f"NUM_STREAMS cannot change to 2 on a loaded network; the keys that can change are {keys}"
    with pytest.raises(ConfigKeyError, match=f"{message}, MULTI_DEVICE_PRIORITIES, PERF_COUNT. Load"):
        core.load_network(network, "MULTI:A").set_config({"NUM_STREAMS": 2})
    with pytest.raises(ConfigKeyError, match=f"on A: {message}, PERF_COUNT. Load"):
        core.load_network(network, "A").set_config({"NUM_STREAMS": 2})


def test_request_with_states_stays_on_its_device(core: Core, add_device: Any) -> None:
    devices = add_device("A"), add_device("B")
    text = "g (float[1] x, float[1] s) => (float[1] y, float[1] t) { y = Add (x, s) t = Add (x, s) }"
    model = core.read_network(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}'))
    loaded = core.load_network(model.with_state({"t": "s"}), "MULTI:A,B", {"SCHEDULE_POLICY": "ROUND_ROBIN"})
    requests = [loaded.create_infer_request() for _ in range(3)]
    for turn in range(6):
        for request in requests:
            assert request.infer({"x": np.array([1], np.float32)})["y"].tolist() == [turn + 1]
    assert sorted(len(device.runs) for device in devices) == [6, 12]


def test_cancelled_request_that_waits_is_not_run(core: Core, add_device: Any, network: Network, feed: Feed) -> None:
    device = add_device("A")
    device.gate.clear()
    loaded = core.load_network(network, "MULTI:A(1)")
    running, waiting = loaded.create_infer_request(), loaded.create_infer_request()
    running.start_async(feed(1))
    assert device.entered.acquire(timeout=LIMIT)
    waiting.start_async(feed(2))
    waiting.cancel()
    with pytest.raises(RequestCancelledError):
        waiting.wait(LIMIT)
    device.gate.set()
    assert running.wait(LIMIT)
    assert loaded.infer(feed(3))["y"].tolist() == [9]
    assert device.runs == [1, 3]


def test_query_claims_the_nodes_that_every_device_claims(core: Core, add_device: Any, network: Network) -> None:
    add_device("A")
    add_device("B").refused = ("Add",)
    result = core.query_network(network, "MULTI:A,B")
    assert dict(result.supported) == {}
    assert set(result.refused.values()) == {"B: no kernel"}
    with pytest.raises(UnsupportedNodesError, match="no kernel"):
        core.load_network(network, "HETERO:(MULTI:A,B)")


def test_profile_says_which_device_has_run_the_request(core: Core, add_device: Any, network: Network, feed: Feed) -> None:
    add_device("A")
    add_device("B")
    loaded = core.load_network(network, "MULTI:A,B", {"PERF_COUNT": True, "SCHEDULE_POLICY": "ROUND_ROBIN"})
    request = loaded.create_infer_request()
    devices = []
    for number in range(3):
        request.infer(feed(number))
        assert request.profile is not None
        devices.append([(stage.device, stage.path, stage.reads, stage.writes) for stage in request.profile.stages])
        assert {entry.device for entry in request.profile.entries} == {"AB"[number % 2]}
    a, b = ("A", (0,), ("x",), ("y",)), ("B", (1,), ("x",), ("y",))
    assert devices == [[a], [b], [a]]


def test_exported_network_comes_back_on_both_devices(core: Core, add_device: Any, network: Network, feed: Feed) -> None:
    add_device("A")
    add_device("B")
    blob = io.BytesIO()
    core.load_network(network, "MULTI:A(2),B").export_network(blob)
    loaded = core.import_network(blob.getvalue(), "MULTI")
    assert loaded.get_metric("EXECUTION_DEVICES") == ("A", "B")
    assert loaded.get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == 3
    assert loaded.infer(feed(5))["y"].tolist() == [15]


def test_keys_go_to_the_devices_that_know_them(core: Core, add_device: Any, network: Network) -> None:
    first, second = add_device("A"), add_device("B")
    core.load_network(network, "MULTI:A,B", {"SCRIPT_LEVEL": 3, "DEVICE_PROPERTIES": {"B": {"SCRIPT_LEVEL": 5}}})
    assert (first.configs[0]["SCRIPT_LEVEL"], second.configs[0]["SCRIPT_LEVEL"]) == (3, 5)


def test_request_that_fails_while_the_network_is_closed_ends(core: Core, add_device: Any, network: Network, feed: Feed) -> None:
    first, _ = add_device("A"), add_device("B")
    first.poison = 7
    first.gate.clear()
    loaded = core.load_network(network, "MULTI:A(1),B(1)")
    request = loaded.create_infer_request()
    request.start_async(feed(7))
    assert first.entered.acquire(timeout=LIMIT)
    closing = threading.Thread(target=loaded.close)
    closing.start()
    first.gate.set()
    # The request fails, or the second device runs it: closing waits for runs under way.
    with suppress(InferenceError, ClosedError):
        assert request.wait(LIMIT)
    closing.join(LIMIT)
    assert first.closed == 1
