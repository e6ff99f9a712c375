"""The selection procedure to the letter, rollbacks included: LARGEST_FIRST on small parts of a graph, and the policy LITERAL.

Nodes are bits of integers, so that a step on a small graph costs a few operations on machine words. LARGEST_FIRST contracts a subgraph
that was taken to its first node; LITERAL leaves the graph as it is, as the document does, and so may give subgraphs that need each
other. `trace` runs the same steps and notes each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from hetero_hetero.digraph import Digraph

Kind = Literal["root", "merge", "failed merge", "rollback"]
Note = Callable[[Kind, int, Sequence[int], int, int], None]
"""Takes a step of a growth: its kind, its node, the members after it, and the bits of what is rejected and of what lies between members."""


def select_literally(graph: Digraph, positions: Sequence[int]) -> list[list[int]]:
    """Returns the subgraphs as positions, device after device, in the order in which they were taken.

    positions: a connected part of the graph without edges to the rest, rising. Cost: rounds times roots times nodes.
    """
    if len({graph.device_of_position[position] for position in positions}) == 1:
        return [list(positions)]
    return _select(graph, positions, contract)


def select_uncontracted(graph: Digraph) -> list[list[int]]:
    """Returns the subgraphs of the policy LITERAL as positions, in the order in which they were taken.

    Each subgraph is sound alone; several may depend on each other in a circle. Cost: rounds times roots times nodes, each step on
    integers of one bit per node.
    """
    return _select(graph, range(len(graph)), lambda units, members: None)


def _select(graph: Digraph, positions: Sequence[int], settle: Callable[[Units, Sequence[int]], None]) -> list[list[int]]:
    """Returns the largest candidates, device after device; `settle` is told of each one that was taken."""
    units = read_units(graph, positions)
    subgraphs = []
    for device in range(len(graph.priorities)):
        free = join_bits([bit for bit, position in enumerate(positions) if graph.device_of_position[position] == device])
        while free:
            members = max(_grow_candidates(units, free), key=len)
            settle(units, members)
            free &= ~join_bits(members)
            subgraphs.append([positions[bit] for bit in members])
    return subgraphs


@dataclass(frozen=True)
class Units:
    """For every node the bits of its producers, its consumers, the nodes that reach it, and those that it reaches."""

    producers: list[int]
    consumers: list[int]
    reached_by: list[int]
    reaches: list[int]


def read_units(graph: Digraph, positions: Sequence[int]) -> Units:
    """Returns the neighbours of nodes and what they reach; bits count positions within `positions`."""
    bit_of_position = {position: 1 << bit for bit, position in enumerate(positions)}
    producers = [sum(bit_of_position[source] for source in graph.producers[position]) for position in positions]
    consumers = [sum(bit_of_position[target] for target in graph.consumers[position]) for position in positions]
    reached_by = [0] * len(positions)
    for bit, sources in enumerate(producers):
        reached_by[bit] = _unite(reached_by, sources)
    reaches = [0] * len(positions)
    for bit in reversed(range(len(positions))):
        reaches[bit] = _unite(reaches, consumers[bit])
    return Units(producers, consumers, reached_by, reaches)


def _unite(closure: Sequence[int], nodes: int) -> int:
    """Returns the nodes and all that their closures hold."""
    union = nodes
    for bit in list_bits(nodes):
        union |= closure[bit]
    return union


def list_bits(nodes: int) -> Iterator[int]:
    """Yields the numbers of the bits that are set, rising."""
    while nodes:
        lowest = nodes & -nodes
        yield lowest.bit_length() - 1
        nodes ^= lowest


def join_bits(members: Sequence[int]) -> int:
    """Returns the integer in which these bits are set."""
    return sum(1 << bit for bit in members)


def _grow_candidates(units: Units, free: int) -> Iterator[list[int]]:
    """Yields a candidate from the first free node that is in none yet, and so on until there is none."""
    roots = free
    while roots:
        members = grow(units, free, (roots & -roots).bit_length() - 1)
        yield members
        roots &= ~join_bits(members)


def grow(units: Units, free: int, root: int, note: Note | None = None) -> list[int]:
    """Returns the members that are left when no adjacent node is; each step is given to `note`.

    The newest member is asked first for an adjacent node, its consumers before its producers, both by position. `newest` is the
    newest member that may still have one: those after it were asked to the end, and no node becomes untried again.
    """
    producers, consumers = units.producers, units.consumers
    members = [root]
    behind, before = [units.reaches[root]], [units.reached_by[root]]
    untried, rejected, newest = ~(1 << root), 0, 0
    if note is not None:
        note("root", root, members, rejected, behind[-1] & before[-1])
    while newest >= 0:
        adjacent = consumers[members[newest]] & untried or producers[members[newest]] & untried
        if not adjacent:
            newest -= 1
            continue
        lowest = adjacent & -adjacent
        untried ^= lowest
        node = lowest.bit_length() - 1
        if lowest & free:
            members.append(node)
            behind.append(behind[-1] | units.reaches[node])
            before.append(before[-1] | units.reached_by[node])
            newest = len(members) - 1
        else:
            rejected |= lowest
        if note is not None:
            note("merge" if lowest & free else "failed merge", node, members, rejected, behind[-1] & before[-1])
        while behind[-1] & before[-1] & rejected:
            # A path leaves and returns through what was rejected.
            node = members.pop()
            rejected |= 1 << node
            behind.pop()
            before.pop()
            if note is not None:
                note("rollback", node, members, rejected, behind[-1] & before[-1])
        newest = min(newest, len(members) - 1)
    return members


def contract(units: Units, members: Sequence[int]) -> None:
    """Makes the first member by position stand for all. What reaches one of them reaches all that any of them reaches."""
    if len(members) == 1:
        return
    inside = join_bits(members)
    first = min(members)
    for edges in (units.producers, units.consumers, units.reached_by, units.reaches):
        union = 0
        for node in members:
            union |= edges[node]
        edges[first] = union & ~inside
    for edges in (units.producers, units.consumers):
        for node, others in enumerate(edges):
            if others & inside:
                edges[node] = others & ~inside | 1 << first
    for closure in (units.reached_by, units.reaches):
        through = closure[first] | 1 << first
        for node, others in enumerate(closure):
            if others & inside:
                closure[node] = others & ~inside | through
