"""AutoExecutable: a pool whose members change while the best device is found: a quick one first, the chosen one when it is ready.

One thread of the Core loads, and ends with that; it holds what it loads from and the pool, not the executable.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from time import perf_counter

from hetero_auto.choosing import measure_members
from hetero_auto.executable import PoolExecutable
from hetero_auto.loading import MemberSource
from hetero_auto.members import POLICIES, Member
from hetero_auto.pool import Pool
from hetero_core.errors import ClosedError, HeteroError
from hetero_core.network.types import ValueSpec
from hetero_core.records import record
from hetero_core.runtime.executors import Executor

logger = logging.getLogger(__name__)


@record(frozen=True, slots=True)
class Wishes:
    """The user's settings for AUTO's choice; each field is a configuration key."""

    measure: bool
    starts_early: bool
    falls_back: bool
    is_cumulative: bool
    policy: str


class AutoExecutable(PoolExecutable):
    """A network on the device that was chosen for it, or on its way there."""

    def __init__(
        self, inputs: tuple[ValueSpec, ...], outputs: tuple[ValueSpec, ...], pool: Pool, source: MemberSource | None = None
    ) -> None:
        super().__init__(inputs, outputs, pool)
        self.source = source
        self._settled: Future[None] | None = None

    @staticmethod
    def of_members(
        title: str, inputs: tuple[ValueSpec, ...], outputs: tuple[ValueSpec, ...], members: Sequence[Member]
    ) -> AutoExecutable:
        """Returns the executable of what a blob holds."""
        pool = Pool(title, POLICIES["DEVICE_PRIORITY"]())
        pool.set_members(members)
        return AutoExecutable(inputs, outputs, pool)

    @staticmethod
    def load(source: MemberSource, names: Sequence[str], wishes: Wishes, seconds_of_device: dict[str, float]) -> AutoExecutable:
        """Returns the executable, ready for its first request; `names` are the devices in order of preference.

        Raises: what the last device raises where none can load the network.
        """
        loader = _Loader(source, names, seconds_of_device)
        pool = Pool(source.owner, POLICIES[wishes.policy](), loader.replace_failed if wishes.falls_back else lambda _: None)
        loader.pool = pool
        is_open = len(names) > 1 and not wishes.is_cumulative
        if wishes.is_cumulative:
            pool.set_members(loader.load_all())
        elif is_open and wishes.starts_early:
            pool.set_members([loader.load_first(loader.order_by_speed())])
        elif is_open and wishes.measure:
            loader.settle(measures=True)
        else:
            pool.set_members([loader.load_first(names)])
        executable = AutoExecutable(source.network.inputs, source.network.outputs, pool, source)
        chosen = pool.members[0].name
        if is_open and wishes.starts_early and (wishes.measure or chosen != names[0]):
            # Held by what runs on it: the Core waits for the threads of executors that somebody holds.
            loader.executor = source.core.create_executor(source.owner, workers=1)
            executable._settled = loader.executor.submit(lambda: loader.settle(measures=wishes.measure))
        return executable

    def wait_until_settled(self) -> None:
        """Returns when the chosen device is loaded, or cannot be."""
        if self._settled is not None:
            self._settled.result()


class _Loader:
    """Loads members of one network; what a device failed at is not tried again."""

    pool: Pool
    executor: Executor | None = None

    def __init__(self, source: MemberSource, names: Sequence[str], seconds_of_device: dict[str, float]) -> None:
        self._source = source
        self._names = tuple(names)
        self._seconds = seconds_of_device
        self._lock = threading.RLock()
        self._used: set[str] = set()

    def order_by_speed(self) -> list[str]:
        """Returns the devices with the one first that loads fastest: by earlier loads of this Core, else the last of the list."""
        fallback = list(reversed(self._names))
        known = [name for name in self._names if name in self._seconds]
        if len(known) < len(self._names):
            fastest = next((name for name in fallback if not self._holds_lock(name)), fallback[0])
        else:
            fastest = min(known, key=lambda name: self._seconds[name])
        return [fastest, *(name for name in self._names if name != fastest)]

    def load_first(self, names: Sequence[str]) -> Member:
        """Returns a member on the first of these devices that can load the network; each that cannot is named in a warning.

        Raises: what the last one raises.
        """
        for name in names[:-1]:
            member = self._try_load(name)
            if member is not None:
                return member
        return self._load(names[-1])

    def load_all(self) -> list[Member]:
        """Returns a member for each device; those that fail are named in warnings. Raises: as `load_first`, where all fail."""
        first = self.load_first(self._names)
        rest = self._names[self._names.index(first.name) + 1 :]
        return [first, *(member for member in map(self._try_load, rest) if member is not None)]

    def settle(self, *, measures: bool) -> None:
        """Loads the chosen device and lets it take the place of those that serve meanwhile; where none can, those stay."""
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
        """Returns a member on the next device, where one is left and can load the network; it comes behind those there are."""
        with self._lock:
            others = [member for member in self.pool.members if member is not failed]
            if others:
                return others[0]
            names = [name for name in self._names if name not in self._used]
            if not names:
                return None
            logger.warning("%s: %s failed in a run; the next device is loaded", self._source.owner, failed.name)
            try:
                member = self.load_first(names)
            except HeteroError as error:
                logger.warning("%s: no other device can load the network: %s", self._source.owner, error)
                return None
            self.pool.set_members([*self.pool.members, member])
            return member

    def _choose_preferred(self) -> Member | None:
        names = self._names[: self._names.index(self.pool.members[0].name)]
        return next((member for member in map(self._try_load, names) if member is not None), None)

    def _choose_measured(self) -> Member:
        serving = {member.name: member for member in self.pool.members}
        loaded = (serving[name] if name in serving else self._try_load(name) for name in self._names)
        members = [member for member in loaded if member is not None]
        if not members:
            # All have failed, each with a warning: the error of the last one again.
            return self._load(self._names[-1])
        order = measure_members(members, self._source.owner)
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
            logger.warning("%s goes on without %s, which failed to load the network: %s", self._source.owner, name, error)
            return None

    def _load(self, name: str) -> Member:
        self._used.add(name)
        began = perf_counter()
        member = self._source.load(name)
        self._seconds[name] = perf_counter() - began
        return member

    def _holds_lock(self, name: str) -> bool:
        return bool(self._source.core.get_metric(name, "HOLDS_INTERPRETER_LOCK"))
