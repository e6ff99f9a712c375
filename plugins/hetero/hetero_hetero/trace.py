"""The selection procedure step by step, with its lazy discoveries and rollbacks, for explaining small graphs.

It notes the steps of `literal`, which looks for what leaves a subgraph and returns only after each step, as one would by hand, and
runs on small parts of a graph; `largest_first` knows beforehand, in larger ones, which nodes can never be taken, and differs on some
graphs. Every subgraph that was taken becomes a single node.
Cost: one bit per pair of nodes, and every round grows all candidates anew.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from hetero_hetero.digraph import OneOf, build_digraph
from hetero_hetero.literal import Kind, Units, contract, grow, join_bits, list_bits, read_units
from hetero_hetero.subgraphs import Subgraph, order_parts

OK, POSSIBLE, SELF_REFERENCE = "ok", "possible", "self-reference"

_TITLE_OF_KIND: Mapping[Kind, str] = {
    "root": "Take root",
    "merge": "Merge",
    "failed merge": "Cannot merge",
    "rollback": "Roll back",
}
_TEXT_OF_CONDITION = {
    OK: "holds",
    POSSIBLE: "holds so far; a path through {} returns, and it is open whether that will be merged",
    SELF_REFERENCE: "broken: a path leaves through {} and returns",
}


@dataclass(frozen=True)
class WalkStep:
    """One decision about a node and the state after it: nodes in topological order, and in `through` the nodes that the condition names."""

    kind: Kind
    node: int
    subgraph: tuple[int, ...]
    rejected: tuple[int, ...]
    condition: str
    through: tuple[int, ...] = ()


@dataclass(frozen=True)
class Walk:
    """The growth of one candidate. `roots` are the nodes that were possible roots when it began."""

    roots: tuple[int, ...]
    steps: tuple[WalkStep, ...]

    @property
    def candidate(self) -> tuple[int, ...]:
        """Returns the nodes that are left in the subgraph at the end."""
        return self.steps[-1].subgraph


@dataclass(frozen=True)
class Round:
    """All candidates of a device, the largest of which was taken (the first of them where several are largest)."""

    device: Hashable
    walks: tuple[Walk, ...]
    taken: tuple[int, ...]
    rest: tuple[int, ...]


@dataclass(frozen=True)
class Trace:
    """The rounds, and the subgraphs in an order in which they can run. Steps name a taken subgraph by its first node."""

    rounds: tuple[Round, ...]
    subgraphs: tuple[Subgraph, ...]
    names: Mapping[int, str]

    def text(self) -> str:
        """Returns the rounds as numbered steps, for reading."""
        return "\n".join(_render(self)) + "\n"


def trace_selection(
    predecessors: OneOf[Sequence[int]],
    device_of_node: OneOf[Hashable],
    priorities: Sequence[Hashable],
    names: OneOf[str] | None = None,
) -> Trace:
    """Returns every step of the selection. `names` are shown instead of the numbers of the nodes.

    Raises: what select_subgraphs raises for its graph.
    """
    graph = build_digraph(predecessors, device_of_node, priorities)
    units, index = read_units(graph, range(len(graph))), graph.index_of_position
    rounds, parts = list[Round](), list[list[int]]()
    for device, name in enumerate(graph.priorities):
        free = join_bits([position for position, rank in enumerate(graph.device_of_position) if rank == device])
        while free:
            walks = _walk_all_roots(units, free, index)
            largest, members = max(walks, key=lambda walk: len(walk[1]))
            contract(units, members)
            free &= ~join_bits(members)
            parts.append(members)
            rounds.append(Round(name, tuple(walk for walk, _ in walks), largest.candidate, _number(free, index)))
    return Trace(
        tuple(rounds),
        tuple(Subgraph(rounds[i].device, tuple(index[position] for position in parts[i])) for i in order_parts(graph, parts)),
        {i: str(i) if names is None else names[i] for i in index},
    )


def _walk_all_roots(units: Units, free: int, index: Sequence[int]) -> list[tuple[Walk, list[int]]]:
    """Returns a walk from the first node that is in no candidate yet, and so on until there is none, each with its members in order."""
    walks = []
    roots = free
    while roots:
        steps: list[WalkStep] = []
        members = grow(units, free, next(list_bits(roots)), partial(_note_step, steps, index))
        walks.append((Walk(_number(roots, index), tuple(steps)), sorted(members)))
        roots &= ~join_bits(members)
    return walks


def _note_step(
    steps: list[WalkStep], index: Sequence[int], kind: Kind, node: int, members: Sequence[int], rejected: int, crossed: int
) -> None:
    """Adds a step in the caller's numbers, with the state of the condition after it."""
    between = crossed & ~join_bits(members)
    condition = SELF_REFERENCE if between & rejected else POSSIBLE if between else OK
    through = between & rejected or between
    subgraph = _number(join_bits(members), index)
    steps.append(WalkStep(kind, index[node], subgraph, _number(rejected, index), condition, _number(through, index)))


def _number(nodes: int, index: Sequence[int]) -> tuple[int, ...]:
    """Returns nodes, given as bits of positions, in the caller's numbers."""
    return tuple(index[position] for position in list_bits(nodes))


def _render(trace: Trace) -> list[str]:
    """Returns the lines of the text."""
    taken_by_first: dict[int, tuple[int, ...]] = {}
    lines: list[str] = []
    device: Hashable = None
    for number, part in enumerate(trace.rounds):
        names = dict(trace.names)
        names |= {first: "{" + ",".join(trace.names[node] for node in nodes) + "}" for first, nodes in taken_by_first.items()}
        if number == 0 or part.device != device:
            device = part.device
            lines.append(f"Device {device}")
        lines += _render_round(part, names)
        if len(part.taken) > 1:
            taken_by_first[part.taken[0]] = part.taken
    lines.append("Subgraphs, in an order in which they can run:")
    return [*lines, *(f"    {part.device}: {_list(part.nodes, trace.names)}" for part in trace.subgraphs)]


def _render_round(part: Round, names: Mapping[int, str]) -> list[str]:
    lines = []
    for walk in part.walks:
        lines.append(f"  Possible roots: {_list(walk.roots, names)}")
        for number, step in enumerate(walk.steps, 1):
            lines.append(f"  {number}. {_TITLE_OF_KIND[step.kind]} {_list((step.node,), names)}")
            lines.append(f"       subgraph {_list(step.subgraph, names)}, rejected {_list(step.rejected, names)}")
            lines.append(f"       condition {_TEXT_OF_CONDITION[step.condition].format(_list(step.through, names))}")
        lines.append(f"  {len(walk.steps) + 1}. No adjacent node is left: end")
    lines.append("  Possible roots: [], end")
    lines.append(f"  Candidates: {', '.join(_list(walk.candidate, names) for walk in part.walks)}")
    lines.append(f"  Largest: {_list(part.taken, names)}; it becomes a single node. Left: {_list(part.rest, names)}")
    return lines


def _list(nodes: Sequence[int], names: Mapping[int, str]) -> str:
    return "[" + ",".join(names[node] for node in nodes) + "]"
