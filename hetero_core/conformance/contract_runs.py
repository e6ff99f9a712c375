"""Contract of runs: requests, callbacks, cancellation, asynchronous starts, times of nodes, several threads."""

from __future__ import annotations

import gc
import itertools
import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import partial
from logging.handlers import BufferingHandler
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_core.conformance.check import (
    THREADS,
    CheckContext,
    CheckFailed,
    Skip,
    check,
    load_each,
    require,
    require_equal,
    require_error,
    run_in_threads,
)
from hetero_core.conformance.samples import (
    WAIT_SECONDS,
    Arrays,
    Sample,
    load_sample,
    make_mixed,
    make_sample,
    make_samples,
    open_request,
    read_text,
)
from hetero_core.errors import ClosedError, HeteroError, RequestCancelledError

if TYPE_CHECKING:
    from hetero_core.core import Core
    from hetero_core.profile import NodeTime
    from hetero_core.runtime.executable import ExecutableNetwork
    from hetero_core.runtime.request import InferRequest

# Requests: synchronous and asynchronous runs, one after another and beside each other.


@check("requests")
def asynchronous_run_gives_the_result(context: CheckContext) -> None:
    """`start_async`, `wait` and `get_tensor` give the same results as `infer` in each run; the device calls `done` exactly once."""
    sample = make_sample(context, "chain")
    with _forbid_warning("called `done` a second time", "`done` was called twice"), context.load(sample.network) as loaded:
        request = loaded.create_infer_request()
        for turn in range(10):
            inputs = sample.draw(context.seed + turn)
            request.start_async(inputs)
            require(request.wait(END_SECONDS), f"run {turn + 1} has not ended: the device has not called `done`")
            sample.require_right({"y": request.get_tensor("y")}, inputs, f"asynchronous run {turn + 1}")
            sample.require_right(request.infer(inputs), inputs, f"synchronous run {turn + 1}")


@check("requests")
def requests_keep_their_own_results(context: CheckContext) -> None:
    """Results of a request stay valid until its next run, even if other requests of the network run meanwhile."""
    sample, loaded = load_sample(context, "fork")
    requests = [loaded.create_infer_request() for _ in range(4)]
    drawn = [sample.draw(context.seed + index) for index in range(len(requests))]
    results = [request.infer(inputs) for request, inputs in zip(requests, drawn, strict=True)]
    for index, (inputs, outputs) in enumerate(zip(drawn, results, strict=True)):
        sample.require_right(outputs, inputs, f"request {index}, after {len(requests)} requests ran")


@check("requests")
def many_requests_in_flight_keep_apart(context: CheckContext) -> None:
    """Twenty requests of several networks and sizes, started before the first `wait`, have their own results in any order of waiting."""
    samples = make_samples(context, "chain", "dynamic", "fork", "pair")
    started = []
    loaded = {form: context.load(sample.network) for form, sample in samples.items()}
    for index in range(20):
        form = list(samples)[index % len(samples)]
        inputs = samples[form].draw(context.seed + index, **({"x": (1 + index % 7, 2)} if form == "dynamic" else {}))
        request = loaded[form].create_infer_request()
        request.start_async(inputs)
        started.append((form, request, inputs))
    for form, request, inputs in reversed(started):
        samples[form].require_ended(request, inputs, f"a request of '{form}'")


HELD_SECONDS = 0.4
"""Seconds for which no other thread of the program goes on; the interpreter itself hands its lock on after 5 ms."""


@check("requests")
def other_threads_go_on_beside_a_run(context: CheckContext) -> None:
    """A run of a large input does not hold the interpreter's lock all the time: another thread of the program goes on meanwhile."""
    sample, request = open_request(context, "dynamic")
    inputs = sample.draw(context.seed, x=(1 << 18, 2))
    # On a busy machine, any thread may rest for a while.
    pause = min(_measure_pause(lambda: request.infer(inputs)) for _ in range(2))
    what = f"no other thread went on for {pause:.2g} seconds of a run: the device holds the interpreter's lock while it computes"
    require(pause < HELD_SECONDS, what)


