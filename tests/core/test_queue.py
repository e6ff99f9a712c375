"""AsyncInferQueue: idle requests are reused, errors are raised once, callbacks may start runs, no call deadlocks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from hetero_core import AsyncInferQueue, ExecutableNetwork, InferRequest
from hetero_core.errors import ConfigValueError, InferenceError, InputNameError, RequestBusyError, RequestCancelledError

Feed = Callable[[float], dict[str, Any]]


def test_number_of_requests_is_the_metric_unless_given(by_hand: ExecutableNetwork) -> None:
    assert len(AsyncInferQueue(by_hand)) == by_hand.get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == 3
    queue = AsyncInferQueue(by_hand, 5)
    assert len(queue) == len(list(queue)) == 5
    assert [queue[index] for index in range(5)] == list(queue)
    for wrong in (-1, 1.5, True):
        with pytest.raises(ConfigValueError, match=f"a queue on network 'g': expected jobs of 0 or more, got {wrong}"):
            AsyncInferQueue(by_hand, wrong)  # type: ignore[arg-type]  # that is what is tested


def test_every_run_is_called_back_with_its_userdata(hand: Any, by_hand: ExecutableNetwork, feed: Feed) -> None:
    hand.is_free = True
    queue = AsyncInferQueue(by_hand, 3)
    seen: dict[int, float] = {}
    queue.set_callback(lambda request, userdata: seen.__setitem__(userdata, float(request.get_tensor("y")[0])))
    for index in range(50):
        queue.start_async(feed(index), index)
    queue.wait_all()
    assert seen == {index: 2.0 * index for index in range(50)}


def test_queue_is_ready_while_a_request_is_idle(hand: Any, by_hand: ExecutableNetwork, feed: Feed) -> None:
    queue = AsyncInferQueue(by_hand, 2)
    assert queue.is_ready()
    assert queue.get_idle_request_id() == 0
    queue.start_async(feed(1))
    assert queue.is_ready()
    assert queue.get_idle_request_id() == 1
    queue.start_async(feed(2))
    assert not queue.is_ready()
    for _ in range(2):
        hand.next_run().end()
    queue.wait_all()
    assert queue.is_ready()


def test_start_waits_for_an_idle_request(hand: Any, by_hand: ExecutableNetwork, feed: Feed) -> None:
    queue = AsyncInferQueue(by_hand, 1)
    queue.start_async(feed(1))
    starter = threading.Thread(target=lambda: queue.start_async(feed(2)))
    starter.start()
    hand.next_run().end()
    # Only the waiting thread can have started this run.
    hand.next_run().end()
    starter.join(60)
    queue.wait_all()
    assert queue[0].get_tensor("y").tolist() == [4]


def test_first_error_is_raised_once_after_all_runs_have_ended(hand: Any, by_hand: ExecutableNetwork, feed: Feed) -> None:
    queue = AsyncInferQueue(by_hand, 3)
    seen: list[str] = []
    queue.set_callback(lambda _, userdata: seen.append(userdata))
    runs = []
    for name in ("one", "two", "three"):
        queue.start_async(feed(1), name)
        runs.append(hand.next_run())
    runs[1].end(OverflowError("the second"))
    with pytest.raises(InferenceError, match="the second"):
        queue[1].wait(60)
    runs[0].end(OverflowError("the first"))
    runs[2].end()
    with pytest.raises(InferenceError, match="the second") as caught:
        queue.wait_all()
    assert "request 1 of the queue, userdata 'two'" in caught.value.__notes__
    assert "1 more runs of the queue failed after this one" in caught.value.__notes__
    assert seen == ["three"], "a failed run is not called back"
    queue.wait_all()
    hand.is_free = True
    queue.start_async(feed(4), "again")
    queue.wait_all()
    assert seen == ["three", "again"]


def test_error_in_a_callback_is_raised_by_wait_all(hand: Any, by_hand: ExecutableNetwork, feed: Feed) -> None:
    hand.is_free = True
    queue = AsyncInferQueue(by_hand, 1)

    def fail(request: InferRequest, userdata: Any) -> None:
        raise LookupError(f"my own mistake with {userdata}")

    queue.set_callback(fail)
    queue.start_async(feed(1), "a")
    with pytest.raises(LookupError, match="my own mistake with a"):
        queue.wait_all()
    queue.set_callback(None)
    queue.start_async(feed(1), "b")
    queue.wait_all()


def test_bad_input_is_raised_at_once_and_takes_no_request(hand: Any, by_hand: ExecutableNetwork, feed: Feed) -> None:
    hand.is_free = True
    queue = AsyncInferQueue(by_hand, 1)
    for _ in range(3):
        with pytest.raises(InputNameError, match="network 'g' misses the inputs x"):
            queue.start_async({})
    queue.start_async(feed(1))
    queue.wait_all()


@pytest.mark.parametrize("restart", ["request", "queue"])
def test_callback_may_start_more_runs(hand: Any, by_hand: ExecutableNetwork, feed: Feed, restart: str) -> None:
    hand.is_free = True
    queue = AsyncInferQueue(by_hand, 1)
    rounds: list[tuple[float, Any]] = []

    def go_on(request: InferRequest, userdata: Any) -> None:
        rounds.append((float(request.get_tensor("y")[0]), userdata))
        if len(rounds) < 10:
            value = feed(len(rounds) + 1)
            queue.start_async(value, len(rounds)) if restart == "queue" else request.start_async(value)

    queue.set_callback(go_on)
    queue.start_async(feed(1), 0)
    queue.wait_all()
    assert [value for value, _ in rounds] == [2.0 * count for count in range(1, 11)]
    assert [userdata for _, userdata in rounds] == (list(range(10)) if restart == "queue" else [0] * 10)


def test_callback_that_would_wait_for_itself_is_told(hand: Any, by_hand: ExecutableNetwork, feed: Feed) -> None:
    hand.is_free = True
    queue = AsyncInferQueue(by_hand, 1)

    def start_two(request: InferRequest, userdata: Any) -> None:
        with pytest.raises(RequestBusyError, match="wait_all within a callback of the queue on network 'g' waits for itself"):
            queue.wait_all()
        if userdata == "first":
            hand.is_free = False
            queue.start_async(feed(1), "second")
            with pytest.raises(RequestBusyError, match="no request of the queue on network 'g' is idle, and its callback"):
                queue.start_async(feed(1), "third")
            hand.next_run().end()

    queue.set_callback(start_two)
    queue.start_async(feed(1), "first")
    queue.wait_all()


def test_queued_and_running_requests_are_cancelled(hand: Any, by_hand: ExecutableNetwork, feed: Feed) -> None:
    # The device has four threads: the last two runs are queued behind them.
    queue = AsyncInferQueue(by_hand, 6)
    for index in range(6):
        queue.start_async(feed(index))
    running = [hand.next_run() for _ in range(4)]
    queue.cancel_all()
    with pytest.raises(RequestCancelledError, match="a request on network 'g' was cancelled"):
        queue.wait_all()
    assert queue.is_ready()
    assert all(run.context.cancelled() for run in running)
    hand.is_free = True
    for run in running:
        run.end()
    assert hand.runs.empty(), "what was queued never reached the device"
    for index in range(6):
        queue.start_async(feed(index))
    queue.wait_all()


def test_leaving_the_block_waits_for_all(hand: Any, by_hand: ExecutableNetwork, feed: Feed) -> None:
    hand.is_free = True
    with AsyncInferQueue(by_hand, 2) as queue:
        for value in range(5):
            queue.start_async(feed(value))
    assert all(request.wait(0) for request in queue)


def test_error_in_the_with_block_cancels_runs_and_propagates(hand: Any, by_hand: ExecutableNetwork, feed: Feed) -> None:
    queue = AsyncInferQueue(by_hand, 2)

    def fail_in_block() -> None:
        with queue:
            queue.start_async(feed(1))
            raise LookupError("of the block")

    with pytest.raises(LookupError, match="of the block"):
        fail_in_block()
    assert queue.is_ready()
    queue.wait_all()


def test_callback_is_not_changed_while_requests_run(hand: Any, by_hand: ExecutableNetwork, feed: Feed) -> None:
    queue = AsyncInferQueue(by_hand, 1)
    queue.start_async(feed(1))
    with pytest.raises(RequestBusyError, match="cannot set a callback: the queue on network 'g' is running; wait_all first"):
        queue.set_callback(None)
    hand.next_run().end()
    queue.wait_all()


def test_request_that_is_run_beside_the_queue_is_busy_for_it(hand: Any, by_hand: ExecutableNetwork, feed: Feed) -> None:
    queue = AsyncInferQueue(by_hand, 2)
    queue[0].start_async(feed(1))
    assert queue.get_idle_request_id() == 1
    hand.next_run().end()
    queue.wait_all()
    hand.is_free = True
    assert queue[1].infer(feed(3))["y"].tolist() == [6]
    assert queue.get_idle_request_id() == 0
