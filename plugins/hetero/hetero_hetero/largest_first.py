"""Policy LARGEST_FIRST: the procedure to the letter, and a plan without circles at any size.

A part of the graph whose subgraphs would wait for each other is selected again, and there a taken subgraph counts as a single node. A
part that needs more steps than there are is selected by levels.
"""

from __future__ import annotations

from hetero_hetero.digraph import Digraph, has_circle, split_components
from hetero_hetero.levels import fuse_levels
from hetero_hetero.literal import TooMuchWorkError, Work, take_turns
from hetero_hetero.trace import CONTRACTED, LEVELS, LITERAL, SelectionLog

MOST_WORK = 4_000_000_000
"""The work for the steps of a whole graph, about a second. The smallest parts come first."""

MOST_NODES = 16_384
"""The most nodes of a part for which a bit for each pair of nodes is held, twice: 70 MB."""


def select_largest_first(graph: Digraph, log: SelectionLog) -> list[list[int]]:
    """Returns the subgraphs as positions: those of LITERAL for each part of the graph in which they do not wait for each other."""
    work = Work(MOST_WORK)
    subgraphs = []
    for positions, part in split_components(graph):
        subgraphs += [[positions[node] for node in members] for members in _select_part(part, work, log)]
    return sorted(subgraphs, key=min)


def _select_part(part: Digraph, work: Work, log: SelectionLog) -> list[list[int]]:
    log.begin_part(part, LITERAL)
    try:
        if len(part) > MOST_NODES and len(set(part.device_of_position)) > 1:
            raise TooMuchWorkError
        subgraphs: list[list[int]] = []
        for taken in take_turns(part, work, log):
            subgraphs += taken
            if has_circle(part, subgraphs):
                log.restart_part(part, CONTRACTED)
                return [members for turn in take_turns(part, work, log, contracts=True) for members in turn]
    except TooMuchWorkError:
        log.restart_part(part, LEVELS)
        return fuse_levels(part)
    return subgraphs
