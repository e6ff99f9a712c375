"""The selection procedure step by step, with its lazy discoveries and rollbacks, for explaining small graphs.

It looks for what leaves a subgraph and returns only after each step, as one would by hand. `literal` gives the same subgraphs
without noting steps and is what runs on small parts of a graph; `largest_first` knows beforehand, in larger ones, which nodes can
never be taken, and differs on some graphs. Here, too, every subgraph that was taken becomes a single node.
Cost: one bit per pair of nodes, and every round grows all candidates anew.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from hetero_hetero.digraph import Digraph, OneOf, build_digraph, sort_topologically
from hetero_hetero.subgraphs import Subgraph, order_parts

OK, POSSIBLE, SELF_REFERENCE = "ok", "possible", "self-reference"

Kind = Literal["root", "merge", "failed merge", "rollback"]
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
    units = _ContractedGraph(graph)
    rounds = []
    for device, name in enumerate(graph.priorities):
        free = [position for position, rank in enumerate(graph.device_of_position) if rank == device]
        while free:
            walks = _walk_all_roots(units, free)
            largest = max((walk.candidate for walk in walks), key=len)
            units.contract(largest)
            free = [position for position in free if position not in largest]
            rounds.append(Round(name, tuple(walks), largest, tuple(free)))
    parts = [list(part.taken) for part in rounds]
    index = graph.index_of_position
    return Trace(
        tuple(_number_round(part, index) for part in rounds),
        tuple(Subgraph(rounds[i].device, tuple(index[position] for position in parts[i])) for i in order_parts(graph, parts)),
        {i: str(i) if names is None else names[i] for i in index},
    )


class _ContractedGraph:
    """The graph with taken subgraphs as single nodes: neighbours, and what each node reaches, as bits of positions."""

    def __init__(self, graph: Digraph) -> None:
        self.producers = dict(enumerate(graph.producers))
        self._close()

    def contract(self, members: Sequence[int]) -> None:
        """Makes the first member stand for all."""
        unit_of_node = {node: node for node in self.producers} | dict.fromkeys(members, members[0])
        producers: dict[int, set[int]] = {unit: set() for unit in unit_of_node.values()}
        for node, sources in self.producers.items():
            producers[unit_of_node[node]].update([unit_of_node[source] for source in sources])
        self.producers = {unit: tuple(sorted(sources - {unit})) for unit, sources in producers.items()}
        self._close()

    def _close(self) -> None:
        order = sort_topologically(self.producers)
        self.consumers: dict[int, list[int]] = {unit: [] for unit in order}
        for unit in sorted(order):
            for source in self.producers[unit]:
                self.consumers[source].append(unit)
        self.reached_by = _close_along(order, self.producers)
        self.reaches = _close_along(order[::-1], self.consumers)

    def find_between(self, subgraph: Sequence[int]) -> int:
        """Returns the bits of the nodes outside on paths that leave the subgraph and return."""
        behind = before = inside = 0
        for node in subgraph:
            behind |= self.reaches[node]
            before |= self.reached_by[node]
            inside |= 1 << node
        return behind & before & ~inside


def _close_along(order: Sequence[int], sources: Mapping[int, Sequence[int]]) -> dict[int, int]:
    """Returns for every node the bits of all nodes that a path along `sources` leads to."""
    bits: dict[int, int] = {}
    for node in order:
        union = 0
        for source in sources[node]:
            union |= bits[source] | 1 << source
        bits[node] = union
    return bits


def _walk_all_roots(units: _ContractedGraph, free: Sequence[int]) -> list[Walk]:
    """Returns a walk from the first node that is in no candidate yet, and so on until there is none."""
    walks: list[Walk] = []
    roots = list(free)
    while roots:
        walk = Walk(tuple(roots), tuple(_walk(units, frozenset(free), roots[0])))
        walks.append(walk)
        roots = [node for node in roots if node not in walk.candidate]
    return walks


def _walk(units: _ContractedGraph, free: frozenset[int], root: int) -> list[WalkStep]:
    """Returns the steps of one growth."""
    subgraph, rejected = [root], list[int]()
    steps = [_judge(units, "root", root, subgraph, rejected)]
    while (node := _find_adjacent(units, subgraph, rejected)) is not None:
        belongs = node in free
        (subgraph if belongs else rejected).append(node)
        steps.append(_judge(units, "merge" if belongs else "failed merge", node, subgraph, rejected))
        while steps[-1].condition == SELF_REFERENCE:
            node = subgraph.pop()
            rejected.append(node)
            steps.append(_judge(units, "rollback", node, subgraph, rejected))
    return steps


def _find_adjacent(units: _ContractedGraph, subgraph: Sequence[int], rejected: Sequence[int]) -> int | None:
    """Returns the next node to try: next to the newest member that has one, a consumer before a producer, the first by position."""
    for member in reversed(subgraph):
        for node in (*units.consumers[member], *units.producers[member]):
            if node not in subgraph and node not in rejected:
                return node
    return None


def _judge(units: _ContractedGraph, kind: Kind, node: int, subgraph: Sequence[int], rejected: Sequence[int]) -> WalkStep:
    """Returns the step with the state of the condition after it."""
    between = units.find_between(subgraph)
    broken_by = tuple(other for other in sorted(rejected) if between >> other & 1)
    if broken_by:
        condition, through = SELF_REFERENCE, broken_by
    elif between:
        condition, through = POSSIBLE, tuple(other for other in sorted(units.producers) if between >> other & 1)
    else:
        condition, through = OK, ()
    return WalkStep(kind, node, tuple(sorted(subgraph)), tuple(sorted(rejected)), condition, through)


def _number_round(part: Round, index: Sequence[int]) -> Round:
    """Returns the round in the caller's numbers."""

    def number(nodes: Sequence[int]) -> tuple[int, ...]:
        return tuple(index[position] for position in nodes)

    walks = tuple(
        Walk(
            number(walk.roots),
            tuple(
                WalkStep(s.kind, index[s.node], number(s.subgraph), number(s.rejected), s.condition, number(s.through))
                for s in walk.steps
            ),
        )
        for walk in part.walks
    )
    return Round(part.device, walks, number(part.taken), number(part.rest))


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
