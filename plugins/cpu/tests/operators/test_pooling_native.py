"""Machine code for poolings and for reductions of whole images, against formulas in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hetero_cpu.operators.recipe import Halo
from hypothesis import example, given
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


def pool_windows(op_type: str, x: Any, geometry: Any, outputs: tuple[int, int], *, counts_pads: bool) -> Any:
    y = np.zeros((*x.shape[:2], *outputs))
    kernel, strides, dilations, pads = geometry
    for r, c, _, elements in walk_windows(x.astype(np.float64), geometry, outputs):
        if op_type == "MaxPool":
            y[:, :, r, c] = elements.max(axis=2, initial=-np.inf)
            continue
        count = elements.shape[2]
        if counts_pads:
            count = 1
            for axis, output in ((0, r), (1, c)):
                places = output * strides[axis] - pads[axis] + np.arange(kernel[axis]) * dilations[axis]
                count *= int((places < x.shape[axis + 2] + pads[axis + 2]).sum())
        y[:, :, r, c] = elements.sum(axis=2) / max(count, 1)
    return y


PADDING_ALONE: dict[str, Any] = {"geometry": ((3, 2), (2, 1), (2, 3), (3, 1, 2, 4)), "batch": 1, "channels": 2, "size": (5, 5)}


@SETTINGS
@example(place={**PADDING_ALONE, "x": Lay(), "y": Lay(), "has_halo": False}, op_type="MaxPool", ceil=False, counts_pads=False)
@given(places, st.sampled_from(["MaxPool", "AveragePool"]), st.booleans(), st.booleans())
def test_pooling_of_any_geometry_equals_the_formula(
    native: NativeRun,
    monkeypatch: pytest.MonkeyPatch,
    place: dict[str, Any],
    op_type: str,
    ceil: bool,
    counts_pads: bool,
) -> None:
    from hetero_cpu.operators import rows as row_plan
    from hetero_cpu.operators.pooling import plan_pool

    monkeypatch.setattr(row_plan, "_CHUNK_TIME", 1e-3)
    geometry, channels, size = place["geometry"], place["channels"], place["size"]
    outputs = count_outputs(size, geometry, ceil=ceil)
    # Elements are negative, so that a zero of the halo would be a maximum.
    x = -np.abs(draw_array(1, place["batch"], channels, *size))
    halo = Halo(4, 4, 8, 8) if place["has_halo"] else Halo()
    images = {"x": Lay(place["x"].before, place["x"].after, halo, place["x"].gap).place(x)[1]}
    attributes = {**name_geometry(geometry), "ceil_mode": int(ceil)}
    if op_type == "AveragePool":
        attributes["count_include_pad"] = int(counts_pads)
    node = Node("pool", op_type, ("x",), ("y",), since_version=22, attributes=attributes)
    expected = pool_windows(op_type, x, geometry, outputs, counts_pads=counts_pads)
    site = native.make_site([node], images, {}, expected.shape, halos={"x": halo} if place["has_halo"] else {}, workers=64)
    recipe = plan_pool(site)
    limit = 0 if op_type == "MaxPool" else (np.prod(geometry[0]) + 3) * HALF_ULP * np.abs(expected)
    chunks = check(native, recipe, images, place["y"], expected, limit)
    assert chunks >= place["batch"] * outputs[0] // 2


def test_max_pool_keeps_nan_and_infinity(native: NativeRun) -> None:
    from hetero_cpu.operators.pooling import plan_pool

    x = draw_array(1, 1, 5, 8, 8)
    x[0, 0, 2, 3], x[0, 1, 0, 0], x[0, 2], x[0, 3, 7, 7] = np.nan, np.inf, -np.inf, np.nan
    geometry = ((3, 3), (1, 1), (1, 1), (1, 1, 1, 1))
    node = Node("pool", "MaxPool", ("x",), ("y",), since_version=22, attributes=name_geometry(geometry))
    images = {"x": Lay().place(x)[1]}
    recipe = plan_pool(native.make_site([node], images, {}, x.shape))
    assert recipe is not None
    y = np.zeros((1, 8, 8, 5), np.float32).transpose(0, 3, 1, 2)
    native.run(recipe, images, y)
    np.testing.assert_array_equal(y, pool_windows("MaxPool", x, geometry, (8, 8), counts_pads=False))


@pytest.mark.parametrize("op_type", ["MaxPool", "AveragePool"])
def test_an_image_in_c_order_is_copied_first(native: NativeRun, op_type: str) -> None:
    from hetero_cpu.operators.pooling import plan_pool

    x = draw_array(1, 2, 21, 19, 30)
    geometry = ((3, 3), (2, 2), (1, 1), (1, 1, 1, 1))
    expected = pool_windows(op_type, x, geometry, (10, 15), counts_pads=False)
    node = Node("pool", op_type, ("x",), ("y",), since_version=22, attributes=name_geometry(geometry))
    site = native.make_site([node], {"x": x}, {}, expected.shape, workers=3)
    recipe = plan_pool(site)
    assert recipe is not None
    assert recipe.scratch
    y = np.zeros((2, 10, 15, 21), np.float32).transpose(0, 3, 1, 2)
    native.run(recipe, {"x": x}, y)
    np.testing.assert_allclose(y, expected, rtol=0, atol=0 if op_type == "MaxPool" else 12 * HALF_ULP * np.abs(x).max())


@pytest.mark.parametrize("change", ["indices", "few channels", "large window"])
def test_max_pool_step_refuses_unsupported_nodes(native: NativeRun, change: str) -> None:
    from hetero_cpu.operators.pooling import plan_pool

    x = draw_array(1, 1, 4, 17, 17)
    images = {"x": x[:, :3].copy() if change == "few channels" else Lay().place(x)[1]}
    kernel = (16, 15) if change == "large window" else (2, 2)
    outputs = ("y", "places") if change == "indices" else ("y",)
    node = Node("pool", "MaxPool", ("x",), outputs, since_version=22, attributes={"kernel_shape": kernel})
    site = native.make_site([node], images, {}, (1, images["x"].shape[1], 18 - kernel[0], 18 - kernel[1]))
    assert plan_pool(site) is None


@pytest.mark.parametrize("operator", ["GlobalAveragePool", "GlobalMaxPool", "ReduceMean", "ReduceMax", "AveragePool"])
@pytest.mark.parametrize(("channels", "size"), [(3, (1, 1)), (64, (7, 7)), (150, (5, 9)), (70, (30, 41))])
def test_reduction_of_whole_images_equals_the_formula(
    native: NativeRun, monkeypatch: pytest.MonkeyPatch, operator: str, channels: int, size: tuple[int, int]
) -> None:
    from hetero_cpu.operators import pooling as steps_pooling
    from hetero_cpu.operators import rows as row_plan

    monkeypatch.setattr(row_plan, "_CHUNK_TIME", 1e-3)
    x = draw_array(1, 2, channels, *size) + np.float32(0.5)
    images = {"x": Lay(before=3, after=2, halo=Halo(1, 2, 3, 1), gap=1).place(x)[1]}
    constants = {"axes": np.array([-1, 2])}
    inputs, attributes = ("x",), {}
    if operator.startswith("Reduce"):
        inputs, attributes = ("x", "axes"), {"keepdims": 0}
    elif operator == "AveragePool":
        attributes = {"kernel_shape": size}
    node = Node("pool", operator, inputs, ("y",), since_version=20, attributes=attributes)
    shape = (2, channels) if operator.startswith("Reduce") else (2, channels, 1, 1)
    site = native.make_site([node], images, constants, shape, halos={"x": Halo(1, 2, 3, 1)}, workers=64)
    is_max = operator.endswith(("MaxPool", "Max"))
    recipe = steps_pooling.plan_pool(site) if operator == "AveragePool" else steps_pooling.plan_reduction(site)
    assert recipe is not None
    y = np.full((2, channels + 4), np.nan, np.float32)
    laid = y[:, 1 : 1 + channels].reshape(shape) if operator.startswith("Reduce") else y[:, 1 : 1 + channels, None, None]
    chunks = native.run(recipe, images, laid)
    wide = x.astype(np.float64)
    expected = wide.max(axis=(2, 3)) if is_max else wide.mean(axis=(2, 3))
    # Each row is added in four partial sums, then the rows; the rounding error grows with both sizes.
    lost = 0 if is_max else (size[0] + size[1] / 4 + 6) * HALF_ULP * np.abs(wide).mean(axis=(2, 3))
    assert np.all(np.abs(y[:, 1 : 1 + channels] - expected) <= lost)
    assert np.isnan(y[:, [0, -3, -2, -1]]).all()
    assert chunks == 2 * -(-channels // (4 * native.width))
