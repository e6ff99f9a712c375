"""Why two nodes of one device are in different subgraphs: the path that would leave the subgraph and return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from hetero_hetero.digraph import Digraph, OneOf, build_digraph
from hetero_hetero.subgraphs import Subgraph


@dataclass(frozen=True)
class KeptOut:
    """A node next to a subgraph of its own device that could not join it.

    `path` begins at the node or at a member, runs outside, and ends at a member or at the node.
    """

    node: int
    subgraph: Subgraph
    path: tuple[int, ...]


def explain_within(
    predecessors: OneOf[Sequence[int]], subgraphs: Sequence[Subgraph], *, steps: int
) -> tuple[tuple[KeptOut, ...], int]:
    """Returns the reasons that keep neighbouring subgraphs of one device apart, and the number of nodes not examined.

    That is a path in the graph, or else one in which the other subgraphs count as single nodes. Pairs that no path separates are left
    out: a larger subgraph had the node first, and then its own members are named; a rollback rejected it; or the policy separates more.

    Nodes next to the largest subgraphs come first; a pair of subgraphs that is explained from the smaller one's side is not looked
    at from the other. Cost: O(V + E), and searches that end once they have entered `steps` nodes together.
    """
    split = _place_split(predecessors, subgraphs)
    numbers = sorted(range(len(subgraphs)), key=lambda number: (-len(subgraphs[number].nodes), number))
    borders = [(number, node) for number in numbers for node in _list_border(split, number)]
    explained: set[tuple[int, int]] = set()
    kept_outs: list[KeptOut] = []
    for done, (number, node) in enumerate(borders):
        if steps <= 0:
            return tuple(kept_outs), len(borders) - done
        home = split.part_of_position[node]
        if (number, home) in explained:
            continue
        kept_out, entered = _explain_node(split, number, node)
        steps -= entered
        if kept_out is not None:
            kept_outs.append(kept_out)
            explained.add((home, number))
    return tuple(kept_outs), 0


@dataclass(frozen=True)
class _Split:
    """A graph and its subgraphs by position. `units` maps each node to the nodes that run with it, if there are any."""

    graph: Digraph
    subgraphs: Sequence[Subgraph]
    parts: Sequence[Sequence[int]]
    members: Sequence[frozenset[int]]
    part_of_position: Mapping[int, int]

    @cached_property
    def units(self) -> Mapping[int, Sequence[int]]:
        return {place: part for part in self.parts if len(part) > 1 for place in part}


def _place_split(predecessors: OneOf[Sequence[int]], subgraphs: Sequence[Subgraph]) -> _Split:
    # All nodes on one device: only the edges count here.
    indices = predecessors if isinstance(predecessors, Mapping) else range(len(predecessors))
    graph = build_digraph(predecessors, dict.fromkeys(indices, 0), [0])
    position = {index: place for place, index in enumerate(graph.index_of_position)}
    parts = [[position[index] for index in part.nodes] for part in subgraphs]
    part_of_position = {place: number for number, part in enumerate(parts) for place in part}
    return _Split(graph, subgraphs, parts, [frozenset(part) for part in parts], part_of_position)


def _list_border(split: _Split, number: int) -> list[int]:
    """Returns the nodes of a subgraph's device next to it, by position."""
    graph, device = split.graph, split.subgraphs[number].device
    around = {other for place in split.parts[number] for other in (*graph.producers[place], *graph.consumers[place])}
    return sorted(node for node in around - split.members[number] if split.subgraphs[split.part_of_position[node]].device == device)


def _explain_node(split: _Split, number: int, node: int) -> tuple[KeptOut | None, int]:
    """Returns the path that keeps a node out of a subgraph (None if there is no such path) and the number of nodes searched."""
    graph, inside = split.graph, split.members[number]
    path, entered = _find_path(graph, inside, node, {})
    if not path:
        home = split.part_of_position[node]
        path, more = _find_path(graph, inside, node, split.units, split.members[home])
        entered += more
    if not path:
        return None, entered
    names = graph.index_of_position
    return KeptOut(names[node], split.subgraphs[number], tuple(names[place] for place in path)), entered


def _find_path(
    graph: Digraph, inside: frozenset[int], node: int, units: Mapping[int, Sequence[int]], apart: frozenset[int] = frozenset()
) -> tuple[list[int], int]:
    """Returns the shorter of the paths from the node to a member and from a member to the node, and how many nodes were entered.

    A node of `apart` is no unit with others.
    """
    leaving, left = _search(graph.consumers, inside, node, units, apart)
    entering, entered = _search(graph.producers, inside, node, units, apart)
    path = entering[::-1] if not leaving or 0 < len(entering) < len(leaving) else leaving
    return path, left + entered


def _search(
    adjacent: Sequence[Sequence[int]], inside: frozenset[int], node: int, units: Mapping[int, Sequence[int]], apart: frozenset[int]
) -> tuple[list[int], int]:
    """Returns a shortest path along `adjacent` from the node through at least one other outside node to a member, or nothing.

    Beside it stands how many nodes were entered.
    """
    came_from: dict[int, int] = {node: node}
    queue = [node]
    for place in queue:  # grows while it is walked
        for other in adjacent[place]:
            if other in inside and place != node:
                path = [other, place]
                while path[-1] != node:
                    path.append(came_from[path[-1]])
                return path[::-1], len(queue)
            if other in inside or other in came_from:
                continue
            came_from[other] = place
            queue.append(other)
            for mate in () if other in apart else units.get(other, ()):
                if mate not in came_from:
                    came_from[mate] = other
                    queue.append(mate)
    return [], len(queue)
