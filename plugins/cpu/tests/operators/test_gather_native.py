"""Gather by machine code against NumPy: any axis, negative indices, and indices out of range."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hetero_cpu.machine.calls import NativeCall
from hetero_cpu.operators.gather import plan_native_gather
from hetero_cpu.operators.groups import Group
from hetero_cpu.operators.recipe import Site
from hetero_cpu.operators.weights import PackedWeights
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_core.network.graph import Node

from ..trial import WIDTHS, run_calls

pytestmark = pytest.mark.skipif(not WIDTHS, reason="no kernels are made for this processor, or llvmlite is not installed")


def make_site(x: Any, indices: Any, axis: int = 0) -> Site:
    node = Node("n", "Gather", ("x", "indices"), ("y",), attributes={"axis": axis})
    return Site(Group(node), {}, {}, {"x": x, "indices": indices}, PackedWeights(), workers=2)


def run(x: Any, indices: Any, axis: int, width: int) -> Any:
    recipe = plan_native_gather(make_site(x, indices, axis))
    assert recipe is not None
    y = np.zeros((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), x.dtype)
    check, call = recipe.bind([x, indices], [y], np.empty(0, np.uint8))
    assert callable(check)
    check()
    assert isinstance(call, NativeCall)
    run_calls([call], width)
    return y


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 9), st.sampled_from([1, 5, 16, 100, 700])),
    count=st.integers(1, 70),
    axis=st.integers(0, 2),
    width=st.sampled_from(WIDTHS or (0,)),
)
def test_gather_equals_numpy(shape: tuple[int, ...], count: int, axis: int, width: int) -> None:
    rng = np.random.default_rng([*shape, count])
    x = rng.standard_normal(shape).astype(np.float32)
    indices = rng.integers(-shape[axis], shape[axis], (count, 2))
    np.testing.assert_array_equal(run(x, indices, axis, width), np.take(x, indices, axis=axis))


@pytest.mark.parametrize("index", [3, -4])
def test_index_out_of_range_raises(index: int) -> None:
    with pytest.raises(IndexError, match=f"index {index} is out of bounds for axis 0 with size 3"):
        run(np.zeros((3, 4), np.float32), np.array([0, index]), 0, WIDTHS[-1])


@pytest.mark.parametrize(
    ("x", "indices"),
    [
        (np.zeros((3, 4), np.int8), np.zeros(2, np.int64)),
        (np.zeros((3, 4), np.float32).T, np.zeros(2, np.int64)),
        (np.zeros((3, 4), np.float32), np.zeros(2, np.int32)),
        (np.zeros((3, 4), np.float32), np.zeros(4, np.int64)[::2]),
    ],
)
def test_table_without_rows_of_words_is_refused(x: Any, indices: Any) -> None:
    assert plan_native_gather(make_site(x, indices)) is None
