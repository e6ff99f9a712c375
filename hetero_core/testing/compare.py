"""Comparison of outputs: the difference of two results, the tolerance of each element type, and a text that names the first mismatch.

A result is an array or a number, None (an absent optional), a list or tuple (a sequence, or all outputs of a network) or a dict
(a map). The difference is measured against the largest expected value of an array, not element by element: see
`max_relative_difference`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hetero_core.dtypes import TOLERANCES, dtype_of_numpy


def tolerance_of_dtype(dtype: str) -> float:
    """Returns the largest `max_relative_difference` that passes for an element type; 0 for integers, bool and strings."""
    return TOLERANCES.get(dtype, 0.0)


def max_relative_difference(actual: Any, expected: Any) -> float:
    """Returns max|actual - expected| / max|expected| over the elements of two arrays of equal shape.

    The result is a single number for the whole array: small elements may have the same absolute error as large ones, because changing
    the order of a sum causes such errors. Differences are taken in float64; the divisor is the largest finite |expected|, or 1 if that is
    0 (the result is then absolute). Equal elements, two NaN and two equal infinities differ by 0; a NaN or an infinity and any other
    value, and unequal strings, differ by infinity. Empty arrays differ by 0. Element types are not compared.

    Raises: ValueError if the shapes differ.
    """
    return max_absolute_difference(actual, expected) / _magnitude(np.asarray(expected))


def max_absolute_difference(actual: Any, expected: Any) -> float:
    """Returns max|actual - expected| over the elements of two arrays of equal shape, by the rules of `max_relative_difference`.

    Raises: ValueError if the shapes differ.
    """
    actual, expected = np.asarray(actual), np.asarray(expected)
    if actual.shape != expected.shape:
        raise ValueError(f"cannot compare arrays of two shapes: expected {expected.shape}, got {actual.shape}")
    return _largest(measure_differences(actual, expected))


def describe_mismatch(actual: Any, expected: Any, *, rtol: float | None = None, name: str = "output") -> str | None:
    """Returns a line that names the first mismatch of `actual` and `expected`, None if they agree.

    Two arrays agree when shape and element type are the same and their `max_relative_difference` is at most `rtol`; None means the
    tolerance of the expected element type. Integers, bools and strings must be equal for every `rtol`. Sequences and maps agree
    item by item; a list and a tuple are both sequences. `name` stands at the head of the text, with the place inside:
    "output[1]['key']".
    """
    if expected is None or actual is None:
        return None if expected is actual else f"{name}: expected {_kind(expected)}, got {_kind(actual)}"
    if isinstance(expected, list | tuple | dict) or isinstance(actual, list | tuple | dict):
        if _kind(expected) != _kind(actual):
            return f"{name}: expected {_kind(expected)}, got {_kind(actual)}"
        expected_items, actual_items = _items(expected), _items(actual)
        if isinstance(expected, dict) and expected_items.keys() != actual_items.keys():
            return f"{name}: expected the keys {sorted(expected, key=str)}, got {sorted(actual, key=str)}"
        pairs = ((key, actual_items[key], item) for key, item in expected_items.items())
        mismatches = (describe_mismatch(each, item, rtol=rtol, name=f"{name}[{key!r}]") for key, each, item in pairs)
        return next((mismatch for mismatch in mismatches if mismatch is not None), None)
    return _describe_array_mismatch(actual, expected, rtol, name)


def describe_first_mismatch(outputs: Mapping[str, Any], expected: Sequence[Any], *, rtol: float | None = None) -> str | None:
    """Returns the first mismatch of a network's outputs, by name, and the expected results, by position; None if they agree."""
    if len(outputs) != len(expected):
        return f"expected {len(expected)} outputs, got {len(outputs)}"
    mismatches = (
        describe_mismatch(actual, result, rtol=rtol, name=f"output '{name}'")
        for (name, actual), result in zip(outputs.items(), expected, strict=True)
    )
    return next((mismatch for mismatch in mismatches if mismatch is not None), None)


