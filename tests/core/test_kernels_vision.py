"""Boxes and regions against the standard's formulas, written as plain loops."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from hetero_core.kernels.operators import vision


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
