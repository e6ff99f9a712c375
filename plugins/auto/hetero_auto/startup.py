"""AutoExecutable: a pool with members that change while the best device is chosen: a quick device first, the chosen device when it
is ready.

A thread of the Core loads, and ends with that; it holds the source and the pool, not the executable. A request from before
the choice is answered by the quick device or by the chosen device, whichever is ready first: the two runs race. A request races if
it may be computed twice: it has no states, preset outputs, profile or limits, and its network has standard operators only, without
random numbers.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from itertools import chain, takewhile
from time import perf_counter
from typing import Any

import numpy as np

from hetero_auto.candidates import Candidates, measure_members
from hetero_auto.executable import PoolExecutable, StartedTicket
from hetero_auto.loading import MemberSource
from hetero_auto.pool import POLICIES, POLICY_KEY, Member, MemberMemory, Pool
from hetero_core.contract import CancelToken, Done, Executable, RunContext
from hetero_core.devices.threads import HINT_KEY
from hetero_core.errors import ClosedError, HeteroError
from hetero_core.network.graph import Network, Node
from hetero_core.network.types import ValueSpec
from hetero_core.runtime.executors import Executor
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
        """Starts each request that runs on a device which has left the pool again, on a device that is in it."""
        self._is_decided = True
        for race in list(self._races):
            race.repeat()

    def _end(self, race: _Race, done: Done, outputs: tuple[Any, ...] | None, error: BaseException | None) -> None:
        self._races.discard(race)
        done(outputs, error)


class _RunToken(CancelToken):
    """Cancels a run of a race; it is cancelled with the request, too."""

    def __init__(self, of_request: CancelToken) -> None:
        self._of_request, self._is_set = of_request, False

    @property
    def is_set(self) -> bool:
        return self._is_set or self._of_request.is_set

    @is_set.setter
    def is_set(self, value: bool) -> None:
        self._is_set = value


class _Race:
    """A request and its runs, each with a working memory and a token of its own."""

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
        """Starts a second run if the first run is on a device that has left the pool; another call does nothing."""
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


logger = logging.getLogger(__name__)

MEASURE_KEY, RUNTIME_KEY = "AUTO_MEASURE", "ENABLE_RUNTIME_FALLBACK"
CUMULATIVE = "CUMULATIVE_THROUGHPUT"
_UNASKED_SECONDS, _FIRST_SECONDS = 0.2, 1.0
"""Seconds that the chosen device waits for a first request, and for its answer."""


class AutoExecutable(PoolExecutable):
    """A network on the device that was chosen for it, or on its way there."""

    def __init__(
        self, inputs: tuple[ValueSpec, ...], outputs: tuple[ValueSpec, ...], pool: Pool, source: MemberSource | None = None
    ) -> None:
        super().__init__(inputs, outputs, pool)
        self.source = source
        self._settled: Future[None] | None = None
        self._races: Races | None = None

    @staticmethod
    def load(
        source: MemberSource, candidates: Candidates, quick: str | None, seconds_of_device: dict[str, float]
    ) -> AutoExecutable:
        """Returns the executable, ready for its first request. The device `quick` (or None) serves until another is chosen.

        Raises: the error of the last device, if no device can load the network.
        """
        loader = _Loader(source, candidates, seconds_of_device)
        measures, falls_back = source.config[MEASURE_KEY], source.config[RUNTIME_KEY]
        pool = Pool(source.owner, POLICIES[source.config[POLICY_KEY]](), loader.replace_failed if falls_back else lambda _: None)
        loader.pool = pool
        if source.config[HINT_KEY] == CUMULATIVE:
            pool.set_members(list(loader.load_each(candidates)))
        elif quick is not None:
            others = (name for name in candidates if name != quick)
            pool.set_members([next(loader.load_each(chain([quick], others)))])
        elif measures:
            loader.settle(measures=True)
        else:
            pool.set_members([next(loader.load_each(candidates))])
        executable = AutoExecutable(source.network.inputs, source.network.outputs, pool, source)
        if quick is not None and (measures or pool.members[0].name != candidates.names[0]):
            # The loader holds its executor: the Core waits for the threads of referenced executors.
            loader.executor = source.core.create_executor(source.owner, workers=1)
            executable._settled = loader.executor.submit(lambda: loader.settle_meanwhile(measures=measures))
            if may_repeat_network(source.network):
                executable._races = races = Races(pool)
                executable._settled.add_done_callback(lambda _: races.repeat_all())
        return executable

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Returns the outputs; until the choice is made another thread runs, so that the chosen device can answer before it."""
        if self._find_races(context) is None:
            return super().run(inputs, context)
        return Executable.run(self, inputs, context)

    def start(self, inputs: tuple[Any, ...], context: RunContext, done: Done) -> None:
        """Begins a run on a free member, now or as soon as a member is free."""
        races = self._find_races(context)
        if races is None:
            super().start(inputs, context, done)
        else:
            races.start(inputs, context, done)

    def _find_races(self, context: RunContext) -> Races | None:
        """Returns the races if the choice is not made yet and the run may be repeated."""
        races = self._races
        if races is not None and races.is_over:
            races = self._races = None
        return races if races is not None and may_repeat_run(context) else None

    def wait_until_settled(self) -> None:
        """Returns when the chosen device is loaded, or cannot be."""
        if self._settled is not None:
            # The loader need not wait for a first answer now.
            self.pool.has_entered.set()
            self.pool.has_answered.set()
            self._settled.result()


