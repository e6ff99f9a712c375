"""`await request.infer_async(...)` blocks no thread, a cancelled task cancels the request, and errors reach the awaiter."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from hetero_core import ExecutableNetwork, InferRequest
from hetero_core.errors import InferenceError

Feed = Callable[[float], dict[str, Any]]


async def in_thread(function: Callable[[], Any]) -> Any:
    """Awaits a blocking function without blocking the loop."""
    return await asyncio.get_running_loop().run_in_executor(None, function)


def test_outputs_come_back_and_stay_in_the_request(hand: Any, by_hand: ExecutableNetwork, feed: Feed) -> None:
    hand.is_free = True
    request = by_hand.create_infer_request()
    request.set_callback(lambda *_: pytest.fail("called"))
    result = asyncio.run(request.infer_async(feed(3)))
    assert result["y"].tolist() == [6]
    assert request.get_tensor("y").tolist() == [6]
    assert request.wait()


def test_loop_goes_on_while_the_device_works(hand: Any, by_hand: ExecutableNetwork, feed: Feed) -> None:
    async def main() -> list[Any]:
        requests = [by_hand.create_infer_request() for _ in range(4)]
        tasks = [asyncio.ensure_future(request.infer_async(feed(value))) for value, request in enumerate(requests)]
        # All four runs are in the device at once, and the loop is not blocked, so it can end them.
        runs = [await in_thread(hand.next_run) for _ in tasks]
        for run in reversed(runs):
            run.end()
        return [result["y"].tolist() for result in await asyncio.gather(*tasks)]

    assert asyncio.run(main()) == [[0], [2], [4], [6]]


def test_device_error_reaches_the_awaiter_once(hand: Any, by_hand: ExecutableNetwork, feed: Feed) -> None:
    request = by_hand.create_infer_request()

    async def main() -> None:
        task = asyncio.ensure_future(request.infer_async(feed(1)))
        (await in_thread(hand.next_run)).end(OverflowError("the device fell over"))
        with pytest.raises(InferenceError, match="network 'g' failed on HAND .*: OverflowError: the device fell over"):
            await task
        assert request.wait(), "an error that was raised once is not raised again"
        hand.is_free = True
        assert (await request.infer_async(feed(2)))["y"].tolist() == [4]

    asyncio.run(main())


def test_cancelled_task_cancels_the_request(hand: Any, by_hand: ExecutableNetwork, feed: Feed) -> None:
    request = by_hand.create_infer_request()

    async def main() -> None:
        task = asyncio.ensure_future(request.infer_async(feed(1)))
        run = await in_thread(hand.next_run)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert run.context.cancelled(), "the device is told"
        assert request.wait(), "the request is idle at once, with no error left"
        hand.is_free = True
        assert (await request.infer_async(feed(2)))["y"].tolist() == [4]
        run.end()

    asyncio.run(main())


def test_run_may_end_after_its_loop_was_closed(hand: Any, by_hand: ExecutableNetwork, feed: Feed) -> None:
    request, loop = by_hand.create_infer_request(), asyncio.new_event_loop()
    coroutine = request.infer_async(feed(1))
    held: list[Any] = []

    async def begin() -> None:
        # Without a task, the end of the loop does not cancel the coroutine.
        held.append(coroutine.send(None))

    loop.run_until_complete(begin())
    run = hand.next_run()
    loop.close()
    run.end()
    wait_until_idle(request)
    hand.is_free = True
    coroutine.close()
    assert request.infer(feed(2))["y"].tolist() == [4]


def wait_until_idle(request: InferRequest) -> None:
    assert request.wait(60)
