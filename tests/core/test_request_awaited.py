"""`await request.infer_async(...)`: no thread is blocked, a cancelled task cancels the request, errors reach the awaiter."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from hetero_core import Core, ExecutableNetwork, InferRequest, Network
from hetero_core.errors import InferenceError, InputNameError, InputShapeError, RequestBusyError, RequestCancelledError

Feed = Callable[[float], dict[str, Any]]


async def in_thread(function: Callable[[], Any]) -> Any:
    """Waits for something blocking without blocking the loop."""
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
        # All four runs are in the device at once, and this thread is free to end them.
        runs = [await in_thread(hand.next_run) for _ in tasks]
        for run in reversed(runs):
            run.end()
        return [result["y"].tolist() for result in await asyncio.gather(*tasks)]

    assert asyncio.run(main()) == [[0], [2], [4], [6]]


def test_error_of_the_device_reaches_the_awaiter_and_leaves_nothing_behind(
    hand: Any, by_hand: ExecutableNetwork, feed: Feed
) -> None:
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


@pytest.mark.parametrize(
    ("inputs", "kind", "message"),
    [({}, InputNameError, "misses the inputs x: float32"), ({"x": np.ones(2, np.float32)}, InputShapeError, "expected shape")],
)
def test_bad_input_is_refused_before_anything_starts(
    by_hand: ExecutableNetwork, inputs: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        asyncio.run(by_hand.create_infer_request().infer_async(inputs))


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


def test_time_limit_of_asyncio_cancels_the_request(hand: Any, by_hand: ExecutableNetwork, feed: Feed) -> None:
    request = by_hand.create_infer_request()

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(request.infer_async(feed(1)), timeout=0)
        hand.is_free = True
        assert (await request.infer_async(feed(2)))["y"].tolist() == [4]

    asyncio.run(main())


def test_cancel_from_another_thread_reaches_the_awaiter(hand: Any, by_hand: ExecutableNetwork, feed: Feed) -> None:
    request = by_hand.create_infer_request()

    async def main() -> None:
        task = asyncio.ensure_future(request.infer_async(feed(1)))
        run = await in_thread(hand.next_run)
        await in_thread(request.cancel)
        with pytest.raises(RequestCancelledError, match="a request on network 'g' was cancelled"):
            await task
        run.end()

    asyncio.run(main())


def test_request_that_is_awaited_is_busy(hand: Any, by_hand: ExecutableNetwork, feed: Feed) -> None:
    request = by_hand.create_infer_request()

    async def main() -> None:
        task = asyncio.ensure_future(request.infer_async(feed(1)))
        run = await in_thread(hand.next_run)
        with pytest.raises(RequestBusyError, match="the request on network 'g' is running"):
            await request.infer_async(feed(1))
        run.end()
        await task

    asyncio.run(main())


def test_loops_in_several_threads_share_a_network(core: Core, read: Callable[..., Network]) -> None:
    network = core.load_network(read("g (float[1] x) => (float[1] y) { y = Add(x, x) }"), "CPU")

    async def main(first: int) -> list[float]:
        requests = [network.create_infer_request() for _ in range(5)]
        work: list[Coroutine[Any, Any, dict[str, Any]]] = [
            request.infer_async({"x": np.array([first + index], np.float32)}) for index, request in enumerate(requests)
        ]
        return [float(result["y"][0]) for result in await asyncio.gather(*work)]

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda first: asyncio.run(main(first)), range(0, 400, 100)))
    assert found == [[2.0 * (first + index) for index in range(5)] for first in range(0, 400, 100)]


def test_one_request_serves_one_loop_after_the_other(hand: Any, by_hand: ExecutableNetwork, feed: Feed) -> None:
    hand.is_free = True
    request = by_hand.create_infer_request()
    assert [asyncio.run(request.infer_async(feed(value)))["y"].tolist() for value in (1, 2, 3)] == [[2], [4], [6]]


def test_run_that_ends_after_its_loop_was_closed_harms_nobody(hand: Any, by_hand: ExecutableNetwork, feed: Feed) -> None:
    request, loop = by_hand.create_infer_request(), asyncio.new_event_loop()
    coroutine = request.infer_async(feed(1))
    held: list[Any] = []

    async def begin() -> None:
        # One step by hand, so that no task is left that would be cancelled with the loop.
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


def test_awaiting_uses_no_thread_of_the_loop(hand: Any, by_hand: ExecutableNetwork, feed: Feed) -> None:
    async def main() -> set[str]:
        task = asyncio.ensure_future(by_hand.create_infer_request().infer_async(feed(1)))
        await asyncio.sleep(0)
        names = {thread.name for thread in threading.enumerate()}
        hand.next_run().end()
        await task
        return names

    before = {thread.name for thread in threading.enumerate()}
    assert {name for name in asyncio.run(main()) - before if not name.startswith("hetero-HAND")} == set()
