"""PoolExecutable: a network loaded on several devices, each request on a free device.

A started request goes to its device without a thread of ours; a request that its caller waits for uses the caller's thread. Inputs
and outputs are the host's; a tensor of the caller stays in the memory of the device if that runs the request.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from hetero_auto.loading import MemberSource
from hetero_auto.pool import MemberMemory, Pool, PoolTicket
from hetero_core.composing.properties import PROPERTIES_KEY, describe_properties
from hetero_core.composing.runs import describe_part, run_child, start_child
from hetero_core.contract import Done, Executable, RunContext
from hetero_core.errors import RequestCancelledError
from hetero_core.executed import ExecutedNode, place_executed
from hetero_core.network.types import ValueSpec


class PoolExecutable(Executable):
    """Hands each request to a member of the pool. `source` is None if the members came from a blob: no other member can be loaded."""

    source: MemberSource | None = None
    takes_tensors = True

    def __init__(self, inputs: tuple[ValueSpec, ...], outputs: tuple[ValueSpec, ...], pool: Pool) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.pool = pool
        self.pipeline_depth = pool.count_runs()

    def find_part(self, name: str) -> Any:
        """Returns the first member."""
        members = self.pool.members
        return members[0].loaded if members else None

    def create_state(self) -> MemberMemory:
        """Returns working memory in which each member's is made when it is needed."""
        return MemberMemory()

    def create_spare(self, state: object) -> MemberMemory:
        """Returns the second working memory of a request with states, which stays with one member."""
        assert isinstance(state, MemberMemory), "a spare is made for a state of this executable"
        return state.create_spare()

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Returns the outputs; waits for a free member and runs on this thread."""
        ticket = _WaitingTicket(inputs, context)
        while True:
            if not ticket.failed:
                self.pool.enter(ticket)
            try:
                outputs = ticket.run()
            except BaseException as error:
                if ticket.member is None or not self.pool.leave(ticket, error):
                    if error in ticket.failed.values():
                        raise ticket.describe_failure() from None
                    raise
                continue
            self.pool.leave(ticket, None)
            return outputs

    def start(self, inputs: tuple[Any, ...], context: RunContext, done: Done) -> None:
        """Begins a run on a free member, now or as soon as a member is free."""
        self.pool.enter(StartedTicket(inputs, context, done, self.pool.leave))

    def metrics(self) -> Mapping[str, Any]:
        """The devices that get requests now, and the number of requests that each device has run."""
        members = self.pool.members
        return {
            "EXECUTION_DEVICES": tuple(
                dict.fromkeys(name for member in members for name in member.loaded.get_metric("EXECUTION_DEVICES"))
            ),
            "OPTIMAL_NUMBER_OF_INFER_REQUESTS": self.pool.count_runs(),
            "REQUESTS_OF_DEVICES": dict(self.pool.served),
            PROPERTIES_KEY: lambda: describe_properties(member.loaded for member in members),
            **{
                metric: tuple(dict.fromkeys(name for member in members for name in member.loaded.get_metric(metric)))
                for metric in ("REFERENCE_NODES", "SLOW_NODES")
            },
        }

    def executed_nodes(self) -> tuple[ExecutedNode, ...]:
        """The steps of the first of the devices that get requests now."""
        member = self.pool.members[0]
        return place_executed(member.loaded.list_executed(), member.name, member.index)

    def close(self) -> None:
        """Closes the members; those in a run are closed after it."""
        self.pool.close()


class _WaitingTicket(PoolTicket):
    """A request that its caller waits for, and runs."""

    def __init__(self, inputs: tuple[Any, ...], context: RunContext) -> None:
        super().__init__(inputs, context)
        self._granted = threading.Event()
        self._refusal: BaseException | None = None

    def begin(self) -> None:
        """Lets the caller go on."""
        self._granted.set()

    def drop(self, error: BaseException) -> None:
        """Lets the caller go on, to raise this."""
        self.member, self._refusal = None, error
        self._granted.set()

    def run(self) -> tuple[Any, ...]:
        """Waits for a member and returns its result."""
        self._granted.wait()
        self._granted = threading.Event()
        if self._refusal is not None:
            raise self._refusal
        return _run_on_member(self)


def _run_on_member(ticket: PoolTicket) -> tuple[Any, ...]:
    member, context = ticket.member, ticket.context
    assert member is not None, "a request runs on the member that it was granted"
    if context.token.is_set:
        raise RequestCancelledError("the request was cancelled before a device was free")
    inner = describe_part(context, member.loaded, member.index, ticket.state.on(member))
    outputs = run_child(member.loaded, ticket.inputs, inner)
    _end_part(ticket, inner)
    return outputs


def _end_part(ticket: PoolTicket, inner: RunContext) -> None:
    """Writes into the profile which device has run the request."""
    if inner.profile is not None and ticket.member is not None:
        loaded = ticket.member.loaded
        inner.profile.end_part(tuple(spec.name for spec in loaded.inputs), tuple(spec.name for spec in loaded.outputs))


class StartedTicket(PoolTicket):
    """A request that no thread waits for: its device is told to begin, and `done` is called when it has ended."""

    def __init__(
        self, inputs: tuple[Any, ...], context: RunContext, done: Done, leave: Callable[[PoolTicket, BaseException | None], bool]
    ) -> None:
        super().__init__(inputs, context)
        self._done = done
        self._leave = leave

    def begin(self) -> None:
        """Starts the run on the member."""
        member, context = self.member, self.context
        assert member is not None, "a request begins on the member that it was granted"
        try:
            if context.token.is_set:
                raise RequestCancelledError("the request was cancelled before a device was free")
            inner = describe_part(context, member.loaded, member.index, self.state.on(member))
            start_child(member.loaded, self.inputs, inner, lambda outputs, error: self._end(inner, outputs, error))
        except BaseException as error:  # noqa: BLE001  # whoever holds the request is told
            self._end(None, None, error)

    def _end(self, inner: RunContext | None, outputs: tuple[Any, ...] | None, error: BaseException | None) -> None:
        if error is None and inner is not None:
            _end_part(self, inner)
        if not self._leave(self, error):
            self._done(outputs, self.describe_failure() if error is not None and error in self.failed.values() else error)

    def drop(self, error: BaseException) -> None:
        """Tells the holder of the request that the run has ended."""
        self._done(None, error)
