"""One step of each optimizer against its formula in float64, with several tensors at once, and what makes no step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_core.kernels.operators import training
from hetero_core.testing.compare import assert_same

Array = np.ndarray[Any, Any]
RATE = np.array(0.1, np.float32)
SEEDS = st.integers(0, 2**32 - 1)


def draw(seed: int, kinds: int, count: int) -> list[list[Array]]:
    """Returns kind -> tensors of two shapes and more; states, the later kinds, are not negative."""
    random = np.random.default_rng(seed)
    shapes = [(3,), (2, 2), ()][:count]
    return [[abs(random.standard_normal(shape)).astype(np.float32) + (kind > 1) for shape in shapes] for kind in range(kinds)]


@settings(deadline=None, max_examples=20)
@given(SEEDS, st.integers(1, 3), st.integers(0, 5), st.sampled_from([0.0, 0.1]))
def test_adam(seed: int, count: int, steps: int, norm: float) -> None:
    xs, gs, vs, hs = draw(seed, 4, count)
    found = training.adam(np, RATE, np.array(steps), *xs, *gs, *vs, *hs, norm_coefficient=norm, norm_coefficient_post=norm)
    for index, (x, g, v, h) in enumerate(zip(xs, gs, vs, hs, strict=True)):
        regularized = norm * x.astype(np.float64) + g
        mean, square = 0.9 * v + 0.1 * regularized, 0.999 * h + 0.001 * regularized**2
        rate = 0.1 * np.sqrt(1 - 0.999**steps) / (1 - 0.9**steps) if steps else 0.1
        moved = (1 - norm) * (x - rate * mean / (np.sqrt(square) + 1e-6))
        for place, wanted in enumerate((moved, mean, square)):
            assert_same(found[index + place * count], np.asarray(wanted, np.float32))


@settings(deadline=None, max_examples=20)
@given(SEEDS, st.integers(1, 3), st.integers(0, 5))
def test_adagrad(seed: int, count: int, steps: int) -> None:
    xs, gs, hs = draw(seed, 3, count)
    found = training.adagrad(np, RATE, np.array(steps), *xs, *gs, *hs, decay_factor=0.5)
    for index, (x, g, h) in enumerate(zip(xs, gs, hs, strict=True)):
        total = h + g.astype(np.float64) ** 2
        assert_same(found[index], np.asarray(x - 0.1 / (1 + 0.5 * steps) * g / (np.sqrt(total) + 1e-6), np.float32))
        assert_same(found[index + count], np.asarray(total, np.float32))


@settings(deadline=None, max_examples=20)
@given(SEEDS, st.integers(1, 3), st.integers(0, 2), st.sampled_from(["standard", "nesterov"]))
def test_momentum(seed: int, count: int, steps: int, mode: str) -> None:
    xs, gs, vs = draw(seed, 3, count)
    found = training.momentum(np, RATE, np.array(steps), *xs, *gs, *vs, alpha=0.9, beta=0.5, mode=mode, norm_coefficient=0.25)
    for index, (x, g, v) in enumerate(zip(xs, gs, vs, strict=True)):
        regularized = 0.25 * x.astype(np.float64) + g
        # The first gradient counts in full.
        velocity = 0.9 * v + (0.5 if steps else 1.0) * regularized
        direction = regularized + 0.9 * velocity if mode == "nesterov" else velocity
        assert_same(found[index], np.asarray(x - 0.1 * direction, np.float32))
        assert_same(found[index + count], np.asarray(velocity, np.float32))


def test_tensors_without_their_states_are_an_error() -> None:
    x = np.ones(2, np.float32)
    with pytest.raises(ValueError, match="2 tensors are given; expected a multiple of 3: tensors, gradients and states"):
        training.adagrad(np, RATE, np.array(0), x, x)
