"""The calls of a run as one flat list: functions without arguments, and between them, now and then, a look whether the run was cancelled.

NumPy takes 0.2 us for an operator on few elements. Nothing but a `for` walks over the list, which adds 0.02 us to each call; so which
node a call belongs to is found out only when one has raised.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import length_hint
from time import perf_counter
from typing import TYPE_CHECKING, Any

from hetero_core.contract import CancelToken
from hetero_core.errors import RequestCancelledError
from hetero_core.limits import RunLimits
from hetero_core.network.graph import Node
from hetero_core.profile import Profile
from hetero_cpu.planning.recipe import Call

if TYPE_CHECKING:
    from hetero_cpu.machine.native import NativeCall

_MOST_JOINED = 32
"""Steps that read and write little, or of machine code, between which nobody looks whether the run was cancelled."""


class CurrentRun:
    """The state of the current run, shared by calls: cancellation, limits, helper threads, the values without a place in the arena."""

    __slots__ = ("limits", "passed", "team", "token")

    def __init__(self) -> None:
        self.token = CancelToken()
        self.limits: RunLimits | None = None
        self.team: Any = None
        self.passed: dict[str, Any] = {}

    def is_cancelled(self) -> bool:
        """Says whether the caller has given up."""
        return self.token.is_set

    def stop_before(self, node: Node) -> None:
        """Raises RequestCancelledError if the caller has given up."""
        if self.token.is_set:
            raise RequestCancelledError(f"cancelled before node {node.label}")


@dataclass(frozen=True, slots=True)
class BoundStep:
    """The node that a profile and errors name, and what is called: functions, and ranges of the program of machine code.

    `is_little`: it takes so short a time that nobody has to look whether the run was cancelled before each of its kind.
    """

    node: Node
    actions: tuple[Call | range, ...]
    is_little: bool = False


@dataclass(frozen=True, slots=True)
class CallList:
    """The calls of a run in order, and the node of each."""

    calls: tuple[Call, ...]
    nodes: tuple[Node, ...]

    def run(self) -> None:
        """Calls them. Raises: what a call raises, with its node as a note."""
        left = iter(self.calls)
        try:
            for call in left:
                call()
        except Exception as error:
            note_node(error, self.nodes[len(self.calls) - length_hint(left) - 1])
            raise


class StepCalls:
    """The bound steps of a plan: one list of calls, or step by step where a profile or limits are to know of each."""

    __slots__ = ("_current", "_program", "_steps", "_strides", "run_unwatched")

    def __init__(self, steps: Sequence[BoundStep], current: CurrentRun, program: Any) -> None:
        self._steps, self._current, self._program = steps, current, program
        # What a run does where nobody wants the times of single steps: as few calls as possible.
        self._strides = join_steps(steps)
        self.run_unwatched = list_calls(self._strides, current, program).run

    def run(self, profile: Profile | None, limits: RunLimits | None) -> None:
        """Runs all steps. Raises: what a step raises, with its node as a note; RequestCancelledError; what limits raise."""
        if profile is None and limits is None:
            self.run_unwatched()
            return
        for step in self._strides if profile is None else self._steps:
            self._current.stop_before(step.node)
            if limits is not None:
                limits.enter(step.node.label)
            began = perf_counter()
            try:
                for action in step.actions:
                    bind_action(action, self._current, self._program)()
            except Exception as error:
                note_node(error, step.node)
                raise
            if profile is not None:
                profile.add(step.node, perf_counter() - began)


def note_node(error: Exception, node: Node) -> None:
    """Notes which node was running, where nobody within it has said so."""
    if not isinstance(error, RequestCancelledError) and not getattr(error, "__notes__", ()):
        error.add_note(f"while running node {node.label}")


def list_calls(steps: Iterable[BoundStep], current: CurrentRun, program: Any) -> CallList:
    """Returns the calls of steps, with a look before each step, but at most `_MOST_JOINED` little ones after one another have one."""
    calls: list[Call] = []
    nodes: list[Node] = []
    unwatched = 0
    for step in steps:
        if step.is_little and 0 < unwatched < _MOST_JOINED:
            unwatched += 1
            joined: list[Call] = []
        else:
            unwatched = int(step.is_little)
            joined = [partial(current.stop_before, step.node)]
        joined += [bind_action(action, current, program) for action in step.actions]
        calls += joined
        nodes += [step.node] * len(joined)
    return CallList(tuple(calls), tuple(nodes))


def list_actions(calls: Iterable[Any], native: list[NativeCall]) -> list[Any]:
    """Returns functions as they are, and calls of machine code, which are appended to those of the steps before, as ranges of these."""
    actions: list[Any] = []
    for call in calls:
        if callable(call):
            actions.append(call)
            continue
        place = len(native)
        native.append(call)
        if actions and isinstance(actions[-1], range):
            actions[-1] = range(actions[-1].start, place + 1)
        else:
            actions.append(range(place, place + 1))
    return actions


def bind_action(action: Call | range, current: CurrentRun, program: Any) -> Call:
    """Returns a call; of a range of the program, with the team of the run that is under way."""
    if not isinstance(action, range):
        return action
    begin, end = action.start, action.stop
    return lambda: program.run(begin, end, current.team)


def join_steps(steps: Sequence[BoundStep]) -> tuple[BoundStep, ...]:
    """Returns the steps with runs of machine code that follow one another as one, under the name of the first; cancelling waits for one."""
    joined: list[BoundStep] = []
    for step in steps:
        before = joined[-1].actions[-1] if joined and joined[-1].actions else None
        after = step.actions[0] if step.actions else None
        fits = len(step.actions) == 1 and isinstance(before, range) and isinstance(after, range) and before.stop == after.start
        if fits and isinstance(before, range) and isinstance(after, range) and after.stop - before.start <= _MOST_JOINED:
            last = joined[-1]
            joined[-1] = BoundStep(last.node, (*last.actions[:-1], range(before.start, after.stop)))
        else:
            joined.append(step)
    return tuple(joined)
