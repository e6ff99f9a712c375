"""The pool: requests in the order in which they came, and members, each a loaded network that runs so many of them at once.

Rules: a request waits in one queue, and goes to a free member that the policy chooses. A request that fails goes to each other
member once; a member that fails twice in a row at requests that another member completes is broken, is named in a warning, and gets
nothing more. Members come and go while requests run. Nothing is computed, and nothing of a device is called, while the lock is
held.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any

from hetero_core import ExecutableNetwork
from hetero_core.composing.runs import FINAL, RequestMemory
from hetero_core.contract import RunContext
from hetero_core.errors import ClosedError, RequestCancelledError

TRIAL = 64
"""Requests after which MEASURED tries a device again that has run none of them: it may have become faster, as with kernels that are
compiled meanwhile. A device that is n times as slow as the fastest is tried n times as seldom, so that trials take a 64th of the time."""


class Member:
    """A network loaded on a device, and the number of requests that it is given at once."""

    def __init__(self, loaded: ExecutableNetwork, slots: int, index: int, *, processors: int = 0) -> None:
        """`index` is the number of the device in the composer's list, for profiles; `processors` is the number of shared processors
        that a run on it takes, 0 without sharing.
        """
        self.loaded = loaded
        self.processors = processors
        self.name = str(loaded.device)
        self.slots = slots
        self.index = index
        self.busy = 0
        self.strikes = 0
        self.is_closed = False
        self.stays_open = False
        """True while a member that has left may come back, or hangs in a run."""
        self.is_final = True
        """False if kernels were still being compiled when it was timed."""
        self.is_confirmed = True
        """False if other work disturbed the timed runs."""
        self.timed_since: float | None = None
        """The monotonic time at which a run began that is being timed."""
        self.first = self.least = 0.0
        """The seconds of the first run, and of the fastest timed run; 0 before."""
        self.seconds = 0.0
        """The seconds that a run takes, the latest ones counting most; 0 before the first."""
        self.passed = 0
        """The number of requests that others were given since its last one."""
        self._is_stale = False

    def grant(self) -> None:
        """Notes that it is given a request."""
        self.busy += 1
        self._is_stale = self.passed >= TRIAL
        self.passed = 0

    def note(self, seconds: float, *, succeeded: bool) -> None:
        """Takes the time of a run into account."""
        if succeeded:
            self.strikes = 0
            self.first = self.first or seconds
            self.seconds = seconds if self.seconds == 0 or self._is_stale else 0.8 * self.seconds + 0.2 * seconds


class MemberMemory(RequestMemory):
    """The working memory of a request in a pool. A request with states stays with one member, the `home` of its first memory."""

    has_run = False
    home: Member | None = None
    first: MemberMemory | None


class PoolTicket:
    """A request in the pool: its run, the members that failed at it, and the member that has it now. Its caller waits for the member and
    runs it.
    """

    member: Member | None = None
    refusal: BaseException | None = None
    """The error of a request that will not get a member."""
    granted = 0.0

    def __init__(self, inputs: tuple[Any, ...], context: RunContext) -> None:
        self.inputs = inputs
        self.context = context
        self.failed: dict[Member, BaseException] = {}
        state = context.state
        assert isinstance(state, MemberMemory), "a request runs with the state that its executable made"
        self.state = state
        self._is_granted = threading.Lock()
        self._is_granted.acquire()

    def begin(self) -> None:
        """Is called once for each member that the request is granted, and if it has a refusal."""
        self._is_granted.release()

    def wait(self) -> None:
        """Returns when the request has a member or a refusal."""
        self._is_granted.acquire()

    def drop(self, error: BaseException) -> None:
        """Ends a request that will not get a member."""
        self.member, self.refusal = None, error
        self.begin()

    def describe_failure(self) -> BaseException:
        """Returns the error of the member that failed first, with a note for each further failure."""
        (first, error), *others = self.failed.items()
        for other, its_error in others:
            if its_error is not error:
                error.add_note(f"{first.name} was first; {other.name} failed at the request, too: {its_error}")
        return error

    def open_run(self) -> tuple[ExecutableNetwork, RunContext]:
        """Returns the member's network and the context of the run. Raises: RequestCancelledError; the refusal; errors of the device."""
        if self.refusal is not None:
            raise self.refusal
        assert self.member is not None, "a request runs on the member that it was granted"
        if self.context.token.is_set:
            raise RequestCancelledError("the request was cancelled before a device was free")
        member, profile = self.member, self.context.profile
        inner = None if profile is None else profile.of_part(member.name, member.index)
        return member.loaded, self.context.derive(self.state.on(member.loaded), profile=inner)

    def end_run(self, inner: RunContext) -> None:
        """Writes into the profile which device has run the request."""
        if inner.profile is not None and self.member is not None:
            loaded = self.member.loaded
            inner.profile.end_part(tuple(spec.name for spec in loaded.inputs), tuple(spec.name for spec in loaded.outputs))


