"""A network loaded on several devices, or imported from a blob, each request on a free device.

A started request goes to its device without a thread of ours; a request that its caller waits for uses the caller's thread. Inputs
and outputs are the host's; a tensor of the caller stays in the memory of the device if that runs the request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from hetero_auto.pool import Member, MemberMemory, Pool, PoolTicket
from hetero_core import Core, ExecutableNetwork
from hetero_core.composing.properties import describe_parts, share_processors
from hetero_core.composing.runs import RequestMemory, run_child, start_child
from hetero_core.contract import Done, Executable, Payload, QueryResult, RunContext
from hetero_core.devices.names import ListedDevice
from hetero_core.devices.threads import STREAMS_KEY, THREADS_KEY
from hetero_core.executed import ExecutedNode, place_executed
from hetero_core.network.graph import Network
from hetero_core.network.types import ValueSpec

REQUESTS_METRIC = "OPTIMAL_NUMBER_OF_INFER_REQUESTS"

Configure = Callable[[str], Mapping[str, Any]]
"""Returns the configuration of a device of a list."""


@dataclass(frozen=True, slots=True)
class MemberSource:
    """The arguments from which members are loaded: the network, the list, the configuration of the whole and of each device.

    `sharers` is how many devices work at the same time, each with its part of the processors; the devices in `shared` count as a
    single device, and work in turns on the same part. `answers` holds the queries about the network so far.
    """

    core: Core
    owner: str
    network: Network
    entries: tuple[ListedDevice, ...]
    config: Mapping[str, Any]
    configure: Configure
    sharers: int
    shared: frozenset[str] = frozenset()
    answers: dict[str, QueryResult] = field(default_factory=dict)

    @property
    def processors(self) -> int:
        """The number of processors of the shared devices."""
        processors: int = self.config[THREADS_KEY] * self.config[STREAMS_KEY]
        return max(processors // self.sharers, 1) if self.shared else 0

    def count_processors(self, loaded: ExecutableNetwork) -> int:
        """Returns how many of the shared processors a run takes; 0 for a device that shares none."""
        if str(loaded.device) not in self.shared:
            return 0
        threads: int = loaded.config[THREADS_KEY] // loaded.config[STREAMS_KEY]
        return min(max(threads, 1), self.processors)

    def load(self, name: str) -> Member:
        """Returns the member of a device of the list. Raises: errors of the device, with a note."""
        index = next(place for place, entry in enumerate(self.entries) if str(entry.device) == name)
        entry, own = self.entries[index], self.configure(name)
        requests = self.processors if name in self.shared else entry.count
        threads = share_processors(self.core, name, self.config, own, sharers=self.sharers, requests=requests)
        try:
            # The cache entry of the whole has that of the chosen device.
            cache = {"CACHE_DIR": ""} if self.config.get("CACHE_DIR") and "CACHE_DIR" in self.core.config_keys(name) else {}
            loaded = self.core.load_network(self.network, name, {**own, **threads, **cache}, query=self.answers.get(name))
        except Exception as error:
            error.add_note(f"while {self.owner} loaded network '{self.network.name}' on {name}")
            raise
        slots = entry.count or int(loaded.get_metric(REQUESTS_METRIC))
        return Member(loaded, slots, index, processors=self.count_processors(loaded))

    def load_all(self, names: Sequence[str]) -> list[Member]:
        """Returns a member for each device; if a device fails, the members loaded before it are closed."""
        members: list[Member] = []
        with ExitStack() as opened:
            for name in names:
                members.append(self.load(name))
                opened.callback(members[-1].loaded.close)
            opened.pop_all()
        return members


def export_members(executable: PoolExecutable) -> Payload:
    """Returns the payload of the members: an index in JSON, and for each of them the blob of its own device."""
    from hetero_core.composing.blobs import export_part, pack_index  # only a blob needs these, and a first answer no blob

    network = None if executable.source is None else executable.source.network
    sections: dict[str, Any] = {}
    rows = [
        {
            **export_part(member.loaded, network, f"device/{place}", sections),
            "slots": member.slots,
            "index": member.index,
            "shares": bool(member.processors),
        }
        for place, member in enumerate(executable.pool.members)
    ]
    return pack_index(executable.inputs, executable.outputs, {"devices": rows}, sections)


def import_members(
    core: Core, payload: Payload, config: Mapping[str, Any], children: Sequence[str], configure: Configure, *, owner: str
) -> tuple[tuple[ValueSpec, ...], tuple[ValueSpec, ...], list[Member], int]:
    """Returns inputs, outputs, the members of a payload, and how many processors those share that share some.

    Raises: BlobDamagedError, BlobMismatchError, errors of a device."""
    from hetero_core.composing.blobs import import_part, read_index  # as above

    def read(fields: Mapping[str, Any]) -> list[tuple[dict[str, Any], str, int, int]]:
        rows = [(dict(row), str(row["device"]), int(row["slots"]), int(row["index"])) for row in fields["devices"]]
        if not rows or any(slots < 1 or device not in children for _, device, slots, _ in rows):
            raise ValueError("no devices, devices that are not in the list, or a device without requests")
        return rows

    inputs, outputs, rows = read_index(payload, read, owner=owner)
    members: list[Member] = []
    sharing = sum(bool(row.get("shares")) for row, *_ in rows)
    sharers = len(rows) - max(sharing - 1, 0)
    processors = max(config[THREADS_KEY] * config[STREAMS_KEY] // sharers, 1)
    with ExitStack() as opened:
        for place, (row, device, slots, index) in enumerate(rows):
            shares = sharing > 1 and bool(row.get("shares"))
            requests = processors if shares else slots
            own = configure(device)
            threads = share_processors(core, device, config, own, sharers=sharers, requests=requests)
            loaded, _ = import_part(core, row, f"device/{place}", payload.sections, config, own, threads, owner=owner)
            opened.callback(loaded.close)
            processors_of_run = min(max(threads[THREADS_KEY] // threads[STREAMS_KEY], 1), processors) if shares else 0
            members.append(Member(loaded, threads[STREAMS_KEY] if shares else slots, index, processors=processors_of_run))
        opened.pop_all()
    return inputs, outputs, members, processors


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

    def create_spare(self, state: Any) -> RequestMemory:
        """Returns the second working memory of a request with states, which stays with one member."""
        return state.create_spare()  # type: ignore[no-any-return]  # of the state that this executable made

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Returns the outputs; waits for a free member and runs on this thread."""
        ticket = PoolTicket(inputs, context)
        self.pool.enter(ticket)
        while True:
            ticket.wait()
            try:
                loaded, inner = ticket.open_run()
                outputs = run_child(loaded, inputs, inner)
                ticket.end_run(inner)
            except BaseException as error:
                if self.pool.leave(ticket, error):
                    continue
                if error in ticket.failed.values():
                    raise ticket.describe_failure() from None
                raise
            self.pool.leave(ticket, None)
            return outputs

    def start(self, inputs: tuple[Any, ...], context: RunContext, done: Done) -> None:
        """Begins a run on a free member, now or as soon as a member is free."""
        self.pool.enter(StartedTicket(inputs, context, done, self.pool.leave))

    def metrics(self) -> Mapping[str, Any]:
        """The devices that get requests now, and the number of requests that each device has run."""
        members, served = self.pool.members, dict(self.pool.served)
        if members:
            served[members[0].name] += self.delegated_runs
        return {
            **describe_parts([member.loaded for member in members]),
            "OPTIMAL_NUMBER_OF_INFER_REQUESTS": self.pool.count_runs(),
            "REQUESTS_OF_DEVICES": served,
        }

    def executed_nodes(self) -> tuple[ExecutedNode, ...]:
        """The steps of the first of the devices that get requests now."""
        member = self.pool.members[0]
        return place_executed(member.loaded.list_executed(), member.name, member.index)

    def close(self) -> None:
        """Closes the members; those in a run are closed after it."""
        self.delegate = None
        self.pool.close()


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
        try:
            loaded, inner = self.open_run()
            start_child(loaded, self.inputs, inner, lambda outputs, error: self._end(inner, outputs, error))
        except BaseException as error:  # noqa: BLE001  # whoever holds the request is told
            self._end(None, None, error)

    def _end(self, inner: RunContext | None, outputs: tuple[Any, ...] | None, error: BaseException | None) -> None:
        if error is None and inner is not None:
            self.end_run(inner)
        if not self._leave(self, error):
            self._done(outputs, self.describe_failure() if error is not None and error in self.failed.values() else error)
