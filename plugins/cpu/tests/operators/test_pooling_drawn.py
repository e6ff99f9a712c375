"""Poolings of random geometry by each value of CPU_KERNELS, against formulas in float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx.helper as oh
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_core import Core

from .images import SETTINGS, check, draw_array, geometry, list_windows, make_model


@pytest.fixture(scope="module")
def core(kernels: str) -> Iterator[Core]:
    with Core() as opened:
        opened.set_config({"CPU_KERNELS": kernels}, "CPU")
        yield opened


@SETTINGS
@given(geometry, st.sampled_from(["MaxPool", "AveragePool"]), st.booleans(), st.booleans())
def test_pooling_of_any_geometry_equals_the_formula(
    core: Core, drawn: dict[str, Any], op_type: str, ceil: bool, count_pads: bool
) -> None:
    kernel, strides, dilations = drawn["kernel"], drawn["strides"], drawn["dilations"]
    # A pad must be smaller than the kernel, or a window could lie in the padding alone.
    pads = [min(pad, (kernel[axis % 2] - 1) * dilations[axis % 2] // 2) for axis, pad in enumerate(drawn["pads"])]
    outputs = []
    for axis in (0, 1):
        room = drawn["size"][axis] + pads[axis] + pads[axis + 2] - (kernel[axis] - 1) * dilations[axis] - 1
        if room < 0:
            return
        count = (-(-room // strides[axis]) if ceil else room // strides[axis]) + 1
        if ceil and (count - 1) * strides[axis] >= drawn["size"][axis] + pads[axis]:
            return  # here onnx 1.23 infers a window too many, and the core then refuses the device's shape
        outputs.append(count)
    x = draw_array(1, drawn["batch"], drawn["own"], *drawn["size"])
    wide = x.astype(np.float64)
    attributes: dict[str, Any] = {
        "kernel_shape": kernel,
        "strides": strides,
        "dilations": dilations,
        "pads": pads,
        "ceil_mode": int(ceil),
    }
    if op_type == "MaxPool":
        windows = [elements for _, _, elements in list_windows(wide, kernel, strides, dilations, pads, outputs, -np.inf)]
        expected = np.max(windows, axis=0)
    else:
        attributes["count_include_pad"] = int(count_pads)
        total = sum(elements for _, _, elements in list_windows(wide, kernel, strides, dilations, pads, outputs, 0.0))
        inside = np.ones_like(wide)
        if count_pads:
            inside = np.pad(inside, ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])), constant_values=1)
        begins = (0, 0) if count_pads else pads
        counts = sum(elements for _, _, elements in list_windows(inside, kernel, strides, dilations, begins, outputs, 0.0))
        with np.errstate(invalid="ignore"):  # a dilated window may lie beside all pixels
            expected = total / counts
    if not np.isfinite(expected).all():
        return
    model = make_model([oh.make_node(op_type, ["x"], ["y"], **attributes)], {"x": x.shape}, {}, ["y"])
    check(core, model, {"x": x}, {"y": expected})
