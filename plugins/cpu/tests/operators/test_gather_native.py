"""Gather by machine code against NumPy: any axis, negative indices, and indices out of range."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hetero_cpu.machine.calls import NativeCall
from hetero_cpu.operators.groups import Group
from hetero_cpu.operators.indexing import plan_native_gather
from hetero_cpu.operators.recipe import Site
from hetero_cpu.operators.weights import PackedWeights
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_core.network.graph import Node

from ..trial import WIDTHS, run_calls

pytestmark = pytest.mark.skipif(not WIDTHS, reason="no kernels are made for this processor, or llvmlite is not installed")


def make_site(x: Any, indices: Any, axis: int = 0, *, are_constant: bool = False) -> Site:
    node = Node("n", "Gather", ("x", "indices"), ("y",), attributes={"axis": axis})
    constants = {"indices": indices} if are_constant else {}
    return Site(Group(node), {}, constants, {"x": x, "indices": indices}, PackedWeights(), workers=2)


def run(x: Any, indices: Any, axis: int, width: int, *, are_constant: bool = False) -> Any:
    recipe = plan_native_gather(make_site(x, indices, axis, are_constant=are_constant))
    assert recipe is not None
    y = np.zeros((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), x.dtype)
    *checks, call = recipe.bind([x, indices], [y], np.empty(0, np.uint8))
    assert len(checks) == (not are_constant)
    for check in checks:
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
    are_constant=st.booleans(),
    is_negative=st.booleans(),
)
def test_gather_equals_numpy(
    shape: tuple[int, ...], count: int, axis: int, width: int, are_constant: bool, is_negative: bool
) -> None:
    rng = np.random.default_rng([*shape, count])
    x = rng.standard_normal(shape).astype(np.float32)
    indices = rng.integers(-shape[axis] * is_negative, shape[axis], (count, 2))
    np.testing.assert_array_equal(run(x, indices, axis, width, are_constant=are_constant), np.take(x, indices, axis=axis))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("count", [2, 63])
def test_many_rows_of_columns_are_cut_into_chunks(count: int, width: int) -> None:
    """Chunks begin within rows."""
    x = np.arange(64000.0, dtype=np.float32).reshape(-1, 40)
    indices = np.arange(count) * 7 % 40
    np.testing.assert_array_equal(run(x, indices, 1, width, are_constant=True), x[:, indices])


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
