"""Why two nodes of one device are in different subgraphs: the path that would leave the subgraph and return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hetero_hetero.digraph import Adjacency, OneOf, build_digraph
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

    A reason is a path in the graph, or else a path on which other subgraphs count as single nodes. Pairs that no path separates are
    left out: a larger subgraph had the node first, and then its own members are named; a rollback rejected it; or the policy
    separates more.

    Nodes next to the largest subgraphs come first; a pair of subgraphs that is explained from the side of the smaller subgraph is
    not looked at again. Cost: O(V + E), and searches that end once they have entered `steps` nodes together.
    """
    indices = predecessors if isinstance(predecessors, Mapping) else range(len(predecessors))
    graph = build_digraph(predecessors, dict.fromkeys(indices, 0), [0])  # only the edges count here
    position_of_index = {index: position for position, index in enumerate(graph.index_of_position)}
    parts = [[position_of_index[index] for index in subgraph.nodes] for subgraph in subgraphs]
    part_of_position = {position: number for number, part in enumerate(parts) for position in part}
    members = [frozenset(part) for part in parts]
    units = {position: part for part in parts if len(part) > 1 for position in part}
    numbers = sorted(range(len(parts)), key=lambda number: (-len(parts[number]), number))
    borders = [
        (number, node)
        for number in numbers
        for node in sorted({other for place in parts[number] for other in (*graph.producers[place], *graph.consumers[place])})
        if part_of_position[node] != number and subgraphs[part_of_position[node]].device == subgraphs[number].device
    ]
    explained: set[tuple[int, int]] = set()
    kept_outs: list[KeptOut] = []
    for done, (number, node) in enumerate(borders):
        if steps <= 0:
            return tuple(kept_outs), len(borders) - done
        home = part_of_position[node]
        if (number, home) in explained:
            continue
        path: list[int] = []
        for joined in ({}, units):
            # The shorter of the paths from the node to a member and from a member to the node.
            for adjacent, direction in ((graph.consumers, 1), (graph.producers, -1)):
                way, entered = _search(adjacent, members[number], node, joined, members[home])
                steps -= entered
                if way and not 0 < len(path) <= len(way):
                    path = way[::direction]
            if path:
                names = graph.index_of_position
                kept_outs.append(KeptOut(names[node], subgraphs[number], tuple(names[place] for place in path)))
                explained.add((home, number))
                break
    return tuple(kept_outs), 0


def _search(
    adjacent: Adjacency, inside: frozenset[int], node: int, units: Mapping[int, Sequence[int]], apart: frozenset[int]
) -> tuple[list[int], int]:
    """Returns a shortest path along `adjacent` from the node through at least one outside node to a member, and how many nodes were
    entered.

    `units` maps a node to the nodes that run together with it; a node of `apart` forms no unit with others. The path is empty if no such
    path exists.
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
