"""AutoExecutable: a pool with members that change while the best device is chosen: a quick device serves until the chosen device is
ready.

A thread of the Core loads, and ends with that; it holds the source and the pool, not the executable.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from itertools import chain, takewhile
from time import perf_counter

from hetero_auto.candidates import Candidates, measure_members
from hetero_auto.executable import PoolExecutable
from hetero_auto.loading import MemberSource
from hetero_auto.pool import POLICIES, POLICY_KEY, Member, Pool
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
        return executable

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
