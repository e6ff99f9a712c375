"""Working memory of a step, cut into float32 arrays."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from hetero_cpu.planning.arena import align
from hetero_cpu.planning.recipe import Array

Shape = tuple[int, ...]


def measure_scratch(shapes: Sequence[Shape]) -> int:
    """Returns the bytes that arrays of these shapes take."""
    return sum(align(prod(shape) * 4) for shape in shapes)


def cut_scratch(scratch: Array, shapes: Sequence[Shape]) -> list[Array]:
    """Returns float32 arrays of these shapes, side by side in `scratch`."""
    arrays, begin = [], 0
    for shape in shapes:
        nbytes = prod(shape) * 4
        arrays.append(scratch[begin : begin + nbytes].view(np.float32).reshape(shape))
        begin += align(nbytes)
    return arrays
