"""Cast, CastLike and BitCast between numbers and strings, with the saturation rules of the 8-bit floats."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from hetero_core.dtypes import dtype_of_onnx, numpy_dtype, spell_dtype
from hetero_core.kernels.arrays import lay_out
from hetero_core.kernels.precision import Array, Namespace, is_small_float, is_small_integer, widen
from hetero_core.kernels.registry import ANY, BOOL, NOT_STRING, NUMBERS, Dtypes, kernel

_FLOAT8 = frozenset(numpy_dtype(name) for name in ("float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz"))
_COMPLEX = frozenset({14, 15})
_TARGETS = tuple(sorted({*range(1, 27)} - {24} - _COMPLEX))
_TARGETS_WITH_E8M0 = tuple(sorted({*range(1, 27)} - _COMPLEX))


_CAST_1: Dtypes = NUMBERS - {"bfloat16"} | BOOL
_SPELLED = tuple(sorted(map(spell_dtype, _CAST_1)))
_LIKE = ANY - {"float8e8m0"}
_ROUNDED = {"saturate": (0, 1), "round_mode": ("up", "down", "nearest")}


# The first version names the element type as TensorProto spells it.
@kernel("Cast", since=(1,), dtypes=_CAST_1, choices={"to": _SPELLED}, without=("round_mode", "saturate"))
@kernel("Cast", since=(6, 9, 13, 19, 21, 23), dtypes=ANY, choices={"to": _TARGETS, "saturate": (0, 1)}, without=("round_mode",))
@kernel("Cast", since=(24, 25, 28), dtypes=ANY, choices={"to": _TARGETS_WITH_E8M0, **_ROUNDED})
def cast(xp: Namespace, x: Array, *, round_mode: str = "up", saturate: int = 1, to: int | str) -> Array:
    """Returns x in the element type `to`; the rounding mode is for float8e8m0 alone."""
    return _convert_rounded(xp, x, _numpy_target(to), round_mode, saturate=bool(saturate))


@kernel("CastLike", since=(15, 19, 21, 23), dtypes=(ANY, _LIKE), choices={"saturate": (0, 1)}, without=("round_mode",))
@kernel("CastLike", since=(24, 25), dtypes=ANY, choices=_ROUNDED)
def cast_like(xp: Namespace, x: Array, like: Array, *, round_mode: str = "up", saturate: int = 1) -> Array:
    """Returns x in the element type of `like`."""
    return _convert_rounded(xp, x, like.dtype, round_mode, saturate=bool(saturate))


def _convert_rounded(xp: Namespace, x: Array, target: Any, round_mode: str, *, saturate: bool) -> Array:
    if target == numpy_dtype("float8e8m0"):
        return _convert_to_exponent(xp, x, round_mode, saturate=saturate)
    return convert(xp, x, target, saturate=saturate)


@kernel("BitCast", since=(26,), dtypes=NOT_STRING, choices={"to": tuple(sorted({*range(1, 27)} - {8}))})
def bit_cast(xp: Namespace, x: Array, *, to: int) -> Array:
    """Returns the same bits read as a type of the same width."""
    target = _numpy_target(to)
    if is_small_integer(target) or is_small_integer(x.dtype):
        return convert(xp, x.astype(np.int8), target, saturate=False)
    if target.itemsize != x.dtype.itemsize:
        raise ValueError(f"{x.dtype} has {x.dtype.itemsize} bytes, {target} has {target.itemsize}")
    return lay_out(xp, x).view(target)


def _numpy_target(to: int | str) -> np.dtype[np.generic]:
    name = dtype_of_onnx(to)
    assert name is not None, f"{to} is no element type"
    return numpy_dtype(name)


def convert(xp: Namespace, x: Array, target: Any, *, saturate: bool = True) -> Array:
    """Returns x in a NumPy type by ONNX's rules.

    Integers drop high bits. Floats are cut off, but rounded to nearest, ties to even, for integers of less than 8 bits. The 8-bit floats
    saturate, infinities included, or overflow as their format does. Texts are parsed, numbers are printed with the fewest digits that
    tell them apart. NaN as float4e2m1 is -0, as in ONNX's cases; its page on float4 says 6.
    Source: ONNX Cast-28, and the standard's pages on int4, int2, float4 and float8.
    """
    if x.dtype == target:
        return x
    if x.dtype.kind in "OUST":
        return _parse_texts(xp, x, target, saturate=saturate)
    if target.kind == "O":
        return _print_numbers(xp, x)
    if is_small_integer(target):
        return _wrap_small(xp, x, target)
    if not is_small_float(target) or target == np.float16:
        # NumPy knows the way between two ml_dtypes types only through float32.
        return (widen(x) if is_small_float(x.dtype) and target.kind not in "fc" else x).astype(target)
    wide = widen(x)
    if target in _FLOAT8 and saturate and wide.dtype.kind in "iuf":
        limit = float(ml_dtypes.finfo(target).max)
        wide = xp.clip(wide, -limit, limit)
    is_longer = wide.dtype.kind in "iuf" and wide.dtype.itemsize > 2 and wide.dtype != np.float32
    return (_round_to_odd(xp, wide) if is_longer else wide).astype(target)


def _round_to_odd(xp: Namespace, x: Array) -> Array:
    """Returns x in float32, cut off, with the last bit set if that is not exact.

    ml_dtypes rounds to float32 first. A number that is rounded to odd keeps its side of every tie of a smaller type, so that both
    roundings together equal a single rounding. Source: Boldo and Melquiond 2008, Emulation of FMA and correctly rounded sums.
    """
    if x.dtype.kind in "iu" and x.dtype.itemsize == 8:
        # The same for the 53 bits of float64.
        low = x & x.dtype.type(2047)
        x = xp.where((x < 2**53) & (x > -(2**53)), x, (x - low) | ((low != 0).astype(x.dtype) << x.dtype.type(11)))
    wide = x.astype(np.float64)
    near = wide.astype(np.float32)
    back = near.astype(np.float64)
    bits = near.view(np.uint32)
    bits = xp.where(xp.abs(back) > xp.abs(wide), bits - np.uint32(1), bits)
    return xp.where((back != wide) & (wide == wide), bits | np.uint32(1), bits).view(np.float32)


def _wrap_small(xp: Namespace, x: Array, target: Any) -> Array:
    """Returns the low bits of the nearest integer, ties to even, as a small integer."""
    limits = ml_dtypes.iinfo(target)
    wide = widen(x)
    whole = (xp.rint(wide) if wide.dtype.kind == "f" else wide).astype(np.int64)
    span = int(limits.max) - int(limits.min) + 1
    return ((whole - int(limits.min)) % span + int(limits.min)).astype(np.int8).astype(target)


def _convert_to_exponent(xp: Namespace, x: Array, round_mode: str, *, saturate: bool) -> Array:
    """Returns positive x as a power of two, float8e8m0: x = m * 2^e with m in [1, 2) gives e, or e + 1 if the mode rounds up."""
    wide = x.astype(np.float64)
    mantissa, exponent = xp.frexp(wide)
    raises = {"up": mantissa > 0.5, "down": mantissa > 1, "nearest": mantissa >= 0.75}[round_mode]
    power = exponent - 1 + raises
    beyond = (power < -127) | (power > 127) | (wide == 0)
    bits = xp.where(xp.isfinite(wide) & ~(beyond & (not saturate)), xp.clip(xp.where(wide == 0, -127, power), -127, 127) + 127, 255)
    if saturate:
        bits = xp.where(xp.isinf(wide), 254, bits)
    return bits.astype(np.uint8).view(numpy_dtype("float8e8m0"))


def _parse_texts(xp: Namespace, x: Array, target: Any, *, saturate: bool) -> Array:
    texts = [str(text).strip() for text in x.reshape(-1)]
    if target.kind in "iu":
        numbers: list[Any] = [int(text) if text.lstrip("+-").isdigit() else int(float(text)) for text in texts]
        return np.asarray(numbers, dtype=object).astype(target).reshape(x.shape)
    wide = np.asarray([float(text) for text in texts], dtype=np.float64).reshape(x.shape)
    return convert(xp, wide, target, saturate=saturate)


def _print_numbers(xp: Namespace, x: Array) -> Array:
    y = np.empty(x.shape, dtype=object)
    wide = x if x.dtype.kind in "iufb" else widen(x)
    y.reshape(-1)[:] = [_print_number(value) for value in wide.reshape(-1)]
    return y


def _print_number(value: Any) -> str:
    if isinstance(value, np.bool_):
        return "1" if value else "0"
    if not isinstance(value, np.floating):
        return str(int(value))
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "INF" if value > 0 else "-INF"
    return np.format_float_positional(value, unique=True, trim="0")
