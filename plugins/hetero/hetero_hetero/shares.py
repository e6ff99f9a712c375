"""The thread budget of one run, divided over the stages of a split network: who may run beside whom, and with how many threads.

A stage that no stage of another lane can run beside has the whole budget. The others divide it by lane, because a lane runs one stage at a
time; what DEVICE_PROPERTIES give to a device it has, and the rest is divided. Where there are more lanes than threads, a share is one
thread, and the schedule holds stages back so that the sum stays within the budget.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hetero_core.core import Core
from hetero_core.devices.threads import STREAMS_KEY, THREADS_KEY

StageBorder = tuple[str, Sequence[str], Sequence[str]]
"""A stage's device, and the names of the values that it reads and makes."""


def configure_stages(
    core: Core, borders: Sequence[StageBorder], threads: int, configs: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, int], ...]:
    """Returns the number of threads, and the one stream, of each stage, as configuration for its load.

    `configs` maps devices to their own configuration; a number in `core.set_config` for a device is a limit for its stages.
    """
    devices = [device for device, _, _ in borders]
    own_threads = [configs.get(device, {}).get(THREADS_KEY) for device in devices]
    limits = {device: core.get_config(device, THREADS_KEY) for device in dict.fromkeys(devices)}
    shares = divide_threads(threads, find_predecessors(borders), [find_lane(core, device) for device in devices], own_threads)
    return tuple(
        {THREADS_KEY: share if own is not None else min(share, limits[device]), STREAMS_KEY: 1}
        for device, share, own in zip(devices, shares, own_threads, strict=True)
    )


def find_lane(core: Core, device: str) -> str:
    """Returns the lane of a device: the device itself, or "interpreter" for all devices that hold the interpreter's lock."""
    return "interpreter" if core.get_metric(device, "HOLDS_INTERPRETER_LOCK") else device


def find_predecessors(borders: Sequence[StageBorder]) -> tuple[tuple[int, ...], ...]:
    """Returns for each stage, in order of execution, the stages whose values it reads."""
    maker = {value: index for index, (_, _, outputs) in enumerate(borders) for value in outputs}
    # Only earlier ones: what a forged blob says of its stages is not checked here.
    return tuple(
        tuple(sorted({maker[value] for value in inputs if maker.get(value, index) < index}))
        for index, (_, inputs, _) in enumerate(borders)
    )


def divide_threads(
    threads: int, predecessors: Sequence[tuple[int, ...]], lanes: Sequence[str], own_threads: Sequence[int | None]
) -> tuple[int, ...]:
    """Returns the number of threads of each stage, 1 or more; `given` are the numbers that are fixed already."""
    beside = find_concurrent_stages(predecessors, lanes)
    fixed: dict[str, int] = {}
    for index in sorted(beside):
        own = own_threads[index]
        if own is not None:
            fixed[lanes[index]] = max(own, fixed.get(lanes[index], 0))
    free_lanes = {lanes[index] for index in beside} - fixed.keys()
    share = max(1, (threads - sum(fixed.values())) // max(1, len(free_lanes)))
    shares = []
    for index, lane in enumerate(lanes):
        own = own_threads[index]
        shares.append(own if own is not None else fixed.get(lane, share) if index in beside else threads)
    return tuple(shares)


def find_concurrent_stages(predecessors: Sequence[tuple[int, ...]], lanes: Sequence[str]) -> frozenset[int]:
    """Returns the stages beside which one of another lane may run, neither of which depends on the other.

    Costs the square of their number in bits at most.
    """
    mask_of_lane: dict[str, int] = {}
    ancestors: list[int] = []
    overlapping = 0
    for index, before in enumerate(predecessors):
        mask = 0
        for predecessor in before:
            mask |= ancestors[predecessor] | (1 << predecessor)
        ancestors.append(mask)
        # An earlier stage of another lane that is no ancestor cannot be a descendant either.
        others = ((1 << index) - 1) & ~mask_of_lane.get(lanes[index], 0) & ~mask
        if others:
            overlapping |= others | (1 << index)
        mask_of_lane[lanes[index]] = mask_of_lane.get(lanes[index], 0) | (1 << index)
    return frozenset(index for index in range(len(predecessors)) if overlapping >> index & 1)
