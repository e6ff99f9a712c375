"""The step of Swish by NumPy, against a formula in float64, with random sizes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx.helper as oh
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_core import Core

from .single_nodes import SETTINGS, check, draw_array, make_model


@pytest.fixture(scope="module")
def core(kernels: str) -> Iterator[Core]:
    with Core() as opened:
        opened.set_config({"CPU_KERNELS": kernels}, "CPU")
        yield opened


@SETTINGS
@given(shape=st.lists(st.integers(1, 9), min_size=1, max_size=4), alpha=st.sampled_from([0.5, 1.0, 1.702, -2.0]))
def test_swish_equals_the_formula(core: Core, shape: list[int], alpha: float) -> None:
    x = 20 * draw_array(1, *shape)
    wide = x.astype(np.float64)
    model = make_model(oh.make_node("Swish", ["x"], ["y"], alpha=alpha), {"x": x})
    check(core, model, {"x": x}, wide / (1 + np.exp(-alpha * wide)))


def test_swish_of_huge_numbers_is_the_number_or_zero(core: Core) -> None:
    x = np.array([-1e4, 1e4, -np.inf, np.inf], np.float32)[:3]
    model = make_model(oh.make_node("Swish", ["x"], ["y"]), {"x": x})
    found = core.load_network(model, "CPU").infer({"x": x})["y"]
    np.testing.assert_array_equal(found[:2], np.array([0, 1e4], np.float32))
