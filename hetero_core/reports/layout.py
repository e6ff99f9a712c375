"""Layout of a drawing: the row of each box, its place from left to right, and the lines between boxes.

Pure functions on numbers; lengths are pixels, y grows downwards. Edges that pass rows get a bend in each of them, so that boxes make room.
Source: Sugiyama, Tagawa & Toda 1981, Methods for visual understanding of hierarchical system structures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

Point = tuple[float, float]

_GAP_X, _GAP_Y, _MARGIN = 28.0, 52.0, 24.0
_BEND_WIDTH = 6.0
_PLACE_SWEEPS = 8
_ORDER_SWEEPS = 6
_MOST_BENDS = 20_000
"""Edges beyond are drawn straight from box to box: no drawing of that size is read edge by edge."""


@dataclass(frozen=True, slots=True)
class DrawingLayout:
    """Corners (left, top) of the boxes, and for each edge the points of its line; between two points of different x and y it bends."""

    width: float
    height: float
    corners: tuple[Point, ...]
    routes: tuple[tuple[Point, ...], ...]


def lay_out(sizes: Sequence[tuple[float, float]], edges: Sequence[tuple[int, int]]) -> DrawingLayout:
    """Returns the layout of boxes of these sizes (width, height) and of the edges between them, which must form no cycle.

    Cost: near-linear in boxes, edges and the rows that edges pass.
    """
    layers = arrange_layers(len(sizes), edges)
    widths = [width for width, _ in sizes] + [_BEND_WIDTH] * (len(layers.row_of_place) - len(sizes))
    x = _place_sideways(layers, widths)
    shift = _MARGIN - min((centre - width / 2 for centre, width in zip(x, widths, strict=True)), default=0.0)
    x = [centre + shift for centre in x]
    heights = [max((sizes[place][1] for place in row if place < len(sizes)), default=0.0) for row in layers.rows]
    tops = list(accumulate((height + _GAP_Y for height in heights), initial=_MARGIN))
    # A bend is as high as its row.
    spans = [(tops[row], tops[row] + heights[row]) for row in layers.row_of_place]
    for box, (_, height) in enumerate(sizes):
        middle = sum(spans[box]) / 2
        spans[box] = (middle - height / 2, middle + height / 2)
    routes = [
        tuple(point for a, b in pairwise(chain) for point in ((x[a], spans[a][1]), (x[b], spans[b][0]))) for chain in layers.chains
    ]
    corners = tuple((x[box] - width / 2, spans[box][0]) for box, (width, _) in enumerate(sizes))
    right = max((centre + width / 2 for centre, width in zip(x, widths, strict=True)), default=0.0)
    low = max((bottom for _, bottom in spans), default=0.0)
    return DrawingLayout(right + _MARGIN, low + _MARGIN, corners, tuple(routes))


def _place_sideways(layers: Layers, widths: Sequence[float]) -> list[float]:
    """Returns the centre of each place: near the mean of its neighbours, in the order of its row and without overlap."""
    x = [0.0] * len(widths)
    for row in layers.rows:
        for place, centre in zip(row, _spread([0.0] * len(row), row, widths), strict=True):
            x[place] = centre
    for sweep in range(_PLACE_SWEEPS):
        for row in layers.rows if sweep % 2 == 0 else reversed(layers.rows):
            sides = (
                (layers.above, layers.below) if sweep >= _PLACE_SWEEPS - 2 else (layers.above if sweep % 2 == 0 else layers.below,)
            )
            wishes = []
            for place in row:
                near = [x[other] for side in sides for other in side[place]]
                wishes.append(sum(near) / len(near) if near else x[place])
            for place, centre in zip(row, _spread(wishes, row, widths), strict=True):
                x[place] = centre
    return x


def _spread(wishes: Sequence[float], row: Sequence[int], widths: Sequence[float]) -> list[float]:
    """Returns the centres nearest to the wishes, by least squares, that keep order and distance: pooled adjacent violators."""
    offsets = [0.0]
    for left, right in pairwise(row):
        offsets.append(offsets[-1] + (widths[left] + widths[right]) / 2 + _GAP_X)
    pools: list[tuple[float, int]] = []  # sum of wishes less offsets, and how many
    for wish, offset in zip(wishes, offsets, strict=False):
        pool = (wish - offset, 1)
        while pools and pools[-1][0] / pools[-1][1] > pool[0] / pool[1]:
            before = pools.pop()
            pool = (before[0] + pool[0], before[1] + pool[1])
        pools.append(pool)
    means = [total / count for total, count in pools for _ in range(count)]
    return [mean + offset for mean, offset in zip(means, offsets, strict=False)]


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
    for sweep in range(_ORDER_SWEEPS):
        _order_rows(layers, downwards=sweep % 2 == 0)
    return layers


def _rank(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Returns the row of each box: below all of its producers; a box without producers stands right above its first reader."""
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
