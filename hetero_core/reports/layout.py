"""Layout of a drawing: coordinates of boxes and of the lines between them, from `layers`.

Pure functions on numbers; lengths are pixels, y grows downwards. A tall drawing is folded: it goes on at the top of a next column.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from hetero_core.reports.layers import Layers, arrange_layers

Point = tuple[float, float]

_GAP_X, _GAP_Y, _MARGIN = 28.0, 52.0, 24.0
_BEND_WIDTH = 6.0
_LANE = 6.0
"""Between lines side by side on their way to the next column."""
_GUTTER = 56.0
_SWEEPS = 8
_SHAPE = 1.5
"""Width to height that folding aims at."""


@dataclass(frozen=True, slots=True)
class DrawingLayout:
    """Corners (left, top) of the boxes, and for each edge the points of its line; between two points of different x and y it bends."""

    width: float
    height: float
    corners: tuple[Point, ...]
    routes: tuple[tuple[Point, ...], ...]


@dataclass(slots=True)
class _Grid:
    """Centres, tops and bottoms of places, the column of each row, and where each column begins and ends."""

    x: list[float]
    top: list[float]
    bottom: list[float]
    column_of_row: list[int]
    right_of_column: list[float]


def lay_out(sizes: Sequence[tuple[float, float]], edges: Sequence[tuple[int, int]]) -> DrawingLayout:
    """Returns the layout of boxes of these sizes (width, height) and of the edges between them, which must form no cycle.

    Cost: near-linear in boxes, edges and the rows that edges pass.
    """
    layers = arrange_layers(len(sizes), edges)
    widths = [width for width, _ in sizes] + [_BEND_WIDTH] * (len(layers.row_of_place) - len(sizes))
    x = _place_sideways(layers, widths)
    grid = _place_rows(layers, sizes, widths, x)
    routes = _route_edges(layers, grid, widths)
    # Lines to the next column arrive from above it, one above the other: the drawing begins at the highest of them.
    lift = max(_MARGIN - min((y for route in routes for _, y in route), default=_MARGIN), 0.0)
    corners = tuple((grid.x[box] - width / 2, grid.top[box] + lift) for box, (width, _) in enumerate(sizes))
    routes = tuple(tuple((x, y + lift) for x, y in route) for route in routes)
    ends = [(left + width, top + height) for (left, top), (width, height) in zip(corners, sizes, strict=True)]
    ends += [point for route in routes for point in route]
    return DrawingLayout(
        max((x for x, _ in ends), default=0.0) + _MARGIN, max((y for _, y in ends), default=0.0) + _MARGIN, corners, routes
    )


def _place_sideways(layers: Layers, widths: Sequence[float]) -> list[float]:
    """Returns the centre of each place: near the mean of its neighbours, in the order of its row and without overlap."""
    x = [0.0] * len(widths)
    for row in layers.rows:
        for place, centre in zip(row, _spread([0.0] * len(row), row, widths), strict=True):
            x[place] = centre
    for sweep in range(_SWEEPS):
        for row in layers.rows if sweep % 2 == 0 else reversed(layers.rows):
            sides = (layers.above, layers.below) if sweep >= _SWEEPS - 2 else (layers.above if sweep % 2 == 0 else layers.below,)
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


def _place_rows(layers: Layers, sizes: Sequence[tuple[float, float]], widths: Sequence[float], x: list[float]) -> _Grid:
    """Returns places in columns of rows, as many as give the drawing a shape that fits a screen."""
    heights = [max((sizes[place][1] for place in row if place < len(sizes)), default=0.0) for row in layers.rows]
    edges = [
        (min(x[place] - widths[place] / 2 for place in row), max(x[place] + widths[place] / 2 for place in row))
        for row in layers.rows
    ]
    total = sum(heights) + _GAP_Y * len(heights)
    widest = max((right - left for left, right in edges), default=0.0) + _GUTTER
    limit = max(total / max(math.floor(math.sqrt(total * _SHAPE / widest)), 1), 900.0) if total else 0.0
    column_of_row, top_of_row = [], []
    column, y = 0, _MARGIN
    for height in heights:
        if y > _MARGIN and y + height > limit + _MARGIN:
            column, y = column + 1, _MARGIN
        column_of_row.append(column)
        top_of_row.append(y)
        y += height + _GAP_Y
    return _shift_columns(layers, _Bands(heights, edges, column_of_row, top_of_row), sizes, x)


@dataclass(frozen=True, slots=True)
class _Bands:
    """The rows of a drawing: the height of each, its left and right ends, its column and its top."""

    heights: Sequence[float]
    edges: Sequence[tuple[float, float]]
    column_of_row: list[int]
    top_of_row: Sequence[float]


def _shift_columns(layers: Layers, bands: _Bands, sizes: Sequence[tuple[float, float]], x: list[float]) -> _Grid:
    """Moves each column to the right of the one before; a bend takes the height of its row."""
    left_of_column, right_of_column = [], []
    shift_of_column = []
    start = _MARGIN
    for column in range(max(bands.column_of_row, default=-1) + 1):
        rows = [row for row, own in enumerate(bands.column_of_row) if own == column]
        left, right = min(bands.edges[row][0] for row in rows), max(bands.edges[row][1] for row in rows)
        crossing = sum(len(layers.below[place]) for place in layers.rows[rows[-1]])
        shift_of_column.append(start - left)
        left_of_column.append(start)
        right_of_column.append(start + right - left)
        start += right - left + _GUTTER + _LANE * crossing
    grid = _Grid([], [], [], bands.column_of_row, right_of_column)
    for place, row in enumerate(layers.row_of_place):
        height = sizes[place][1] if place < len(sizes) else bands.heights[row]
        top = bands.top_of_row[row] + (bands.heights[row] - height) / 2
        grid.x.append(x[place] + shift_of_column[bands.column_of_row[row]])
        grid.top.append(top)
        grid.bottom.append(top + height)
    return grid


def _route_edges(layers: Layers, grid: _Grid, widths: Sequence[float]) -> tuple[tuple[Point, ...], ...]:
    """Returns the points of each edge's line. Lines that change the column go through the gutter, side by side."""
    steps = list(dict.fromkeys(pair for chain in layers.chains for pair in pairwise(chain)))
    leave = _find_ports(steps, grid, widths, is_leaving=True)
    enter = _find_ports(steps, grid, widths, is_leaving=False)
    lanes: dict[int, int] = {}
    line_of_step: dict[tuple[int, int], tuple[Point, ...]] = {}
    for step in steps:
        source, target = step
        begin, end = (leave[step], grid.bottom[source]), (enter[step], grid.top[target])
        columns = tuple(grid.column_of_row[layers.row_of_place[place]] for place in step)
        if columns[0] == columns[1]:
            line_of_step[step] = (begin, end)
            continue
        lane = lanes[columns[0]] = lanes.get(columns[0], -1) + 1
        gutter = grid.right_of_column[columns[0]] + _GUTTER / 2 + _LANE * lane
        low, high = begin[1] + 14 + _LANE * lane, end[1] - 14 - _LANE * lane
        line_of_step[step] = (begin, (begin[0], low), (gutter, low), (gutter, high), (end[0], high), end)
    return tuple(tuple(point for pair in pairwise(chain) for point in line_of_step[pair]) for chain in layers.chains)


def _find_ports(
    steps: Sequence[tuple[int, int]], grid: _Grid, widths: Sequence[float], *, is_leaving: bool
) -> dict[tuple[int, int], float]:
    """Returns where each step leaves or enters its place: side by side, in the order of the other ends."""
    of_place: dict[int, list[tuple[int, int]]] = {}
    for step in steps:
        of_place.setdefault(step[0 if is_leaving else 1], []).append(step)
    ports = {}
    for place, own in of_place.items():
        own.sort(key=lambda step: grid.x[step[1 if is_leaving else 0]])
        distance = min(18.0, widths[place] / (len(own) + 1)) if widths[place] > _BEND_WIDTH else 0.0
        for number, step in enumerate(own):
            ports[step] = grid.x[place] + (number - (len(own) - 1) / 2) * distance
    return ports
