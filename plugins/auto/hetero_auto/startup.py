"""AutoExecutable: a pool whose members change while the best device is found: a quick device first, the chosen device when it is ready.

One thread of the Core loads, and ends with that; it holds what it loads from and the pool, not the executable.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from itertools import chain, takewhile
from time import perf_counter
from typing import Any

from hetero_auto.candidates import Candidates
from hetero_auto.choosing import measure_members
from hetero_auto.executable import PoolExecutable
from hetero_auto.loading import MemberSource
from hetero_auto.members import POLICIES, POLICY_KEY, Member
from hetero_auto.pool import Pool
from hetero_auto.races import Races, may_repeat_network, may_repeat_run
from hetero_core.contract import Done, Executable, RunContext
from hetero_core.devices.threads import HINT_KEY
from hetero_core.errors import ClosedError, HeteroError
from hetero_core.network.types import ValueSpec
from hetero_core.runtime.executors import Executor

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
            pool.set_members(loader.load_all())
        elif quick is not None:
            others = (name for name in candidates if name != quick)
            pool.set_members([loader.load_first(chain([quick], others))])
        elif measures:
            loader.settle(measures=True)
        else:
            pool.set_members([loader.load_first(candidates)])
        executable = AutoExecutable(source.network.inputs, source.network.outputs, pool, source)
        if quick is not None and (measures or pool.members[0].name != candidates.names[0]):
            # Held by what runs on it: the Core waits for the threads of executors that somebody holds.
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
        """Begins a run on a free member, now or when there is one."""
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
            # Whoever waits needs no first answer before.
            self.pool.has_entered.set()
            self.pool.has_answered.set()
            self._settled.result()


class _Loader:
    """Loads members of one network; what a device failed at is not tried again."""

    pool: Pool
    executor: Executor | None = None

    def __init__(self, source: MemberSource, candidates: Candidates, seconds_of_device: dict[str, float]) -> None:
        self._source = source
        self._candidates = candidates
        self._seconds = seconds_of_device
        self._lock = threading.RLock()
        self._used: set[str] = set()

    def load_first(self, names: Iterable[str]) -> Member:
        """Returns a member on the first of these devices that can load the network; each that cannot is named in a warning.

        Raises: the error of the last device.
        """
        remaining = iter(names)
        name = next(remaining)
        while True:
            try:
                return self._load(name)
            except ClosedError:
                raise
            except HeteroError as error:
                following = next(remaining, None)
                if following is None:
                    raise
                self._warn(name, error)
                name = following

    def load_all(self) -> list[Member]:
        """Returns a member for each device; those that fail are named in warnings. Raises: as `load_first`, where all fail."""
        names = iter(self._candidates)
        first = self.load_first(names)
        return [first, *(member for member in map(self._try_load, names) if member is not None)]

    def settle_meanwhile(self, *, measures: bool) -> None:
        """As `settle`, while requests run; where the choice fails the devices that serve stay, with a warning.

        The first request comes first: what is loaded beside it would take processors from it.
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
                member = self.load_first(chain([following], names))
            except HeteroError as error:
                logger.warning("%s: no other device can load the network: %s", self._source.owner, error)
                return None
            self.pool.set_members([*self.pool.members, member])
            return member

    def _choose_preferred(self) -> Member | None:
        serving = self.pool.members[0].name
        names = takewhile(lambda name: name != serving, self._candidates)
        return next((member for member in map(self._try_load, names) if member is not None), None)

    def _choose_measured(self) -> Member:
        serving = {member.name: member for member in self.pool.members}
        loaded = (serving[name] if name in serving else self._try_load(name) for name in self._candidates)
        members = [member for member in loaded if member is not None]
        if not members:
            # All have failed, each with a warning: the error of the last one again.
            return self._load(list(self._candidates)[-1])
        order = measure_members(members, self._source.owner) if len(members) > 1 else members
        for member in members:
            if member is not order[0] and member.name not in serving:
                self._used.discard(member.name)
                member.loaded.close()
        return order[0]

    def _try_load(self, name: str) -> Member | None:
        """Returns a member, or None with a warning where the device cannot load the network. Raises: ClosedError."""
        try:
            return self._load(name)
        except ClosedError:
            raise
        except HeteroError as error:
            self._warn(name, error)
            return None

    def _warn(self, name: str, error: HeteroError) -> None:
        logger.warning("%s goes on without %s, which failed to load the network: %s", self._source.owner, name, error)

    def _load(self, name: str) -> Member:
        self._used.add(name)
        began = perf_counter()
        member = self._source.load(name)
        self._seconds[name] = perf_counter() - began
        return member
