"""Difference between the outputs of one run and the expected ones, and whether rounding explains it.

Rules: floats are compared by an error relative to the scale of their tensor, everything else by equality. What is beyond the tolerance of
the element type is a fault only where the expected outputs do not differ as much themselves when each node rounds otherwise
(rounding.py): so a tie in ArgMax, a Round at .5 or one step of int8 is no fault, and a wrong block of an output is one.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Any

import numpy as np

from hetero_core.dtypes import TOLERANCES, dtype_of_numpy
from hetero_core.records import record

Array = np.ndarray[Any, Any]

FACTOR = 4.0
"""A deviation is explained by rounding up to so many times that of the runs that round otherwise, in count and in size."""
_LONGEST_TAIL = 1000.0
"""The scale of a tensor is at most so many times its median: a mask of -1e9 in it does not hide all other elements."""
_MEDIAN_ELEMENTS = 4096


@record(frozen=True, slots=True)
class Deviation:
    """`wrong` elements are off by more than is allowed; `worst` is the largest error as a multiple of the tolerance.

    Both are infinite for another shape, element type or kind of value; `worst` is infinite for a NaN or an infinity that is not
    expected, and 1 for an unequal element of a type without tolerance. `text` says where the worst element is, and what it is.
    """

    wrong: float
    worst: float
    text: str = ""


NONE = Deviation(0.0, 0.0)


def measure_deviation(actual: Any, expected: Any, *, share: float = 1.0) -> Deviation:
    """Returns how far a value is from the expected one. Floats count as wrong beyond `share` of their tolerance.

    A value is an array, None, a list (a sequence) or a dict (a map); of the latter two the items count together.
    """
    if isinstance(expected, list | dict) or isinstance(actual, list | dict) or expected is None or actual is None:
        return _measure_items(actual, expected, share)
    return _measure_arrays(np.asarray(actual), np.asarray(expected), share)


def is_near(actual: Any, expected: Any) -> bool:
    """Says whether two arrays of float32 are surely equal within their tolerance, in a fifth of the time of `measure_deviation`.

    No element is off by more than half of what is allowed for the smallest: nothing is said of what is farther away, or no number.
    """
    if any(not isinstance(value, np.ndarray) or value.dtype != np.float32 or not value.size for value in (actual, expected)):
        return False
    if actual.shape != expected.shape:
        return False
    with np.errstate(all="ignore"):
        worst = float(np.abs(actual - expected).max())
        return worst <= TOLERANCES["float32"] / 2 * find_scale(np.abs(expected))


def is_explained(deviation: Deviation, spread: Iterable[Deviation]) -> bool:
    """Says whether a deviation is no larger than FACTOR times that of runs that only round otherwise.

    `spread` holds the deviations of these runs from the same expected value, measured with a share of 1 / FACTOR.
    """
    others = list(spread)
    wrong, worst = (max((getattr(other, name) for other in others), default=0.0) for name in ("wrong", "worst"))
    return deviation.wrong <= FACTOR * wrong and deviation.worst <= FACTOR * worst


def find_scale(magnitudes: Array) -> float:
    """Returns the scale of a tensor with these finite |elements|: the largest, but at most 1000 times the median of those above 0."""
    largest = float(magnitudes.max()) if magnitudes.size else 0.0
    return min(largest, _LONGEST_TAIL * find_median(magnitudes))


def find_median(magnitudes: Array) -> float:
    """Returns the median of the elements above 0, of some thousand that lie evenly; 0 where there is none."""
    flat = magnitudes.reshape(-1)
    flat = flat[flat > 0]
    # Not np.median: it imports numpy.ma, 18 ms in the first run that is verified.
    listed = np.sort(flat[:: 1 + flat.size // _MEDIAN_ELEMENTS])
    return float((listed[(listed.size - 1) // 2] + listed[listed.size // 2]) / 2) if listed.size else 0.0


def _measure_items(actual: Any, expected: Any, share: float) -> Deviation:
    if type(actual) is not type(expected):
        return Deviation(inf, inf, f"expected {_name_kind(expected)}, got {_name_kind(actual)}")
    if expected is None:
        return NONE
    items, others = (dict(value if isinstance(value, dict) else enumerate(value)) for value in (expected, actual))
    if items.keys() != others.keys():
        return Deviation(inf, inf, f"expected {len(items)} items, got {len(others)}, or others")
    deviations = [measure_deviation(others[key], item, share=share) for key, item in items.items()]
    worst = max(deviations, key=lambda deviation: deviation.worst, default=NONE)
    return Deviation(sum(deviation.wrong for deviation in deviations), worst.worst, worst.text)


def _name_kind(value: Any) -> str:
    return "nothing" if value is None else type(value).__name__


def _measure_arrays(actual: Array, expected: Array, share: float) -> Deviation:
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        kinds = [f"{dtype_of_numpy(array.dtype)}{list(array.shape)}" for array in (expected, actual)]
        return Deviation(inf, inf, f"expected {kinds[0]}, got {kinds[1]}")
    if not expected.size:
        return NONE
    tolerance = TOLERANCES.get(dtype_of_numpy(expected.dtype) or "", 0.0)
    errors = _measure_errors(actual, expected, tolerance) if tolerance else np.asarray(actual != expected, dtype=np.float64)
    worst, wrong = float(errors.max()), int(np.count_nonzero(errors > (share if tolerance else 0.0)))
    if not wrong:
        return Deviation(0.0, worst)
    index = np.unravel_index(int(errors.argmax()), errors.shape)
    place = [int(axis) for axis in index]
    text = f"expected {expected[index]!s:.40}, got {actual[index]!s:.40} at {place}; {wrong} of {expected.size} elements"
    measure = f" are off by more than {tolerance:g} of its scale, at most by {worst * tolerance:.3g}" if tolerance else " differ"
    return Deviation(float(wrong), worst, text + measure)


def _measure_errors(actual: Array, expected: Array, tolerance: float) -> Array:
    """Returns |actual - expected| / (tolerance * max(|expected|, scale)) by element, infinite where only one is finite or a number."""
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        a, e = actual.astype(wide), expected.astype(wide)
        same = (actual == expected) | (np.isnan(a) & np.isnan(e))
        is_number = np.isfinite(a) & np.isfinite(e)
        magnitudes = np.where(np.isfinite(e), np.abs(e), 0.0)
        # Where nothing but zeros is expected the error is absolute, as in hetero_core.testing.compare.
        allowed = tolerance * np.maximum(magnitudes, find_scale(magnitudes) or 1.0)
        errors = np.where(is_number, np.abs(a - e) / allowed, np.inf)
    return np.where(same, 0.0, errors)
