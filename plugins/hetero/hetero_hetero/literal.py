"""The selection procedure to the letter, rollbacks included, and the policy LITERAL.

Nodes are bits of integers, so that a step costs a few operations on integers of one bit per node. A candidate is grown again only if
the subgraph that was taken can change its growth; the result is that of growing every candidate anew in every round.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hetero_hetero.digraph import Digraph, join_bits, list_bits, refuse_circle, split_components
from hetero_hetero.trace import LITERAL, Note, SelectionLog

BITS_PER_STEP = 2000
"""The length of integers, in bits, at which their operations take as long as the rest of a step."""


class TooMuchWorkError(Exception):
    """The procedure needs more steps than its work allows."""


class Work:
    """The steps that the procedure may still take, weighted by the length of the integers. It counts steps, not seconds, so that
    every run decides alike."""

    def __init__(self, limit: float) -> None:
        self.left = limit

    def spend(self, steps: int, bits: int) -> None:
        """Counts the steps. Raises: TooMuchWorkError if none are left."""
        self.left -= steps * (BITS_PER_STEP + bits)
        if self.left < 0:
            raise TooMuchWorkError


def select_literally(graph: Digraph, log: SelectionLog) -> list[list[int]]:
    """Returns the subgraphs of the policy LITERAL as positions, at any size.

    Each subgraph is sound alone. Raises: AffinityError if subgraphs depend on each other in a circle.
    """
    subgraphs = []
    for positions, part in split_components(graph):
        log.begin_part(part, LITERAL)
        taken = [members for turn in take_turns(part, Work(math.inf), log) for members in turn]
        subgraphs += [[positions[node] for node in members] for members in taken]
    refuse_circle(graph, subgraphs, log.name)
    return sorted(subgraphs, key=min)


def take_turns(graph: Digraph, work: Work, log: SelectionLog, *, contracts: bool = False) -> Iterator[list[list[int]]]:
    """Yields the subgraphs of each device of a connected graph as positions, in the order in which they were taken.

    With `contracts`, a subgraph that was taken counts as a single node from then on: a path that enters it anywhere leaves it anywhere.
    Raises: TooMuchWorkError.
    """
    if len(set(graph.device_of_position)) == 1:
        log.note_single_device()
        yield [list(range(len(graph)))]
        return
    work.spend(len(graph), len(graph))
    paths = read_paths(graph)
    for device in range(len(graph.priorities)):
        nodes = [node for node, rank in enumerate(graph.device_of_position) if rank == device]
        if nodes:
            log.begin_device(graph.priorities[device])
            yield list(_Turn(paths, nodes, work, log, contracts=contracts).take_all())


@dataclass(frozen=True)
class Paths:
    """For every node its consumers and then its producers, and the bits of the nodes that reach it and of those that it reaches."""

    neighbours: list[tuple[int, ...]]
    reached_by: list[int]
    reaches: list[int]

    def contract(self, members: Sequence[int]) -> int:
        """Makes paths that enter the members anywhere leave them anywhere. Returns the number of nodes that it visited."""
        before, behind = self.span(members)
        before, behind = before | join_bits(members), behind | join_bits(members)
        above = _list_incomplete(self.reaches, self.reached_by, members, before, behind)
        below = _list_incomplete(self.reached_by, self.reaches, members, behind, before)
        for node in above:
            self.reaches[node] |= behind
        for node in below:
            self.reached_by[node] |= before
        return len(members) + len(above) + len(below)

    def span(self, nodes: Sequence[int]) -> tuple[int, int]:
        """Returns the bits of the nodes that reach any of these, and of those that any of these reaches."""
        before = behind = 0
        for node in nodes:
            before |= self.reached_by[node]
            behind |= self.reaches[node]
        return before, behind


def read_paths(graph: Digraph) -> Paths:
    """Returns the neighbours of the nodes of a graph and their reachability."""
    bit = [1 << node for node in range(len(graph))]
    reached_by = [0] * len(graph)
    for node, sources in enumerate(graph.producers):
        for source in sources:
            reached_by[node] |= reached_by[source] | bit[source]
    reaches = [0] * len(graph)
    for node in reversed(range(len(graph))):
        for target in graph.consumers[node]:
            reaches[node] |= reaches[target] | bit[target]
    return Paths(
        [(*targets, *sources) for targets, sources in zip(graph.consumers, graph.producers, strict=True)], reached_by, reaches
    )


def _list_incomplete(
    closure: Sequence[int], reverse: Sequence[int], members: Sequence[int], sources: int, targets: int
) -> list[int]:
    """Returns the sources that may not have all targets in their closure: those that no member with all targets is reached from.

    `reverse` is the closure in the other direction.
    """
    for node in members:
        if not targets & ~(closure[node] | 1 << node):
            sources &= ~(reverse[node] | 1 << node)
    return list_bits(sources)


@dataclass
class _Candidate:
    """The members of a candidate, and `tried`: all free nodes that its growth came to, those rolled back among them.

    `before` and `behind` are the bits of the nodes that reach a tried one, and that one reaches, if taken subgraphs are contracted.
    """

    members: list[int]
    tried: list[int]
    before: int
    behind: int


class _Turn:
    """The rounds of one device.

    In each round a free node is a root unless a candidate of an earlier root holds it. Between rounds this is kept up to date:
    nodes for which it may have changed are in the heap `undecided`. `grown` holds the candidate of each root that was grown and that no
    taken subgraph changed since, `roots` those in the present round, `users` for each node the roots whose growth tried it.
    """

    def __init__(self, paths: Paths, nodes: list[int], work: Work, log: SelectionLog, *, contracts: bool) -> None:
        self.paths, self.work, self.log, self.contracts = paths, work, log, contracts
        self.is_free = bytearray(len(paths.neighbours))
        for node in nodes:
            self.is_free[node] = 1
        self.left = len(nodes)
        self.undecided = list(nodes)
        self.grown: dict[int, _Candidate] = {}
        self.roots: set[int] = set()
        self.users: dict[int, set[int]] = {node: set() for node in nodes}
        self.earlier_roots = dict.fromkeys(nodes, 0)
        self.by_size: list[tuple[int, int]] = []

    def take_all(self) -> Iterator[list[int]]:
        """Yields the largest candidate of each round, the first of several, until no node is free."""
        while self.left:
            self._find_candidates()
            size, root = heapq.heappop(self.by_size)
            if root in self.roots and len(self.grown[root].members) == -size:
                members = self.grown[root].members
                self._take(members)
                yield members

    def _find_candidates(self) -> None:
        """Decides the undecided nodes in topological order."""
        while self.undecided:
            node = heapq.heappop(self.undecided)
            if self.is_free[node] and not self.earlier_roots[node] and node not in self.roots:
                if node not in self.grown:
                    self._grow(node)
                self._add(node)

    def _grow(self, root: int) -> None:
        members, tried, steps = grow(self.paths, self.is_free, root, self._note_walk(root))
        self.log.end_walk()
        self.work.spend(steps, len(self.paths.reaches))
        before, behind = self.paths.span(tried) if self.contracts else (0, 0)
        self.grown[root] = _Candidate(members, tried, before, behind)
        for node in tried:
            self.users[node].add(root)

    def _note_walk(self, root: int) -> Note | None:
        """Notes the possible roots of the next growth: the free nodes that are in no candidate of an earlier root."""
        if not self.log.traces:
            return None
        covered = {node for other in self.roots if other < root for node in self.grown[other].members}
        return self.log.begin_walk([node for node, free in enumerate(self.is_free) if free and node not in covered])

    def _add(self, root: int) -> None:
        """Makes a grown candidate one of the round."""
        members = self.grown[root].members
        self.roots.add(root)
        heapq.heappush(self.by_size, (-len(members), root))
        for node in members:
            if node > root:
                self.earlier_roots[node] += 1
                if node in self.roots:
                    self._remove(node)

    def _remove(self, root: int) -> None:
        """Takes a candidate out of the round."""
        self.roots.remove(root)
        for node in self.grown[root].members:
            if node > root:
                self.earlier_roots[node] -= 1
                if not self.earlier_roots[node]:
                    heapq.heappush(self.undecided, node)

    def _take(self, members: list[int]) -> None:
        """Makes the members a subgraph, and forgets all candidates whose growth they change."""
        inside = join_bits(members)
        for node in members:
            self.is_free[node] = 0
        self.left -= len(members)
        if self.log.traces:
            self.log.end_round(
                [self.grown[root].members for root in sorted(self.roots)],
                members,
                [node for node, free in enumerate(self.is_free) if free],
            )
        changed = dict.fromkeys(root for node in members for root in self.users[node])
        if self.contracts and len(members) > 1:
            changed |= dict.fromkeys(self._contract(members, inside))
        self.work.spend(len(changed), 0)
        for root in changed:
            if root in self.roots:
                self._remove(root)
            for node in self.grown.pop(root).tried:
                self.users[node].discard(root)
            heapq.heappush(self.undecided, root)

    def _contract(self, members: list[int], inside: int) -> list[int]:
        """Joins the paths of the members, and returns the roots whose growth a path through them can change.

        Such a path enters from a node that the growth tried and returns to another one.
        """
        self.work.spend(self.paths.contract(members) + len(self.grown), len(self.paths.reaches))
        before, behind = self.paths.reached_by[members[0]], self.paths.reaches[members[0]]
        changed = []
        for root, candidate in self.grown.items():
            if candidate.before & inside and candidate.behind & inside:
                changed.append(root)
            elif candidate.before & inside:
                candidate.before |= before
            elif candidate.behind & inside:
                candidate.behind |= behind
        return changed


def grow(paths: Paths, is_free: Sequence[int], root: int, note: Note | None = None) -> tuple[list[int], list[int], int]:
    """Returns the members that are left when no adjacent node is, all free nodes that were tried, and the number of steps.

    Each step is given to `note`. The newest member is asked first for an adjacent node, its consumers before its producers, both by
    position. `asked` holds the places in `members` of those that may still have one, with their neighbours from there on.
    """
    neighbours, reaches, reached_by = paths.neighbours, paths.reaches, paths.reached_by
    is_tried = bytearray(len(reaches))
    is_tried[root] = 1
    members, tried = [root], [root]
    behind, before = [reaches[root]], [reached_by[root]]
    asked = [(0, iter(neighbours[root]))]
    rejected, steps = 0, 1
    if note is not None:
        note("root", root, members, rejected, behind[-1] & before[-1])
    while asked:
        for node in asked[-1][1]:
            if not is_tried[node]:
                break
        else:
            asked.pop()
            continue
        is_tried[node] = 1
        steps += 1
        if is_free[node]:
            members.append(node)
            tried.append(node)
            behind.append(behind[-1] | reaches[node])
            before.append(before[-1] | reached_by[node])
            asked.append((len(members) - 1, iter(neighbours[node])))
        else:
            rejected |= 1 << node
        if note is not None:
            note("merge" if is_free[node] else "failed merge", node, members, rejected, behind[-1] & before[-1])
        while rejected & behind[-1] & before[-1]:
            # A path leaves and returns through what was rejected.
            steps += 1
            node = members.pop()
            rejected |= 1 << node
            behind.pop()
            before.pop()
            if note is not None:
                note("rollback", node, members, rejected, behind[-1] & before[-1])
        while asked and asked[-1][0] >= len(members):
            asked.pop()
    return members, tried, steps
