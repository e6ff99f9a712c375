"""Callbacks: called once after each asynchronous run, never after a synchronous one; they may fail and may start the request again."""

from __future__ import annotations

from hetero_core.conformance.check import CheckContext, check, require, require_equal, require_error
from hetero_core.conformance.samples import WAIT_SECONDS, open_request
from hetero_core.runtime.request import InferRequest

Called = list[BaseException | None]


@check("contract")
def callback_comes_once_after_each_asynchronous_run(context: CheckContext) -> None:
    """The callback is called with the request, whose outputs are set, and None as the error; `wait` returns after it."""
    sample, request = open_request(context, "chain")
    seen: list[tuple[InferRequest, BaseException | None, object]] = []
    request.set_callback(lambda caller, error: seen.append((caller, error, caller.get_tensor("y").copy())))
    for turn in range(10):
        inputs = sample.draw(context.seed + turn)
        request.start_async(inputs)
        require(request.wait(WAIT_SECONDS), "the run did not end")
        require_equal(len(seen), turn + 1, "the number of callbacks when wait has returned")
        caller, error, value = seen[-1]
        require(caller is request and error is None, f"the callback got {caller!r} and {error!r}")
        sample.require_right({"y": value}, inputs, "the output in the callback")


@check("contract")
def callback_is_not_called_by_a_synchronous_run(context: CheckContext) -> None:
    """`infer` never calls the callback; a request without a callback, or whose callback was removed, calls nothing."""
    sample, request = open_request(context, "chain")
    seen: Called = []
    request.set_callback(lambda _, error: seen.append(error))
    request.infer(sample.draw(context.seed))
    request.set_callback(None)
    request.start_async(sample.draw(context.seed))
    require(request.wait(WAIT_SECONDS), "the run did not end")
    require_equal(seen, [], "what the callback was called with")


@check("contract")
def error_of_a_callback_reaches_wait(context: CheckContext) -> None:
    """An error that a callback raises is raised again by `wait`, once; the next run gives the right result."""
    sample, request = open_request(context, "chain")
    inputs = sample.draw(context.seed)

    def fail(caller: InferRequest, error: BaseException | None) -> None:
        raise LookupError("raised by the callback")

    request.set_callback(fail)
    request.start_async(inputs)
    require_error(LookupError, lambda: request.wait(WAIT_SECONDS), "wait after a callback that fails")
    request.set_callback(None)
    sample.require_right(request.infer(inputs), inputs, "after a callback that failed")


@check("contract")
def callback_may_start_its_request_again(context: CheckContext) -> None:
    """A callback starts the request ten times over; `wait` returns after the last one, with every result right."""
    sample, request = open_request(context, "chain")
    drawn = [sample.draw(context.seed + turn) for turn in range(11)]
    results: list[object] = []
    errors: Called = []

    def restart(caller: InferRequest, error: BaseException | None) -> None:
        errors.append(error)
        results.append(caller.get_tensor("y").copy())
        if len(results) < len(drawn):
            caller.start_async(drawn[len(results)])

    request.set_callback(restart)
    request.start_async(drawn[0])
    require(request.wait(WAIT_SECONDS), "the runs did not end")
    require_equal(errors, [None] * len(drawn), "the errors that the callback was given")
    for inputs, value in zip(drawn, results, strict=True):
        sample.require_right({"y": value}, inputs, "a run that a callback started")
