"""A graph in which convex sets of nodes become single nodes, kept in topological order without ever sorting it anew.

A set is convex when no path leaves it and returns. Contracting a convex set of a graph without cycles gives a graph without
cycles, so whatever is contracted one after the other depends on each other in one direction only.
"""

from __future__ import annotations

from collections.abc import Sequence

from hetero_hetero.digraph import Adjacency


class ContractedGraph:
    """The graph after some contractions.

    Lists of neighbours hold positions as they were before; `standin` turns one into the node that stands for it now. `slot` is
    the place of such a node in the current topological order, `node_at` its inverse. Slots of nodes that were swallowed stay
    empty.
    """

    __slots__ = ("consumers", "node_at", "producers", "slot", "standin")

    def __init__(self, producers: Adjacency, consumers: Adjacency) -> None:
        self.producers: list[Sequence[int]] = list(producers)
        self.consumers: list[Sequence[int]] = list(consumers)
        self.standin = list(range(len(producers)))
        self.slot = list(range(len(producers)))
        self.node_at = list(range(len(producers)))

    def contract(self, members: Sequence[int]) -> bool:
        """Returns True and makes `members[0]` stand for all, or returns False and changes nothing where they are not convex.

        Cost: the edges between the first and the last member that touch their ancestors and descendants, O(E) at worst.
        """
        if len(members) == 1:
            return True
        slots = [self.slot[member] for member in members]
        first, last = min(slots), max(slots)
        inside = set(members)
        later: list[int] = []
        earlier: list[int] = []
        if last - first >= len(members):
            descendants = self._find_descendants(members, inside, last)
            if descendants is None:
                return False
            later = descendants
            earlier = self._find_ancestors(members, inside, first)
        self._reorder(members, earlier, later)
        self._merge(members, inside)
        return True

    def _find_descendants(self, members: Sequence[int], inside: set[int], last: int) -> list[int] | None:
        """Returns the outside nodes that members reach up to slot `last`, or None where one of them leads back inside."""
        consumers, standin, slot = self.consumers, self.standin, self.slot
        seen: set[int] = set()
        descendants = []
        for source in members:
            for target in consumers[source]:
                node = standin[target]
                if node not in inside and node not in seen and slot[node] <= last:
                    seen.add(node)
                    descendants.append(node)
        for source in descendants:  # grows while it is walked
            for target in consumers[source]:
                node = standin[target]
                if node in inside:
                    return None
                if node not in seen and slot[node] <= last:
                    seen.add(node)
                    descendants.append(node)
        return descendants

    def _find_ancestors(self, members: Sequence[int], inside: set[int], first: int) -> list[int]:
        """Returns the outside nodes from slot `first` on that reach members."""
        producers, standin, slot = self.producers, self.standin, self.slot
        seen = set(inside)
        reached = list(members)
        for target in reached:  # grows while it is walked
            for source in producers[target]:
                node = standin[source]
                if node not in seen and slot[node] >= first:
                    seen.add(node)
                    reached.append(node)
        return reached[len(members) :]

    def _reorder(self, members: Sequence[int], earlier: list[int], later: list[int]) -> None:
        """Puts ancestors, members and descendants, in this order, into the slots that they hold together.

        Source: Pearce & Kelly 2006, dynamic topological sort.
        """
        slot, node_at = self.slot, self.node_at
        earlier.sort(key=slot.__getitem__)
        later.sort(key=slot.__getitem__)
        slots = sorted([slot[node] for node in (*earlier, *members, *later)])
        for node, place in zip(earlier, slots, strict=False):
            slot[node] = place
            node_at[place] = node
        slot[members[0]] = slots[len(earlier)]
        node_at[slots[len(earlier)]] = members[0]
        for node, place in zip(later, slots[len(slots) - len(later) :], strict=True):
            slot[node] = place
            node_at[place] = node

    def _merge(self, members: Sequence[int], inside: set[int]) -> None:
        """Gives the first member the outside neighbours of all."""
        standin = self.standin
        for adjacent in (self.producers, self.consumers):
            nodes = {standin[other] for member in members for other in adjacent[member]}
            adjacent[members[0]] = sorted(nodes - inside)
        for member in members:
            standin[member] = members[0]
