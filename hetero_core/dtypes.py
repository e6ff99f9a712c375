"""Element types: their ONNX names, their ONNX numbers, and the NumPy types that carry them.

An element type is a plain string, the lower-case ONNX name ("float32", "bfloat16", "int4", "string", ...), so that it can stand
in messages and in files. NumPy and ml_dtypes are imported when a conversion is first asked for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

import numpy as np

# In the order of their numbers in onnx.TensorProto.DataType, from 1 on. Source: onnx.proto.
DTYPES: tuple[str, ...] = (
    *("float32", "uint8", "int8", "uint16", "int16", "int32", "int64", "string", "bool", "float16", "float64", "uint32", "uint64"),
    *("complex64", "complex128", "bfloat16", "float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz", "uint4", "int4"),
    *("float4e2m1", "float8e8m0", "uint2", "int2"),
)
_NUMBERS = {name: number for number, name in enumerate(DTYPES, 1)}
# The first number in a name is that of its bits.
_BITS = {"string": None, "bool": 8} | {name: int(bits[0]) for name in DTYPES if (bits := re.search(r"\d+", name))}
_SPELLED = {"float32": "FLOAT", "float64": "DOUBLE"}
# Cast-1 names a type as TensorProto spells it.
_NAME_OF_NUMBER: dict[int | str, str] = {
    **dict(enumerate(DTYPES, 1)),
    **{_SPELLED.get(name, name.upper()): name for name in DTYPES},
}
# ml_dtypes spells its float types with underscores.
_ML_DTYPES = {
    **{name: name for name in ("bfloat16", "uint4", "int4", "uint2", "int2")},
    "float8e4m3fn": "float8_e4m3fn",
    "float8e4m3fnuz": "float8_e4m3fnuz",
    "float8e5m2": "float8_e5m2",
    "float8e5m2fnuz": "float8_e5m2fnuz",
    "float4e2m1": "float4_e2m1fn",
    "float8e8m0": "float8_e8m0fnu",
}

FLOAT_DTYPES: frozenset[str] = frozenset(name for name in DTYPES if "float" in name)
INTEGER_DTYPES: frozenset[str] = frozenset(name for name in DTYPES if "int" in name)

TOLERANCES: Mapping[str, float] = {
    # Sums of some thousand terms, added in another order.
    "float64": 1e-9,
    "complex128": 1e-9,
    "float32": 1e-4,
    "complex64": 1e-4,
    # A few roundings at the largest value: 2^-11 each for float16, 2^-8 for bfloat16.
    "float16": 1e-2,
    "bfloat16": 5e-2,
    # The step to the next value, just above a power of two.
    "float8e4m3fn": 0.125,
    "float8e4m3fnuz": 0.125,
    "float8e5m2": 0.25,
    "float8e5m2fnuz": 0.25,
    "float4e2m1": 0.5,
}
"""The largest difference between correct results, relative to the largest expected value; unlisted types must be equal."""


def dtype_of_onnx(number: int | str) -> str | None:
    """Returns the name of an ONNX element type: 1 or "FLOAT" gives "float32", 0 (undefined) and unknown numbers give None."""
    return _NAME_OF_NUMBER.get(number)


def onnx_of_dtype(name: str) -> int:
    """Returns the ONNX number of an element type name. Raises: KeyError for a name that is not in `DTYPES`."""
    return _NUMBERS[name]


def spell_dtype(name: str) -> str:
    """Returns how TensorProto spells an element type, as Cast-1 names it: "FLOAT" for "float32"."""
    return _SPELLED.get(name, name.upper())


def bits_of_dtype(name: str) -> int | None:
    """Returns the bits that an element takes in a file; None for strings."""
    return _BITS[name]


@cache
def numpy_dtype(name: str) -> np.dtype[np.generic]:
    """Returns the NumPy type that carries an element type: ml_dtypes for the small floats and integers, object for strings."""
    if name == "string":
        return np.dtype(object)
    if name in _ML_DTYPES:
        import ml_dtypes  # comes with onnx; needed only by the small types

        small: np.dtype[np.generic] = np.dtype(getattr(ml_dtypes, _ML_DTYPES[name]))
        return small
    return np.dtype(name)


@cache
def _name_of_numpy(dtype: np.dtype[np.generic]) -> str | None:
    if dtype.kind in "OUST":
        return "string"
    for name in DTYPES:
        if name == dtype.name or _ML_DTYPES.get(name) == dtype.name:
            return name
    return None


def dtype_of_numpy(dtype: object) -> str | None:
    """Returns the name of the element type that a NumPy type carries, or None if ONNX has no such type. Byte order is ignored."""
    return _name_of_numpy(np.dtype(dtype))  # type: ignore[call-overload]  # any dtype-like object is fine here
