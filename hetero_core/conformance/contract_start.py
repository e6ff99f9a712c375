"""Start: the duties of an asynchronous device, as a caller sees them; for a device without `start`, the core fulfils them."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import BufferingHandler
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_core.conformance.check import CheckContext, CheckFailed, Skip, check, require, require_equal, require_error
from hetero_core.conformance.refusals import load_each
from hetero_core.conformance.samples import load_sample, make_sample, read_text
from hetero_core.errors import ClosedError, HeteroError

if TYPE_CHECKING:
    from hetero_core.runtime.request import InferRequest

END_SECONDS = 30.0
"""Seconds within which a run of a few numbers, or one that fails, has to end."""
BLOCK_SECONDS = 10.0
"""Seconds that a callback waits for `start_async` to return before the device counts as one that blocks."""
FREE_SECONDS = 10.0
"""Seconds within which threads of a device have to drop their references to a closed network."""


MOST_WARNINGS = 100_000
"""Warnings that a check may gather; no check causes so many."""

MISFITS = {
    "Add": (((2, 2), (3, 3)), 2),
    "Mul": (((2, 2), (3, 3)), 1),
    "MatMul": (((2, 3), (2, 3)), 2),
}
"""Operator of two inputs -> shapes that do not fit together, and the value of each output element for two (2, 2) inputs of ones."""


@contextmanager
def _gather_warnings() -> Iterator[list[logging.LogRecord]]:
    """Yields the list of the core's warnings, which grows while the context is open."""
    handler = BufferingHandler(MOST_WARNINGS)
    handler.setLevel(logging.WARNING)
    logger = logging.getLogger("hetero_core")
    logger.addHandler(handler)
    try:
        yield handler.buffer
    finally:
        logger.removeHandler(handler)


@check("contract")
def done_is_called_once_for_each_run(context: CheckContext) -> None:
    """Each started run ends once: `done` is called exactly once."""
    sample = make_sample(context, "chain")
    with _gather_warnings() as warnings, context.load(sample.network) as loaded:
        request = loaded.create_infer_request()
        for turn in range(10):
            inputs = sample.draw(context.seed + turn)
            request.start_async(inputs)
            require(request.wait(END_SECONDS), f"run {turn + 1} has not ended: the device has not called `done`")
            sample.require_right({"y": request.get_tensor("y")}, inputs, f"run {turn + 1}")
    repeated = [text for text in map(logging.LogRecord.getMessage, warnings) if "called `done` a second time" in text]
    require(not repeated, f"`done` was called twice: {repeated[:1]}")


@check("contract")
def run_that_fails_ends(context: CheckContext) -> None:
    """A failing asynchronous run ends with its error: `done` is called after an error, too."""
    sample = make_sample(context, "dynamic")
    # Too little for any value: the device, or else the core, aborts the run.
    config = {"MEMORY_LIMIT": 64}
    try:
        loaded = context.load(sample.network, config)
    except HeteroError as error:
        raise Skip(f"the device does not load a network under MEMORY_LIMIT: {error}") from None
    request = loaded.create_infer_request()
    request.start_async(sample.draw(context.seed, x=(4096, 2)))
    require_end = (
        f"a run that exceeds MEMORY_LIMIT has not ended after {END_SECONDS:g} seconds: `done` is not called after an error"
    )
    try:
        ended = request.wait(END_SECONDS)
    except HeteroError:
        return
    require(ended, require_end)
    raise CheckFailed("a run of 32 KiB under a MEMORY_LIMIT of 64 bytes gave a result: MEMORY_LIMIT is ignored")


@check("contract")
def run_that_raises_ends(context: CheckContext) -> None:
    """An asynchronous run whose inputs do not fit together ends with an error; the next run of the request gives its result."""
    # Sizes with different names can only be compared during the run.
    text = "(float[I,J] a, float[K,L] b) => (float[M,N] y) {{ y = {} (a, b) }}"
    networks = {operator: read_text(context, text.format(operator), name=operator) for operator in MISFITS}
    for operator, loaded in load_each(context, networks):
        shapes, expected = MISFITS[operator]
        request = loaded.create_infer_request()
        for turn in range(2):
            what = f"{operator} of shapes {' and '.join(map(str, shapes))}, run {turn + 1}"
            require_error(HeteroError, _start_and_wait, what, request, [np.ones(shape, np.float32) for shape in shapes])
        _start_and_wait(request, [np.ones((2, 2), np.float32)] * 2)
        answer = request.get_tensor("y").tolist()
        require_equal(answer, [[expected] * 2] * 2, f"{operator} of ones, in the run after one that failed")