def assert_same(actual: Any, expected: Any, *, rtol: float | None = None, name: str = "output") -> None:
    """Checks that two results agree, by the rules of `describe_mismatch`.

    Raises: AssertionError with that function's text.
    """
    mismatch = describe_mismatch(actual, expected, rtol=rtol, name=name)
    if mismatch is not None:
        raise AssertionError(mismatch)


def _describe_array_mismatch(actual: Any, expected: Any, rtol: float | None, name: str) -> str | None:
    actual, expected = np.asarray(actual), np.asarray(expected)
    if actual.shape != expected.shape:
        return f"{name}: expected shape {expected.shape}, got {actual.shape}"
    dtype, actual_dtype = dtype_of_numpy(expected.dtype), dtype_of_numpy(actual.dtype)
    if dtype != actual_dtype:
        return f"{name}: expected element type {dtype}, got {actual_dtype}"
    inexact = dtype in TOLERANCES
    allowed = rtol if rtol is not None and inexact else tolerance_of_dtype(dtype or "")
    differences, magnitude = measure_differences(actual, expected), _magnitude(expected)
    largest = _largest(differences)
    if largest / magnitude <= allowed:
        return None
    index = tuple(int(axis) for axis in np.unravel_index(int(np.argmax(differences)), differences.shape))
    wrong = int(np.count_nonzero(differences / magnitude > allowed))
    text = f"{name}: expected {expected[index]!s:.80}, got {actual[index]!s:.80} at {list(index)} of {dtype} {list(expected.shape)}"
    text += f"; {wrong} of {expected.size} elements differ"
    if not inexact:
        return text
    return f"{text} by more than {allowed:g} of the largest expected value {magnitude:g}, at most by {largest / magnitude:.3g}"


def measure_differences(actual: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Returns |actual - expected| by element, float64, with the rules for NaN, infinity and strings applied."""
    if _is_text(actual) or _is_text(expected):
        return np.where(np.asarray(actual.astype(object) == expected.astype(object), dtype=bool), 0.0, np.inf)
    equal = actual == expected
    wide_actual, wide_expected = _widen(actual), _widen(expected)
    equal = equal | (np.isnan(wide_actual) & np.isnan(wide_expected))
    with np.errstate(invalid="ignore", over="ignore"):
        differences = np.abs(wide_actual - wide_expected)
    # Two different large integers may round to the same float64.
    differences = np.where((differences == 0) & ~equal, 1.0, differences)
    differences = np.where(np.isfinite(wide_actual) & np.isfinite(wide_expected), differences, np.inf)
    return np.where(equal, 0.0, differences)


def _magnitude(expected: np.ndarray) -> float:
    """Returns the largest finite |expected|, or 1 if that is 0 or does not exist."""
    if _is_text(expected):
        return 1.0
    sizes = np.abs(_widen(expected))
    largest = _largest(sizes[np.isfinite(sizes)])
    return largest if largest > 0 else 1.0


def _widen(array: np.ndarray) -> np.ndarray:
    """Returns the array as float64 or complex128."""
    return array.astype("complex128" if array.dtype.kind == "c" else "float64")


def _largest(sizes: np.ndarray) -> float:
    return float(sizes.max()) if sizes.size else 0.0


def _is_text(array: np.ndarray) -> bool:
    return dtype_of_numpy(array.dtype) == "string"


def _items(container: Any) -> dict[Any, Any]:
    return dict(container) if isinstance(container, dict) else dict(enumerate(container))


def _kind(value: Any) -> str:
    """Returns the description of a value for messages: its kind, and the length of a sequence."""
    if value is None:
        return "None"
    if isinstance(value, dict):
        return "a map"
    if isinstance(value, list | tuple):
        return f"a sequence of {len(value)}"
    return "an array"
