"""The element type in which a kernel computes: small floats are widened to float32 and rounded once, at the end.

Guarantees that no kernel returns a wider type than ONNX names, and that float16 and bfloat16 sums do not lose their low bits on the
way.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import ml_dtypes
import numpy as np

Array = Any
"""An array of `xp`; a sequence is a list, an absent optional input is None."""
Namespace = Any
"""NumPy, or a library with its functions."""

_SMALL_FLOATS = frozenset(
    np.dtype(kind)
    for kind in (
        np.float16,
        ml_dtypes.bfloat16,
        ml_dtypes.float8_e4m3fn,
        ml_dtypes.float8_e4m3fnuz,
        ml_dtypes.float8_e5m2,
        ml_dtypes.float8_e5m2fnuz,
        ml_dtypes.float8_e8m0fnu,
        ml_dtypes.float4_e2m1fn,
    )
)
_SMALL_INTEGERS = frozenset(np.dtype(kind) for kind in (ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.int2, ml_dtypes.uint2))


def is_small_float(dtype: Any) -> bool:
    """Says whether a NumPy type is a float of less than 32 bits."""
    return dtype in _SMALL_FLOATS


def is_small_integer(dtype: Any) -> bool:
    """Says whether a NumPy type is an integer of less than 8 bits."""
    return dtype in _SMALL_INTEGERS


def is_float(dtype: Any) -> bool:
    """Says whether a NumPy type is a float of any width."""
    return dtype.kind == "f" or dtype in _SMALL_FLOATS


def widen(x: Array) -> Array:
    """Returns a small float array as float32; any other array as it is."""
    return x.astype(np.float32) if x.dtype in _SMALL_FLOATS else x


def narrow(x: Array, dtype: Any) -> Array:
    """Returns the array in `dtype`, the same object when it has it already."""
    return x if x.dtype == dtype else x.astype(dtype)


def integers_of(x: Array | None) -> tuple[int, ...]:
    """Returns the elements of a host array (a shape, axes, pads, ...) as plain integers; () for None."""
    return () if x is None else tuple(int(value) for value in np.asarray(x).reshape(-1))


def normalize_axis(axis: int, rank: int) -> int:
    """Returns a non-negative axis.

    Raises: ValueError when it is outside the rank.
    """
    if not -rank <= axis < max(rank, 1):
        raise ValueError(f"axis {axis} is outside of rank {rank}")
    return axis + rank if axis < 0 else axis


def normalize_axes(axes: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Returns non-negative axes in the given order; raises as `normalize_axis` does."""
    return tuple(normalize_axis(axis, rank) for axis in axes)


def compute_halves(function: Callable[..., Any], outputs: tuple[int, ...]) -> Callable[..., Any]:
    """Returns a kernel that takes float16 for float32 and rounds these of its outputs to it, if any input has that type.

    ONNX Runtime runs an operator that it has in float32 alone between two Casts; this is the same arithmetic.
    """

    @wraps(function)
    def compute(xp: Namespace, *inputs: Any, **attributes: Any) -> Any:
        if not any(getattr(x, "dtype", None) == np.float16 for x in inputs):
            return function(xp, *inputs, **attributes)
        results = function(
            xp, *(x.astype(np.float32) if getattr(x, "dtype", None) == np.float16 else x for x in inputs), **attributes
        )
        if not isinstance(results, tuple):
            return narrow(results, np.float16) if 0 in outputs else results
        return tuple(narrow(x, np.float16) if x is not None and index in outputs else x for index, x in enumerate(results))

    return compute