class _Loader:
    """Loads members of a network; a load that failed is not tried again."""

    pool: Pool
    executor: Executor | None = None

    def __init__(self, source: MemberSource, candidates: Candidates, seconds_of_device: dict[str, float]) -> None:
        self._source = source
        self._candidates = candidates
        self._seconds = seconds_of_device
        self._lock = threading.RLock()
        self._used: set[str] = set()

    def load_each(self, names: Iterable[str]) -> Iterator[Member]:
        """Yields a member on each of these devices that can load the network; failures are named in warnings.

        Raises: ClosedError; at the end the last error if no device could load the network.
        """
        failure: HeteroError | None = None
        is_loaded = False
        for name in names:
            try:
                member = self._load(name)
            except ClosedError:
                raise
            except HeteroError as error:
                logger.warning("%s goes on without %s, which failed to load the network: %s", self._source.owner, name, error)
                failure = error
            else:
                is_loaded = True
                yield member
        if failure is not None and not is_loaded:
            raise failure

    def settle_meanwhile(self, *, measures: bool) -> None:
        """As `settle`, while requests run; if the choice fails, the devices that serve stay, with a warning.

        The first request comes first: a load beside it would take processors from it.
        """
        if self.pool.has_entered.wait(_UNASKED_SECONDS):
            self.pool.has_answered.wait(_FIRST_SECONDS)
        try:
            self.settle(measures=measures)
        except HeteroError as error:
            serving = ", ".join(member.name for member in self.pool.members)
            logger.warning("%s stays on %s, as its choice of a device failed: %s", self._source.owner, serving, error)

    def settle(self, *, measures: bool) -> None:
        """Loads the chosen device and replaces the members that serve meanwhile; if no device can load, these members stay."""
        try:
            chosen = self._choose_measured() if measures else self._choose_preferred()
        except ClosedError:
            return
        if chosen is None:
            return
        with self._lock:
            # A device that leaves may be the next one again.
            self._used -= {member.name for member in self.pool.members if member is not chosen}
            self.pool.set_members([chosen])

    def replace_failed(self, failed: Member) -> Member | None:
        """Returns a member on the next device that can load the network, if any is left; it is placed behind the present members."""
        with self._lock:
            others = [member for member in self.pool.members if member is not failed]
            if others:
                return others[0]
            names = (name for name in self._candidates if name not in self._used)
            following = next(names, None)
            if following is None:
                return None
            logger.warning("%s: %s failed in a run; the next device is loaded", self._source.owner, failed.name)
            try:
                member = next(self.load_each(chain([following], names)))
            except HeteroError as error:
                logger.warning("%s: no other device can load the network: %s", self._source.owner, error)
                return None
            self.pool.set_members([*self.pool.members, member])
            return member

    def _choose_preferred(self) -> Member | None:
        serving = self.pool.members[0].name
        with suppress(HeteroError):
            return next(self.load_each(takewhile(lambda name: name != serving, self._candidates)), None)
        return None

    def _choose_measured(self) -> Member:
        serving = {member.name for member in self.pool.members}
        loaded = {member.name: member for member in self.pool.members}
        try:
            loaded |= {member.name: member for member in self.load_each(name for name in self._candidates if name not in serving)}
        except HeteroError as error:
            if not serving or isinstance(error, ClosedError):
                raise
        members = [loaded[name] for name in self._candidates if name in loaded]
        order = measure_members(members, self._source.owner) if len(members) > 1 else members
        for member in members:
            if member is not order[0] and member.name not in serving:
                self._used.discard(member.name)
                member.loaded.close()
        return order[0]

    def _load(self, name: str) -> Member:
        self._used.add(name)
        began = perf_counter()
        member = self._source.load(name)
        self._seconds[name] = perf_counter() - began
        return member
