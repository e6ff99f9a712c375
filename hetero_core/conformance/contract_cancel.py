"""Cancel: a request ends at once, cancelled or done, and works again."""

from __future__ import annotations

import threading

from hetero_core.conformance.check import CheckContext, CheckFailed, check, require
from hetero_core.conformance.samples import WAIT_SECONDS, load_sample, open_request
from hetero_core.errors import RequestCancelledError


@check("contract")
def cancel_of_an_idle_request_does_nothing(context: CheckContext) -> None:
    """A request that was never started, or has ended, may be cancelled; its next run gives the right result."""
    sample, request = open_request(context, "chain")
    inputs = sample.draw(context.seed)
    for _ in range(3):
        request.cancel()
        require(request.wait(0), "an idle request that was cancelled is not idle")
        sample.require_right(request.infer(inputs), inputs, "after a cancel")


@check("contract")
def cancelled_run_is_cancelled_or_done(context: CheckContext) -> None:
    """A cancelled run ends with RequestCancelledError or with the right result if it had finished; the request then runs again."""
    sample, request = open_request(context, "chain")
    for turn in range(30):
        inputs = sample.draw(context.seed + turn)
        request.start_async(inputs)
        request.cancel()
        try:
            require(request.wait(WAIT_SECONDS), "a cancelled run did not end")
        except RequestCancelledError:
            pass
        else:
            sample.require_right({"y": request.get_tensor("y")}, inputs, "a run that was done before its cancel")
        sample.require_right(request.infer(inputs), inputs, "the run after a cancel")


@check("contract")
def cancel_from_another_thread_ends_a_synchronous_run(context: CheckContext) -> None:
    """While one thread cancels repeatedly, `infer` in a second thread gives the right result or raises RequestCancelledError."""
    sample, request = open_request(context, "chain")
    is_over = threading.Event()
    broken: list[BaseException] = []

    def cancel_often() -> None:
        try:
            while not is_over.wait(0.0002):
                request.cancel()
        except BaseException as error:  # noqa: BLE001  # reported by the check
            broken.append(error)

    thread = threading.Thread(target=cancel_often, daemon=True)
    thread.start()
    try:
        for turn in range(50):
            inputs = sample.draw(context.seed + turn)
            try:
                outputs = request.infer(inputs)
            except RequestCancelledError:
                continue
            sample.require_right(outputs, inputs, "a run beside a thread that cancels")
    finally:
        is_over.set()
        thread.join(WAIT_SECONDS)
    if broken:
        raise CheckFailed(f"cancel raised {type(broken[0]).__name__}: {broken[0]}") from broken[0]
    inputs = sample.draw(context.seed)
    sample.require_right(request.infer(inputs), inputs, "after the thread that cancelled has ended")


@check("contract")
def cancel_of_one_request_leaves_the_others(context: CheckContext) -> None:
    """Every second of ten requests in flight is cancelled; the remaining requests give their results."""
    sample, loaded = load_sample(context, "chain")
    requests = [loaded.create_infer_request() for _ in range(10)]
    drawn = [sample.draw(context.seed + index) for index in range(len(requests))]
    for request, inputs in zip(requests, drawn, strict=True):
        request.start_async(inputs)
    for request in requests[::2]:
        request.cancel()
    for index in range(1, len(requests), 2):
        sample.require_ended(requests[index], drawn[index], "a run beside cancelled ones")
