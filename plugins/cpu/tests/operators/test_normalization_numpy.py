"""The step of RMSNormalization by NumPy, against a formula in float64, with random sizes."""

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
@given(shape=st.lists(st.integers(1, 9), min_size=1, max_size=4), epsilon=st.sampled_from([1e-6, 0.5]))
def test_rms_normalization_equals_the_formula(core: Core, shape: list[int], epsilon: float) -> None:
    inputs = {"x": draw_array(1, *shape), "w": draw_array(2, shape[-1])}
    wide = inputs["x"].astype(np.float64)
    wanted = wide / np.sqrt((wide**2).mean(axis=-1, keepdims=True) + epsilon) * inputs["w"]
    check(core, make_model(oh.make_node("RMSNormalization", ["x", "w"], ["y"], epsilon=epsilon), inputs), inputs, wanted)