def _measure_pause(run: Callable[[], object]) -> float:
    """Returns the longest time in seconds between two ticks of this thread during a run on another thread."""
    with ThreadPoolExecutor(1) as pool:
        pause, last = 0.0, perf_counter()
        running, has_ended = pool.submit(run), False
        while not has_ended:
            has_ended = bool(wait([running], 0.002).done)
            pause, last = max(pause, perf_counter() - last), perf_counter()
        running.result()
    return pause


# Callbacks: they may start their request again.


@check("callbacks")
def callback_may_start_its_request_again(context: CheckContext) -> None:
    """A callback starts the request ten times over; `wait` returns after the last one, with every result right."""
    sample, request = open_request(context, "chain")
    drawn = [sample.draw(context.seed + turn) for turn in range(11)]
    results: list[object] = []
    errors: list[BaseException | None] = []

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


# Cancel: a request ends at once, cancelled or done, and works again.


@check("cancel")
def cancelled_run_is_cancelled_or_done(context: CheckContext) -> None:
    """A cancelled run ends with RequestCancelledError or with the right result if it had finished; the request then runs again."""
    sample, request = open_request(context, "chain")
    for turn in range(30):
        inputs = sample.draw(context.seed + turn)
        request.start_async(inputs)
        request.cancel()
        with suppress(RequestCancelledError):
            sample.require_ended(request, inputs, "a run that was done before its cancel")
        sample.require_right(request.infer(inputs), inputs, "the run after a cancel")


@check("cancel")
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


# Start: the duties of an asynchronous device, as a caller sees them; for a device without `start`, the core fulfils them.

END_SECONDS = 30.0
"""Seconds within which a run of a few numbers, or a failing run, has to end."""
BLOCK_SECONDS = 10.0
"""Seconds that a callback waits for `start_async` to return before the device counts as blocking."""
FREE_SECONDS = 10.0
"""Seconds within which threads of a device have to drop their references to a closed network."""


MOST_WARNINGS = 100_000
"""Warnings that a check may gather; no check causes so many."""

MISFITS = {"Add": (((2, 2), (3, 3)), 2), "Mul": (((2, 2), (3, 3)), 1), "MatMul": (((2, 3), (2, 3)), 2)}
"""Operator of two inputs -> shapes that do not fit together, and the value of each output element for two (2, 2) inputs of ones."""


@contextmanager
def _forbid_warning(text: str, what: str) -> Iterator[None]:
    """Raises CheckFailed at the end of the context if the core has logged a warning with this text meanwhile."""
    handler = BufferingHandler(MOST_WARNINGS)
    handler.setLevel(logging.WARNING)
    logger = logging.getLogger("hetero_core")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
    warnings = [message for record in handler.buffer if text in (message := record.getMessage())]
    require(not warnings, f"{what}: {warnings[:1]}")


@check("start")
def run_that_fails_ends(context: CheckContext) -> None:
    """A failing asynchronous run ends with its error: `done` is called after an error, too."""
    sample = make_sample(context, "dynamic")
    try:
        # Too little for any value: the device, or else the core, aborts the run.
        loaded = context.load(sample.network, {"MEMORY_LIMIT": 64})
    except HeteroError as error:
        raise Skip(f"the device does not load a network under MEMORY_LIMIT: {error}") from None
    request = loaded.create_infer_request()
    request.start_async(sample.draw(context.seed, x=(4096, 2)))
    try:
        ended = request.wait(END_SECONDS)
    except HeteroError:
        return
    what = f"a run that exceeds MEMORY_LIMIT has not ended after {END_SECONDS:g} seconds: `done` is not called after an error"
    require(ended, what)
    raise CheckFailed("a run of 32 KiB under a MEMORY_LIMIT of 64 bytes gave a result: MEMORY_LIMIT is ignored")


@check("start")
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


@check("start")
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


@check("start")
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


@check("start")
def cancelled_run_ends_on_the_device_too(context: CheckContext) -> None:
    """`done` is called for a cancelled run, too: until then the network cannot be closed, and its memory is not freed."""
    sample = make_sample(context, "chain")
    with _forbid_warning("have not returned after they were cancelled", "`done` is not called for a run that was cancelled"):
        loaded = context.load(sample.network)
        requests = [loaded.create_infer_request() for _ in range(8)]
        for request in requests:
            request.start_async(sample.draw(context.seed))
            request.cancel()
        loaded.close()


