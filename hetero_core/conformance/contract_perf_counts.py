"""Perf counts: a run has the times of its nodes if and only if PERF_COUNT is set."""

from __future__ import annotations

import itertools
from time import perf_counter
from typing import TYPE_CHECKING

from hetero_core.conformance.check import CheckContext, check, require, require_equal
from hetero_core.conformance.samples import WAIT_SECONDS, make_samples, open_request

if TYPE_CHECKING:
    from hetero_core.profile import NodeTime

LONG_ROWS = 200_000
"""Rows of an input whose run takes a device milliseconds."""


@check("contract")
def times_are_there_when_asked_for(context: CheckContext) -> None:
    """With PERF_COUNT a synchronous and an asynchronous run have at least one entry each, with a time and the device."""
    sample, request = open_request(context, "chain", {"PERF_COUNT": True})
    require_equal(request.perf_counts, (), "the times before the first run")
    for kind in ("synchronous", "asynchronous"):
        inputs = sample.draw(context.seed)
        if kind == "synchronous":
            request.infer(inputs)
        else:
            request.start_async(inputs)
            require(request.wait(WAIT_SECONDS), "the run did not end")
        entries = request.perf_counts
        require(entries, f"PERF_COUNT is set and a {kind} run has no times; the device does not fill context.profile")
        for entry in entries:
            require(entry.seconds >= 0 and entry.node and entry.operator and entry.device, f"an entry is incomplete: {entry}")


@check("contract")
def entries_are_nodes_of_the_network_in_order(context: CheckContext) -> None:
    """Entries of nodes that keep their names come in topological order, each at most once; times are per run, not accumulated."""
    sample, request = open_request(context, "chain", {"PERF_COUNT": True})
    # A composed device may distribute its runs over several devices.
    counts_of_devices: dict[tuple[str, ...], set[int]] = {}
    for _ in range(3):
        request.infer(sample.draw(context.seed))
        names = [entry.node for entry in request.perf_counts]
        devices = tuple(sorted({entry.device for entry in request.perf_counts}))
        counts_of_devices.setdefault(devices, set()).add(len(names))
        known = [name for name in names if name in sample.network.index_of_node]
        require_equal(known, sorted(set(known), key=sample.network.index_of_node.__getitem__), "the nodes that have times")
    for counts in counts_of_devices.values():
        require_equal(len(counts), 1, f"the number of different counts of entries, which were {sorted(counts)}")


@check("contract")
def times_are_absent_when_not_asked_for(context: CheckContext) -> None:
    """Without PERF_COUNT there are no entries."""
    sample, request = open_request(context, "chain")
    request.infer(sample.draw(context.seed))
    require_equal(request.perf_counts, (), "the times, without PERF_COUNT")


@check("contract")
def times_are_in_seconds(context: CheckContext) -> None:
    """No entry exceeds the duration of the whole run on the caller's clock; an entry in milliseconds would."""
    form, sample = next(iter(make_samples(context, "dynamic", "chain").items()))
    request = context.load(sample.network, {"PERF_COUNT": True}).create_infer_request()
    # Nearly all time of a long run is spent on the device: even a thousandth of it, given in milliseconds, exceeds the whole.
    for turn, rows in enumerate((3, 3, LONG_ROWS)):
        inputs = sample.draw(context.seed + turn, **({"x": (rows, 2)} if form == "dynamic" else {}))
        began = perf_counter()
        request.infer(inputs)
        wall = perf_counter() - began
        longest = max((entry.seconds for entry in request.perf_counts), default=0.0)
        # A clock of the device may tick in steps of its own.
        require(
            longest <= 2 * wall + 1e-6,
            f"an entry of {longest:g} seconds in a run of {wall:g} seconds: times are in seconds, not in milliseconds",
        )
    require(
        longest > 0 or not request.perf_counts,
        f"every time of a run of {wall:g} seconds is 0: the device records nodes and does not measure them",
    )


@check("contract")
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
