"""The types that hooks exchange: what a plugin receives from the core, and what it gives back.

A plugin author reads this file and `hookspecs.py`. Imports no array library and no onnx.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from types import MappingProxyType
from typing import Any

from hetero_core.errors import BlobError
from hetero_core.limits import RunLimits
from hetero_core.network.graph import Node
from hetero_core.network.types import ValueSpec, ValueType

Array = Any
"""An array of the device's own library; NumPy's where the memory is the host's. A sequence is a list, an absent optional None."""


@dataclass(frozen=True, slots=True)
class DeviceName:
    """A parsed device string: `GPU.1` is ("GPU", "1", ""), `HETERO:GPU.1,CPU` is ("HETERO", "", "GPU.1,CPU")."""

    name: str
    id: str = ""
    arguments: str = ""

    def __str__(self) -> str:
        return self.name + (f".{self.id}" if self.id else "") + (f":{self.arguments}" if self.arguments else "")


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """The declaration of one configuration key.

    `type` is bool, int, float, str, tuple (of texts, written with commas) or dict (of what JSON can hold, written as a JSON object).
    `default` None means "not set". `runtime` keys only steer running, so an import may change them; all others shape what was compiled.
    The key marked `is_arguments`, a text, is another way to give what stands behind the colon of a device string. A number may have a
    `least` value, and `words` that may stand in its place.
    """

    type: type
    default: Any
    doc: str
    choices: tuple[Any, ...] = ()
    runtime: bool = False
    is_arguments: bool = False
    least: float | None = None
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Boundary:
    """A value that crosses from one stage to others, or between the network's border and a stage.

    `producer` is a stage's index, None for an input of the network; `consumers` are stage indices. `nbytes` is None where a dimension
    is open. `maker` is the node that makes the value, None for an input; `readers` are the nodes of the consumers that read it.
    """

    value: str
    type: ValueType
    nbytes: int | None
    producer: int | None
    consumers: tuple[int, ...]
    maker: str | None = None
    readers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanStage:
    """One subgraph in execution order: its device and the names of its nodes, in topological order."""

    index: int
    device: str
    nodes: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Conflict:
    """Why a node is not in a larger subgraph of its own device, next to it.

    `subgraph` is that subgraph's index. `path` names nodes: it begins at the node or at a member, runs outside of both, and ends at
    a member or at the node; where it passes another subgraph as a whole, two names that follow one another need not share a value.
    """

    node: str
    subgraph: int
    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """How a network is split: the result of HETERO's query, as plain values, so that views of it need no plugin's code.

    `refusals` maps node -> device -> reason, for every device that was asked and said no, also where another one took the node; for
    those that failed to load it, and those that it left for another one although they take it.
    `candidates` maps node -> devices that would take it besides the one that has it; empty where only the plan was asked for: a
    device is asked about what those before it have left. `conflicts` say what keeps subgraphs of one device apart; `unexplained`
    counts the nodes for which no path was looked for because the network is large.
    """

    network: str
    priorities: tuple[str, ...]
    device_of_node: Mapping[str, str]
    operator_of_node: Mapping[str, str]
    refusals: Mapping[str, Mapping[str, str]]
    pins: Mapping[str, str]
    stages: tuple[PlanStage, ...]
    boundaries: tuple[Boundary, ...]
    conflicts: tuple[Conflict, ...] = ()
    unexplained: int = 0
    candidates: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QueryResult:
    """What a device takes of a network, in the names of the network that was asked about.

    `supported` maps each node that it takes to the device (with the id that would be used), `refused` each other node to the reason.
    Together they name every node once.
    """

    supported: Mapping[str, str]
    refused: Mapping[str, str] = field(default_factory=dict)
    plan: Plan | None = None


