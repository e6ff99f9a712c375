"""Kernels that compute in blocks or by products of matrices, with sizes beyond those of ONNX's cases, against plain loops and NumPy."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from hetero_core.kernels.operators import layout, vision


@pytest.mark.parametrize("limit", [0, 3, 1000])
@pytest.mark.parametrize("count", [0, 1, 127, 128, 129, 300])
def test_chosen_boxes_are_those_of_a_greedy_loop(count: int, limit: int) -> None:
    rng = np.random.default_rng(count)
    corners = rng.integers(0, 40, (2, count, 2))
    boxes = np.concatenate([corners, corners + rng.integers(0, 12, (2, count, 2))], axis=2)
    scores = rng.integers(0, 50, (2, 3, count)) / np.float32(64)

    def overlap(first: list[int], second: list[int]) -> Fraction:
        sides = [max(min(first[k + 2], second[k + 2]) - max(first[k], second[k]), 0) for k in (0, 1)]
        areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (first, second)]
        shared = sides[0] * sides[1]
        return Fraction(shared, sum(areas) - shared) if shared else Fraction(0)

    expected = []
    for batch in range(2):
        for label in range(3):
            chosen: list[int] = []
            points = scores[batch, label].tolist()
            for box in sorted((box for box in range(count) if points[box] > 0.25), key=lambda box: (-points[box], box)):
                rivals = [overlap(boxes[batch, other].tolist(), boxes[batch, box].tolist()) for other in chosen]
                if len(chosen) < limit and all(rival <= Fraction(1, 4) for rival in rivals):
                    chosen.append(box)
            expected += [(batch, label, box) for box in chosen]
    numbers = np.array([limit]), np.array([0.25], np.float32), np.array([0.25], np.float32)
    actual = vision.non_max_suppression(np, boxes.astype(np.float32), scores, *numbers)
    assert (actual.dtype, actual.shape) == (np.int64, (len(expected), 3))
    assert actual.tolist() == [list(row) for row in expected]


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("shape", [(0, 70), (64, 64), (2, 65, 200), (1, 2, 200, 65), (130, 1)])
def test_triangles_equal_numpy(shape: tuple[int, ...], upper: int) -> None:
    x = np.random.default_rng(0).integers(1, 100, shape)
    for offset in (-300, -64, -1, 0, 3, 65, 300):
        expected = (np.triu if upper else np.tril)(x, offset)
        np.testing.assert_array_equal(layout.trilu(np, x, np.array(offset), upper=upper), expected, str(offset))


@pytest.mark.parametrize("special", [0.0, np.inf, np.nan])
def test_mean_of_a_region_reads_its_samples_alone(special: float) -> None:
    x = np.random.default_rng(0).standard_normal((1, 2, 9, 9))
    x[0, 1, 4, 4] = special
    rois = np.array([[0.5, 0.5, 8.5, 8.5], [2, 1, 3.5, 7]])
    y = vision.roi_align(np, x, rois, np.zeros(2, np.int64), output_height=4, output_width=3, sampling_ratio=2)

    def sample(channel: int, row: float, column: float) -> float:
        top, left = int(row), int(column)
        corners = [(i, j, (1 - abs(row - i)) * (1 - abs(column - j))) for i in (top, top + 1) for j in (left, left + 1)]
        return float(sum(weight * x[0, channel, min(i, 8), min(j, 8)] for i, j, weight in corners))

    for region, (left, top, right, bottom) in enumerate(rois.tolist()):
        for channel, row, column in np.ndindex(2, 4, 3):
            rows = [top - 0.5 + (row + part) * (bottom - top) / 4 for part in (0.25, 0.75)]
            columns = [left - 0.5 + (column + part) * (right - left) / 3 for part in (0.25, 0.75)]
            with np.errstate(invalid="ignore"):
                expected = sum(sample(channel, i, j) for i in rows for j in columns) / 4
            np.testing.assert_allclose(y[region, channel, row, column], expected, atol=1e-12)
