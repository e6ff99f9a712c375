"""Policy LARGEST_FIRST: grow a candidate from every root, take the largest, contract it, go on with the rest.

Small parts of the graph follow the procedure to the letter. In larger ones each node is tested at once instead of being rolled back
later. The result there is that of growing all candidates anew after each one taken; only those that it changed are grown again, and
their number is bounded, so that the work stays near-linear in practice.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from hetero_hetero.contraction import ContractedGraph
from hetero_hetero.digraph import Digraph, label_components
from hetero_hetero.growth import SubgraphGrowth
from hetero_hetero.literal import select_literally

LITERAL_UP_TO = 64
"""Up to this many nodes, a part of the graph without edges to the rest is selected to the letter, rollbacks included."""

CREDIT_PER_NODE = 4
"""The most members of all candidates of a round together, per free node; a round with more takes the largest so far."""

LEAST_CREDIT = 4096
"""The least total of that count, for graphs of some hundred nodes, where all roots are cheap."""

EVERY_ROOT_UP_TO = 64
"""Up to this many nodes of a device, in a part of the graph without edges to the rest, every root is tried in every round."""


def select_largest_first(graph: Digraph) -> list[list[int]]:
    """Returns the subgraphs as positions; those of one part and one device in the order in which they were taken."""
    positions_of_component: dict[int, list[int]] = {}
    for position, component in enumerate(label_components((graph.producers, graph.consumers), len(graph))):
        positions_of_component.setdefault(component, []).append(position)
    # Parts without any edge between them are selected apart: neither rounds nor the credit of one depend on another.
    parts = positions_of_component.values()
    small_subgraphs = [subgraph for part in parts if len(part) <= LITERAL_UP_TO for subgraph in select_literally(graph, part)]
    return small_subgraphs + select_without_rollback(graph, [part for part in parts if len(part) > LITERAL_UP_TO])


def select_without_rollback(graph: Digraph, parts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Returns the subgraphs of some parts of the graph, none of which has an edge to the rest, with one test for each node."""
    contracted = ContractedGraph(graph.producers, graph.consumers)
    subgraphs: list[list[int]] = []
    for device in range(len(graph.priorities)):
        nodes_of_part = [[position for position in part if graph.device_of_position[position] == device] for part in parts]
        if not any(nodes_of_part):
            continue
        is_free = bytearray(len(graph))
        for nodes in nodes_of_part:
            for node in nodes:
                is_free[node] = 1
        growth = SubgraphGrowth(contracted, is_free)
        for nodes in nodes_of_part:
            if nodes:
                subgraphs += _Candidates(growth, nodes).take_all()
    return subgraphs


class _Candidates:
    """The candidates of one device, kept as if all of them were grown anew in every round.

    A node is a root unless a candidate of an earlier root holds it. Removing or adding a candidate therefore concerns only the
    members behind its root; those whose answer changes wait in `undecided`, a heap of positions. A candidate shares no node with
    what was taken; that a path through the taken one joins two of its members is noticed when it is about to be taken itself.
    """

    def __init__(self, growth: SubgraphGrowth, nodes: list[int]) -> None:
        self.growth = growth
        self.undecided = list(nodes)
        # n rounds of n candidates of n members are more than there can be.
        self.credit = len(nodes) ** 3 if len(nodes) <= EVERY_ROOT_UP_TO else CREDIT_PER_NODE * len(nodes) + LEAST_CREDIT
        self.members_of_root: dict[int, list[int]] = {}
        self.roots_of_node: dict[int, dict[int, None]] = {node: {} for node in nodes}
        self.earlier_roots = dict.fromkeys(nodes, 0)
        self.largest: list[tuple[int, int]] = []

    def take_all(self) -> list[list[int]]:
        """Returns subgraphs until no node of the device is left."""
        subgraphs = []
        while self._grow_candidates():
            size, root = heapq.heappop(self.largest)
            members = self.members_of_root.get(root)
            if members is None or len(members) != -size:
                continue  # removed since it was listed
            if self.growth.graph.contract(members):
                self._take(members)
                subgraphs.append(members)
            else:
                # What was taken meanwhile stands between its members now.
                self._remove(root)
                heapq.heappush(self.undecided, root)
        return subgraphs

    def _grow_candidates(self) -> bool:
        """Grows from the undecided roots, in topological order, within the credit. Returns whether there is any candidate."""
        while self.undecided and (self.credit > 0 or not self.members_of_root):
            node = heapq.heappop(self.undecided)
            if self.growth.is_free[node] and not self.earlier_roots[node] and node not in self.members_of_root:
                self._add(node, self.growth.grow(node))
        return bool(self.members_of_root)

    def _add(self, root: int, members: list[int]) -> None:
        self.credit -= len(members)
        self.members_of_root[root] = members
        heapq.heappush(self.largest, (-len(members), root))
        for node in members:
            self.roots_of_node[node][root] = None
            if node > root:
                self.earlier_roots[node] += 1
                if node in self.members_of_root:
                    self._remove(node)

    def _remove(self, root: int) -> None:
        for node in self.members_of_root.pop(root):
            del self.roots_of_node[node][root]
            if node > root:
                self.earlier_roots[node] -= 1
                if not self.earlier_roots[node]:
                    heapq.heappush(self.undecided, node)

    def _take(self, members: list[int]) -> None:
        self.credit += CREDIT_PER_NODE * len(members)
        for node in members:
            self.growth.is_free[node] = 0
        for node in members:
            for root in list(self.roots_of_node[node]):
                self._remove(root)
                heapq.heappush(self.undecided, root)
