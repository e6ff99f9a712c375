"""Races: a request from before the choice of a device is answered by the quick device or by the chosen one, whichever is ready first.

A request races if it may be computed twice: it has no states, preset outputs, profile or limits, and its network has standard operators
only, none of which draws random numbers.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import numpy as np

from hetero_auto.executable import StartedTicket
from hetero_auto.members import MemberMemory
from hetero_auto.pool import Pool
from hetero_core.contract import CancelToken, Done, RunContext
from hetero_core.errors import ClosedError
from hetero_core.network.graph import Network, Node
from hetero_core.transforms.constants import RANDOM_OPERATORS

_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")


def may_repeat_network(network: Network) -> bool:
    """Says whether a second run of a network has the same answer and no other effect."""
    return not network.border.states and _may_repeat(network.nodes)


def _may_repeat(nodes: Iterable[Node]) -> bool:
    for node in nodes:
        is_idle = node.op_type == "Dropout" and node.since_version >= 7 and len(node.inputs) < 3
        if (
            (node.op_type in RANDOM_OPERATORS and not is_idle)
            or node.domain not in _DOMAINS
            or not all(_may_repeat(body.nodes) for body in node.bodies.values())
        ):
            return False
    return True


def may_repeat_run(context: RunContext) -> bool:
    """Says whether nothing of a run's context is changed by a second run beside it."""
    presets = context.outputs is not None and any(array is not None for array in context.outputs)
    return not (presets or context.tensors or context.profile is not None or context.limits is not None)


class Races:
    """The requests of a pool that race. Holds the pool, not the executable. Safe for threads."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._races: set[_Race] = set()
        self._is_decided = False

    @property
    def is_over(self) -> bool:
        """True once the choice is made: new requests need not race."""
        return self._is_decided

    def start(self, inputs: tuple[Any, ...], context: RunContext, done: Done) -> None:
        """Starts a request on the quick device; `done` gets the first answer. Raises: ClosedError."""
        race = _Race(self._pool, inputs, context, lambda *answer: self._end(race, done, *answer))
        self._races.add(race)
        race.start()
        # In this order no race is missed: it is in the set before the flag is read, and the flag is set before the set is read.
        if self._is_decided:
            race.repeat()

    def repeat_all(self) -> None:
        """Starts each request that runs on a device which has left the pool once more, on one that is in it."""
        self._is_decided = True
        for race in list(self._races):
            race.repeat()

    def _end(self, race: _Race, done: Done, outputs: tuple[Any, ...] | None, error: BaseException | None) -> None:
        self._races.discard(race)
        done(outputs, error)


class _RunToken(CancelToken):
    """Cancels one run of a race; it is cancelled with the request, too."""

    def __init__(self, of_request: CancelToken) -> None:
        self._of_request, self._is_set = of_request, False

    @property
    def is_set(self) -> bool:
        return self._is_set or self._of_request.is_set

    @is_set.setter
    def is_set(self, value: bool) -> None:
        self._is_set = value


class _Race:
    """One request and its runs, each with a working memory and a token of its own."""

    def __init__(self, pool: Pool, inputs: tuple[Any, ...], context: RunContext, done: Done) -> None:
        self._pool, self._done = pool, done
        # The caller may write over its inputs as soon as it has an answer, while the slower device still reads them.
        self._inputs = tuple(each.copy() if isinstance(each, np.ndarray) else each for each in inputs)
        self._context = context
        self._lock = threading.Lock()
        self._tickets: list[StartedTicket] = []
        self._under_way = 0
        self._is_over = False
        self._error: BaseException | None = None

    def start(self) -> None:
        """Starts the first run. Raises: ClosedError."""
        self._pool.enter(self._open_ticket())

    def repeat(self) -> None:
        """Starts a second run if the first one is on a device that has left the pool; another call does nothing."""
        with self._lock:
            if self._is_over or len(self._tickets) > 1:
                return
            member = self._tickets[0].member
            if member is None or member in self._pool.members:
                return
            ticket = self._open_ticket()
        try:
            self._pool.enter(ticket)
        except ClosedError as error:
            self._end(None, error)

    def _open_ticket(self) -> StartedTicket:
        # An answer of the caller's own arrays and tensors comes from the race, not from a run that may lose it.
        own = {"token": _RunToken(self._context.token), "outputs": None, "tensors": None, "profile": None, "limits": None}
        context = self._context.derive(MemberMemory(), **own)
        ticket = StartedTicket(self._inputs, context, self._end, self._pool.leave)
        self._tickets.append(ticket)
        self._under_way += 1
        return ticket

    def _end(self, outputs: tuple[Any, ...] | None, error: BaseException | None) -> None:
        with self._lock:
            self._under_way -= 1
            if self._is_over:
                return
            if error is not None:
                self._error = self._error or error
                if self._under_way:
                    return
            self._is_over = True
            tickets = list(self._tickets)
        for ticket in tickets:
            # A device that looks ends the slower run; the pool does not give it to another device.
            ticket.context.token.is_set = True
        self._done(outputs, None if error is None else self._error)
