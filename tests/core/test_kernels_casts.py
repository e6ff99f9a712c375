"""Cast to the small types: nearest values in exact fractions, ties to even; saturation; integers of less than 8 bits."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import onnx.helper
import onnx.parser
import pytest

from hetero_core import Core
from hetero_core.kernels.operators.casts import convert

SMALL_INTEGERS = {"int4": (-8, 7), "uint4": (0, 15), "int2": (-2, 1), "uint2": (0, 3)}
FLOAT8 = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
SOURCES = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]


def cast(x: Any, name: str, *, saturate: bool = True) -> Any:
    with np.errstate(all="ignore"):
        return convert(np, x, np.dtype(getattr(ml_dtypes, name)), saturate=saturate)


def list_values(name: str) -> list[Fraction]:
    """Returns the finite values of a type that are not negative, in order."""
    dtype = np.dtype(getattr(ml_dtypes, name))
    with np.errstate(all="ignore"):
        numbers = np.arange(256**dtype.itemsize).astype(f"uint{8 * dtype.itemsize}").view(dtype).astype(np.float64)
    return sorted({Fraction(float(number)) for number in numbers[np.isfinite(numbers) & (numbers >= 0)]})


@pytest.mark.parametrize("name", SMALL_INTEGERS)
@pytest.mark.parametrize("dtype", SOURCES)
def test_small_integer_is_the_nearest_ties_to_even(name: str, dtype: Any) -> None:
    """Source: ONNX's pages on int4 and int2."""
    least, most = SMALL_INTEGERS[name]
    x = np.arange(least * 8 - 4, most * 8 + 5).astype(np.float64) / 8
    expected = [round(Fraction(float(value))) for value in x]  # Python rounds halves to even
    within = [least <= value <= most for value in expected]
    y = cast(x.astype(dtype), name).astype(np.int64)
    assert y[within].tolist() == [value for value in expected if least <= value <= most]


@pytest.mark.parametrize("name", SMALL_INTEGERS)
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64])
def test_small_integer_of_an_integer_drops_high_bits(name: str, dtype: Any) -> None:
    least, most = SMALL_INTEGERS[name]
    span = most - least + 1
    x = np.arange(0, 100, dtype=dtype) if dtype == np.uint8 else np.arange(-100, 100, dtype=dtype)
    assert cast(x, name).astype(np.int64).tolist() == [(int(value) - least) % span + least for value in x]


@pytest.mark.parametrize("opset", [21, 23, 24, 25])
@pytest.mark.parametrize("operator", ["Cast", "CastLike"])
def test_cast_of_a_model_rounds(operator: str, opset: int) -> None:
    call = "Cast<to=22>(x)" if operator == "Cast" else "CastLike(x, like)"
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]> g (float[6] x) => (int4[6] y) {{ y = {call} }}')
    model.graph.initializer.append(onnx.helper.make_tensor("like", onnx.TensorProto.INT4, [1], [0]))
    x = np.array([1.7, 2.5, 3.5, -1.7, -2.5, 6.51], np.float32)
    with Core() as core:
        for device in ("TEMPLATE", "CPU"):
            y = core.load_network(model, device).infer({"x": x})["y"]
            assert y.astype(np.int64).tolist() == [2, 2, 4, -2, -2, 7]


@pytest.mark.parametrize("name", ["bfloat16", *FLOAT8, "float4_e2m1fn"])
def test_small_float_is_the_nearest_of_a_longer_number(name: str) -> None:
    values = list_values(name)
    # Of bfloat16's 32,640 each 13th, which meets every exponent.
    pairs = list(pairwise(values))[:: 13 if len(values) > 1000 else 1]
    ties = [(below + above) / 2 for below, above in pairs]
    for share, expected in (
        (1 - Fraction(1, 2**40), [below for below, _ in pairs]),
        (1 + Fraction(1, 2**40), [above for _, above in pairs]),
    ):
        y = cast(np.array([float(tie * share) for tie in ties]), name).astype(np.float64)
        assert [Fraction(float(number)) for number in y] == expected
        y = cast(np.array([float(-tie * share) for tie in ties]), name).astype(np.float64)
        assert [Fraction(float(number)) for number in y] == [-number for number in expected]


def test_bfloat16_is_the_nearest_of_a_long_integer() -> None:
    # 257 * 2**k is a tie of bfloat16; one more makes it go up, and one less down.
    for exponent in (20, 40, 54):
        x = np.array([257 * 2**exponent - 1, 257 * 2**exponent, 257 * 2**exponent + 1], np.int64)
        expected = [float(256 * 2**exponent), float(256 * 2**exponent), float(258 * 2**exponent)]
        assert cast(x, "bfloat16").astype(np.float64).tolist() == expected
        assert cast(-x, "bfloat16").astype(np.float64).tolist() == [-number for number in expected]


@pytest.mark.parametrize("name", FLOAT8)
@pytest.mark.parametrize("dtype", [*SOURCES, np.int32, np.int64])
def test_float8_saturates_for_floats_and_integers(name: str, dtype: Any) -> None:
    largest = float(ml_dtypes.finfo(getattr(ml_dtypes, name)).max)
    x = np.array([2**16 - 64, -(2**16) + 64, 1], np.float64 if dtype == np.float16 else dtype).astype(dtype)
    assert cast(x, name).astype(np.float64).tolist() == [largest, -largest, 1]
    beyond = cast(x, name, saturate=False).astype(np.float64)
    assert not np.isfinite(beyond[:2]).any()
    assert beyond[2] == 1


def test_power_of_two_rounds_up_from_the_exact_number() -> None:
    from hetero_core.kernels.operators.casts import cast_rounded

    x = np.array([1.0, 1 + 2.0**-40, 1.5 - 2.0**-40, 1.5])
    powers = {mode: cast_rounded(np, x, round_mode=mode, to=24).astype(np.float64).tolist() for mode in ("up", "down", "nearest")}
    assert powers == {"up": [1, 2, 2, 2], "down": [1, 1, 1, 1], "nearest": [1, 1, 1, 2]}
