"""The graph that subgraphs are selected on: nodes renumbered by topological position, devices by priority.

Imports no onnx. Every list of neighbours is sorted and free of repetitions, so that whoever walks it gets the same walk each time.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
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