@check("start")
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
    holders = ", ".join(sorted(type(holder).__name__ for holder in gc.get_referrers(reference())))
    raise CheckFailed(f"the executable of a closed network is never freed; it is held by {holders or 'something unseen'}")


# Perf counts: a run has the times of its nodes if PERF_COUNT is set.

LONG_ROWS, LONG_RUNS = 200_000, 8
"""Rows of an input whose run takes a device milliseconds, and the number of such runs."""
CLOCK_SECONDS = 0.05
"""The difference of the device's clock and the caller's that passes."""
LEAST_SHARE = 950
"""The times of a run are at least this fraction of it: copies may take a hundred times as long, and a wrong unit is a thousand."""


@check("perf_counts")
def times_are_there_when_asked_for(context: CheckContext) -> None:
    """With PERF_COUNT a synchronous and an asynchronous run have at least one entry each, with a time and the device. Entries of nodes that
    keep their names come in topological order, each at most once; times are per run, not accumulated."""
    sample, request = open_request(context, "chain", {"PERF_COUNT": True})
    require_equal(request.perf_counts, (), "the times before the first run")
    # A composed device may distribute its runs over several devices.
    counts_of_devices: dict[tuple[str, ...], set[int]] = {}
    for kind in ("synchronous", "asynchronous", "synchronous", "asynchronous"):
        inputs = sample.draw(context.seed)
        if kind == "synchronous":
            request.infer(inputs)
        else:
            sample.require_started(request, inputs, "an asynchronous run with PERF_COUNT")
        entries = request.perf_counts
        require(entries, f"PERF_COUNT is set and a {kind} run has no times; the device does not fill context.profile")
        for entry in entries:
            require(entry.seconds >= 0 and entry.node and entry.operator and entry.device, f"an entry is incomplete: {entry}")
        names = [entry.node for entry in entries]
        counts_of_devices.setdefault(tuple(sorted({entry.device for entry in entries})), set()).add(len(names))
        known = [name for name in names if name in sample.network.index_of_node]
        require_equal(known, sorted(set(known), key=sample.network.index_of_node.__getitem__), "the nodes that have times")
    for counts in counts_of_devices.values():
        require_equal(len(counts), 1, f"the number of different counts of entries, which were {sorted(counts)}")


@check("perf_counts")
def times_are_in_seconds(context: CheckContext) -> None:
    """No entry exceeds the duration of the whole run on the caller's clock, all entries of a long run are a part of it that can be seen,
    and each lies within the run on the clock of `time.perf_counter`; times in another unit or of another clock would not."""
    form, sample = next(iter(make_samples(context, "dynamic", "chain").items()))
    request = context.load(sample.network, {"PERF_COUNT": True}).create_infer_request()
    # Nearly all time of a long run is spent on the device: even a thousandth of it, given in milliseconds, exceeds the whole.
    # Another program may have interrupted a run outside the device, so the largest share of several long runs counts.
    for turn, rows in enumerate((3, 3, *[LONG_ROWS] * LONG_RUNS)):
        inputs = sample.draw(context.seed + turn, **({"x": (rows, 2)} if form == "dynamic" else {}))
        began = perf_counter()
        request.infer(inputs)
        wall = perf_counter() - began
        longest = max((entry.seconds for entry in request.perf_counts), default=0.0)
        # A clock of the device may tick in steps of its own.
        what = f"an entry of {longest:g} seconds in a run of {wall:g} seconds: times are in seconds, not in milliseconds"
        require(longest <= 2 * wall + 1e-6, what)
        for entry in request.perf_counts:
            first, last = entry.begin - began, entry.begin + entry.seconds - began
            what = f"node '{entry.node}' ran from {first:g} to {last:g} seconds after the begin of a run of {wall:g} seconds"
            is_inside = first >= -CLOCK_SECONDS and last <= wall + CLOCK_SECONDS
            require(is_inside, f"{what}: `begin` is on the clock of time.perf_counter, not on another clock")
        whole = sum(entry.seconds for entry in request.perf_counts)
        if rows == LONG_ROWS and whole * LEAST_SHARE > wall:
            return
    what = f"every time of a run of {wall:g} seconds is 0: the device records nodes and does not measure them"
    require(longest > 0 or not request.perf_counts, what)
    what = f"all times of a run of {wall:g} seconds add up to {whole:g} seconds: times are in seconds, not in another unit"
    require(form != "dynamic" or not request.perf_counts, what)


