"""The profile of a run: when which node, transfer and subgraph ran, on which device and thread. Times are in seconds."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

from hetero_core.network.graph import Node


@dataclass(frozen=True, slots=True)
class NodeTime:
    """The time that a node or a transfer took in a run. Times are in seconds, `begin` on the clock of `time.perf_counter`.

    `path` leads to the subgraph: (1, 0) is subgraph 0 of the split network that is subgraph 1, () means no subgraph; `subgraph` is
    its first index, 0 if the path is empty. `thread` is the thread that measured, as `threading.get_ident` names it; 0 if the
    device passed `begin` itself. Only a transfer has `nbytes`; a transfer at the border of a subgraph has a `source` and `targets`:
    devices, or "host" for the caller.
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
    """The time of a subgraph in a run, its device and thread, and the values that it reads and writes. Fields as in NodeTime."""

    path: tuple[int, ...]
    device: str
    begin: float
    seconds: float
    thread: int
    reads: tuple[str, ...]
    writes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FallbackTime:
    """A subgraph that ran on `target` because `device` failed to run it, with the reason. `seconds` is the time of loading it on
    `target`; the remaining fields are as in NodeTime.
    """

    path: tuple[int, ...]
    device: str
    target: str
    reason: str
    begin: float
    seconds: float


class Profile:
    """The times of a run, in the order in which they were recorded; safe for threads.

    A device calls `add` once per node, or per group of nodes that it cannot tell apart. `requested`, `began` and `ended` are the times of
    the request, of the device's begin and of its end: seconds of `time.perf_counter`, None before that happened.
    """

    def __init__(self, device: str, subgraph: int = 0, parent: Profile | None = None) -> None:
        self.device = device
        self.path: tuple[int, ...] = () if parent is None else (*parent.path, subgraph)
        self.subgraph = self.path[0] if self.path else subgraph
        self.thread = threading.get_ident()
        self.began: float | None = None
        self.ended: float | None = None
        # Lists alone, whose methods are safe for threads.
        self._entries: list[NodeTime] = [] if parent is None else parent._entries
        self._stages: list[StageTime] = [] if parent is None else parent._stages
        self._fallbacks: list[FallbackTime] = [] if parent is None else parent._fallbacks
        self.requested = perf_counter()

    def add(self, node: Node, seconds: float, *, begin: float | None = None) -> None:
        """Records that a node took this many seconds; it ended now unless `begin` says when it began."""
        self.record(node.name, node.operator, seconds, begin=begin)

    def record(
        self,
        name: str,
        operator: str,
        seconds: float,
        *,
        begin: float | None = None,
        nbytes: int = 0,
        source: str = "",
        targets: tuple[str, ...] = (),
    ) -> None:
        """Records a node by its name and operator, or the transfer of a value between two memories, as operator "transfer"."""
        start, thread = (perf_counter() - seconds, threading.get_ident()) if begin is None else (begin, 0)
        entry = NodeTime(name, operator, self.device, self.subgraph, seconds, nbytes, start, self.path, thread, source, targets)
        self._entries.append(entry)

    def add_transfer(self, value: str, nbytes: int, seconds: float, **fields: Any) -> None:
        """Records that a value was copied between two memories; `fields` are passed to `record`."""
        self.record(value, "transfer", seconds, nbytes=nbytes, **fields)

    def of_part(self, device: str, subgraph: int) -> Profile:
        """Returns a profile that writes into `self`, for a part that a second device runs; `end_part` records when it ran."""
        return Profile(device, subgraph, self)

    def add_shared(self, other: Profile) -> None:
        """Adds the times of another profile to this part; for a run that several requests share."""
        self._entries += [replace(each, path=(*self.path, *each.path), subgraph=self.subgraph) for each in other.entries]
        self._stages += [replace(stage, path=(*self.path, *stage.path)) for stage in other.stages]
        self._fallbacks += [replace(fallback, path=(*self.path, *fallback.path)) for fallback in other.fallbacks]

    def end_part(self, reads: tuple[str, ...], writes: tuple[str, ...]) -> None:
        """Records that this part ran from the creation of its profile until now, and the values that it reads and writes."""
        seconds = perf_counter() - self.requested
        self._stages.append(StageTime(self.path, self.device, self.requested, seconds, threading.get_ident(), reads, writes))

    def add_fallback(self, device: str, target: str, reason: str, *, begin: float) -> None:
        """Records that this part failed on `device` and continues on `target`, which was loaded from `begin` until now."""
        self._fallbacks.append(FallbackTime(self.path, device, target, reason, begin, perf_counter() - begin))

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
        return tuple(self._entries)

    @property
    def stages(self) -> tuple[StageTime, ...]:
        """The subgraphs that have ended so far; empty unless the network is split."""
        return tuple(self._stages)

    @property
    def fallbacks(self) -> tuple[FallbackTime, ...]:
        """The subgraphs that a fallback device ran because the first device failed."""
        return tuple(self._fallbacks)

    @property
    def queue_seconds(self) -> float:
        """Seconds that the run waited until its device began; 0 if it has not begun."""
        return 0.0 if self.began is None else self.began - self.requested

    @property
    def latency(self) -> float | None:
        """Seconds from the request of the run to its end, the wait for the device included; None before its end."""
        return None if self.ended is None else self.ended - self.requested

    @property
    def copied_bytes(self) -> int:
        """The bytes of all transfers so far."""
        return sum(entry.nbytes for entry in self.entries)
