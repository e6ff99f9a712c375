"""Requests: synchronous and asynchronous runs, waiting, busy requests, and the state after an error."""

from __future__ import annotations

import asyncio

from hetero_core.conformance.check import CheckContext, check, require, require_equal, require_error
from hetero_core.conformance.samples import WAIT_SECONDS, load_sample, make_samples, open_request
from hetero_core.errors import HeteroError, InputShapeError, RequestBusyError
from hetero_core.runtime.queue import AsyncInferQueue


@check("contract")
def asynchronous_run_gives_the_result(context: CheckContext) -> None:
    """`start_async`, `wait` and `get_tensor` give the same results as `infer` in each run."""
    sample, request = open_request(context, "chain")
    for turn in range(10):
        inputs = sample.draw(context.seed + turn)
        sample.require_started(request, inputs, f"asynchronous run {turn + 1}")
        sample.require_right(request.infer(inputs), inputs, f"synchronous run {turn + 1}")


@check("contract")
def waiting_without_a_run_ends_at_once(context: CheckContext) -> None:
    """`wait` on a request that was never started, or has ended, is True, with and without a limit."""
    sample, request = open_request(context, "chain")
    require(request.wait() and request.wait(0), "wait on a request that was not started is not True")
    request.infer(sample.draw(context.seed))
    require(request.wait() and request.wait(0), "wait after a synchronous run is not True")


@check("contract")
def running_request_is_busy_or_done(context: CheckContext) -> None:
    """A running request refuses a second run and access to its tensors with RequestBusyError; a finished request allows both."""
    sample, request = open_request(context, "chain")
    inputs = sample.draw(context.seed)
    for _ in range(20):
        request.start_async(inputs)
        for action in (request.start_async, lambda: request.get_tensor("x"), lambda: request.set_callback(None)):
            try:
                action()
            except RequestBusyError:
                continue
            except HeteroError as error:
                require(not request.is_running, f"a running request raised {type(error).__name__}: {error}")
        sample.require_ended(request, inputs, "after it was asked while it ran")


@check("contract")
def tensors_that_were_set_serve_every_run(context: CheckContext) -> None:
    """A run without inputs uses the tensors set before; an input passed to a run replaces the set tensor for that run only."""
    sample, request = open_request(context, "chain")
    preset, other = sample.draw(context.seed), sample.draw(context.seed + 1)
    request.set_tensor("x", preset["x"])
    sample.require_right(request.infer(), preset, "a run without inputs")
    sample.require_right(request.infer(other), other, "a run with an input of its own")
    request.start_async()
    sample.require_ended(request, preset, "an asynchronous run without inputs")


@check("contract")
def refused_run_leaves_the_request_usable(context: CheckContext) -> None:
    """After a run with refused inputs the request is idle, and its next run gives the right result."""
    sample, request = open_request(context, "chain")
    inputs = sample.draw(context.seed)
    for _ in range(3):
        require_error(InputShapeError, lambda: request.start_async({"x": inputs["x"][:2]}), "an input that is too small")
        require(not request.is_running, "a request whose inputs were refused says that it runs")
        sample.require_right(request.infer(inputs), inputs, "after inputs that were refused")


@check("contract")
def requests_keep_their_own_results(context: CheckContext) -> None:
    """Results of a request stay valid until its next run, even if other requests of the network run meanwhile."""
    sample, loaded = load_sample(context, "fork")
    requests = [loaded.create_infer_request() for _ in range(4)]
    drawn = [sample.draw(context.seed + index) for index in range(len(requests))]
    results = [request.infer(inputs) for request, inputs in zip(requests, drawn, strict=True)]
    for index, (inputs, outputs) in enumerate(zip(drawn, results, strict=True)):
        sample.require_right(outputs, inputs, f"request {index}, after {len(requests)} requests ran")


@check("contract")
def many_requests_in_flight_keep_apart(context: CheckContext) -> None:
    """Twenty requests of several networks, all started before the first `wait`, have their own results in any order of waiting."""
    samples = make_samples(context, "chain", "dynamic", "fork", "pair")
    started = []
    loaded = {form: context.load(sample.network) for form, sample in samples.items()}
    for index in range(20):
        form = list(samples)[index % len(samples)]
        inputs = samples[form].draw(context.seed + index)
        request = loaded[form].create_infer_request()
        request.start_async(inputs)
        started.append((form, request, inputs))
    for form, request, inputs in reversed(started):
        require(request.wait(WAIT_SECONDS), "a run did not end")
        names = [spec.name for spec in loaded[form].outputs]
        samples[form].require_right({name: request.get_tensor(name) for name in names}, inputs, f"a request of '{form}'")


@check("contract")
def awaited_run_gives_the_result(context: CheckContext) -> None:
    """Several concurrent `infer_async` calls on an event loop give their results."""
    sample, loaded = load_sample(context, "chain")
    drawn = [sample.draw(context.seed + index) for index in range(6)]

    async def run_all() -> list[dict[str, object]]:
        waiting = [loaded.create_infer_request().infer_async(inputs) for inputs in drawn]
        return await asyncio.wait_for(asyncio.gather(*waiting), WAIT_SECONDS)

    for inputs, outputs in zip(drawn, asyncio.run(run_all()), strict=True):
        sample.require_right(outputs, inputs, "an awaited run")


@check("contract")
def queue_runs_everything_once(context: CheckContext) -> None:
    """A queue calls the callback once for each start, with the outputs of that start."""
    sample, loaded = load_sample(context, "chain")
    results: list[tuple[int, object]] = []
    with AsyncInferQueue(loaded, 3) as queue:
        queue.set_callback(lambda request, index: results.append((index, request.get_tensor("y").copy())))
        for index in range(30):
            queue.start_async(sample.draw(context.seed + index), index)
    require_equal(sorted(index for index, _ in results), list(range(30)), "the starts that were called back")
    for index, value in results:
        sample.require_right({"y": value}, sample.draw(context.seed + index), f"start {index} of a queue")
