"""Perf counts: times of nodes where they are asked for, none where they are not."""

from __future__ import annotations

from time import perf_counter

from hetero_core.conformance.check import CheckContext, check, require, require_equal
from hetero_core.conformance.contract_requests import WAIT_SECONDS
from hetero_core.conformance.samples import make_sample, make_samples

LONG_ROWS = 200_000
"""Rows of an input whose run takes a device milliseconds."""


@check("contract")
def times_are_there_when_asked_for(context: CheckContext) -> None:
    """With PERF_COUNT a synchronous and an asynchronous run have at least one entry each, with a time and the device."""
    sample = make_sample(context, "chain")
    request = context.core.load_network(sample.network, context.device, {"PERF_COUNT": True}).create_infer_request()
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
    """Entries of nodes that keep their names come in topological order, each at most once; those of one run do not add to the next."""
    sample = make_sample(context, "chain")
    request = context.core.load_network(sample.network, context.device, {"PERF_COUNT": True}).create_infer_request()
    # A device made of devices may give its runs to different ones.
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
    sample = make_sample(context, "chain")
    request = context.core.load_network(sample.network, context.device).create_infer_request()
    request.infer(sample.draw(context.seed))
    require_equal(request.perf_counts, (), "the times, without PERF_COUNT")


@check("contract")
def times_are_in_seconds(context: CheckContext) -> None:
    """No entry is longer than the whole run took by the clock of the caller, as milliseconds for seconds would be."""
    form, sample = next(iter(make_samples(context, "dynamic", "chain").items()))
    request = context.core.load_network(sample.network, context.device, {"PERF_COUNT": True}).create_infer_request()
    # Of a long run nearly all is the device's: even a thousandth of it, told in milliseconds, is longer than the whole.
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


CHECKS = (
    times_are_there_when_asked_for,
    entries_are_nodes_of_the_network_in_order,
    times_are_absent_when_not_asked_for,
    times_are_in_seconds,
)