def _start_and_wait(request: InferRequest, inputs: list[Any]) -> None:
    request.start_async(dict(zip(("a", "b"), inputs, strict=True)))
    require(request.wait(END_SECONDS), f"the run has not ended after {END_SECONDS:g} seconds: `done` is not called after an error")


@check("contract")
def start_returns_at_once(context: CheckContext) -> None:
    """`start_async` returns while the run goes on: a device that computes in `start`, or waits there, blocks the caller."""
    sample = make_sample(context, "chain")
    caller, has_returned, faults = threading.get_ident(), threading.Event(), []

    def look(*_: object) -> None:
        # The run does not end before this returns, so a `start` that waits for the end of its run does not return either.
        if threading.get_ident() == caller:
            faults.append("the run ended within `start_async`, on the thread of the caller: `start` blocks until it has computed")
        elif not has_returned.wait(BLOCK_SECONDS):
            faults.append("`start_async` does not return before the run has ended: `start` blocks until it has computed")

    with context.load(sample.network) as loaded:
        request = loaded.create_infer_request()
        request.set_callback(look)
        request.start_async(sample.draw(context.seed))
        has_returned.set()
        require(request.wait(END_SECONDS), "the run has not ended")
    require(not faults, "; ".join(faults))


@check("contract")
def closing_ends_what_was_started(context: CheckContext) -> None:
    """A network is closed during 8 runs: each run ends with its result or, if it had not begun, with ClosedError."""
    sample = make_sample(context, "chain")
    for turn in range(5):
        loaded = context.load(sample.network)
        requests = [loaded.create_infer_request() for _ in range(8)]
        drawn = [sample.draw(context.seed + turn * 8 + index) for index in range(8)]
        for request, inputs in zip(requests, drawn, strict=True):
            request.start_async(inputs)
        loaded.close()
        for index, (request, inputs) in enumerate(zip(requests, drawn, strict=True)):
            try:
                require(request.wait(END_SECONDS), f"run {index} of a closed network does not end: the device's queue dropped it")
            except ClosedError:
                continue
            sample.require_right({"y": request.get_tensor("y")}, inputs, f"run {index}, under way at close")


@check("contract")
def cancelled_run_ends_on_the_device_too(context: CheckContext) -> None:
    """`done` is called for a cancelled run, too: until then the network cannot be closed, and its memory is not freed."""
    sample = make_sample(context, "chain")
    with _gather_warnings() as warnings:
        loaded = context.load(sample.network)
        requests = [loaded.create_infer_request() for _ in range(8)]
        for request in requests:
            request.start_async(sample.draw(context.seed))
            request.cancel()
        loaded.close()
    texts = [text for text in map(logging.LogRecord.getMessage, warnings) if "have not returned after they were cancelled" in text]
    require(not texts, f"`done` is not called for a run that was cancelled: {texts[:1]}")


@check("contract")
def closed_network_is_freed(context: CheckContext) -> None:
    """A closed network without references is freed: no cache, queue or thread of the device keeps a reference to it."""
    sample, loaded = load_sample(context, "chain")
    loaded.infer(sample.draw(context.seed))
    try:
        reference = weakref.ref(loaded.executable)
    except TypeError:
        raise Skip("the executable has slots without __weakref__, so that nobody can see whether it is freed") from None
    gone = threading.Event()
    weakref.finalize(loaded.executable, gone.set)
    loaded.close()
    del loaded
    for _ in range(10):
        gc.collect()
        if gone.wait(FREE_SECONDS / 10):
            return
    holders = [type(holder).__name__ for holder in gc.get_referrers(reference())]
    raise CheckFailed(
        f"the executable of a closed network is never freed; it is held by {', '.join(sorted(holders)) or 'something unseen'}"
    )
