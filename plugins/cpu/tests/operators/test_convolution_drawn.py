"""Convolutions of random geometry by each value of CPU_KERNELS, against a formula in float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx.helper as oh
import pytest
from hypothesis import given

from hetero_core import Core

from .images import SETTINGS, check, convolve, count_outputs, draw_array, geometry, make_model


@pytest.fixture(scope="module")
def core(kernels: str) -> Iterator[Core]:
    with Core() as opened:
        opened.set_config({"CPU_KERNELS": kernels}, "CPU")
        yield opened


@SETTINGS
@given(geometry)
def test_convolution_of_any_geometry_equals_the_formula(core: Core, drawn: dict[str, Any]) -> None:
    pads, kernel = drawn["pads"], drawn["kernel"]
    counts = [
        count_outputs(
            drawn["size"][axis], kernel[axis], drawn["strides"][axis], drawn["dilations"][axis], pads[axis], pads[axis + 2]
        )
        for axis in (0, 1)
    ]
    if min(counts) < 1:
        return
    x = draw_array(1, drawn["batch"], drawn["group"] * drawn["own"], *drawn["size"])
    w = draw_array(2, drawn["group"] * drawn["made"], drawn["own"], *kernel)
    b = draw_array(3, len(w))
    expected = convolve(x, w, b, drawn["strides"], drawn["dilations"], pads, drawn["group"])
    # A pooling of single elements puts its result channels last, as a convolution would.
    nodes = [oh.make_node("MaxPool", ["x"], ["p"], kernel_shape=[1, 1])] if drawn["before"] else []
    attributes = {key: list(drawn[key]) for key in ("strides", "dilations", "pads")}
    nodes.append(oh.make_node("Conv", ["p" if drawn["before"] else "x", "w", "b"], ["y0"], group=drawn["group"], **attributes))
    inputs = {"x": x}
    for index, op_type in enumerate(drawn["after"]):
        names = [f"y{index}"]
        if op_type == "Add":
            inputs["r"] = draw_array(4, *expected.shape)
            names.append("r")
            expected = expected + inputs["r"]
        elif op_type == "Relu":
            expected = np.maximum(expected, 0)
        elif op_type == "HardSwish":
            expected = expected * np.clip(expected / 6 + 0.5, 0, 1)
        elif op_type == "Sigmoid":
            expected = 1 / (1 + np.exp(-expected))
        else:
            from math import erf

            expected = expected * (1 + np.vectorize(erf)(expected / 2**0.5)) / 2
        nodes.append(oh.make_node(op_type, names, [f"y{index + 1}"]))
    output = f"y{len(drawn['after'])}"
    model = make_model(nodes, {name: array.shape for name, array in inputs.items()}, {"w": w, "b": b}, [output])
    check(core, model, inputs, {output: expected})


@pytest.mark.parametrize(("size", "channels", "outputs"), [((24, 24), 32, 32), ((25, 27), 17, 35), ((14, 30), 40, 64)])
@pytest.mark.parametrize("pads", [(1, 1, 1, 1), (0, 0, 0, 0), (2, 0, 1, 3)])
def test_large_images_equal_the_formula(core: Core, size: Any, channels: int, outputs: int, pads: Any) -> None:
    """At these sizes the Winograd transforms are worth their cost; tiles extend over the border."""
    x, w, b = draw_array(1, 2, channels, *size), draw_array(2, outputs, channels, 3, 3), draw_array(3, outputs)
    nodes = [oh.make_node("Conv", ["x", "w", "b"], ["c"], pads=list(pads)), oh.make_node("Relu", ["c"], ["y"])]
    expected = np.maximum(convolve(x, w, b, (1, 1), (1, 1), pads, 1), 0)
    check(core, make_model(nodes, {"x": x.shape}, {"w": w, "b": b}, ["y"]), {"x": x}, {"y": expected})
