"""Members of a pool, their waiting requests, and the policies that choose a member: plain state, changed under the pool's lock alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hetero_core.contract import RunContext
from hetero_core.runtime.executable import ExecutableNetwork

TRIAL = 64
"""Requests after which MEASURED tries a device again that has run none of them: it may have become faster, as with kernels that are
compiled meanwhile. A device that is n times as slow as the fastest is tried n times as seldom, so that trials take a 64th of the time."""


class Member:
    """A network loaded on one device, and how many requests at once it is given."""

    def __init__(self, loaded: ExecutableNetwork, slots: int, index: int, *, processors: int = 0) -> None:
        """`index` is the number of the device in the composer's list, for profiles; `processors` is how many of those that the members
        share a run on it takes, 0 if it shares none.
        """
        self.loaded = loaded
        self.processors = processors
        self.name = str(loaded.device)
        self.slots = slots
        self.index = index
        self.busy = 0
        self.strikes = 0
        self.suspicions = 0
        """Requests that have failed here and that another member is to try: until one has, no new request comes here."""
        self.is_closed = False
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
            self.seconds = seconds if self.seconds == 0 or self._is_stale else 0.8 * self.seconds + 0.2 * seconds


class Home:
    """The member that a request with states stays with; None before its first run."""

    member: Member | None = None


class MemberMemory:
    """The working memory of one request: of each member that it has been on, made when it is first there."""

    def __init__(self, home: Home | None = None) -> None:
        self.home = home
        self._state_of_member: dict[Member, object] = {}
        self._spare: MemberMemory | None = None

    def create_spare(self) -> MemberMemory:
        """Returns the second working memory of the same request, which has states: both stay with one member."""
        if self.home is None:
            self.home = Home()
        spare = MemberMemory(self.home)
        spare._spare = self
        return spare

    def on(self, member: Member) -> object:
        """Returns the working memory for a run on a member. Raises: what its device raises."""
        if member not in self._state_of_member:
            beside = None if self._spare is None else self._spare._state_of_member.get(member)
            self._state_of_member[member] = member.loaded.create_state(beside)
        return self._state_of_member[member]


class PoolTicket:
    """A request in the pool: its run, the members that failed at it, and the member that has it now."""

    member: Member | None = None
    granted = 0.0

    def __init__(self, inputs: tuple[Any, ...], context: RunContext) -> None:
        self.inputs = inputs
        self.context = context
        self.failed: dict[Member, BaseException] = {}
        self.suspected: list[Member] = []
        state = context.state
        assert isinstance(state, MemberMemory), "a request runs with the state that its executable made"
        self.state = state
        self.home = state.home

    def suspect(self) -> None:
        """Keeps new requests from the member that it has failed on, until it has ended."""
        assert self.member is not None, "a request suspects the member that it was on"
        self.member.suspicions += 1
        self.suspected.append(self.member)

    def acquit(self) -> None:
        """Ends its suspicions."""
        for member in self.suspected:
            member.suspicions -= 1
        self.suspected = []

    def describe_failure(self) -> BaseException:
        """Returns the error of the member that failed first, with a note for each other one that did."""
        (first, error), *others = self.failed.items()
        for other, its_error in others:
            if its_error is not error:
                error.add_note(f"{first.name} was first; {other.name} failed at the request, too: {its_error}")
        return error

    def begin(self) -> None:
        """Is called once for each member that the request is granted."""
        raise NotImplementedError

    def drop(self, error: BaseException) -> None:
        """Is called if the request will not get a member."""
        raise NotImplementedError


Policy = Callable[[Sequence[Member], Sequence[Member], int], Member | None]
"""Chooses among the free members, one or more, of all that may run the request, which is at this place of the queue; None to wait."""


def choose_first(free: Sequence[Member], able: Sequence[Member], place: int) -> Member | None:
    """DEVICE_PRIORITY: the first free one in order."""
    return free[0]


class RoundRobin:
    """ROUND_ROBIN: the next free one after the last that was chosen."""

    def __init__(self) -> None:
        self._last = -1

    def __call__(self, free: Sequence[Member], able: Sequence[Member], place: int) -> Member | None:
        """Returns the member."""
        member = next((candidate for candidate in free if candidate.index > self._last), free[0])
        self._last = member.index
        return member


def choose_soonest(free: Sequence[Member], able: Sequence[Member], place: int) -> Member | None:
    """MEASURED: the member that ends the request soonest, by the runs so far; a slow member that is free waits for its turn.

    One that has not run yet counts as the fastest. A member without a free place ends one run after `place` others.
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
    "DEVICE_PRIORITY": lambda: choose_first,
    "ROUND_ROBIN": RoundRobin,
    "MEASURED": lambda: choose_soonest,
}
