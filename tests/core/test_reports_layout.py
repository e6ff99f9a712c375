"""Layout: boxes do not overlap, lines connect their boxes, edges lead downwards."""

from __future__ import annotations

import itertools
import random

import pytest

from hetero_core.reports.layout import DrawingLayout, arrange_layers, lay_out

Edges = list[tuple[int, int]]

CASES: dict[str, tuple[int, Edges]] = {
    "nothing": (0, []),
    "one box": (1, []),
    "boxes without edges": (5, []),
    "chain": (4, [(0, 1), (1, 2), (2, 3)]),
    "diamond": (4, [(0, 1), (0, 2), (1, 3), (2, 3)]),
    "edge that passes rows": (4, [(0, 1), (1, 2), (2, 3), (0, 3)]),
    "edge that is there twice": (2, [(0, 1), (0, 1)]),
    "long chain with shortcuts": (300, [*itertools.pairwise(range(300)), *((i, i + 7) for i in range(0, 290, 9))]),
    "wide": (102, [*((0, i) for i in range(1, 101)), *((i, 101) for i in range(1, 101))]),
}


def make_random_edges(seed: int, count: int) -> Edges:
    generator = random.Random(seed)
    return sorted({(generator.randrange(max(0, i - 15), i), i) for i in range(1, count) for _ in range(2)})


CASES |= {f"random {seed}": (60, make_random_edges(seed, 60)) for seed in range(5)}


def arrange(case: str) -> tuple[list[tuple[float, float]], Edges, DrawingLayout]:
    count, edges = CASES[case]
    sizes = [(100.0 + 13 * (i % 5), 40.0 + 9 * (i % 3)) for i in range(count)]
    return sizes, edges, lay_out(sizes, edges)


@pytest.mark.parametrize("case", CASES)
def test_boxes_lie_inside_and_do_not_overlap(case: str) -> None:
    sizes, _, layout = arrange(case)
    areas = [(x, y, x + width, y + height) for (x, y), (width, height) in zip(layout.corners, sizes, strict=True)]
    assert all(left >= 0 and top >= 0 and right <= layout.width and low <= layout.height for left, top, right, low in areas)
    touching = [(a, b) for a, b in itertools.combinations(areas, 2) if a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]]
    assert touching == []


@pytest.mark.parametrize("case", CASES)
def test_line_begins_below_its_source_and_ends_above_its_target(case: str) -> None:
    sizes, edges, layout = arrange(case)
    for (source, target), route in zip(edges, layout.routes, strict=True):
        (left, top), (width, height) = layout.corners[source], sizes[source]
        assert left <= route[0][0] <= left + width
        assert route[0][1] == pytest.approx(top + height)
        (left, top), (width, _) = layout.corners[target], sizes[target]
        assert left <= route[-1][0] <= left + width
        assert route[-1][1] == pytest.approx(top)
        assert all(0 <= x <= layout.width and 0 <= y <= layout.height for x, y in route)


@pytest.mark.parametrize("case", CASES)
def test_rows_descend_along_every_edge(case: str) -> None:
    count, edges = CASES[case]
    layers = arrange_layers(count, edges)
    assert all(layers.row_of_place[source] < layers.row_of_place[target] for source, target in edges)
    for chain in layers.chains:
        rows = [layers.row_of_place[place] for place in chain]
        assert rows == list(range(rows[0], rows[-1] + 1))


def test_input_stands_right_above_its_first_reader() -> None:
    layers = arrange_layers(5, [(0, 1), (1, 2), (2, 3), (4, 3)])
    assert layers.row_of_place == [0, 1, 2, 3, 2]


def test_crossings_that_an_order_can_avoid_are_avoided() -> None:
    layout = lay_out([(50.0, 20.0)] * 4, [(0, 3), (1, 2)])
    x = [corner[0] for corner in layout.corners]
    assert (x[0] < x[1]) == (x[3] < x[2])


def test_many_long_edges_are_drawn_straight() -> None:
    count = 400
    edges = [*itertools.pairwise(range(count)), *((i, j) for i in range(0, 200, 2) for j in (count - 1, count - 2))]
    layers = arrange_layers(count, edges)
    assert len(layers.row_of_place) <= 20_000 + count
