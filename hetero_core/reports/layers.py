"""Layers of a drawing: in which row each box stands, and in which order from left to right.

Pure functions on integers. Edges that pass rows get a bend in each of them, so that boxes make room for them.
Source: Sugiyama, Tagawa & Toda 1981, Methods for visual understanding of hierarchical system structures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

_MOST_BENDS = 20_000
"""Edges beyond are drawn straight from box to box: no drawing of that size is read edge by edge."""
_SWEEPS = 6


@dataclass(slots=True)
class Layers:
    """Places in rows: boxes 0, 1, ... and behind them the bends.

    `chains` has for each edge the places on its way, its ends included. `above` and `below` are the neighbours in the next row.
    """

    row_of_place: list[int]
    rows: list[list[int]]
    chains: list[tuple[int, ...]]
    above: list[list[int]] = field(default_factory=list)
    below: list[list[int]] = field(default_factory=list)


def arrange_layers(count: int, edges: Sequence[tuple[int, int]]) -> Layers:
    """Returns boxes and bends in rows, each row in an order that keeps crossings few. Edges must form no cycle."""
    row_of_place = _rank(count, edges)
    chains = _bend_edges(edges, row_of_place)
    rows: list[list[int]] = [[] for _ in range(max(row_of_place, default=-1) + 1)]
    for place, row in enumerate(row_of_place):
        rows[row].append(place)
    layers = Layers(row_of_place, rows, chains)
    layers.above = [[] for _ in row_of_place]
    layers.below = [[] for _ in row_of_place]
    for upper, lower in dict.fromkeys(pair for chain in chains for pair in pairwise(chain)):
        if row_of_place[lower] == row_of_place[upper] + 1:
            layers.below[upper].append(lower)
            layers.above[lower].append(upper)
    for sweep in range(_SWEEPS):
        _order_rows(layers, downwards=sweep % 2 == 0)
    return layers


def _rank(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Returns the row of each box: below all that feed it; what nothing feeds stands right above its first reader."""
    targets: list[list[int]] = [[] for _ in range(count)]
    missing = [0] * count
    for source, target in edges:
        targets[source].append(target)
        missing[target] += 1
    rows = [0] * count
    roots = [box for box in range(count) if not missing[box]]
    ready = list(roots)
    for box in ready:  # grows while it is walked
        for target in targets[box]:
            rows[target] = max(rows[target], rows[box] + 1)
            missing[target] -= 1
            if not missing[target]:
                ready.append(target)
    for box in roots:
        rows[box] = min((rows[target] for target in targets[box]), default=1) - 1
    return rows


def _bend_edges(edges: Sequence[tuple[int, int]], row_of_place: list[int]) -> list[tuple[int, ...]]:
    """Returns the places on the way of each edge; adds the bends to `row_of_place`. Edges of one source share their bends."""
    bend_at: dict[tuple[int, int], int] = {}
    chains: list[tuple[int, ...]] = []
    for source, target in edges:
        between = range(row_of_place[source] + 1, row_of_place[target])
        if len(bend_at) + len(between) > _MOST_BENDS:
            chains.append((source, target))
            continue
        for row in between:
            if (source, row) not in bend_at:
                bend_at[source, row] = len(row_of_place)
                row_of_place.append(row)
        chains.append((source, *(bend_at[source, row] for row in between), target))
    return chains


def _order_rows(layers: Layers, *, downwards: bool) -> None:
    """Sorts each row by the mean position of its places' neighbours in the row before."""
    neighbours = layers.above if downwards else layers.below
    indices = range(1, len(layers.rows)) if downwards else range(len(layers.rows) - 2, -1, -1)
    for index in indices:
        before = layers.rows[index - 1 if downwards else index + 1]
        # Positions are taken from the middle of the row, as rows are of different lengths.
        position = {place: number - (len(before) - 1) / 2 for number, place in enumerate(before)}
        row = layers.rows[index]
        own = {place: number - (len(row) - 1) / 2 for number, place in enumerate(row)}
        mean = {
            place: sum(position[other] for other in neighbours[place]) / len(neighbours[place]) if neighbours[place] else own[place]
            for place in row
        }
        row.sort(key=lambda place: mean[place])
