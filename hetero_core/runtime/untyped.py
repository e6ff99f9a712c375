"""Values without an element type of their own, as arrays: numbers, lists, bytes, images; and arrays of other libraries.

Rule: converted if and only if the value is kept. An integer stays the same integer; a decimal is rounded to the float type that was asked
for, as Python's own would be, and is refused where that type has no such number.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero_core.dtypes import FLOAT_DTYPES, INTEGER_DTYPES, numpy_dtype
from hetero_core.errors import InputShapeError, InputTypeError
from hetero_core.network.types import TensorType


def read_foreign(value: Any) -> np.ndarray[Any, Any] | None:
    """Returns the array of another library's object, sharing its memory where NumPy can; None where it offers none.

    Raises: whatever the library raises, such as RuntimeError for a tensor that records gradients.
    """
    if hasattr(value, "__array__") or hasattr(value, "__array_interface__"):
        return np.asarray(value)
    return np.from_dlpack(value) if hasattr(value, "__dlpack__") else None


def convert_untyped(value: Any, value_type: TensorType, where: str) -> np.ndarray[Any, Any] | None:
    """Returns a number, a list, bytes or an image as an array of the wanted element type; None for anything else.

    Raises: InputTypeError and InputShapeError where a value would not be kept.
    """
    if isinstance(value, bytes | bytearray | memoryview) and value_type.dtype == "uint8":
        return _read_bytes(value, value_type, where)
    if type(value).__module__.startswith("PIL."):
        return _read_image(value, where)
    if isinstance(value, np.generic):
        return np.asarray(value)
    if isinstance(value, str | bool | int | float) and value_type.shape in ((), None):
        return _convert_numbers(value, value_type, where)
    return _convert_numbers(value, value_type, where) if isinstance(value, list | tuple) else None


def _read_bytes(value: bytes | bytearray | memoryview, value_type: TensorType, where: str) -> np.ndarray[Any, Any]:
    """Returns the bytes as uint8 in the wanted shape, of which one size may be open; no copy."""
    flat = np.frombuffer(value, np.uint8)
    shape = (flat.size,) if value_type.shape is None else tuple(size if isinstance(size, int) else -1 for size in value_type.shape)
    try:
        return flat.reshape(shape)
    except ValueError as error:
        raise InputShapeError(
            f"{where}: {flat.size} bytes cannot become {value_type}; give an array of that shape, or as many bytes as it has elements"
        ) from error


def _read_image(value: Any, where: str) -> np.ndarray[Any, Any]:
    """Returns the pixels (height, width, channels), 8 bits each."""
    mode = getattr(value, "mode", None)
    if mode not in ("L", "RGB", "RGBA", "I;16", "I", "F"):
        raise InputTypeError(
            f"{where}: an image of mode '{mode}' has no pixels of its own as an array; convert it with image.convert('RGB')"
        )
    return np.asarray(value)


def _convert_numbers(value: Any, value_type: TensorType, where: str) -> np.ndarray[Any, Any]:
    try:
        numbers = np.asarray(value)
    except ValueError as error:
        raise InputShapeError(f"{where}: the lists are of different lengths: {error}") from error
    if value_type.dtype is None or value_type.dtype == "string" or numbers.size == 0:
        return numbers if value_type.dtype in (None, "string") else numbers.astype(numpy_dtype(value_type.dtype))
    dtype = numpy_dtype(value_type.dtype)
    if numbers.dtype == dtype:
        return numbers
    kinds = "b" if value_type.dtype == "bool" else "biu" if value_type.dtype in INTEGER_DTYPES else "biuf"
    if numbers.dtype.kind not in kinds or value_type.dtype not in FLOAT_DTYPES | INTEGER_DTYPES:
        raise InputTypeError(
            f"{where}: expected {value_type.dtype}, got numbers of type {_name_numbers(numbers)}; {_advise(value_type.dtype)}"
        )
    # An overflow is found by what came out, without a warning.
    with np.errstate(all="ignore"):
        converted = numbers.astype(dtype)
        lost = _find_lost(numbers, converted, is_float=value_type.dtype in FLOAT_DTYPES)
    if lost.any():
        first = numbers.reshape(-1)[int(np.argmax(lost))]
        raise InputTypeError(
            f"{where}: expected {value_type.dtype}, got the number {first}, which it does not have; {_advise(value_type.dtype)}"
        )
    return converted


def _find_lost(numbers: np.ndarray[Any, Any], converted: np.ndarray[Any, Any], *, is_float: bool) -> np.ndarray[Any, Any]:
    """Returns which numbers are not kept: integers that change, and decimals that become infinite."""
    flat, results = numbers.reshape(-1), converted.reshape(-1)
    lost: np.ndarray[Any, Any]
    if numbers.dtype.kind == "f":
        lost = np.isfinite(flat) & ~np.isfinite(results.astype(np.float64))
    elif is_float:
        lost = np.array([float(result) != int(number) for result, number in zip(results.astype(np.float64), flat, strict=True)])
    else:
        lost = np.array([int(result) != int(number) for result, number in zip(results, flat, strict=True)])
    return lost


def _name_numbers(numbers: np.ndarray[Any, Any]) -> str:
    names = {"f": "float", "i": "int", "u": "int", "b": "bool", "O": "object", "U": "str", "S": "bytes"}
    return names.get(numbers.dtype.kind, str(numbers.dtype))


def _advise(dtype: str) -> str:
    return f"say what is meant with np.array(values).astype('{numpy_dtype(dtype).name}')"
