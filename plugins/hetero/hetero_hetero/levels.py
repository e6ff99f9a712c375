"""Policy LEVELS: nodes of a device are fused by how often the way to them has left the device. Linear in nodes, edges and devices.

Source: Kennedy & McKinley 1994, typed fusion; the labelling is also run from the outputs, and the better of both is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hetero_hetero.digraph import Adjacency, Digraph, label_components, reverse_edges, sort_topologically
from hetero_hetero.trace import SelectionLog

LEVELS = "LEVELS", "Nodes were grouped by levels (policy LEVELS), in two sweeps over the graph without steps to show."
"""The name of the procedure, and its heading in a trace."""


def select_by_levels(graph: Digraph, log: SelectionLog) -> list[list[int]]:
    """Returns the subgraphs of the policy LEVELS as positions."""
    log.begin_part(graph, *LEVELS)
    return sorted(fuse_levels(graph), key=min)


def fuse_levels(graph: Digraph) -> list[list[int]]:
    """Returns the subgraphs as positions.

    Each device sees the subgraphs of those before it as single nodes, here called units.
    """
    component_of_position = label_components((graph.producers, graph.consumers), len(graph))
    units = [[position] for position in range(len(graph))]
    producers: Adjacency = graph.producers
    consumers: Adjacency = graph.consumers
    for device in range(len(graph.priorities)):
        is_free = [graph.device_of_position[unit[0]] == device for unit in units]
        if not any(is_free):
            continue
        component_of_unit = [component_of_position[unit[0]] for unit in units]
        group_of_unit = _choose_labelling(producers, consumers, is_free, component_of_unit)
        units, producers, consumers = _fuse(units, producers, group_of_unit)
    return units


def label_levels(order: Iterable[int], sources: Adjacency, is_free: Sequence[bool]) -> list[int]:
    """Returns for every node how often the longest way along `sources` leaves the free nodes and returns.

    Nodes of a level that are connected by edges among free nodes can be contracted all at once: the level never decreases along an
    edge.
    """
    level = [0] * len(sources)
    is_behind = [False] * len(sources)
    for node in order:
        free = is_free[node]
        behind = free
        highest = 0
        for source in sources[node]:
            value = level[source]
            if is_behind[source]:
                behind = True
                if free and not is_free[source]:
                    value += 1
            if value > highest:
                highest = value
        level[node] = highest
        is_behind[node] = behind
    return level


def _choose_labelling(
    producers: Adjacency, consumers: Adjacency, is_free: Sequence[bool], component_of_unit: Sequence[int]
) -> list[int]:
    """Returns the group of every unit, by the labelling that is better in its component: fewer groups, a larger one, backward."""
    count = len(producers)
    backward = _group(label_levels(reversed(range(count)), consumers, is_free), producers, consumers, is_free)
    forward = _group(label_levels(range(count), producers, is_free), producers, consumers, is_free)
    cost_backward = _rate_groups(backward, is_free, component_of_unit)
    cost_forward = _rate_groups(forward, is_free, component_of_unit)
    return [
        forward[unit] if cost_forward[component] < cost_backward[component] else backward[unit]
        for unit, component in enumerate(component_of_unit)
    ]


def _group(level: Sequence[int], producers: Adjacency, consumers: Adjacency, is_free: Sequence[bool]) -> list[int]:
    """Returns for every unit the first unit of its group: those connected by free units of its level."""
    first = list(range(len(level)))
    grouped = [False] * len(level)
    for start, free in enumerate(is_free):
        if not free or grouped[start]:
            continue
        grouped[start] = True
        stack = [start]
        while stack:
            unit = stack.pop()
            first[unit] = start
            for adjacent in (producers[unit], consumers[unit]):
                for other in adjacent:
                    if is_free[other] and not grouped[other] and level[other] == level[start]:
                        grouped[other] = True
                        stack.append(other)
    return first


def _rate_groups(first: Sequence[int], is_free: Sequence[bool], component_of_unit: Sequence[int]) -> list[tuple[int, int]]:
    """Returns for every component (number of groups, minus the size of the largest one); smaller is better."""
    size = [0] * len(first)
    for unit, start in enumerate(first):
        if is_free[unit]:
            size[start] += 1
    groups = [0] * (max(component_of_unit) + 1)
    largest = [0] * len(groups)
    for start, nodes in enumerate(size):
        if nodes:
            component = component_of_unit[start]
            groups[component] += 1
            largest[component] = max(largest[component], nodes)
    return [(count, -nodes) for count, nodes in zip(groups, largest, strict=True)]


def _fuse(
    units: list[list[int]], producers: Adjacency, group_of_unit: Sequence[int]
) -> tuple[list[list[int]], Adjacency, Adjacency]:
    """Returns the units after fusion, in topological order, with their producers and consumers."""
    nodes_of_group: dict[int, list[int]] = {}
    sources_of_group: dict[int, set[int]] = {}
    for unit, group in enumerate(group_of_unit):
        nodes_of_group.setdefault(group, []).extend(units[unit])
        sources_of_group.setdefault(group, set()).update([group_of_unit[source] for source in producers[unit]])
    order = sort_topologically({group: tuple(sources - {group}) for group, sources in sources_of_group.items()})
    place = {group: i for i, group in enumerate(order)}
    fused = [sorted({place[source] for source in sources_of_group[group]} - {place[group]}) for group in order]
    return [nodes_of_group[group] for group in order], fused, reverse_edges(fused)
