"""BATCH: the start of joint runs of requests, their results and failures."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hetero_core import Core, Network
from hetero_core.contract import Extension
from hetero_core.errors import (
    DeviceNameError,
    InferenceError,
    NotImplementedByDeviceError,
    RequestCancelledError,
    UnsupportedNodesError,
)
from hetero_core.runtime.queue import AsyncInferQueue

LIMIT = 60
FOR_EVER = {"AUTO_BATCH_TIMEOUT": 3_600_000}
Feed = Callable[..., dict[str, Any]]


def start_all(loaded: Any, feed: Feed, count: int) -> list[Any]:
    """Returns this many requests, started in order; the first may begin only after the last was started."""
    requests = [loaded.create_infer_request() for _ in range(count)]
    for number, request in enumerate(requests):
        request.start_async(feed(number))
    return requests


def test_full_batch_begins_and_each_request_gets_its_own_rows(core: Core, device: Any, network: Network, feed: Feed) -> None:
    requests = start_all(core.load_network(network, "BATCH:NOTE(4)", FOR_EVER), feed, 8)
    assert all(request.wait(LIMIT) for request in requests)
    assert device.batches == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [request.get_tensor("y").tolist() for request in requests] == [[[2 * number, 0]] for number in range(8)]


def test_ten_thousand_requests_get_their_own_answers(core: Core, device: Any, network: Network, feed: Feed) -> None:
    queue = AsyncInferQueue(core.load_network(network, "BATCH:NOTE(8)"), 24)
    answers: dict[int, float] = {}
    queue.set_callback(lambda request, number: answers.update({number: float(request.get_tensor("y")[0, 0])}))
    for number in range(10_000):
        queue.start_async(feed(number), number)
    queue.wait_all()
    assert answers == {number: 2.0 * number for number in range(10_000)}
    assert [number for batch in device.batches for number in batch] == list(range(10_000))
    assert max(map(len, device.batches)) == 8


def test_batch_begins_when_all_requests_wait_in_it(core: Core, device: Any, network: Network, feed: Feed) -> None:
    requests = start_all(core.load_network(network, "BATCH:NOTE(8)", FOR_EVER), feed, 3)
    assert all(request.wait(LIMIT) for request in requests)
    assert device.batches == [[0, 1, 2]]


def test_batch_begins_after_the_timeout_without_padding(core: Core, device: Any, network: Network, feed: Feed) -> None:
    loaded = core.load_network(network, "BATCH:NOTE(8)", {"AUTO_BATCH_TIMEOUT": 1})
    idle = loaded.create_infer_request()
    requests = [loaded.create_infer_request() for _ in range(2)]
    for number, request in enumerate(requests):
        request.start_async(feed(number))
    assert all(request.wait(LIMIT) for request in requests)
    assert [number for batch in device.batches for number in batch] == [0, 1]
    assert idle.wait(0)


def test_requests_gather_while_the_device_is_busy(core: Core, device: Any, network: Network, feed: Feed) -> None:
    loaded = core.load_network(network, "BATCH:NOTE(8)", {"AUTO_BATCH_TIMEOUT": 0})
    requests = [loaded.create_infer_request() for _ in range(5)]
    device.gate.clear()
    requests[0].start_async(feed(0))
    assert device.entered.acquire(timeout=LIMIT)
    for number, request in enumerate(requests[1:], start=1):
        request.start_async(feed(number))
    device.gate.set()
    assert all(request.wait(LIMIT) for request in requests)
    assert device.batches == [[0], [1, 2, 3, 4]]


def test_blocking_callers_share_a_batch(core: Core, device: Any, network: Network, feed: Feed) -> None:
    loaded = core.load_network(network, "BATCH:NOTE(4)", FOR_EVER)
    requests = [loaded.create_infer_request() for _ in range(4)]
    answers: dict[int, float] = {}

    def run(number: int) -> None:
        answers[number] = float(requests[number].infer(feed(number))["y"][0, 0])

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert answers == {0: 0, 1: 2, 2: 4, 3: 6}
    assert [sorted(batch) for batch in device.batches] == [[0, 1, 2, 3]]


def test_single_caller_starts_without_waiting(core: Core, device: Any, network: Network, feed: Feed) -> None:
    loaded = core.load_network(network, "BATCH:NOTE(8)", FOR_EVER)
    assert loaded.infer(feed(3))["y"].tolist() == [[6, 0]]
    assert loaded.infer(feed(1, 2, 3))["y"].tolist() == [[2, 0], [4, 0], [6, 0]]
    assert device.batches == [[3], [1, 2, 3]]


def test_requests_of_several_images_are_counted_by_image(core: Core, device: Any, network: Network, feed: Feed) -> None:
    loaded = core.load_network(network, "BATCH:NOTE(4)", FOR_EVER)
    requests = [loaded.create_infer_request() for _ in range(4)]
    for request, values in zip(requests, ([1, 2], [3, 4], [5, 6, 7], [8]), strict=True):
        request.start_async(feed(*values))
    assert all(request.wait(LIMIT) for request in requests)
    assert device.batches == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert [request.get_tensor("y")[:, 0].tolist() for request in requests] == [[2, 4], [6, 8], [10, 12, 14], [16]]


def test_poisoned_request_fails_alone(core: Core, device: Any, network: Network, feed: Feed) -> None:
    device.poison = 2
    loaded = core.load_network(network, "BATCH:NOTE(4)", FOR_EVER)
    requests = start_all(loaded, feed, 4)
    for number, request in enumerate(requests):
        if number == 2:
            with pytest.raises(InferenceError, match="failed on NOTE .*the driver fell over"):
                request.wait(LIMIT)
        else:
            assert request.wait(LIMIT)
            assert request.get_tensor("y").tolist() == [[2 * number, 0]]
    assert device.batches == [[0, 1, 2, 3], [0], [1], [2], [3]]


def test_requests_of_different_shapes_are_not_joined(core: Core, device: Any, read: Any) -> None:
    loaded = core.load_network(read("g (float[n, m] x) => (float[n, m] y) { y = Add (x, x) }"), "BATCH:NOTE(2)", FOR_EVER)
    requests = [loaded.create_infer_request() for _ in range(4)]
    for width, request in zip((1, 2, 1, 2), requests, strict=True):
        request.start_async({"x": np.full((1, width), width, np.float32)})
    assert all(request.wait(LIMIT) for request in requests)
    assert [request.get_tensor("y").tolist() for request in requests] == [[[2]], [[4, 4]], [[2]], [[4, 4]]]
    assert device.batches == [[1, 1], [2, 2]]


def test_requests_share_a_batch_if_inputs_without_images_agree(core: Core, device: Any, read: Any) -> None:
    loaded = core.load_network(read("g (float[n, 1] x, float s) => (float[n, 1] y) { y = Mul (x, s) }"), "BATCH:NOTE(2)", FOR_EVER)
    requests = [loaded.create_infer_request() for _ in range(4)]
    for number, request in enumerate(requests):
        request.start_async({"x": np.array([[number]], np.float32), "s": np.float32(10 * (number % 2))})
    assert all(request.wait(LIMIT) for request in requests)
    assert [request.get_tensor("y").tolist() for request in requests] == [[[0]], [[10]], [[0]], [[30]]]
    assert device.batches == [[0, 2], [1, 3]]


def test_network_of_one_fixed_image_is_batched(core: Core, device: Any, read: Any, feed: Feed) -> None:
    loaded = core.load_network(read("g (float[1, 2] x) => (float[1, 2] y) { y = Add (x, x) }"), "BATCH:NOTE(3)", FOR_EVER)
    requests = start_all(loaded, feed, 3)
    assert [request.get_tensor("y").tolist() for request in requests if request.wait(LIMIT)] == [[[0, 0]], [[2, 0]], [[4, 0]]]
    assert device.batches == [[0, 1, 2]]


def test_cancelled_request_leaves_its_batch_alone(core: Core, device: Any, network: Network, feed: Feed) -> None:
    loaded = core.load_network(network, "BATCH:NOTE(2)", FOR_EVER)
    first, second, third = (loaded.create_infer_request() for _ in range(3))
    first.start_async(feed(1))
    first.cancel()
    with pytest.raises(RequestCancelledError):
        first.wait(LIMIT)
    second.start_async(feed(2))
    third.start_async(feed(3))
    second.wait(LIMIT)
    first.start_async(feed(4))
    assert all(request.wait(LIMIT) for request in (first, second, third))
    assert [request.get_tensor("y")[0, 0] for request in (first, second, third)] == [8, 4, 6]


def test_results_stay_when_other_batches_run(core: Core, device: Any, network: Network, feed: Feed) -> None:
    loaded = core.load_network(network, "BATCH:NOTE(2)", FOR_EVER)
    first = start_all(loaded, feed, 2)
    assert all(request.wait(LIMIT) for request in first)
    outputs = [request.get_tensor("y") for request in first]
    for _ in range(3):
        loaded.infer(feed(9, 9))
    assert [output.tolist() for output in outputs] == [[[0, 0]], [[2, 0]]]


def test_metrics_tell_the_batches(core: Core, device: Any, network: Network, feed: Feed) -> None:
    loaded = core.load_network(network, "BATCH:NOTE(4)", FOR_EVER)
    for request in start_all(loaded, feed, 4):
        assert request.wait(LIMIT)
    assert loaded.get_metric("OPTIMAL_BATCH_SIZE") == 4
    assert loaded.get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == 4
    assert loaded.get_metric("EXECUTION_DEVICES") == ("NOTE",)
    assert loaded.get_metric("BATCHES_OF_SIZES") == {4: 1}


def test_profile_of_every_request_has_the_times_of_its_batch(core: Core, network: Network, feed: Feed) -> None:
    loaded = core.load_network(network, "BATCH:CPU(2)", {**FOR_EVER, "PERF_COUNT": True})
    requests = start_all(loaded, feed, 2)
    for request in requests:
        assert request.wait(LIMIT)
        assert [(stage.device, stage.path) for stage in request.profile.stages] == [("CPU", (0,))]
        assert {(entry.device, entry.path) for entry in request.perf_counts} == {("CPU", (0,))}


def test_exported_network_is_batched_again(core: Core, device: Any, network: Network, feed: Feed) -> None:
    blob = io.BytesIO()
    core.load_network(network, "BATCH:NOTE(2)").export_network(blob)
    loaded = core.import_network(blob.getvalue(), "BATCH", FOR_EVER)
    assert [request.get_tensor("y").tolist() for request in start_all(loaded, feed, 2) if request.wait(LIMIT)] == [
        [[0, 0]],
        [[2, 0]],
    ]
    assert device.batches == [[0, 1]]


def test_list_of_several_devices_is_refused(core: Core, device: Any, network: Network) -> None:
    with pytest.raises(DeviceNameError, match=r"has 2 devices in its list; BATCH has one.*Use BATCH:\(MULTI:NOTE,CPU\)"):
        core.load_network(network, "BATCH:NOTE,CPU")


def test_extension_is_refused(core: Core, device: Any) -> None:
    twist = Extension("com.acme", "Twist", 1, lambda x: x, lambda types, _: types)
    with pytest.raises(NotImplementedByDeviceError, match="nothing says that Twist keeps the images of a batch apart"):
        core.add_extension(twist, "BATCH:NOTE")


def test_network_that_mixes_images_is_refused_with_the_node(core: Core, read: Any) -> None:
    network = read("g (float[n, 2] x) => (float[n, 2] y) { m = ReduceMean <axes = [0]> (x) [centre] y = Sub (x, m) }")
    with pytest.raises(
        UnsupportedNodesError, match="node 'ReduceMean_0' .*: it mixes the images of a batch: it works along axis 0"
    ):
        core.load_network(network, "BATCH:CPU")