@check("perf_counts")
def times_of_a_thread_do_not_overlap(context: CheckContext) -> None:
    """Times of nodes that one thread computed in sequence do not overlap: each is measured from its own start."""
    sample, request = open_request(context, "dynamic", {"PERF_COUNT": True})
    for turn in range(3):
        request.infer(sample.draw(context.seed + turn, x=(LONG_ROWS, 2)))
        lines: dict[tuple[object, ...], list[NodeTime]] = {}
        for entry in request.perf_counts:
            # Entries that an engine reports at the end of a run have no thread; engines compute nodes in parallel.
            if entry.thread and not entry.targets:
                lines.setdefault((entry.thread, entry.path, entry.device), []).append(entry)
        for entries in lines.values():
            ordered = sorted(entries, key=lambda entry: (entry.begin, entry.seconds))
            for first, second in itertools.pairwise(ordered):
                overlap = first.begin + first.seconds - second.begin
                # A clock of the device may tick in steps of its own.
                require(
                    overlap <= 0.2 * min(first.seconds, second.seconds) + 2e-5,
                    f"node '{second.node}' of {second.seconds:g} seconds began {overlap:g} seconds before '{first.node}' ended, on one "
                    "thread: its begin is not taken anew, so that times add up; or it was told at the end of the run without `begin=`",
                )


# Threading: eight threads share a network, a device and a Core.

ROUNDS = 100


@check("threading", level="concurrency")
def threads_share_a_loaded_network(context: CheckContext) -> None:
    """Eight threads call `infer` of a shared network, and run requests of their own: each gets the results of its own inputs."""
    for form, sample in make_samples(context, "chain", "dynamic", "fork", "pair").items():
        run_in_threads(partial(_share_network, context, form, sample, context.load(sample.network)))


def _share_network(context: CheckContext, form: str, sample: Sample, loaded: ExecutableNetwork, index: int) -> None:
    request = loaded.create_infer_request()
    for turn in range(ROUNDS):
        shapes = {"x": (1 + (index + turn) % 5, 2)} if form == "dynamic" else {}
        inputs = sample.draw(context.seed + index * ROUNDS + turn, **shapes)
        what = f"'{form}', thread {index} of {THREADS} that share the network, run {turn}"
        sample.require_right(loaded.infer(inputs), inputs, what)
        if turn % 4 == 0:
            sample.require_started(request, inputs, f"{what}, asynchronous")


@check("threading", level="concurrency")
def threads_query_and_load_at_once(context: CheckContext) -> None:
    """Eight threads query and load the same and different networks, in a Core that has not made the device yet."""
    samples = list(make_samples(context, "chain", "dynamic", "fork", "pair").values())
    mixed, expected = make_mixed(context)
    with context.make_core() as core:

        def run(index: int) -> None:
            for turn in range(10):
                sample = samples[(index + turn) % len(samples)]
                inputs = sample.draw(context.seed + index)
                # The same networks load and run correctly in sequence.
                what = f"thread {index}, load {turn}, while others load: a race in load, it got the network of another load or none"
                sample.require_working(partial(_load_and_run, core, sample, inputs, context.device), inputs, what)
                answer = core.query_network(mixed, context.device)
                require_equal(dict(answer.refused), dict(expected.refused), f"thread {index}, what is refused")

        run_in_threads(run)


def _load_and_run(core: Core, sample: Sample, inputs: Arrays, device: str) -> Arrays:
    with core.load_network(sample.network, device) as loaded:
        return loaded.infer(inputs)