Policy = Callable[[Sequence[Member], Sequence[Member], int], Member | None]
"""Chooses among the free members, one or more, of all that may run the request, which is at this place of the queue; None to wait."""


class RoundRobin:
    """ROUND_ROBIN: the next free member after the last choice."""

    def __init__(self) -> None:
        self._last = -1

    def __call__(self, free: Sequence[Member], able: Sequence[Member], place: int) -> Member | None:
        """Returns the member."""
        member = next((candidate for candidate in free if candidate.index > self._last), free[0])
        self._last = member.index
        return member


def choose_soonest(free: Sequence[Member], able: Sequence[Member], place: int) -> Member | None:
    """MEASURED: the member that ends the request soonest, by the runs so far; a slow member that is free waits for its turn.

    A member without runs counts as the fastest. A member without a free place ends a run after `place` further runs.
    """

    least = min(member.seconds for member in able)
    overdue = [
        candidate for candidate in free if candidate.passed >= TRIAL and candidate.passed * least >= TRIAL * candidate.seconds
    ]
    if overdue:
        return overdue[0]

    def estimate(member: Member) -> float:
        waits = 0.0 if member in free else member.seconds * (place + 1) / member.slots
        return waits + member.seconds

    soonest = min(able, key=lambda member: (estimate(member), member not in free))
    return soonest if soonest in free else None


POLICY_KEY = "SCHEDULE_POLICY"
POLICIES: dict[str, Callable[[], Policy]] = {
    "DEVICE_PRIORITY": lambda: lambda free, able, place: free[0],
    "ROUND_ROBIN": RoundRobin,
    "MEASURED": lambda: choose_soonest,
}


logger = logging.getLogger(__name__)

STRIKES = 2
"""Failures in a row, of requests that another member then runs, after which a member is broken."""


def ends_request(error: BaseException) -> bool:
    """True if no other device is tried after an error: the request was ended, or an index in its values lies outside its axis.

    An engine that does not check indices would return a number for it.
    """
    return isinstance(error, FINAL) or not isinstance(error, Exception) or isinstance(error.__cause__, IndexError)


