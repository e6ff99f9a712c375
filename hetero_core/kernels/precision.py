"""The arithmetic of kernels: small floats are widened to float32 and rounded once, at the end; a device may share matrix products
among threads of its own.

Guarantees that no kernel returns a wider type than ONNX names, and that float16 and bfloat16 sums do not lose their low bits on the
way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, Protocol

import numpy as np

Array = Any
"""An array of `xp`; a sequence is a list, an absent optional input is None."""
Namespace = Any
"""NumPy, or a library with its functions."""
Integers = tuple[int, ...]
Floats = tuple[float, ...]
Texts = tuple[str, ...]

_FLOAT16 = np.dtype(np.float16).num
_FIRST_ADDED = 256
"""The number from which on types of ml_dtypes are numbered; ml_dtypes is not imported here, as few models have its types."""
_SMALL_FLOATS = frozenset(
    ["bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn"]
)
_SMALL_INTEGERS = frozenset(("int4", "uint4", "int2", "uint2"))


def is_small_float(dtype: Any) -> bool:
    """Says whether a NumPy type is a float of less than 32 bits."""
    return dtype.num == _FLOAT16 or (dtype.num >= _FIRST_ADDED and dtype.name in _SMALL_FLOATS)


def is_small_integer(dtype: Any) -> bool:
    """Says whether a NumPy type is an integer of less than 8 bits."""
    return dtype.num >= _FIRST_ADDED and dtype.name in _SMALL_INTEGERS


def is_float(dtype: Any) -> bool:
    """Says whether a NumPy type is a float of any width."""
    return dtype.kind == "f" or is_small_float(dtype)


def widen(x: Array) -> Array:
    """Returns a small float array as float32; all further arrays as they are."""
    return x.astype(np.float32) if is_small_float(x.dtype) else x


def narrow(x: Array, dtype: Any) -> Array:
    """Returns the array in `dtype`; the same object if it already has that type."""
    return x if x.dtype == dtype else x.astype(dtype)


def integers_of(x: Array | None) -> tuple[int, ...]:
    """Returns the elements of a host array or an attribute (a shape, axes, pads, ...) as plain integers; () for None."""
    if isinstance(x, tuple):
        return x
    return () if x is None else tuple(map(int, np.asarray(x).reshape(-1).tolist()))


def normalize_axis(axis: int, rank: int) -> int:
    """Returns a non-negative axis. Raises: ValueError."""
    if not -rank <= axis < max(rank, 1):
        raise ValueError(f"axis {axis} is outside of rank {rank}")
    return axis + rank if axis < 0 else axis


def normalize_axes(axes: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Returns non-negative axes in the given order; raises as `normalize_axis` does."""
    return tuple(normalize_axis(axis, rank) for axis in axes)


def compute_halves(function: Callable[..., Any], outputs: tuple[int, ...]) -> Callable[..., Any]:
    """Returns a kernel that computes float16 inputs in float32, and then rounds the outputs at these positions to float16.

    ONNX Runtime runs an operator that it has in float32 alone between two Casts; this is the same arithmetic.
    """

    @wraps(function)
    def compute(xp: Namespace, *inputs: Any, **attributes: Any) -> Any:
        are_halves = [getattr(x, "dtype", None) == np.float16 for x in inputs]
        if not any(are_halves):
            return function(xp, *inputs, **attributes)
        wide = (x.astype(np.float32) if is_half else x for x, is_half in zip(inputs, are_halves, strict=True))
        results = function(xp, *wide, **attributes)
        if not isinstance(results, tuple):
            return narrow(results, np.float16) if 0 in outputs else results
        return tuple(narrow(x, np.float16) if x is not None and index in outputs else x for index, x in enumerate(results))

    return compute


class Team(Protocol):
    """Threads that share the work of a thread."""

    def multiply(self, a: Array, b: Array, out: Array | None = None) -> Array:
        """Returns `numpy.matmul(a, b, out)`."""

    def compute_all(self, calls: Sequence[Callable[[], object]]) -> None:
        """Calls all functions, in any order."""

    def cut(self, length: int, most: int, shares: int) -> int:
        """Returns the length, at most `most`, of parts that keep the threads busy; at most so many threads get a share."""


class _ThreadTeam(threading.local):
    """The team of a thread, None if it works alone."""

    team: Team | None = None


_of_thread = _ThreadTeam()


@contextmanager
def share_with(team: Team | None) -> Iterator[None]:
    """Has a team share the products and the parts of convolutions of the present thread meanwhile; None ends an outer sharing."""
    before = _of_thread.team
    _of_thread.team = team
    try:
        yield
    finally:
        _of_thread.team = before


def multiply(xp: Namespace, a: Array, b: Array) -> Array:
    """Returns `xp.matmul(a, b)`, with NumPy as the present thread computes it."""
    team = _of_thread.team
    return xp.matmul(a, b) if xp is not np or team is None else team.multiply(a, b)


def cut_length(xp: Namespace, length: int, most: int, shares: int) -> int:
    """Returns the length of each part for `compute_all`, at most `most`; with NumPy as the team of the present thread prefers it, with
    parts for at most so many of its threads.
    """
    team = _of_thread.team if xp is np and length > 1 else None
    return max(min(length, most), 1) if team is None else team.cut(length, most, shares)


def compute_all(xp: Namespace, calls: Sequence[Callable[[], object]]) -> None:
    """Calls functions that write different elements of an array; with NumPy the team of the present thread shares them."""
    team = _of_thread.team if xp is np and len(calls) > 1 else None
    if team is not None:
        team.compute_all(calls)
        return
    for call in calls:
        call()
