"""hetero_core.testing.compare: distances computed by hand, and the texts of mismatches."""

import math

import ml_dtypes
import numpy as np
import pytest

from hetero_core.dtypes import DTYPES, FLOAT_DTYPES, TOLERANCES, numpy_dtype
from hetero_core.testing.compare import assert_same, describe_mismatch, max_relative_difference, tolerance_of_dtype

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("actual", "expected", "difference"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 2.5], [1.0, 2.0], 0.25),
        ([0.5, -4.0], [0.0, -4.0], 0.125),
        ([0.5, 0.0], [0.0, 0.0], 0.5),
        ([NAN, 2.0], [NAN, 2.0], 0.0),
        ([INF, -INF, 3.0], [INF, -INF, 2.0], 0.5),
        ([NAN, 2.0], [1.0, 2.0], INF),
        ([1.0, 2.0], [NAN, 2.0], INF),
        ([INF, 2.0], [-INF, 2.0], INF),
        ([1e308], [-1e308], INF),
        ([], [], 0.0),
        ([2 + 1j], [2 + 2j], 1 / math.sqrt(8)),
        ([True, False], [True, True], 1.0),
        (["a", "b"], ["a", "b"], 0.0),
        (["a", "c"], ["a", "b"], INF),
    ],
)
def test_max_relative_difference_is_over_largest_expected(actual, expected, difference):
    assert max_relative_difference(np.array(actual), np.array(expected)) == pytest.approx(difference, rel=1e-15)


def test_max_relative_difference_of_unsigned_does_not_wrap():
    assert max_relative_difference(np.array([1], np.uint8), np.array([2], np.uint8)) == 0.5


def test_max_relative_difference_of_close_integers_is_above_zero():
    assert max_relative_difference(np.array([2**62 + 1]), np.array([2**62])) > 0


def test_max_relative_difference_of_two_shapes_raises():
    with pytest.raises(ValueError) as caught:
        max_relative_difference(np.zeros((2, 3)), np.zeros(3))
    assert str(caught.value) == "cannot compare arrays of two shapes: expected (3,), got (2, 3)"


def test_tolerances_grow_as_precision_falls():
    assert set(TOLERANCES) <= FLOAT_DTYPES | {"complex64", "complex128"}
    falling = ["float64", "float32", "float16", "bfloat16", "float8e4m3fn", "float8e5m2", "float4e2m1"]
    assert [TOLERANCES[name] for name in falling] == sorted(TOLERANCES[name] for name in falling)
    assert tolerance_of_dtype("int8") == tolerance_of_dtype("string") == 0.0


@pytest.mark.parametrize("name", sorted(TOLERANCES))
def test_tolerance_of_dtype_is_at_least_a_rounding_error(name):
    # A rounding error is half the distance from 1 to the next number. Source: machine epsilon of ml_dtypes and NumPy.
    assert tolerance_of_dtype(name) >= float(ml_dtypes.finfo(numpy_dtype(name)).eps) / 2


@pytest.mark.parametrize("name", DTYPES)
def test_equal_arrays_of_every_element_type_agree(name):
    array = np.array([1, 0, 1]).astype(numpy_dtype(name))
    assert describe_mismatch(array.copy(), array) is None


@pytest.mark.parametrize("name", sorted(set(DTYPES) - {"bool"}))
def test_unequal_arrays_of_every_element_type_differ(name):
    expected, actual = (np.array(numbers).astype(numpy_dtype(name)) for numbers in ([1, 1], [1, 0]))
    if name == "float8e8m0":  # float8e8m0 has no zero
        actual = np.array([1, 0.5]).astype(expected.dtype)
    assert f"output: expected {expected[1]!s}, got {actual[1]!s} at [1] of {name} [2]; 1 of 2 elements differ" in describe_mismatch(
        actual, expected
    )


def test_describe_mismatch_of_floats_names_worst_and_counts():
    expected = np.ones((2, 3), np.float32) * 4
    actual = expected.copy()
    actual[0, 1], actual[1, 2] = 4.5, 5
    assert describe_mismatch(actual, expected, name="scores") == (
        "scores: expected 4.0, got 5.0 at [1, 2] of float32 [2, 3]; 2 of 6 elements differ"
        " by more than 0.0001 of the largest expected value 4, at most by 0.25"
    )


def test_describe_mismatch_of_integer_array_names_worst_element():
    assert describe_mismatch(np.array([7, 9, 1]), np.array([7, 8, 9])) == (
        "output: expected 9, got 1 at [2] of int64 [3]; 2 of 3 elements differ"
    )


def test_describe_mismatch_of_strings_names_first_difference():
    text = describe_mismatch(np.array(["a", "cat"], object), np.array(["a", "dog"]))
    assert text == "output: expected dog, got cat at [1] of string [2]; 1 of 2 elements differ"


@pytest.mark.parametrize(
    ("actual", "expected", "text"),
    [
        (np.zeros(2), np.zeros((2, 1)), "output: expected shape (2, 1), got (2,)"),
        (np.zeros(2), np.zeros(2, np.float32), "output: expected element type float32, got float64"),
        (None, np.zeros(2), "output: expected an array, got None"),
        (np.zeros(2), None, "output: expected None, got an array"),
        ([np.zeros(2)], None, "output: expected None, got a sequence of 1"),
        (np.zeros(2), [np.zeros(2)], "output: expected a sequence of 1, got an array"),
        ([np.zeros(2)], np.zeros(2), "output: expected an array, got a sequence of 1"),
        ([1, 2], [1], "output: expected a sequence of 1, got a sequence of 2"),
        ({"a": 1}, [1], "output: expected a sequence of 1, got a map"),
        ({"a": 1}, {"b": 1}, "output: expected the keys ['b'], got ['a']"),
        ([[1], [2, 3]], [[1], [2, 4]], "output[1][1]: expected 4, got 3 at [] of int64 []; 1 of 1 elements differ"),
        ([{"a": 1}], [{"a": 2}], "output[0]['a']: expected 2, got 1 at [] of int64 []; 1 of 1 elements differ"),
    ],
)
def test_describe_mismatch_of_kinds_says_expected_and_got(actual, expected, text):
    assert describe_mismatch(actual, expected) == text


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        (None, None),
        ((np.zeros(2), None), [np.zeros(2), None]),
        ([], ()),
        ([["a"], [NAN]], [["a"], [NAN]]),
        ({1: [2.0]}, {1: [2.0]}),
        (np.array([1.0 + 1e-5], np.float32), np.array([1], np.float32)),
    ],
)
def test_describe_mismatch_of_results_that_agree_is_none(actual, expected):
    assert describe_mismatch(actual, expected) is None


def test_rtol_widens_floats_and_leaves_integers_exact():
    assert describe_mismatch(np.array([1.1]), np.array([1.0]), rtol=0.2) is None
    assert describe_mismatch(np.array([11]), np.array([10]), rtol=0.2) is not None


def test_rtol_zero_demands_equality():
    assert describe_mismatch(np.array([1 + 1e-15]), np.array([1.0])) is None
    assert describe_mismatch(np.array([1 + 1e-15]), np.array([1.0]), rtol=0) is not None


def test_assert_same_raises_with_the_text_of_the_mismatch():
    assert_same([np.ones(2)], [np.ones(2)])
    with pytest.raises(AssertionError) as caught:
        assert_same([np.ones(2)], [np.ones(3)], name="ORT")
    assert str(caught.value) == "ORT[0]: expected shape (3,), got (2,)"
