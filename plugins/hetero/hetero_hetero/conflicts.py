"""Why two nodes of one device are in different subgraphs: the path that would leave the subgraph and return."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hetero_core.errors import InvalidNetworkError
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


def find_conflict_path(
    predecessors: OneOf[Sequence[int]], members: Sequence[int], node: int, subgraphs: Sequence[Sequence[int]] = ()
) -> tuple[int, ...]:
    """Returns a shortest path between the node and a member that passes nodes outside, or () where the node could join.

    subgraphs: sets of nodes that run as one, each entered and left as a whole: the path names the node where it enters and the
    one where it leaves, which need not be joined by an edge. Members and the node must be in none of them. Cost: O(V + E).
    Raises: InvalidNetworkError for a node that is not in the graph.
    """
    graph = _build_bare(predecessors)
    position = _locate(graph, (node, *members, *(index for part in subgraphs for index in part)))
    units = _list_units([[position[index] for index in part] for part in subgraphs])
    path = _find_path(graph, frozenset(position[index] for index in members), position[node], units)
    return tuple(graph.index_of_position[place] for place in path)


def explain_splits(predecessors: OneOf[Sequence[int]], subgraphs: Sequence[Subgraph], device: Hashable) -> Iterator[KeptOut]:
    """Yields, for every subgraph of the device and every node of the device next to it, the path that keeps the node out.

    Where no path in the graph does, the other subgraphs count as single nodes. What no path keeps out is not yielded: a larger
    subgraph had it first, and then its own members are named, or the policy is not LARGEST_FIRST. Cost: O(V + E) for each node
    yielded.
    """
    graph = _build_bare(predecessors)
    position = _locate(graph, [index for part in subgraphs for index in part.nodes])
    parts = [[position[index] for index in part.nodes] for part in subgraphs]
    part_of_position = {place: number for number, part in enumerate(parts) for place in part}
    for number, part in enumerate(parts):
        if subgraphs[number].device != device:
            continue
        inside = frozenset(part)
        around = {other for place in part for other in (*graph.producers[place], *graph.consumers[place])} - inside
        for node in sorted(around):
            home = part_of_position[node]
            if subgraphs[home].device != device:
                continue
            path = _find_path(graph, inside, node, {})
            if not path:
                others = [other for i, other in enumerate(parts) if i not in (number, home)]
                path = _find_path(graph, inside, node, _list_units(others))
            if path:
                yield KeptOut(graph.index_of_position[node], subgraphs[number], tuple(graph.index_of_position[p] for p in path))


def _build_bare(predecessors: OneOf[Sequence[int]]) -> Digraph:
    """Returns the graph with all nodes on one device."""
    indices = predecessors if isinstance(predecessors, Mapping) else range(len(predecessors))
    return build_digraph(predecessors, dict.fromkeys(indices, 0), [0])


def _locate(graph: Digraph, indices: Sequence[int]) -> dict[int, int]:
    """Returns node -> position. Raises: InvalidNetworkError where one of `indices` is no node."""
    position = {index: place for place, index in enumerate(graph.index_of_position)}
    for index in indices:
        if index not in position:
            raise InvalidNetworkError(
                f"cannot look for a conflict path: {index!r} is not among the {len(graph)} nodes of the graph"
            )
    return position


def _list_units(parts: Sequence[Sequence[int]]) -> dict[int, Sequence[int]]:
    """Returns node -> the nodes that run with it."""
    return {place: part for part in parts if len(part) > 1 for place in sorted(part)}


def _find_path(graph: Digraph, inside: frozenset[int], node: int, units: Mapping[int, Sequence[int]]) -> list[int]:
    """Returns the shorter of the paths from the node to a member and from a member to the node."""
    leaving = _search(graph.consumers, inside, node, units)
    entering = _search(graph.producers, inside, node, units)[::-1]
    return entering if not leaving or 0 < len(entering) < len(leaving) else leaving


def _search(adjacent: Sequence[Sequence[int]], inside: frozenset[int], node: int, units: Mapping[int, Sequence[int]]) -> list[int]:
    """Returns a shortest path along `adjacent` from the node through at least one other outside node to a member, or nothing."""
    came_from: dict[int, int] = {node: node}
    queue = [node]
    for place in queue:  # grows while it is walked
        for other in adjacent[place]:
            if other in inside and place != node:
                path = [other, place]
                while path[-1] != node:
                    path.append(came_from[path[-1]])
                return path[::-1]
            if other in inside or other in came_from:
                continue
            came_from[other] = place
            queue.append(other)
            for mate in units.get(other, ()):
                if mate not in came_from:
                    came_from[mate] = other
                    queue.append(mate)
    return []
