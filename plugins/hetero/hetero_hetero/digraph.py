"""The graph that subgraphs are selected on: nodes renumbered by topological position, devices by priority.

Imports no onnx. Every list of neighbours is sorted and free of repetitions, so that whoever walks it gets the same walk each time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from hetero_core.errors import AffinityError, InvalidNetworkError
from hetero_core.network.topology import find_cycle, order_by_producers

T = TypeVar("T")
OneOf = Sequence[T] | Mapping[int, T]
"""One value per node: a sequence, or a mapping whose keys are the nodes."""
Adjacency = Sequence[Sequence[int]]
"""For each position the positions next to it."""

_MOST_NODES_IN_A_MESSAGE = 10


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
    """Returns the graph in topological order; of several nodes that could come next, the smallest number does.

    Raises: InvalidNetworkError for a cycle and for an edge from an unknown node; AffinityError for a node without a device or
    with one that is not in `priorities`, and for a device that is there twice.
    """
    producers_of_index = _read_producers(predecessors)
    order = sort_topologically(producers_of_index)
    if order == list(range(len(order))):
        # Networks come in order: the numbers are the positions.
        producers = tuple([_unique(producers_of_index[index]) for index in order])
    else:
        position_of_index = {index: position for position, index in enumerate(order)}
        producers = tuple([_unique([position_of_index[p] for p in producers_of_index[index]]) for index in order])
    return Digraph(
        index_of_position=tuple(order),
        producers=producers,
        consumers=reverse_edges(producers),
        device_of_position=_read_devices(order, device_of_node, priorities),
        priorities=tuple(priorities),
    )


def _unique(positions: Sequence[int]) -> tuple[int, ...]:
    """Returns the positions sorted, each once."""
    return tuple(positions) if len(positions) < 2 else tuple(sorted(set(positions)))


def reverse_edges(producers: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """Returns the consumers of every position, sorted."""
    consumers: list[list[int]] = [[] for _ in producers]
    for position, sources in enumerate(producers):
        for source in sources:
            consumers[source].append(position)
    return tuple(map(tuple, consumers))


def sort_topologically(producers: Mapping[int, Sequence[int]]) -> list[int]:
    """Returns the keys so that producers come first; among those that are ready, the smallest.

    Raises: InvalidNetworkError that names a cycle.
    """
    indices = sorted(producers)
    if all(source < index for index in indices for source in producers[index]):
        return indices  # the order of the numbers is the order that the heap below would find
    order = order_by_producers(producers)
    if len(order) < len(indices):
        raise InvalidNetworkError(_describe_cycle(find_cycle(producers, order)[:-1]))
    return order


def label_components(neighbours: Sequence[Sequence[Sequence[int]]], count: int) -> list[int]:
    """Returns the component of every position, numbered by their first positions.

    neighbours: adjacency lists (producers, consumers) to follow.
    """
    component_of_position = [-1] * count
    component = 0
    for start in range(count):
        if component_of_position[start] >= 0:
            continue
        component_of_position[start] = component
        stack = [start]
        while stack:
            position = stack.pop()
            for adjacent in neighbours:
                for other in adjacent[position]:
                    if component_of_position[other] < 0:
                        component_of_position[other] = component
                        stack.append(other)
        component += 1
    return component_of_position


def split_components(graph: Digraph) -> list[tuple[Sequence[int], Digraph]]:
    """Returns the parts of a graph that no edge connects, each with its positions in the graph; the smallest first, then the first."""
    positions_of_component: dict[int, list[int]] = {}
    for position, component in enumerate(label_components((graph.producers, graph.consumers), len(graph))):
        positions_of_component.setdefault(component, []).append(position)
    if len(positions_of_component) == 1:
        return [(range(len(graph)), graph)]
    place = {position: rank for positions in positions_of_component.values() for rank, position in enumerate(positions)}
    parts = sorted(positions_of_component.values(), key=lambda positions: (len(positions), positions[0]))
    return [
        (
            positions,
            Digraph(
                tuple([graph.index_of_position[position] for position in positions]),
                tuple([tuple([place[source] for source in graph.producers[position]]) for position in positions]),
                tuple([tuple([place[target] for target in graph.consumers[position]]) for position in positions]),
                tuple([graph.device_of_position[position] for position in positions]),
                graph.priorities,
            ),
        )
        for positions in parts
    ]


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
    part_of_position = {position: number for number, part in enumerate(parts) for position in part}
    alone = [position for position in range(len(graph)) if position not in part_of_position]
    part_of_position |= {position: number for number, position in enumerate(alone, len(parts))}
    return {
        number: {part_of_position[source] for position in part for source in graph.producers[position]} - {number}
        for number, part in enumerate([*parts, *([position] for position in alone)])
    }


def has_circle(graph: Digraph, parts: Sequence[Sequence[int]]) -> bool:
    """Tells whether parts, or nodes that are in none, depend on each other in a circle."""
    sources = find_sources(graph, parts)
    return len(order_by_producers(sources)) < len(sources)


_MOST_NODES_SHOWN = 6
"""The most nodes of one subgraph that a message names."""


def refuse_circle(graph: Digraph, parts: Sequence[Sequence[int]], name: Callable[[int], str]) -> None:
    """Raises AffinityError if parts of LITERAL depend on each other; the message names the nodes of each part of one circle."""
    sources = find_sources(graph, parts)
    order = order_by_producers(sources)
    if len(order) < len(parts):
        circle = " -> ".join(_show_part(graph, parts[number], name) for number in find_cycle(sources, order))
        raise AffinityError(
            f"the policy LITERAL gives subgraphs that wait for each other: {circle}. The procedure looks at each subgraph alone; "
            "LARGEST_FIRST, the default, follows it and keeps the whole plan without circles"
        )


def _show_part(graph: Digraph, part: Sequence[int], name: Callable[[int], str]) -> str:
    shown = [name(graph.index_of_position[position]) for position in sorted(part)[:_MOST_NODES_SHOWN]]
    more = [f"and {len(part) - len(shown)} more"] if len(part) > len(shown) else []
    return f"{{{', '.join([*shown, *more])}}} on {graph.priorities[graph.device_of_position[part[0]]]}"


def _read_producers(predecessors: OneOf[Sequence[int]]) -> dict[int, tuple[int, ...]]:
    """Returns node -> the nodes that feed it. Raises: InvalidNetworkError for an edge from an unknown node."""
    entries = predecessors.items() if isinstance(predecessors, Mapping) else enumerate(predecessors)
    producers = {index: tuple(sources) for index, sources in entries}
    for index, sources in producers.items():
        for source in sources:
            if source not in producers:
                raise InvalidNetworkError(
                    f"cannot select subgraphs: node {index} is fed by node {source!r}, "
                    f"which is not among the {len(producers)} nodes"
                )
    return producers


def _read_devices(order: Sequence[int], device_of_node: OneOf[Hashable], priorities: Sequence[Hashable]) -> tuple[int, ...]:
    """Returns the rank of every node's device. Raises: AffinityError for an unknown, missing or repeated device."""
    rank_of_device = {device: rank for rank, device in enumerate(priorities)}
    listed = ", ".join(str(device) for device in priorities)
    if len(rank_of_device) < len(priorities):
        raise AffinityError(f"cannot select subgraphs: the priorities {listed} name a device twice; list each once")
    ranks = []
    for index in order:
        try:
            device = device_of_node[index]
        except (KeyError, IndexError):
            raise AffinityError(f"cannot select subgraphs: node {index} has no device; give it one of {listed}") from None
        if device not in rank_of_device:
            raise AffinityError(
                f"cannot select subgraphs: node {index} is on device {device}, expected one of the priorities {listed}; "
                "add the device to them or move the node"
            )
        ranks.append(rank_of_device[device])
    return tuple(ranks)


def _describe_cycle(cycle: Sequence[int]) -> str:
    """Returns the message for the nodes of a cycle, which begins at the smallest."""
    start = cycle.index(min(cycle))
    cycle = [*cycle[start:], *cycle[:start], cycle[start]]
    shown = [str(index) for index in cycle]
    if len(shown) > _MOST_NODES_IN_A_MESSAGE:
        shown = [*shown[: _MOST_NODES_IN_A_MESSAGE - 2], f"({len(cycle) - _MOST_NODES_IN_A_MESSAGE} more)", *shown[-2:]]
    return f"cannot select subgraphs: nodes {' -> '.join(shown)} form a cycle; expected a graph without cycles"
