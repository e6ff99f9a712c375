"""Runs without a thread that waits: stages are started on their devices, and the run goes on from where a device calls `done`.

A request that is started passes from device to device: on the thread of the caller until the first device has it, then on the thread that
tells of a stage's end, with the transfers in between. A stage whose device cannot start runs by itself is computed on a thread of the core.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import get_ident
from typing import Any

from hetero_core.composing.runs import start_stage, submit_run
from hetero_core.contract import CancelToken, Done, RunContext
from hetero_core.core import Core
from hetero_hetero.executable import HeteroExecutable
from hetero_hetero.schedule import End, Flow, Progress, Schedule

Begin = Callable[[int, End], None]


class StartedFlow(Progress):
    """One run of a schedule on nobody's thread. `begin_stage(index, end)` returns at once, and `end` is called once, from any thread."""

    def __init__(self, schedule: Schedule, begin_stage: Begin, token: CancelToken, done: End) -> None:
        super().__init__(schedule, token)
        self._begin_stage = begin_stage
        self._done = done
        self._goer, self._is_done = 0, False

    def go_on(self) -> None:
        """Begins every stage that can run; calls `done` after the last one. The thread that noted the latest end does.

        So ends do not nest that a device tells while its stage is begun, and whoever started the run is not kept by stages that end fast.
        """
        own = get_ident()
        with self._changed:
            # After the last end the thread that noted it may be behind.
            if self._goer == own or self._is_done:
                return
            self._goer = own
        while True:
            with self._changed:
                if self._goer != own:
                    return
                index = self._take()
                if index is None:
                    self._goer, self._is_done = 0, self._has_ended()
                    has_ended = self._is_done
                    break
            self._begin_stage(index, partial(self._end_stage, index))
        if has_ended:
            self._done(self._error)

    def _end_stage(self, index: int, error: BaseException | None) -> None:
        with self._changed:
            self._finish(index, error)
        self.go_on()


class StartingExecutable(HeteroExecutable):
    """A split network of which some device starts runs by itself."""

    def __init__(self, *arguments: Any, core: Core, **more: Any) -> None:
        super().__init__(*arguments, core=core, **more)
        self._starters = frozenset(index for index, stage in enumerate(self.stages) if stage.start is not None)
        lanes = dict.fromkeys(lane for index, lane in enumerate(self._schedule.lanes) if index not in self._starters)
        if lanes:
            # As many runs of each device that cannot start them as the streams of the whole let through.
            workers = more["streams"] * len(lanes)
            self._compute = core.create_executor(f"HETERO:{','.join(lanes)}-stages", workers=workers).submit

    def start(self, inputs: tuple[Any, ...], context: RunContext, done: Done) -> None:
        """Begins a run and returns; no thread waits for a device."""
        slots = self._fill_slots(inputs, context)
        release = self._count_readers(slots)

        def begin(index: int, end: End) -> None:
            self._begin_stage(index, slots, context, partial(_end, partial(release, index), end))

        def tell(error: BaseException | None) -> None:
            if error is not None:
                done(None, error)
                return
            try:
                outputs = self._take_outputs(slots, context)
            except BaseException as failure:  # noqa: BLE001  # told to whoever waits, as an error of the run
                done(None, failure)
                return
            done(outputs, None)

        StartedFlow(self._schedule, begin, context.token, tell).go_on()

    def _begin_stage(self, index: int, slots: list[Any], context: RunContext, end: End) -> None:
        """Hands a stage to its device, or to a thread that computes it; `end` is called once its outputs are where they are needed."""
        stage, inner = self.stages[index], self._open_step(index, slots, context)
        values = tuple([slots[slot] for slot in self._route.steps[index].inputs])

        def finish(results: tuple[Any, ...] | None, error: BaseException | None) -> None:
            try:
                if error is None:
                    self._end_step(index, results, slots, inner)
            except BaseException as failure:  # noqa: BLE001  # told to whoever waits, as an error of the run
                error = failure
            if error is not None:
                self._note_step(index, error)
            end(error)

        if index in self._starters:
            start_stage(stage, values, inner, finish)
            return
        submit_run(self._compute, lambda: stage.run(values, inner), finish, device=stage.device)

    def _run_spread(self, slots: list[Any], context: RunContext) -> None:
        """As the base does; devices that start runs by themselves take no thread."""
        release = self._count_readers(slots)

        def run_stage(index: int) -> None:
            self._run_step(index, slots, context)
            release(index)

        def begin(index: int, end: End) -> bool:
            if index in self._starters:
                self._begin_stage(index, slots, context, partial(_end, partial(release, index), end))
            return index in self._starters

        Flow(self._schedule, run_stage, self._submit, context.token, start_stage=begin).run()


def assemble_stages(*arguments: Any, **more: Any) -> HeteroExecutable:
    """Returns the stages as one executable, which starts runs where one of their devices does. Arguments: as HeteroExecutable's."""
    loaded = arguments[3]
    starts = any(stage.start is not None for stage, _ in loaded)
    return (StartingExecutable if starts else HeteroExecutable)(*arguments, **more)


def _end(release: Callable[[], None], end: End, error: BaseException | None) -> None:
    if error is None:
        release()
    end(error)
