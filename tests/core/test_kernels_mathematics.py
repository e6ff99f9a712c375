"""Clip with absent bounds: the least and the largest number of the type, as the standard's text says in every version."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hetero_core.kernels.operators.elementwise import clip, clip_by_attributes, clip_by_bounds

FLOATS = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
# Source: IEEE 754; bfloat16 has the exponents of float32 and 8 bits of significand.
LARGEST = {
    np.float16: 65504.0,
    ml_dtypes.bfloat16: (2 - 2.0**-7) * 2.0**127,
    np.float32: (2 - 2.0**-23) * 2.0**127,
    np.float64: (2 - 2.0**-52) * 2.0**1023,
}


def clip_infinities(function: Any, dtype: Any, *bounds: Any, **attributes: float) -> list[float]:
    x = np.array([-np.inf, -2, np.nan, 3, np.inf], dtype)
    y = function(np, x, *bounds, **attributes)
    assert y.dtype == x.dtype
    return [float(value) for value in y]


@pytest.mark.parametrize("dtype", FLOATS)
def test_absent_bounds_are_the_limits_of_the_type(dtype: Any) -> None:
    most, one = LARGEST[dtype], np.array(1, dtype)
    np.testing.assert_array_equal(clip_infinities(clip, dtype), [-most, -2, np.nan, 3, most])
    np.testing.assert_array_equal(clip_infinities(clip, dtype, one), [1, 1, np.nan, 3, most])
    np.testing.assert_array_equal(clip_infinities(clip, dtype, None, one), [-most, -2, np.nan, 1, 1])
    np.testing.assert_array_equal(clip_infinities(clip_by_bounds, dtype, min=1.0), [1, 1, np.nan, 3, most])
    np.testing.assert_array_equal(clip_infinities(clip_by_bounds, dtype, max=1.0), [-most, -2, np.nan, 1, 1])


@pytest.mark.parametrize("dtype", FLOATS)
def test_version_6_has_the_bounds_of_float32_or_of_a_smaller_type(dtype: Any) -> None:
    most = min(LARGEST[dtype], LARGEST[np.float32])
    np.testing.assert_array_equal(clip_infinities(clip_by_attributes, dtype), [-most, -2, np.nan, 3, most])


@pytest.mark.parametrize("dtype", FLOATS)
def test_bounds_that_are_infinite_let_infinities_pass(dtype: Any) -> None:
    infinities = [-np.inf, -2, np.nan, 3, np.inf]
    bounds = (np.array(bound, dtype) for bound in (-np.inf, np.inf))
    np.testing.assert_array_equal(clip_infinities(clip, dtype, *bounds), infinities)
    np.testing.assert_array_equal(clip_infinities(clip_by_attributes, dtype, min=-np.inf, max=np.inf), infinities)