class Pool:
    """Gives requests to members. Safe for threads."""

    def __init__(self, title: str, choose: Policy, replace_failed: Callable[[Member], Member | None] = lambda _: None) -> None:
        """`title` is the device's name, for messages. `replace_failed(member)` is asked for a further member, on the thread of the
        request that has failed on all members."""
        self._title = title
        self._processors = 0
        self._choose = choose
        self._replace_failed = replace_failed
        self._lock = threading.Lock()
        self.members: tuple[Member, ...] = ()
        """The members that get requests, in order of priority."""
        self._waiting: deque[PoolTicket] = deque()
        self._here = threading.local()
        self.is_closed = self._is_held = False
        self.served: dict[str, int] = {}
        self.has_entered, self.has_answered = threading.Event(), threading.Event()
        """Open when the first request has come, and when the first one has ended."""
        self.is_awaited = threading.Event()
        """Open when a thread waits for the choice of a device, and when the pool is closed."""

    def count_runs(self) -> int:
        """Returns how many requests the members run at once."""
        apart = sum(member.slots for member in self.members if not member.processors)
        sharing = [member for member in self.members if member.processors]
        if not sharing:
            return max(apart, 1)
        fitting = self._processors // min(member.processors for member in sharing)
        return max(apart + min(sum(member.slots for member in sharing), fitting), 1)

    def set_members(self, members: Sequence[Member], *, processors: int = 0) -> None:
        """Puts these in the place of those there are; a removed member finishes its runs and is then closed. `processors` is how many those
        have together that share some.
        """
        with self._lock:
            self._processors = processors
            gone = [member for member in self.members if member not in members]
            self.members = tuple(members)
            for member in members:
                self.served.setdefault(member.name, 0)
            is_late = self.is_closed
        self._close_idle(gone)
        if is_late:
            self.close()
        self._advance()

    def release(self, member: Member) -> None:
        """Closes a member that is not in the pool, now or after its runs."""
        member.stays_open = False
        self._close_idle([member])

    def is_busy(self) -> bool:
        """Says whether a request is under way."""
        return any(member.busy for member in self.members)

    @contextmanager
    def hold(self, seconds: float) -> Iterator[None]:
        """Lets requests wait within the context, at most for these seconds; those that a member has already go on."""
        timer = threading.Timer(seconds, self._let_go)
        timer.daemon = self._is_held = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            self._let_go()

    def _let_go(self) -> None:
        with self._lock:
            self._is_held = False
        self._advance()

    def enter(self, ticket: PoolTicket) -> None:
        """Takes a request; it is granted a member now or later. Raises: ClosedError."""
        with self._lock:
            if self.is_closed:
                raise ClosedError(f"{self._title}: the network is closed; load it again")
            self._waiting.append(ticket)
        if not self.has_entered.is_set():
            self.has_entered.set()
        self._advance()

    def leave(self, ticket: PoolTicket, error: BaseException | None) -> bool:
        """Frees the member of a request that it has run; True if another member gets the request now, False if the request has ended."""
        member = ticket.member
        if member is None:
            return False
        is_final = error is None or ends_request(error) or ticket.context.token.is_set
        with self._lock:
            member.note(perf_counter() - ticket.granted, succeeded=error is None)
            if error is None:
                self.served[member.name] += 1
            others = [other for other in self.members if other is not member and other not in ticket.failed]
        if error is not None and not is_final:
            ticket.failed[member] = error
            is_final = not others and self._replace_failed(member) is None
        with self._lock:
            goes_on = not is_final and not self.is_closed
            broken = self._find_broken(ticket) if error is None else []
            self.members = tuple(other for other in self.members if other not in broken)
            member.busy -= 1
            leaving = [other for other in (member, *broken) if other not in self.members]
            if goes_on:
                # First in the queue, as it came first.
                self._waiting.appendleft(ticket)
        for closing in broken:
            logger.warning(
                "%s goes on without %s, which failed %d times in a row where %s did not: %s",
                self._title, closing.name, closing.strikes, member.name, ticket.failed[closing],
            )  # fmt: skip
        self._close_idle(leaving)
        if not goes_on and not self.has_answered.is_set():
            self.has_answered.set()
        self._advance()
        return goes_on

    def close(self) -> None:
        """Takes nothing more and closes the members; those in a run are closed after it."""
        self.has_entered.set()
        self.has_answered.set()
        self.is_awaited.set()
        with self._lock:
            self.is_closed = True
            for member in self.members:
                member.stays_open = False
            members, self.members = self.members, ()
            dropped, self._waiting = list(self._waiting), deque()
        self._close_idle(members)
        for ticket in dropped:
            ticket.drop(RequestCancelledError(f"{self._title}: the network was closed before the request began"))

    def _find_broken(self, ticket: PoolTicket) -> list[Member]:
        """Returns the members that failed at the request that another member has just completed, and at the request before."""
        for member in ticket.failed:
            member.strikes += 1
        broken = [member for member in ticket.failed if member.strikes >= STRIKES and member in self.members]
        return broken if len(broken) < len(self.members) else []

    def _close_idle(self, members: Iterable[Member]) -> None:
        """Closes each of these members that gets nothing more; the last run of a member that is busy does that."""
        for member in members:
            with self._lock:
                is_idle = not (member.busy or member.is_closed or member.stays_open or member in self.members)
                member.is_closed |= is_idle
            if is_idle:
                member.loaded.close()

    def _advance(self) -> None:
        """Grants what can be granted. A run that ends while it begins comes back here, and is left to the loop that began it."""
        if getattr(self._here, "is_granting", False):
            return
        self._here.is_granting = True
        try:
            while (ticket := self._grant_next()) is not None:
                if ticket.member is None:
                    ticket.drop(next(iter(ticket.failed.values())))
                else:
                    ticket.begin()
        finally:
            self._here.is_granting = False

    def _grant_next(self) -> PoolTicket | None:
        with self._lock:
            if self._is_held:
                return None
            for place, ticket in enumerate(self._waiting):
                member = self._find_member(ticket, place)
                if member is not None:
                    del self._waiting[place]
                    for other in self.members:
                        other.passed += 1
                    member.grant()
                    ticket.member, ticket.granted = member, perf_counter()
                    return ticket
                if self.members and all(member in ticket.failed for member in self.members):
                    # The members that it could have gone to have left meanwhile.
                    del self._waiting[place]
                    ticket.member = None
                    return ticket
                if ticket.state.first is None and not ticket.failed:
                    # Later requests may go to the same members, and none is free.
                    return None
        return None

    def _find_member(self, ticket: PoolTicket, place: int) -> Member | None:
        """Returns the member for a waiting request; None if it has to wait."""
        able = [member for member in self.members if member not in ticket.failed]
        first = ticket.state.first
        if first is not None and first.home in able:
            able = [first.home]
        free_processors = self._processors - sum(member.busy * member.processors for member in self.members)
        free = [member for member in able if member.busy < member.slots and member.processors <= free_processors]
        member = self._choose(free, able, place) if free else None
        if first is not None and member is not None:
            first.home = member
        return member
