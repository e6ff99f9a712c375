"""Scheduling: which stages of one request may run at the same time, with how many threads, and the threads that run them.

A lane runs a single stage at a time; it is a device, or all devices together that hold the interpreter's lock. Stages of different
lanes that do not depend on each other run at once, as far as their threads fit into the budget of the run. A stage that no stage of
another lane can run beside has the whole budget. Stages that may overlap divide it by lane; a device has the threads that
DEVICE_PROPERTIES give it, and the rest is divided. If there are more lanes than threads, a share is one thread, and stages are held
back so that the sum stays within the budget.

The caller's thread always works, and waits only for stages that run already, never for a thread that has yet to begin: so a request ends
also when every other thread is busy, and requests inside requests cannot wait for each other in a circle.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hetero_core import Core
from hetero_core.contract import CancelToken
from hetero_core.devices.threads import STREAMS_KEY, THREADS_KEY
from hetero_core.errors import ClosedError
from hetero_core.plan import PlanStage
from hetero_hetero.digraph import reverse_edges


def configure_stages(
    core: Core, stages: Sequence[PlanStage], threads: int, configs: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, int], ...]:
    """Returns the number of threads, and the one stream, of each stage, as configuration for its load.

    `configs` maps devices to their own configuration; a number in `core.set_config` for a device is a limit for its stages.
    """
    devices = [stage.device for stage in stages]
    own_threads = [configs.get(device, {}).get(THREADS_KEY) for device in devices]
    limits = {device: core.get_config(device, THREADS_KEY) for device in dict.fromkeys(devices)}
    maker = {value: index for index, stage in enumerate(stages) for value in stage.outputs}
    # Only earlier stages: the stages of a forged blob are not checked here.
    predecessors = [
        tuple(sorted({maker[value] for value in stage.inputs if maker.get(value, index) < index}))
        for index, stage in enumerate(stages)
    ]
    shares = divide_threads(threads, predecessors, [find_lane(core, device) for device in devices], own_threads)
    return tuple(
        {THREADS_KEY: share if own is not None else min(share, limits[device]), STREAMS_KEY: 1}
        for device, share, own in zip(devices, shares, own_threads, strict=True)
    )


def find_lane(core: Core, device: str) -> str:
    """Returns the lane of a device: the device itself, or "interpreter" for all devices that hold the interpreter's lock."""
    return "interpreter" if core.get_metric(device, "HOLDS_INTERPRETER_LOCK") else device


def divide_threads(
    threads: int, predecessors: Sequence[tuple[int, ...]], lanes: Sequence[str], own_threads: Sequence[int | None]
) -> tuple[int, ...]:
    """Returns the number of threads of each stage, 1 or more; `own_threads` are the numbers that are fixed already."""
    beside = find_concurrent_stages(predecessors, lanes)
    fixed: dict[str, int] = {}
    for index in beside:
        own = own_threads[index]
        if own is not None:
            fixed[lanes[index]] = max(own, fixed.get(lanes[index], 0))
    free_lanes = {lanes[index] for index in beside} - fixed.keys()
    share = max(1, (threads - sum(fixed.values())) // max(1, len(free_lanes)))
    return tuple(
        own if own is not None else fixed.get(lane, share) if index in beside else threads
        for index, (lane, own) in enumerate(zip(lanes, own_threads, strict=True))
    )


def find_concurrent_stages(predecessors: Sequence[tuple[int, ...]], lanes: Sequence[str]) -> frozenset[int]:
    """Returns the stages that may run beside an independent stage of another lane. Costs the square of their number in bits at most."""
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


@dataclass(frozen=True)
class Schedule:
    """The order of stages: the predecessors, lane and number of threads of each, by index, and the threads of a run."""

    predecessors: tuple[tuple[int, ...], ...]
    lanes: Sequence[str]
    threads: Sequence[int]
    budget: int

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """The stages behind each stage."""
        return reverse_edges(self.predecessors)

    @cached_property
    def is_parallel(self) -> bool:
        """Whether some two stages may run at once. Costs the square of their number in bits at most."""
        beside = find_concurrent_stages(self.predecessors, self.lanes)
        return bool(beside) and sum(sorted(self.threads[index] for index in beside)[:2]) <= self.budget


class Flow:
    """One run of a schedule: its ready stages, busy lanes and free threads, guarded by `_changed`.

    `run_stage(index)` does the work; `submit` asks another thread to help, and may be refused.
    """

    def __init__(
        self,
        schedule: Schedule,
        run_stage: Callable[[int], None],
        submit: Callable[[Callable[[], None]], object],
        token: CancelToken,
    ) -> None:
        self._schedule = schedule
        self._run_stage = run_stage
        self._submit = submit
        self._token = token
        self._changed = threading.Condition()
        self._missing = [len(before) for before in schedule.predecessors]
        self._ready = [index for index, count in enumerate(self._missing) if count == 0]
        self._busy: set[str] = set()
        self._free = schedule.budget
        self._unfinished = len(self._missing)
        self._error: BaseException | None = None

    def run(self) -> None:
        """Returns when every stage has run, or when those that run have ended after an error or a cancel.

        Raises: the first error of a stage.
        """
        while True:
            self._work()
            with self._changed:
                # A cancel may come between two looks at the token: the list is looked at first.
                if self._list_startable():
                    continue
                if self._is_over() and not self._busy:
                    break
                self._changed.wait()
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        """Runs stages as long as one can start: the first in order whose lane and threads are free. Asks for help with the others."""
        while True:
            with self._changed:
                startable = self._list_startable()
                if not startable:
                    return
                index, *others = startable
                lane, threads = self._schedule.lanes[index], self._schedule.threads[index]
                self._ready.remove(index)
                self._busy.add(lane)
                self._free -= threads
            error: BaseException | None = None
            try:
                with suppress(ClosedError):  # this thread does it all
                    for _ in others:
                        self._submit(self._work)
                self._run_stage(index)
            except BaseException as failure:  # noqa: BLE001  # raised in the caller's thread, by run
                error = failure
            with self._changed:
                self._busy.discard(lane)
                self._free += threads
                self._unfinished -= 1
                if error is not None and self._error is None:
                    self._error = error
                    self._token.is_set = True
                for after in self._schedule.successors[index]:
                    self._missing[after] -= 1
                    if self._missing[after] == 0:
                        self._ready.append(after)
                self._ready.sort()
                self._changed.notify_all()

    def _list_startable(self) -> list[int]:
        """Returns the stages that could all start now, in order: each on a lane of its own, all of them within the budget."""
        lanes, free, startable = set(self._busy), self._free, []
        for index in () if self._is_over() else self._ready:
            lane, threads = self._schedule.lanes[index], self._schedule.threads[index]
            if lane not in lanes and threads <= free:
                lanes.add(lane)
                free -= threads
                startable.append(index)
        return startable

    def _is_over(self) -> bool:
        return self._unfinished == 0 or self._error is not None or self._token.is_set
