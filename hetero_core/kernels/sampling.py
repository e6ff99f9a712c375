"""Reading a tensor at fractional positions: what GridSample and DeformConv share.

Positions are arrays of one shape, one per spatial axis, counted in elements; values between elements are weighted sums of their
neighbours.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import prod

import numpy as np

from hetero_core.kernels.precision import Array, Namespace

Resolve = Callable[[Array, int], tuple[Array, Array | None]]
"""(integer positions, axis) -> (positions inside the axis, where the element counts; None for everywhere)."""


def count_inside(xp: Namespace, sizes: tuple[int, ...]) -> Resolve:
    """Returns a `Resolve` function with which positions outside of the tensor read zero."""

    def resolve(positions: Array, axis: int) -> tuple[Array, Array]:
        inside = (positions >= 0) & (positions < sizes[axis])
        return xp.clip(positions, 0, sizes[axis] - 1), inside

    return resolve


def read_elements(xp: Namespace, x: Array, positions: tuple[Array, ...], resolve: Resolve) -> Array:
    """Returns x (batch, channels, *sizes) at integer positions (batch, points) of each axis, as (batch, channels, points)."""
    batch, channels = x.shape[:2]
    flat = counted = None
    for axis, raw in enumerate(positions):
        inside, mask = resolve(raw, axis)
        flat = inside if flat is None else flat * x.shape[2 + axis] + inside
        if mask is not None:
            counted = mask if counted is None else counted & mask
    assert flat is not None
    batches = xp.arange(batch).reshape((-1, 1, 1))
    values = x.reshape((batch, channels, prod(x.shape[2:])))[batches, xp.arange(channels).reshape((1, -1, 1)), flat[:, None]]
    return values if counted is None else xp.where(counted[:, None], values, values.dtype.type(0))


def interpolate(
    xp: Namespace, x: Array, coordinates: tuple[Array, ...], resolve: Resolve, weigh: Callable[[Array], list[tuple[int, Array]]]
) -> Array:
    """Returns x at fractional coordinates (batch, points), as (batch, channels, points).

    `weigh(fraction)` gives the taps of one axis: offsets from the element below, with their weights.
    """
    floors = [xp.floor(coordinate) for coordinate in coordinates]
    taps = [weigh(coordinate - floor) for coordinate, floor in zip(coordinates, floors, strict=True)]
    bases = [floor.astype(np.int64) for floor in floors]
    total = None
    for choice in product(*taps):
        weight = choice[0][1]
        for _, more in choice[1:]:
            weight = weight * more
        places = tuple(base + offset for base, (offset, _) in zip(bases, choice, strict=True))
        part = read_elements(xp, x, places, resolve) * weight[:, None].astype(x.dtype)
        total = part if total is None else total + part
    return total


def weigh_linear(fraction: Array) -> list[tuple[int, Array]]:
    """Returns the two neighbours and their weights."""
    return [(0, 1 - fraction), (1, fraction)]


def weigh_cubic(fraction: Array) -> list[tuple[int, Array]]:
    """Returns four neighbours weighted by Keys' cubic with a = -0.75. Source: Keys 1981, equation 4."""
    a = -0.75
    taps = []
    for offset in (-1, 0, 1, 2):
        distance = abs(offset - fraction)
        if offset in (0, 1):
            weight = ((a + 2) * distance - (a + 3)) * distance * distance + 1
        else:
            weight = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
        taps.append((offset, weight))
    return taps
