"""Depthwise convolutions of random geometry by each value of CPU_KERNELS, against a formula in float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx.helper as oh
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_core import Core

from .images import SETTINGS, check, convolve, count_outputs, draw_array, geometry, make_model


@pytest.fixture(scope="module")
def core(kernels: str) -> Iterator[Core]:
    with Core() as opened:
        opened.set_config({"CPU_KERNELS": kernels}, "CPU")
        yield opened


@SETTINGS
@given(geometry, st.integers(1, 20))
def test_depthwise_convolution_equals_the_formula(core: Core, drawn: dict[str, Any], channels: int) -> None:
    size, pads, kernel, strides, dilations = (drawn[key] for key in ("size", "pads", "kernel", "strides", "dilations"))
    counts = [
        count_outputs(size[axis], kernel[axis], strides[axis], dilations[axis], pads[axis], pads[axis + 2]) for axis in (0, 1)
    ]
    if min(counts) < 1:
        return
    x, w, b = draw_array(1, drawn["batch"], channels, *drawn["size"]), draw_array(2, channels, 1, *kernel), draw_array(3, channels)
    node = oh.make_node("Conv", ["x", "w", "b"], ["y"], group=channels, strides=strides, dilations=dilations, pads=pads)
    expected = convolve(x, w, b, strides, dilations, pads, channels)
    check(core, make_model([node], {"x": x.shape}, {"w": w, "b": b}, ["y"]), {"x": x}, {"y": expected})
