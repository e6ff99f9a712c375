"""What libraries of arrays do differently: elements are assigned here and nowhere else, so that arrays that cannot change work, too.

NumPy and CuPy change an array in place; an array of JAX has `at`, which returns a new one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero_core.kernels.precision import Array, Namespace

_METHODS = {"add": "add", "multiply": "multiply", "maximum": "max", "minimum": "min"}
"""A function of two arrays -> the method of `at` that does the same."""


def assign(array: Array, places: Any, values: Any) -> Array:
    """Returns the array with the values at these places: the same array, changed, or a new one if it cannot change."""
    if hasattr(type(array), "at"):
        return array.at[places].set(values)
    array[places] = values
    return array


def bring(xp: Namespace, array: Any, dtype: Any) -> Array:
    """Returns an array of the host in the library's memory; NumPy takes it as it is, which costs nothing."""
    return xp.asarray(array, dtype=dtype) if xp is np else xp.asarray(array.tolist(), dtype=dtype).reshape(array.shape)


def add_at(xp: Namespace, array: Array, places: Any, values: Any) -> Array:
    """Returns the array with the values added at these places, none of which is repeated: the same array, changed, if it can change."""
    elements = array[places]
    return assign(array, places, xp.add(elements, values, **reuse(elements)))


def combine(xp: Namespace, array: Array, places: Any, values: Any, function: str) -> Array:
    """Returns the array with the values combined with the elements at these places, one after another if a place is repeated.

    function: add, multiply, maximum or minimum. The array is changed, or a new one is returned if it cannot change.
    """
    if hasattr(type(array), "at"):
        return getattr(array.at[places], _METHODS[function])(values)
    getattr(xp, function).at(array, places, values)
    return array


def require_within(indices: Array, size: int) -> Array:
    """Returns the indices. Raises: IndexError for one outside of an axis of this size, which JAX alone would clamp or answer by NaN."""
    if hasattr(type(indices), "at") and bool(((indices < -size) | (indices >= size)).any()):
        raise IndexError(f"an index is outside of an axis of {size}")
    return indices


def take(xp: Namespace, x: Array, indices: Array, axis: int) -> Array:
    """Returns `xp.take(x, indices, axis=axis)`; NumPy's function takes four times as long as its method for few elements."""
    return x.take(indices, axis=axis) if xp is np else xp.take(x, indices, axis=axis)


def reuse(array: Array) -> dict[str, Array]:
    """Returns the keyword with which a function writes its result into this array of its caller; none if the array cannot change."""
    return {} if hasattr(type(array), "at") or not array.ndim else {"out": array}


def lay_out(xp: Namespace, array: Array) -> Array:
    """Returns the array C-contiguous; copies only what is not. An array without strides is returned as it is."""
    flags = getattr(array, "flags", None)
    return array if flags is None or flags.c_contiguous else xp.ascontiguousarray(array)
