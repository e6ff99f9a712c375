"""The growth of one subgraph from its root: which adjacent nodes it takes, in which order, and how a conflict is found cheaply.

A node conflicts with a subgraph when a path between it and a member leaves the nodes that may be taken. Such a node is rejected
for good: no larger subgraph could take it, and it never lies between two members. So one test per adjacent node is enough and
nothing is undone.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from hetero_hetero.contraction import ContractedGraph

MOST_LANDMARKS = 1024
"""The number of outside nodes that prove far conflicts; each costs one bit per node and direction."""


class SubgraphGrowth:
    """The tables for growing on one device: the free nodes, their neighbours, and marks that every growth reuses.

    A test looks for a conflict twice. First among the landmarks, outside nodes spread over the order: does a member reach one that
    reaches the node? Then by a search between the slots of the members and of the node, which continues where the last one ended.
    """

    def __init__(self, graph: ContractedGraph, is_free: bytearray) -> None:
        self.graph = graph
        self.is_free = is_free
        self.neighbours = _list_free_neighbours(graph, is_free)
        self.reaches, self.reached_by = _mark_landmarks(graph, is_free)
        count = len(graph.slot)
        self.stamp = 0
        self.seen = [0] * count
        self.marks = ([0] * count, [0] * count)

    def grow(self, root: int) -> list[int]:
        """Returns the members in the order in which they joined.

        The newest member is asked first for an adjacent node, its consumers before its producers, both by position.
        """
        self.stamp += 3
        stamp, seen, is_free, neighbours = self.stamp, self.seen, self.is_free, self.neighbours
        reaches, reached_by = self.reaches, self.reached_by
        search = _Reach(self, root)
        seen[root] = stamp
        members = [root]
        members_reach, members_reached_by = reaches[root], reached_by[root]
        path = [iter(neighbours[root])]
        while path:
            for node in path[-1]:
                if seen[node] == stamp or not is_free[node]:
                    continue
                seen[node] = stamp
                if members_reach & reached_by[node] or reaches[node] & members_reached_by:
                    continue
                if search.finds_conflict(node):
                    continue
                search.add(node)
                members.append(node)
                members_reach |= reaches[node]
                members_reached_by |= reached_by[node]
                path.append(iter(neighbours[node]))
                break
            else:
                path.pop()
        return members


class _Reach:
    """The nodes that members reach, and that reach members, as far as the tests so far had to look.

    A mark is the growth's stamp plus 1 where all nodes on the way may be taken, plus 2 where one of them may not.
    """

    __slots__ = ("backward", "first", "forward", "last", "slot", "stamp")

    def __init__(self, growth: SubgraphGrowth, root: int) -> None:
        graph = growth.graph
        self.stamp = growth.stamp
        self.slot = graph.slot
        self.first = self.last = graph.slot[root]
        self.forward = _Frontier(growth, graph.consumers, growth.marks[0], 1)
        self.backward = _Frontier(growth, graph.producers, growth.marks[1], -1)
        self.forward.add(root)
        self.backward.add(root)

    def finds_conflict(self, node: int) -> bool:
        """Tells whether a path between a member and the node passes a node that may not be taken."""
        slot = self.slot[node]
        return (slot > self.first and self.forward.reaches_unclean(node)) or (
            slot < self.last and self.backward.reaches_unclean(node)
        )

    def add(self, node: int) -> None:
        """Makes the node a member."""
        slot = self.slot[node]
        if slot < self.first:
            self.first = slot
        elif slot > self.last:
            self.last = slot
        self.forward.add(node)
        self.backward.add(node)


class _Frontier:
    """One direction of a search; `sign` is 1 towards higher slots and -1 towards lower ones."""

    __slots__ = ("adjacent", "clean", "far", "is_free", "limit", "marks", "near", "node_at", "sign", "slot", "standin")

    def __init__(self, growth: SubgraphGrowth, adjacent: Sequence[Sequence[int]], marks: list[int], sign: int) -> None:
        graph = growth.graph
        self.adjacent, self.marks, self.sign = adjacent, marks, sign
        self.slot, self.node_at, self.standin, self.is_free = graph.slot, graph.node_at, graph.standin, growth.is_free
        self.clean = growth.stamp + 1
        self.limit = -len(self.slot) - 1
        self.near: list[int] = []
        self.far: list[int] = []

    def add(self, node: int) -> None:
        if self.marks[node] < self.clean:
            self.marks[node] = self.clean
            self.near.append(node)

    def reaches_unclean(self, node: int) -> bool:
        """Advances to the node's slot; tells whether the node is reached through one that may not be taken."""
        marks, slot, standin, sign = self.marks, self.slot, self.standin, self.sign
        adjacent, is_free, near, far = self.adjacent, self.is_free, self.near, self.far
        clean = self.clean
        unclean = clean + 1
        limit = slot[node] * sign
        if limit > self.limit:
            self.limit = limit
            while far and far[0] <= limit:
                near.append(self.node_at[heapq.heappop(far) * sign])
        else:
            limit = self.limit
        while near and marks[node] < unclean:
            source = near.pop()
            mark = marks[source] if is_free[source] else unclean
            for other in adjacent[source]:
                target = standin[other]
                if marks[target] < mark:
                    marks[target] = mark
                    place = slot[target] * sign
                    if place <= limit:
                        near.append(target)
                    else:
                        heapq.heappush(far, place)
        return marks[node] == unclean


def _list_free_neighbours(graph: ContractedGraph, is_free: bytearray) -> list[Sequence[int]]:
    """Returns for every free node its free consumers, then its free producers, each sorted."""
    neighbours: list[Sequence[int]] = [()] * len(is_free)
    for node, free in enumerate(is_free):
        if free:
            around = (*graph.consumers[node], *graph.producers[node])
            neighbours[node] = [other for other in around if is_free[other]]
    return neighbours


def _mark_landmarks(graph: ContractedGraph, is_free: bytearray) -> tuple[list[int], list[int]]:
    """Returns for every node the bits of the landmarks that it reaches, and of those that reach it.

    A landmark is never free again, and a contraction never cuts a path, so the bits stay true while subgraphs are accepted.
    """
    order = [node for place, node in enumerate(graph.node_at) if graph.slot[node] == place and graph.standin[node] == node]
    outside = [node for node in order if not is_free[node]]
    count = min(len(outside), MOST_LANDMARKS)
    bit_of_node = {outside[rank * len(outside) // count]: 1 << rank for rank in range(count)}
    reached_by = _spread_bits(order, graph.producers, graph.standin, bit_of_node)
    order.reverse()
    return _spread_bits(order, graph.consumers, graph.standin, bit_of_node), reached_by


def _spread_bits(
    order: Sequence[int], sources: Sequence[Sequence[int]], standin: Sequence[int], bit_of_node: dict[int, int]
) -> list[int]:
    """Returns the union of the bits of the nodes on the way to every node, its own included."""
    bits = [0] * len(standin)
    for node in order:
        union = bit_of_node.get(node, 0)
        for source in sources[node]:
            union |= bits[standin[source]]
        bits[node] = union
    return bits