@dataclass(frozen=True, slots=True)
class Payload:
    """What a plugin exports: named byte sections, and the version of their meaning.

    The core wraps them in the container (identity, versions, digest) and gives the same sections back, memory-mapped, at import.
    `code` names the sections that are executed in whatever way; they are imported only where the user trusts the blob. `digests` are of
    the sections of an import (`hetero_core.runtime.digests`), for a plugin that keeps something beside a blob; an export leaves them out.
    """

    sections: Mapping[str, Any]
    version: int = 1
    code: tuple[str, ...] = ()
    digests: Mapping[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        unknown = [name for name in self.code if name not in self.sections]
        if unknown:
            raise BlobError(f"a payload marks '{unknown[0]}' as code and has no such section; it has {sorted(self.sections)}")

    def read_code(self, name: str) -> Any:
        """Returns a section that is about to be executed; to be used for every such section.

        Raises: BlobError for a section that is not there or not marked: a stranger who leaves the mark away was never asked about.
        """
        if name not in self.code:
            raise BlobError(
                f"section '{name}' is to be executed, but the blob does not mark it as code; it marks {list(self.code)}. "
                "The blob was changed, or its plugin does not mark what it executes; export the network again"
            )
        return self.sections[name]


@dataclass(frozen=True, slots=True)
class Extension:
    """A custom operator given as a Python function.

    `function(*inputs, **attributes)` returns one array or a tuple. `infer_types(input_types, attributes)` returns the types of the
    outputs; without it nothing behind the operator could be cut.
    """

    domain: str
    op_type: str
    since_version: int
    function: Callable[..., Any]
    infer_types: Callable[[tuple[ValueType | None, ...], Mapping[str, Any]], tuple[ValueType, ...]]


@dataclass(frozen=True, slots=True)
class NodeTime:
    """The time that one node, or one transfer, took in one run. Times are in seconds, `begin` on the clock of `time.perf_counter`.

    `path` leads to the subgraph: (1, 0) is subgraph 0 of the split network that is subgraph 1, () what belongs to no subgraph;
    `subgraph` is its first index, 0 where there is none. `thread` is the one that measured, as `threading.get_ident` names it; 0 where
    the beginning was told. Only a transfer has `nbytes`; one at the border of a subgraph has a `source` and `targets`: devices, or
    "host" for the caller.
    """

    node: str
    operator: str
    device: str
    subgraph: int
    seconds: float
    nbytes: int = 0
    begin: float = 0.0
    path: tuple[int, ...] = ()
    thread: int = 0
    source: str = ""
    targets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StageTime:
    """When one subgraph ran in one run, on which device and thread, and the values that it reads and writes. Fields as in NodeTime."""

    path: tuple[int, ...]
    device: str
    begin: float
    seconds: float
    thread: int
    reads: tuple[str, ...]
    writes: tuple[str, ...]


class Profile:
    """The times of one run, in the order in which they were recorded; safe for threads.

    A device calls `add` once per node, or per group of nodes that it cannot tell apart. `requested`, `began` and `ended` say when the
    run was asked for, when the device began and when it was done: seconds of `time.perf_counter`, None before that happened.
    """

    __slots__ = ("_entries", "_lock", "_stages", "began", "device", "ended", "path", "requested", "subgraph", "thread")

    def __init__(self, device: str, subgraph: int = 0, parent: Profile | None = None) -> None:
        self.device = device
        self.path: tuple[int, ...] = () if parent is None else (*parent.path, subgraph)
        self.subgraph = self.path[0] if self.path else subgraph
        self.thread = threading.get_ident()
        self.began: float | None = None
        self.ended: float | None = None
        self._entries: list[NodeTime] = [] if parent is None else parent._entries
        self._stages: list[StageTime] = [] if parent is None else parent._stages
        self._lock: threading.Lock = threading.Lock() if parent is None else parent._lock
        self.requested = perf_counter()

    def add(self, node: Node, seconds: float, *, begin: float | None = None) -> None:
        """Records that a node took this many seconds, until now unless `begin` says when it began."""
        self._append(node.name, node.operator, seconds, begin)

    def add_transfer(
        self,
        value: str,
        nbytes: int,
        seconds: float,
        *,
        begin: float | None = None,
        source: str = "",
        targets: tuple[str, ...] = (),
    ) -> None:
        """Records that a value was copied between two memories; `begin` as in `add`."""
        self._append(value, "transfer", seconds, begin, nbytes, source, targets)

    def _append(
        self,
        name: str,
        operator: str,
        seconds: float,
        begin: float | None,
        nbytes: int = 0,
        source: str = "",
        targets: tuple[str, ...] = (),
    ) -> None:
        start, thread = (perf_counter() - seconds, threading.get_ident()) if begin is None else (begin, 0)
        entry = NodeTime(name, operator, self.device, self.subgraph, seconds, nbytes, start, self.path, thread, source, targets)
        with self._lock:
            self._entries.append(entry)

    def of_part(self, device: str, subgraph: int) -> Profile:
        """Returns a profile that writes into this one, for a part that another device runs; `end_part` records when it ran."""
        return Profile(device, subgraph, self)

    def end_part(self, reads: tuple[str, ...], writes: tuple[str, ...]) -> None:
        """Records that this part ran from when its profile was made until now, and the values that it reads and writes."""
        seconds = perf_counter() - self.requested
        stage = StageTime(self.path, self.device, self.requested, seconds, threading.get_ident(), reads, writes)
        with self._lock:
            self._stages.append(stage)

    def begin_run(self) -> None:
        """Records that the run begins now, on this thread. The core calls it; a device with a queue of its own may call it again."""
        self.thread = threading.get_ident()
        self.began = perf_counter()

    def end_run(self) -> None:
        """Records that the run is done; the core calls it."""
        self.ended = perf_counter()

    @property
    def entries(self) -> tuple[NodeTime, ...]:
        """The nodes and transfers that were recorded so far."""
        with self._lock:
            return tuple(self._entries)

    @property
    def stages(self) -> tuple[StageTime, ...]:
        """The subgraphs that have ended so far; none of a network that is not split."""
        with self._lock:
            return tuple(self._stages)

    @property
    def queue_seconds(self) -> float:
        """How long the run waited for its device to begin; 0 where it has not begun."""
        return 0.0 if self.began is None else self.began - self.requested

    @property
    def copied_bytes(self) -> int:
        """The bytes of all transfers so far."""
        return sum(entry.nbytes for entry in self.entries)


class CancelToken:
    """A flag that one request sets and that everything running for it may poll."""

    # Of the class until it is set: each run has a token, and next to none is ever set.
    is_set = False


class RunContext:
    """What belongs to one request and not to the executable; never used by two threads at once.

    `state` is what `Executable.create_state` returned for this request. `outputs` holds the caller's arrays to fill, None where there
    is none; a device may fill them or return arrays of its own. `profile` is None unless times are asked for, `limits` unless
    MEMORY_LIMIT or DEADLINE is set.
    """

    __slots__ = ("limits", "outputs", "profile", "state", "token")

    def __init__(
        self,
        state: object = None,
        *,
        outputs: Sequence[Array | None] | None = None,
        profile: Profile | None = None,
        token: CancelToken | None = None,
        limits: RunLimits | None = None,
    ) -> None:
        self.limits = limits
        self.state = state
        self.outputs = outputs
        self.profile = profile
        self.token = CancelToken() if token is None else token

    def cancelled(self) -> bool:
        """Says whether the caller has given up; a device may then return anything, at once."""
        return self.token.is_set


Done = Callable[[tuple[Array, ...] | None, BaseException | None], None]
"""What a device calls once when a run that it started has ended: with the outputs, or with None and the error."""


class Executable:
    """A loaded network as a device implements it; authors subclass it.

    Set `inputs` and `outputs` (the network's own, in its order, each with the memory it lives in) and implement `run`. An executable is
    shared by threads: what a run changes lives in the context's state.
    """

    inputs: tuple[ValueSpec, ...]
    outputs: tuple[ValueSpec, ...]

    start: Callable[[tuple[Array, ...], RunContext, Done], None] | None = None
    """For devices that work asynchronously: begins a run, returns at once and calls `done` from any thread. Where it is None, the core
    runs `run` on a thread of its own."""

    pipeline_depth: int = 1
    """How many runs of one stream may be under way at once: more than 1 where a run passes several devices one after the other, so
    that the next one can begin on the first of them. The core runs NUM_STREAMS times as many asynchronous requests at once."""

    def run(self, inputs: tuple[Array, ...], context: RunContext) -> tuple[Array, ...]:
        """Returns the outputs by position.

        The inputs are C-contiguous, have the declared types, and are never written. What is returned stays valid until the next run
        of the same context.
        """
        raise NotImplementedError

    def create_state(self) -> object:
        """Returns the working memory of one request; None says that runs share nothing, so that results are the caller's own.

        A request that ties outputs to inputs has two and takes them in turn: what a run reads was made in the other one. So a device whose
        results live in its working memory may not return a view of an input, unless that is in the host's memory.
        """
        return None

    def metrics(self) -> Mapping[str, Any]:
        """Returns metrics of this loaded network: value or zero-argument callable by name."""
        return {}

    def close(self) -> None:
        """Releases what the executable holds; called once."""


def freeze_mapping(mapping: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> Mapping[str, Any]:
    """Returns a read-only copy."""
    return MappingProxyType(dict(mapping))
