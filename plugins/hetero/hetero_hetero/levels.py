"""Policy LEVELS: nodes of a device are fused by how often the way to them has left the device. Linear in nodes, edges and devices.

Source: Kennedy & McKinley 1994, typed fusion, from the outputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hetero_hetero.digraph import Adjacency, Digraph
from hetero_hetero.trace import SelectionLog

LEVELS = "LEVELS", "Nodes were grouped by levels (policy LEVELS), in two sweeps over the graph without steps to show."
"""The name of the procedure, and its heading in a trace."""


def select_by_levels(graph: Digraph, log: SelectionLog) -> list[list[int]]:
    """Returns the subgraphs of the policy LEVELS as positions."""
    log.begin_part(graph, *LEVELS)
    return fuse_levels(graph)


def fuse_levels(graph: Digraph) -> list[list[int]]:
    """Returns the subgraphs as positions, by their first positions.

    Each device sees the subgraphs of those before it as single nodes, here called units; a unit bears the number of one of its nodes.
    """
    unit_of_position = list(range(len(graph)))
    order: Sequence[int] = unit_of_position
    producers: Adjacency = graph.producers
    consumers: Adjacency = graph.consumers
    devices = sorted(set(graph.device_of_position))
    for device in devices:
        is_free = [own == device for own in graph.device_of_position]
        group_of_unit = _group(order, label_levels(reversed(order), consumers, is_free), producers)
        unit_of_position = [group_of_unit[unit] for unit in unit_of_position]
        if device != devices[-1]:
            order, producers, consumers = _fuse(order, producers, group_of_unit)
    positions_of_unit: dict[int, list[int]] = {}
    for position, unit in enumerate(unit_of_position):
        positions_of_unit.setdefault(unit, []).append(position)
    return list(positions_of_unit.values())


def label_levels(order: Iterable[int], sources: Adjacency, is_free: Sequence[bool]) -> list[int]:
    """Returns for every free node how often the longest way along `sources` leaves the free nodes and returns; for others -1.

    Nodes of a level that are connected by edges among free nodes can be contracted all at once: the level never decreases along an
    edge.
    """
    count = len(sources)
    level = [-1] * count
    # The highest level of free nodes before a node, and of a free node behind it; they differ only behind free nodes.
    highest_before, level_behind = [0] * count, [0] * count
    for node in order:
        highest = behind = 0
        if is_free[node]:
            for source in sources[node]:
                if level_behind[source] > highest:
                    highest = level_behind[source]
            level[node] = highest_before[node] = level_behind[node] = highest
            continue
        for source in sources[node]:
            if highest_before[source] > highest:
                highest = highest_before[source]
            if level[source] >= 0 or level_behind[source] > highest_before[source]:
                behind = 1
        highest_before[node] = highest
        level_behind[node] = highest + behind
    return level


def _group(order: Sequence[int], level: Sequence[int], producers: Adjacency) -> list[int]:
    """Returns for every unit a unit that stands for its group: those connected by free units of its level."""
    group = list(range(len(level)))
    for unit in order:
        own = level[unit]
        if own < 0:
            continue
        root = unit
        for source in producers[unit]:
            if level[source] == own:
                while group[source] != source:
                    group[source] = source = group[group[source]]
                group[root] = root = source
    for unit in order:
        # Its group may have joined another group since.
        root = group[unit]
        while group[root] != root:
            group[root] = root = group[group[root]]
        group[unit] = root
    return group


def _fuse(order: Sequence[int], producers: Adjacency, group_of_unit: Sequence[int]) -> tuple[list[int], Adjacency, Adjacency]:
    """Returns the units after fusion, producers first, with their producers and consumers; an edge may be repeated."""
    # A list for each remaining unit only: the garbage collector walks over all of them.
    absent: list[int] = []
    sources_of_unit = [[] if group == unit else absent for unit, group in enumerate(group_of_unit)]
    targets_of_unit = [[] if group == unit else absent for unit, group in enumerate(group_of_unit)]
    for unit in order:
        group = group_of_unit[unit]
        for producer in producers[unit]:
            source = group_of_unit[producer]
            if source != group:
                sources_of_unit[group].append(source)
                targets_of_unit[source].append(group)
    missing = [len(sources) for sources in sources_of_unit]
    fused = [unit for unit in order if group_of_unit[unit] == unit and not missing[unit]]
    for unit in fused:  # grows while it is walked
        for target in targets_of_unit[unit]:
            missing[target] -= 1
            if not missing[target]:
                fused.append(target)
    return fused, sources_of_unit, targets_of_unit
