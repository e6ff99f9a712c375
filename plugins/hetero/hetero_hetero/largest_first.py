"""The procedure of subgraph selection, rollbacks included, and the two policies that follow it: LARGEST_FIRST and LITERAL.

Nodes are bits of integers, so that a step costs a few operations on integers. A candidate is grown again only if
the subgraph that was taken can change its growth; the result is that of growing every candidate anew in every round.

LARGEST_FIRST gives a plan without circles at any size: a part of the graph whose subgraphs would wait for each other is selected again,
and there a taken subgraph counts as a single node. A part that needs too many steps is selected by levels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hetero_core.errors import AffinityError
from hetero_core.network.topology import find_cycle, order_by_producers
from hetero_hetero.digraph import Digraph, find_sources, join_bits, list_bits, split_components
from hetero_hetero.levels import LEVELS, fuse_levels
from hetero_hetero.trace import Note, SelectionLog

LITERAL = "LITERAL", "The procedure to the letter:"
CONTRACTED = (
    "CONTRACTED",
    "To the letter, subgraphs would wait for each other. So a taken subgraph counts as a single node for paths:",
)
"""Procedures, each with its heading in a trace."""

MOST_WORK = 4_000_000_000
"""The work for a whole graph, about a second. The smallest parts come first."""
WORK_OF_LEVELS = 40_000
"""The work for a node that is selected by levels. It is set aside for all nodes, so that a large graph is planned in a second, too."""
MOST_NODES = 16_384
"""The most nodes of a part for which a bit for each pair of nodes is held, twice: 70 MB."""
BITS_PER_STEP = 2000
"""The length of integers, in bits, at which their operations take as long as the rest of a step."""
_MOST_NODES_SHOWN = 6
"""The most nodes of one subgraph that a message names."""


def select_largest_first(graph: Digraph, log: SelectionLog) -> list[list[int]]:
    """Returns the subgraphs as positions: those of LITERAL for each part of the graph without a circle."""
    work = Work(MOST_WORK - WORK_OF_LEVELS * len(graph))
    subgraphs = []
    for positions, part in split_components(graph):
        subgraphs += [[positions[node] for node in members] for members in _select_part(part, work, log)]
    return sorted(subgraphs, key=min)


def _select_part(part: Digraph, work: Work, log: SelectionLog) -> list[list[int]]:
    log.begin_part(part, *LITERAL)
    try:
        if len(part) > MOST_NODES and len(set(part.device_of_position)) > 1:
            raise TooMuchWorkError
        subgraphs: list[list[int]] = []
        for turn in take_turns(part, work, log):
            subgraphs += turn
            sources = find_sources(part, subgraphs)
            if len(order_by_producers(sources)) < len(sources):
                log.restart_part(part, *CONTRACTED)
                return [members for turn in take_turns(part, work, log, contracts=True) for members in turn]
    except TooMuchWorkError:
        log.restart_part(part, *LEVELS)
        return fuse_levels(part)
    return subgraphs


def select_literally(graph: Digraph, log: SelectionLog) -> list[list[int]]:
    """Returns the subgraphs of the policy LITERAL as positions, at any size.

    Each subgraph is sound alone. Raises: AffinityError if subgraphs depend on each other in a circle; it names the nodes of the circle.
    """
    subgraphs = []
    for positions, part in split_components(graph):
        log.begin_part(part, *LITERAL)
        selected = [members for turn in take_turns(part, Work(math.inf), log) for members in turn]
        subgraphs += [[positions[node] for node in members] for members in selected]
    sources = find_sources(graph, subgraphs)
    order = order_by_producers(sources)
    if len(order) < len(sources):
        circle = " -> ".join(_show_part(graph, subgraphs[number], log) for number in find_cycle(sources, order))
        raise AffinityError(
            f"the policy LITERAL gives subgraphs that wait for each other: {circle}. The procedure looks at each subgraph alone; "
            "LARGEST_FIRST, the default, follows it and keeps the whole plan without circles"
        )
    return sorted(subgraphs, key=min)


def _show_part(graph: Digraph, part: Sequence[int], log: SelectionLog) -> str:
    shown = [log.name(graph.index_of_position[position]) for position in sorted(part)[:_MOST_NODES_SHOWN]]
    more = [f"and {len(part) - len(shown)} more"] if len(part) > len(shown) else []
    return f"{{{', '.join([*shown, *more])}}} on {graph.priorities[graph.device_of_position[part[0]]]}"


class TooMuchWorkError(Exception):
    """The procedure needs more steps than its work allows."""


class Work:
    """The steps that the procedure may still take, weighted by the length of the integers. It counts steps, not seconds, so that
    every run decides alike."""

    def __init__(self, limit: float) -> None:
        self.remaining = limit

    def spend(self, steps: int, bits: int) -> None:
        """Counts the steps. Raises: TooMuchWorkError if no steps are left."""
        self.remaining -= steps * (BITS_PER_STEP + bits)
        if self.remaining < 0:
            raise TooMuchWorkError


def take_turns(graph: Digraph, work: Work, log: SelectionLog, *, contracts: bool = False) -> Iterator[list[list[int]]]:
    """Yields the subgraphs of each device of a connected graph as positions, in the order in which they were taken.

    With `contracts`, a subgraph that was taken counts as a single node from then on: a path that enters it anywhere leaves it anywhere.
    Raises: TooMuchWorkError.
    """
    if len(set(graph.device_of_position)) == 1:
        log.note("All of them are on one device: one subgraph")
        yield [list(range(len(graph)))]
        return
    work.spend(len(graph), len(graph))
    paths = read_paths(graph)
    for device in range(len(graph.priorities)):
        free = join_bits([node for node, rank in enumerate(graph.device_of_position) if rank == device])
        if free:
            log.note(f"Device {graph.priorities[device]}")
            yield list(_take_subgraphs(paths, free, work, log, contracts=contracts))


@dataclass(frozen=True)
class Paths:
    """For every node its consumers and then its producers, and the bits of its ancestors and of its descendants."""

    neighbours: list[tuple[int, ...]]
    reached_by: list[int]
    reaches: list[int]

    def contract(self, members: Sequence[int]) -> int:
        """Makes paths that enter the members anywhere leave them anywhere. Returns the number of nodes that it visited."""
        before, behind = self.span(members)
        before, behind = before | join_bits(members), behind | join_bits(members)
        above, below = list_bits(before), list_bits(behind)
        for node in above:
            self.reaches[node] |= behind
        for node in below:
            self.reached_by[node] |= before
        return len(members) + len(above) + len(below)

    def span(self, nodes: Sequence[int]) -> tuple[int, int]:
        """Returns the bits of the ancestors and of the descendants of these nodes."""
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


@dataclass
class _Candidate:
    """A grown candidate: its members, their bits, and the bits of all free nodes that its growth tried.

    `before` and `behind` are the bits of the ancestors and of the descendants of tried nodes.
    """

    members: list[int]
    inside: int
    tried: int
    before: int
    behind: int

    def is_crossed(self, paths: Paths, subgraph: _Candidate) -> bool:
        """Says whether a path between tried nodes enters a contracted subgraph; if not, the paths through it are noted."""
        if self.before & subgraph.inside and self.behind & subgraph.inside:
            return True
        if self.before & subgraph.inside:
            self.before |= paths.reached_by[subgraph.members[0]]
        if self.behind & subgraph.inside:
            self.behind |= paths.reaches[subgraph.members[0]]
        return False


def _take_subgraphs(paths: Paths, free: int, work: Work, log: SelectionLog, *, contracts: bool) -> Iterator[list[int]]:
    """Yields the largest candidate of each round, the first of several, until no node of a device is free; `free` holds their bits.

    The roots of a round are the free nodes that no candidate of an earlier root holds.
    """
    size = len(paths.reaches)
    grown: dict[int, _Candidate] = {}
    roots: list[int] = []
    while free:
        uncovered = 0 if roots else free
        while uncovered:
            root = (uncovered & -uncovered).bit_length() - 1
            if root not in grown:
                note = log.begin_walk(list_bits(uncovered)) if log.traces else None
                members, tried, steps = grow(paths, free, root, note)
                log.end_walk()
                work.spend(steps, size)
                before, behind = paths.span(tried) if contracts else (0, 0)
                grown[root] = _Candidate(members, join_bits(members), join_bits(tried), before, behind)
            roots.append(root)
            uncovered &= ~grown[root].inside
        largest = max(roots, key=lambda root: len(grown[root].members))
        subgraph = grown[largest]
        free &= ~subgraph.inside
        if log.traces:
            log.end_round([grown[root].members for root in roots], subgraph.members, list_bits(free))
        changed = [root for root, candidate in grown.items() if candidate.tried & subgraph.inside]
        if contracts and len(subgraph.members) > 1:
            work.spend(paths.contract(subgraph.members), size)
            changed += [root for root in grown.keys() - changed if grown[root].is_crossed(paths, subgraph)]
        work.spend(len(grown) // 8, size)
        for root in changed:
            del grown[root]
        # If no other candidate changed, the rest of the round stays as it is.
        roots = [root for root in roots if root != largest] if changed == [largest] else []
        yield subgraph.members


def grow(paths: Paths, free: int, root: int, note: Note | None = None) -> tuple[list[int], list[int], int]:
    """Returns the members that are left when no adjacent node is, all free nodes that were tried, and the number of steps.

    Each step is given to `note`. The newest member is asked first for an adjacent node, its consumers before its producers, both by
    position. `asked` holds the places in `members` of nodes that may still have an adjacent node, with an iterator over their
    neighbours.
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
        is_free = free >> node & 1
        if is_free:
            members.append(node)
            tried.append(node)
            behind.append(behind[-1] | reaches[node])
            before.append(before[-1] | reached_by[node])
            asked.append((len(members) - 1, iter(neighbours[node])))
        else:
            rejected |= 1 << node
        if note is not None:
            note("merge" if is_free else "failed merge", node, members, rejected, behind[-1] & before[-1])
        while rejected & behind[-1] & before[-1]:
            # A path leaves and returns through a rejected node.
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
