"""Calls of NumPy's functions in the form in which it begins soonest: what it does before the first element costs more than 1000 of them.

On 16 elements an addition takes 0.20 us where its arrays lie alike and its numbers are arrays without axes. It takes 0.31 with a number of
Python's or NumPy's, 0.55 where NumPy has to broadcast, 0.1 more with `out` by name, and 0.14 more where what is read lies under what is
written but is another object: only of the same one NumPy knows without a search that they do not overlap by a part.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from hetero_core.kernels.products import matmul
from hetero_cpu.open.arrays import OpenArray
from hetero_cpu.planning.recipe import Array, Call
from hetero_cpu.shared_products import LEAST_WORK

# NumPy 2.4 warns of a third positional argument of these, which might be meant as a third number to compare.
_OUT_BY_NAME = frozenset({np.maximum, np.minimum})


def make_number(number: Any) -> Array:
    """Returns a number in float32 as an array without axes."""
    return np.array(number, np.float32)


def bind_elements(function: Any, *operands: Array, out: Array) -> Call:
    """Returns the call of a function that works element by element; the operands broadcast to `out`, and may lie over it."""
    *operands_laid, laid = lay_alike(*operands, out)
    operands_laid = [unite(operand, laid) for operand in operands_laid]
    return partial(function, *operands_laid, out=laid) if function in _OUT_BY_NAME else partial(function, *operands_laid, laid)


def bind_product(a: Array, b: Array, y: Any) -> Call:
    """Returns the call of a product of matrices, or of stacks of them."""
    # What has open sizes is bound to arrays later.
    is_plain = (
        not isinstance(y, OpenArray)
        and all(array.ndim == 2 and (array.flags.c_contiguous or array.flags.f_contiguous) for array in (a, b))
        and y.ndim == 2
        and y.flags.c_contiguous
    )
    # The method begins 0.3 us sooner than `matmul`, and shares no work. It would copy what is not dense.
    is_plain = is_plain and a.dtype == b.dtype == y.dtype and a.size * b.shape[1] < LEAST_WORK
    return partial(a.dot, b, y) if is_plain else partial(matmul, a, b, y)


def lay_alike(*arrays: Array) -> tuple[Array, ...]:
    """Returns views: flat, in the order of memory, where all lie alike; what has one element without axes; else as they are.

    The last one is what is written, which the others broadcast to.
    """
    last = arrays[-1]
    bare = tuple(array.reshape(()) if array.size == 1 else array for array in arrays[:-1])
    if any(array.ndim and (array.shape, array.strides) != (last.shape, last.strides) for array in bare):
        return (*bare, last)
    flat = tuple(flatten_memory(array) if array.ndim else array for array in (*bare, last))
    return flat if all(array.ndim <= 1 for array in flat) else (*bare, last)


def unite(array: Array, written: Array) -> Array:
    """Returns the array that is written where the one that is read is the same memory, element for element; else what is read."""
    is_same = array.ctypes.data == written.ctypes.data and array.strides == written.strides
    return written if is_same and array.shape == written.shape and array.dtype == written.dtype else array


def flatten_memory(array: Array) -> Array:
    """Returns the elements in the order in which they lie in memory; the array itself where they do not lie side by side."""
    laid = array.transpose(sorted(range(array.ndim), key=lambda axis: -array.strides[axis]))
    return laid.reshape(-1) if laid.flags.c_contiguous else array
