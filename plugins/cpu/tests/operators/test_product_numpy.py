"""The steps of matrix products by NumPy, against a formula in float64."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx.helper as oh
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_core import Core

from .images import SETTINGS, check, draw_array, make_model


@pytest.fixture(scope="module")
def core(kernels: str) -> Iterator[Core]:
    with Core() as opened:
        opened.set_config({"CPU_KERNELS": kernels}, "CPU")
        yield opened


@SETTINGS
@given(
    st.tuples(*[st.integers(1, 33)] * 3),
    st.booleans(),
    st.booleans(),
    st.sampled_from([1.0, 0.5]),
    st.sampled_from([1.0, -2.0]),
    st.sampled_from([None, "row", "column", "scalar", "full"]),
)
def test_gemm_of_any_form_equals_the_formula(
    core: Core, sizes: tuple[int, int, int], left: bool, right: bool, alpha: float, beta: float, bias: str | None
) -> None:
    rows, depth, columns = sizes
    a, b = (
        draw_array(1, *((depth, rows) if left else (rows, depth))),
        draw_array(2, *((columns, depth) if right else (depth, columns))),
    )
    shapes = {"row": (columns,), "column": (rows, 1), "scalar": (1,), "full": (rows, columns)}
    constants = {"b": b} if bias is None else {"b": b, "c": draw_array(3, *shapes[bias])}
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    expected = alpha * (wide_a.T if left else wide_a) @ (wide_b.T if right else wide_b) + beta * constants.get("c", np.zeros(()))
    node = oh.make_node("Gemm", ["a", *constants], ["y"], transA=int(left), transB=int(right), alpha=alpha, beta=beta)
    check(core, make_model([node], {"a": a.shape}, constants, ["y"]), {"a": a}, {"y": expected})
