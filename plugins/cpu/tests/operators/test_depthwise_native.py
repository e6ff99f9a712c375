"""Machine code for depthwise convolutions, against a formula in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hetero_cpu.operators.recipe import Halo
from hypothesis import given
from hypothesis import strategies as st

from hetero_core.network.graph import Node

from ..conftest import Lay, NativeRun
from .windows import (
    HALF_ULP,
    SETTINGS,
    check,
    count_outputs,
    draw_array,
    name_geometry,
    places,
    walk_windows,
)


def sum_windows(x: Any, w: Any, geometry: Any, outputs: tuple[int, int]) -> Any:
    y = np.zeros((*x.shape[:2], *outputs))
    for r, c, taps, elements in walk_windows(x, geometry, outputs):
        for index, (i, j) in enumerate(taps):
            y[:, :, r, c] += elements[:, :, index] * w[:, 0, i, j]
    return y


AFTER = ((), ("Relu",), ("Clip",), ("Add",), ("Add", "HardSwish"))


@SETTINGS
@given(places, st.sampled_from(AFTER), st.booleans())
def test_depthwise_convolution_equals_the_formula(
    native: NativeRun, monkeypatch: pytest.MonkeyPatch, place: dict[str, Any], after: tuple[str, ...], has_bias: bool
) -> None:
    from hetero_cpu.operators import rows as row_plan
    from hetero_cpu.operators.depthwise import plan_depthwise

    # Every line is a chunk.
    monkeypatch.setattr(row_plan, "_CHUNK_TIME", 1e-3)
    geometry, channels, size = place["geometry"], place["channels"], place["size"]
    outputs = count_outputs(size, geometry)
    halo = Halo(*geometry[3]) if place["has_halo"] else Halo()
    x, w = draw_array(1, place["batch"], channels, *size), draw_array(2, channels, 1, *geometry[0])
    b, r = draw_array(3, channels), draw_array(4, place["batch"], channels, *outputs)
    images = {"x": Lay(place["x"].before, place["x"].after, halo, place["x"].gap).place(x)[1]}
    constants = {"w": w, "low": np.float32(-0.5).reshape(()), "high": np.float32(0.75).reshape(())}
    inputs: tuple[str, ...] = ("x", "w")
    exact = sum_windows(x.astype(np.float64), w.astype(np.float64), geometry, outputs)
    size_of_terms = sum_windows(abs(x).astype(np.float64), abs(w).astype(np.float64), geometry, outputs)
    if has_bias:
        constants["b"] = b
        inputs = ("x", "w", "b")
        exact, size_of_terms = exact + b[:, None, None], size_of_terms + abs(b)[:, None, None]
    nodes = [Node("conv", "Conv", inputs, ("y0",), since_version=22, attributes={**name_geometry(geometry), "group": channels})]
    for index, op_type in enumerate(after):
        names: tuple[str, ...] = (f"y{index}",)
        if op_type == "Add":
            images["r"] = place["y"].place(r)[1]
            names = (*names, "r")
            exact, size_of_terms = exact + r, size_of_terms + abs(r)
        elif op_type == "Clip":
            names = (*names, "low", "high")
            exact = np.clip(exact, -0.5, 0.75)
        elif op_type == "Relu":
            exact = np.maximum(exact, 0)
        else:
            exact, size_of_terms = exact * np.clip(exact / 6 + 0.5, 0, 1), size_of_terms * 2
        nodes.append(Node(op_type.lower(), op_type, names, (f"y{index + 1}",), since_version=14))
    site = native.make_site(nodes, images, constants, exact.shape, halos={"x": halo} if place["has_halo"] else {}, workers=64)
    # A rounding for each tap, the bias and the addition, and three for the activation.
    limit = (np.prod(geometry[0]) + 5) * HALF_ULP * size_of_terms
    chunks = check(native, plan_depthwise(site), images, place["y"], exact, limit)
    kernel, strides, dilations, _ = geometry
    overlap = (kernel[0] - 1) * dilations[0] >= strides[0]
    rows = 2 if native.width == 16 and outputs[0] > 1 and overlap else 1
    assert chunks == place["batch"] * -(-outputs[0] // rows)


def test_depthwise_convolution_of_planes_copies_them_first(native: NativeRun) -> None:
    from hetero_cpu.operators.depthwise import plan_depthwise

    geometry = ((3, 3), (2, 1), (1, 1), (1, 1, 1, 1))
    outputs = count_outputs((7, 8), geometry)
    x, w = draw_array(1, 2, 5, 7, 8), draw_array(2, 5, 1, 3, 3)
    exact, size_of_terms = (sum_windows(f(x).astype(np.float64), f(w), geometry, outputs) for f in (np.array, np.abs))
    node = Node("conv", "Conv", ("x", "w"), ("y",), since_version=22, attributes={**name_geometry(geometry), "group": 5})
    recipe = plan_depthwise(native.make_site([node], {"x": x}, {"w": w}, exact.shape))
    assert recipe is not None
    assert len(recipe.kernels) == 2
    check(native, recipe, {"x": x}, Lay(), exact, 12 * HALF_ULP * size_of_terms)


def test_depthwise_convolution_keeps_nan_and_infinity(native: NativeRun) -> None:
    from hetero_cpu.operators.depthwise import plan_depthwise

    x = np.ones((1, 3, 4, 4), np.float32)
    x[0, 1, 0, 0], x[0, 2, 3, 3] = np.nan, -np.inf
    images = {"x": Lay().place(x)[1]}
    constants = {"w": np.ones((3, 1, 1, 1), np.float32)}
    nodes = [
        Node("conv", "Conv", ("x", "w"), ("t",), since_version=22, attributes={"group": 3}),
        Node("relu", "Relu", ("t",), ("y",), since_version=14),
    ]
    recipe = plan_depthwise(native.make_site(nodes, images, constants, x.shape))
    assert recipe is not None
    y = np.zeros((1, 4, 4, 3), np.float32).transpose(0, 3, 1, 2)
    native.run(recipe, images, y)
    np.testing.assert_array_equal(y, np.maximum(x, 0))


def test_depthwise_convolution_overwrites_the_added_image_alone(native: NativeRun) -> None:
    from hetero_cpu.operators.depthwise import plan_depthwise

    x = Lay().place(draw_array(1, 1, 4, 6, 6))[1]
    constants = {"w": draw_array(2, 4, 1, 3, 3)}
    for added, overwritten in (("r", (1,)), ("x", ())):
        images = {"x": x, "r": Lay().place(x)[1]}
        nodes = [
            Node("conv", "Conv", ("x", "w"), ("t",), since_version=22, attributes={"group": 4, "pads": (1, 1, 1, 1)}),
            Node("add", "Add", ("t", added), ("y",), since_version=14),
        ]
        recipe = plan_depthwise(native.make_site(nodes, images, constants, x.shape))
        assert recipe is not None
        assert recipe.overwrites == overwritten


@pytest.mark.parametrize(
    ("attributes", "weight"),
    [
        ({"group": 4}, (8, 1, 3, 3)),
        ({"group": 2}, (4, 2, 3, 3)),
        ({"group": 4, "pads": (8, 8, 8, 8)}, (4, 1, 16, 16)),
    ],
    ids=["two outputs of a channel", "two channels of a group", "large window"],
)
def test_depthwise_step_refuses_unsupported_convolutions(
    native: NativeRun, attributes: dict[str, Any], weight: tuple[int, ...]
) -> None:
    from hetero_cpu.operators.depthwise import plan_depthwise

    x = draw_array(1, 1, 4, 6, 6)
    images = {"x": Lay().place(x)[1]}
    pads = attributes.get("pads", (0,) * 4)
    outputs = count_outputs((6, 6), (weight[2:], (1, 1), (1, 1), pads))
    node = Node("conv", "Conv", ("x", "w"), ("y",), since_version=22, attributes=attributes)
    site = native.make_site([node], images, {"w": draw_array(2, *weight)}, (1, weight[0], *outputs))
    assert plan_depthwise(site) is None
