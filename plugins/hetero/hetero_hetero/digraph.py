"""The graph that subgraphs are selected on: nodes renumbered by topological position, devices by priority.

Imports no onnx. Every list of neighbours is sorted and free of repetitions, so that every walk over it is the same.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from hetero_core.network.topology import order_by_producers

T = TypeVar("T")
OneOf = Sequence[T] | Mapping[int, T]
"""One value per node: a sequence, or a mapping whose keys are the nodes."""
Adjacency = Sequence[Sequence[int]]
"""For each position the positions next to it."""


@dataclass(frozen=True)
class Digraph:
    """A graph without cycles over positions 0, 1, ...; every edge leads to a higher position.

    `index_of_position` holds the caller's numbers; `device_of_position` indexes into the priorities.
    """

    index_of_position: tuple[int, ...]
    producers: tuple[tuple[int, ...], ...]
    consumers: tuple[tuple[int, ...], ...]
    device_of_position: tuple[int, ...]
    priorities: tuple[Hashable, ...]

    def __len__(self) -> int:
        return len(self.index_of_position)


def build_digraph(predecessors: OneOf[Sequence[int]], device_of_node: OneOf[Hashable], priorities: Sequence[Hashable]) -> Digraph:
    """Returns the graph in topological order; of several nodes that could come next, the smallest number does."""
    producers_of_index = dict(predecessors.items() if isinstance(predecessors, Mapping) else enumerate(predecessors))
    order = sort_topologically(producers_of_index)
    position_of_index = {index: position for position, index in enumerate(order)}
    rank_of_device = {device: rank for rank, device in enumerate(priorities)}
    producers = tuple([tuple(sorted({position_of_index[source] for source in producers_of_index[index]})) for index in order])
    return Digraph(
        index_of_position=tuple(order),
        producers=producers,
        consumers=reverse_edges(producers),
        device_of_position=tuple([rank_of_device[device_of_node[index]] for index in order]),
        priorities=tuple(priorities),
    )


def reverse_edges(producers: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """Returns the consumers of every position, sorted."""
    consumers: list[list[int]] = [[] for _ in producers]
    for position, sources in enumerate(producers):
        for source in sources:
            consumers[source].append(position)
    return tuple(map(tuple, consumers))


def sort_topologically(producers: Mapping[int, Sequence[int]]) -> list[int]:
    """Returns the keys so that producers come first; among those that are ready, the smallest."""
    indices = sorted(producers)
    if all(source < index for index in indices for source in producers[index]):
        return indices  # the order of the numbers is the order that a search would find
    return order_by_producers(producers)


def find_components(neighbours: Sequence[Adjacency], count: int) -> list[list[int]]:
    """Returns the connected sets of positions, each ascending, by their first positions.

    neighbours: adjacency lists (producers, consumers) to follow.
    """
    is_seen = bytearray(count)
    components = []
    for start in range(count):
        if is_seen[start]:
            continue
        is_seen[start] = 1
        members = [start]
        for position in members:  # grows while it is walked
            for adjacent in neighbours:
                for other in adjacent[position]:
                    if not is_seen[other]:
                        is_seen[other] = 1
                        members.append(other)
        components.append(sorted(members))
    return components


def split_components(graph: Digraph) -> list[tuple[list[int], Digraph]]:
    """Returns the parts of a graph that no edge connects, each with its positions in the graph; the smallest first, then the first."""
    components = find_components((graph.producers, graph.consumers), len(graph))
    if len(components) == 1:
        return [(components[0], graph)]
    parts = []
    for positions in sorted(components, key=lambda positions: (len(positions), positions[0])):
        place = {position: rank for rank, position in enumerate(positions)}
        producers = tuple([tuple([place[source] for source in graph.producers[position]]) for position in positions])
        part = Digraph(
            tuple([graph.index_of_position[position] for position in positions]),
            producers,
            reverse_edges(producers),
            tuple([graph.device_of_position[position] for position in positions]),
            graph.priorities,
        )
        parts.append((positions, part))
    return parts


def list_bits(nodes: int) -> list[int]:
    """Returns the numbers of the bits that are set, rising."""
    digits = bin(nodes)[:1:-1]
    numbers = []
    place = digits.find("1")
    while place >= 0:
        numbers.append(place)
        place = digits.find("1", place + 1)
    return numbers


def join_bits(nodes: Sequence[int]) -> int:
    """Returns the integer in which these bits are set."""
    union = 0
    for node in nodes:
        union |= 1 << node
    return union


def find_sources(graph: Digraph, parts: Sequence[Sequence[int]]) -> dict[int, set[int]]:
    """Returns for each part, by its index, the other parts that feed it. A node that is in no part is a part of its own."""
    part_of_position = [-1] * len(graph)
    for number, part in enumerate(parts):
        for position in part:
            part_of_position[position] = number
    alone = [position for position, number in enumerate(part_of_position) if number < 0]
    for number, position in enumerate(alone, len(parts)):
        part_of_position[position] = number
    return {
        number: {part_of_position[source] for position in part for source in graph.producers[position]} - {number}
        for number, part in enumerate([*parts, *([position] for position in alone)])
    }
