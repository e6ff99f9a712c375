"""The plan of a split: which device runs which nodes, which values cross between devices, and why. All are plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hetero_core.network.types import ValueType


@dataclass(frozen=True, slots=True)
class Boundary:
    """A value that crosses between stages, or between the network's border and a stage.

    `producer` is a stage's index, None for an input of the network; `consumers` are stage indices. `nbytes` is None if a dimension
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
    """A subgraph in execution order: its device and the names of its nodes, in topological order."""

    index: int
    device: str
    nodes: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Conflict:
    """The reason why a node is not in an adjacent, larger subgraph of its own device: a path that would close a cycle.

    `subgraph` is that subgraph's index. `path` names nodes: it begins at the node or at a member, runs outside of both, and ends at a
    member or at the node; if it passes through a third subgraph as a whole, consecutive names need not share a value.
    """

    node: str
    subgraph: int
    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlacedSegment:
    """A group of consecutive nodes that placement keeps together, with the measured seconds of a run on each device that takes it.

    `device` is the chosen device, "" if priority decides. `twin` is the index of the first segment that differs only in names and
    weights; the times were measured on that segment. `failures` maps each device that does not run the segment to the reason.
    """

    nodes: tuple[str, ...]
    device: str
    twin: int
    seconds: Mapping[str, float]
    failures: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PlacementCandidate:
    """A placement of the whole network that was timed: a device for each segment, its parts, and the estimated and measured seconds
    of a run.

    `rounds` counts the rounds that timed it in turn with the remaining candidates; with 0 the seconds come from its first runs.
    `error` is the reason for a missing measurement, else "".
    """

    title: str
    devices: tuple[str, ...]
    parts: int
    estimate: float | None
    seconds: float | None
    rounds: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class Placement:
    """The measurements behind a placement.

    `chosen` is the index of a candidate, None if priority decides because no candidate was timed. `transfers` are (source, target,
    seconds for each value, seconds for each byte) of devices that do not share a memory. `seconds` is the time of the search;
    `is_complete` says whether it ended before its budget, `is_kept` whether an earlier process measured the placement.
    """

    segments: tuple[PlacedSegment, ...]
    transfers: tuple[tuple[str, str, float, float], ...]
    candidates: tuple[PlacementCandidate, ...]
    chosen: int | None
    seconds: float
    is_complete: bool
    is_kept: bool = False


@dataclass(frozen=True, slots=True)
class HeldMemory:
    """The bytes that a device will hold for a split, estimated before it is loaded, and its limit; None means no limit.

    `border` counts inputs and outputs of the network, states among them; `arena` is the peak of inner values that are alive at once.
    `workspace` is the room for a copy of the largest constant while an engine packs it; 0 for a limit that the user has named.
    """

    device: str
    weights: int
    border: int
    arena: int
    limit: int | None
    workspace: int = 0

    @property
    def total(self) -> int:
        """All bytes."""
        return self.weights + self.border + self.arena + self.workspace


@dataclass(frozen=True, slots=True)
class Plan:
    """The split of a network: the result of HETERO's query. It holds plain values, so that code that shows it needs no plugin.

    `refusals` maps node -> device -> reason for every device that does not run the node: it refused the node, failed to load it, or
    takes it and lost it to another device. `candidates` maps node -> further devices that would take it; it is empty after a plain
    query, which asks each device only about nodes that no earlier device took. `conflicts` has the paths that separate subgraphs of
    the same device; `unexplained` counts the nodes of large networks for which no path was searched. `procedures` maps each
    procedure that selected subgraphs to the number of their nodes: LITERAL (the selection procedure to the letter), CONTRACTED (the
    same, with a taken subgraph as a single node), LEVELS, FEWEST. `selection` is the text of its steps, if the query asked for it.
    `placement` has the measurements, if they decided which device runs which node; `memory` has the bytes that each device will
    hold, if memory decided.
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
    procedures: Mapping[str, int] = field(default_factory=dict)
    selection: str = ""
    placement: Placement | None = None
    memory: tuple[HeldMemory, ...] = ()
