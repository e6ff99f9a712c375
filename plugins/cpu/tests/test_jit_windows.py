"""Machine code for depthwise convolutions and for pooling, against formulas in float64."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from hetero_cpu.planning.recipe import Halo, Recipe
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hetero_core.network.graph import Node

from .conftest import Lay, NativeRun

SETTINGS = settings(max_examples=16, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
HALF_ULP = 2.0**-24

# Kernel, strides, dilations, pads (top, left, bottom, right): each is machine code of its own, so there are few.
GEOMETRIES = (
    ((3, 3), (1, 1), (1, 1), (1, 1, 1, 1)),
    ((3, 3), (2, 2), (1, 1), (1, 1, 1, 1)),
    ((3, 3), (1, 1), (1, 1), (0, 0, 0, 0)),
    ((5, 5), (1, 1), (1, 1), (2, 2, 2, 2)),
    ((1, 4), (1, 3), (1, 1), (0, 2, 0, 1)),
    ((3, 2), (2, 1), (2, 3), (3, 1, 2, 4)),
    ((2, 2), (2, 2), (1, 1), (0, 0, 0, 0)),
)
lays = st.builds(Lay, before=st.sampled_from([0, 3]), after=st.sampled_from([0, 5]), gap=st.sampled_from([0, 2]))
places = st.fixed_dictionaries(
    {
        "geometry": st.sampled_from(GEOMETRIES),
        "batch": st.integers(1, 2),
        "channels": st.sampled_from([2, 8, 16, 19, 32, 47]),
        "size": st.tuples(st.integers(5, 17), st.integers(5, 17)),
        "x": lays,
        "y": lays,
        "has_halo": st.booleans(),
    }
)


def draw_array(seed: int, *shape: int) -> Any:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def list_windows(size: int, kernel: int, stride: int, dilation: int, begin: int, outputs: int) -> list[Any]:
    """Returns, for each output along one axis, the pairs of (tap, position) that lie inside."""
    starts = (output * stride - begin for output in range(outputs))
    return [[(i, s + i * dilation) for i in range(kernel) if 0 <= s + i * dilation < size] for s in starts]


def walk_windows(x: Any, geometry: Any, outputs: tuple[int, int]) -> Iterator[tuple[int, int, Any, Any]]:
    """Yields (row, column, taps, elements) of each output: pairs of taps inside the image, and what they meet, (batch, channels, taps)."""
    kernel, strides, dilations, pads = geometry
    rows, columns = (
        list_windows(x.shape[axis + 2], kernel[axis], strides[axis], dilations[axis], pads[axis], outputs[axis]) for axis in (0, 1)
    )
    for r, c in np.ndindex(*outputs):
        pairs = [((i, j), (y, z)) for i, y in rows[r] for j, z in columns[c]]
        elements = np.array([x[:, :, y, z] for _, (y, z) in pairs]).reshape(len(pairs), *x.shape[:2]).transpose(1, 2, 0)
        yield r, c, [taps for taps, _ in pairs], elements


def count_outputs(size: tuple[int, int], geometry: Any, *, ceil: bool = False) -> tuple[int, int]:
    counts = []
    for axis, (kernel, stride, dilation) in enumerate(zip(*geometry[:3], strict=True)):
        begin, end = geometry[3][axis], geometry[3][axis + 2]
        room = size[axis] + begin + end - (kernel - 1) * dilation - 1
        count = (-(-room // stride) if ceil else room // stride) + 1
        # No window starts behind the image and its first pad.
        counts.append(count - (ceil and (count - 1) * stride >= size[axis] + begin))
    return counts[0], counts[1]


def name_geometry(geometry: Any) -> dict[str, Any]:
    kernel, strides, dilations, pads = geometry
    return {"kernel_shape": kernel, "strides": strides, "dilations": dilations, "pads": pads}


def check(native: NativeRun, recipe: Recipe | None, images: Mapping[str, Any], lay: Lay, expected: Any, limit: Any) -> int:
    """Runs a recipe into memory laid out as `lay` says, and checks the result and that nothing else was written. Returns the chunks."""
    assert recipe is not None
    memory, y = lay.place(np.zeros(expected.shape))
    before = memory.copy()
    chunks = native.run(recipe, images, y)
    result = y.copy()
    # A window of padding alone has the maximum of nothing.
    differences = np.abs(np.subtract(result, expected, where=result != expected, out=np.zeros_like(expected)))
    assert np.all(differences <= limit), differences.max()
    y[...] = 0
    np.testing.assert_array_equal(memory, before)
    return chunks


def sum_windows(x: Any, w: Any, geometry: Any, outputs: tuple[int, int]) -> Any:
    y = np.zeros((*x.shape[:2], *outputs))
    for r, c, taps, elements in walk_windows(x, geometry, outputs):
        for index, (i, j) in enumerate(taps):
            y[:, :, r, c] += elements[:, :, index] * w[:, 0, i, j]
    return y


AFTER = ((), ("Relu",), ("Clip",), ("Add",), ("Add", "HardSwish"))


@SETTINGS
@given(places, st.sampled_from(AFTER), st.booleans())
def test_depthwise_convolution_of_any_geometry_equals_the_formula(
    native: NativeRun, monkeypatch: pytest.MonkeyPatch, place: dict[str, Any], after: tuple[str, ...], has_bias: bool
) -> None:
    from hetero_cpu.operators.depthwise.native_steps import plan_depthwise
    from hetero_cpu.operators.windows import window_plan

    # Every line is a chunk.
    monkeypatch.setattr(window_plan, "_CHUNK_TIME", 1e-3)
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
    # One rounding for each tap, the bias, the addition, and three for the activation.
    limit = (np.prod(geometry[0]) + 5) * HALF_ULP * size_of_terms
    chunks = check(native, plan_depthwise(site), images, place["y"], exact, limit)
    rows = 2 if native.width == 16 and outputs[0] > 1 else 1
    assert chunks == place["batch"] * -(-outputs[0] // rows)


def test_depthwise_convolution_of_planes_copies_them_first(native: NativeRun) -> None:
    from hetero_cpu.operators.depthwise.native_steps import plan_depthwise

    geometry = ((3, 3), (2, 1), (1, 1), (1, 1, 1, 1))
    outputs = count_outputs((7, 8), geometry)
    x, w = draw_array(1, 2, 5, 7, 8), draw_array(2, 5, 1, 3, 3)
    exact, size_of_terms = (sum_windows(f(x).astype(np.float64), f(w), geometry, outputs) for f in (np.array, np.abs))
    node = Node("conv", "Conv", ("x", "w"), ("y",), since_version=22, attributes={**name_geometry(geometry), "group": 5})
    recipe = plan_depthwise(native.make_site([node], {"x": x}, {"w": w}, exact.shape))
    assert recipe is not None
    assert len(recipe.kernels) == 2
    check(native, recipe, {"x": x}, Lay(), exact, 12 * HALF_ULP * size_of_terms)


def test_depthwise_convolution_keeps_what_is_not_a_number(native: NativeRun) -> None:
    from hetero_cpu.operators.depthwise.native_steps import plan_depthwise

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
    from hetero_cpu.operators.depthwise.native_steps import plan_depthwise

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
def test_depthwise_convolution_leaves_to_others_what_it_does_not_compute(
    native: NativeRun, attributes: dict[str, Any], weight: tuple[int, ...]
) -> None:
    from hetero_cpu.operators.depthwise.native_steps import plan_depthwise

    x = draw_array(1, 1, 4, 6, 6)
    images = {"x": Lay().place(x)[1]}
    pads = attributes.get("pads", (0,) * 4)
    outputs = count_outputs((6, 6), (weight[2:], (1, 1), (1, 1), pads))
    node = Node("conv", "Conv", ("x", "w"), ("y",), since_version=22, attributes=attributes)
    site = native.make_site([node], images, {"w": draw_array(2, *weight)}, (1, weight[0], *outputs))
    assert plan_depthwise(site) is None


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
    from hetero_cpu.operators.pooling.native_steps import plan_average_pool, plan_max_pool
    from hetero_cpu.operators.windows import window_plan

    monkeypatch.setattr(window_plan, "_CHUNK_TIME", 1e-3)
    geometry, channels, size = place["geometry"], place["channels"], place["size"]
    outputs = count_outputs(size, geometry, ceil=ceil)
    # Elements are negative, so that a halo's zero would be a maximum.
    x = -np.abs(draw_array(1, place["batch"], channels, *size))
    halo = Halo(4, 4, 8, 8) if place["has_halo"] else Halo()
    images = {"x": Lay(place["x"].before, place["x"].after, halo, place["x"].gap).place(x)[1]}
    attributes = {**name_geometry(geometry), "ceil_mode": int(ceil)}
    if op_type == "AveragePool":
        attributes["count_include_pad"] = int(counts_pads)
    node = Node("pool", op_type, ("x",), ("y",), since_version=22, attributes=attributes)
    expected = pool_windows(op_type, x, geometry, outputs, counts_pads=counts_pads)
    site = native.make_site([node], images, {}, expected.shape, halos={"x": halo} if place["has_halo"] else {}, workers=64)
    recipe = plan_max_pool(site) if op_type == "MaxPool" else plan_average_pool(site)
    limit = 0 if op_type == "MaxPool" else (np.prod(geometry[0]) + 3) * HALF_ULP * np.abs(expected)
    chunks = check(native, recipe, images, place["y"], expected, limit)
    assert chunks >= place["batch"] * outputs[0] // 2


def test_max_pool_keeps_what_is_not_a_number(native: NativeRun) -> None:
    from hetero_cpu.operators.pooling.native_steps import plan_max_pool

    x = draw_array(1, 1, 5, 8, 8)
    x[0, 0, 2, 3], x[0, 1, 0, 0], x[0, 2], x[0, 3, 7, 7] = np.nan, np.inf, -np.inf, np.nan
    geometry = ((3, 3), (1, 1), (1, 1), (1, 1, 1, 1))
    node = Node("pool", "MaxPool", ("x",), ("y",), since_version=22, attributes=name_geometry(geometry))
    images = {"x": Lay().place(x)[1]}
    recipe = plan_max_pool(native.make_site([node], images, {}, x.shape))
    assert recipe is not None
    y = np.zeros((1, 8, 8, 5), np.float32).transpose(0, 3, 1, 2)
    native.run(recipe, images, y)
    np.testing.assert_array_equal(y, pool_windows("MaxPool", x, geometry, (8, 8), counts_pads=False))


@pytest.mark.parametrize("change", ["indices", "C order", "large window"])
def test_max_pool_leaves_to_others_what_it_does_not_compute(native: NativeRun, change: str) -> None:
    from hetero_cpu.operators.pooling.native_steps import plan_max_pool

    x = draw_array(1, 1, 4, 16, 16)
    images = {"x": x if change == "C order" else Lay().place(x)[1]}
    kernel = (16, 15) if change == "large window" else (2, 2)
    outputs = ("y", "places") if change == "indices" else ("y",)
    node = Node("pool", "MaxPool", ("x",), outputs, since_version=22, attributes={"kernel_shape": kernel})
    site = native.make_site([node], images, {}, (1, 4, 17 - kernel[0], 17 - kernel[1]))
    assert plan_max_pool(site) is None


@pytest.mark.parametrize("operator", ["GlobalAveragePool", "GlobalMaxPool", "ReduceMean", "ReduceMax", "AveragePool"])
@pytest.mark.parametrize(("channels", "size"), [(3, (1, 1)), (64, (7, 7)), (150, (5, 9)), (70, (30, 41))])
def test_reduction_of_whole_images_equals_the_formula(
    native: NativeRun, monkeypatch: pytest.MonkeyPatch, operator: str, channels: int, size: tuple[int, int]
) -> None:
    from hetero_cpu.operators.pooling import native_steps as steps_pooling
    from hetero_cpu.operators.windows import window_plan

    monkeypatch.setattr(window_plan, "_CHUNK_TIME", 1e-3)
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
    plans = {"AveragePool": steps_pooling.plan_average_pool}
    is_max = operator.endswith(("MaxPool", "Max"))
    recipe = plans.get(operator, steps_pooling.plan_global_max if is_max else steps_pooling.plan_global_mean)(site)
    assert recipe is not None
    y = np.full((2, channels + 4), np.nan, np.float32)
    laid = y[:, 1 : 1 + channels].reshape(shape) if operator.startswith("Reduce") else y[:, 1 : 1 + channels, None, None]
    chunks = native.run(recipe, images, laid)
    wide = x.astype(np.float64)
    expected = wide.max(axis=(2, 3)) if is_max else wide.mean(axis=(2, 3))
    # Rows are summed apart in four sums, then added up: what is lost grows with both.
    lost = 0 if is_max else (size[0] + size[1] / 4 + 6) * HALF_ULP * np.abs(wide).mean(axis=(2, 3))
    assert np.all(np.abs(y[:, 1 : 1 + channels] - expected) <= lost)
    assert np.isnan(y[:, [0, -3, -2, -1]]).all()
    assert chunks == 2 * -(-channels // (4 * native.width))


def test_reduction_over_other_axes_is_left_to_others(native: NativeRun) -> None:
    from hetero_cpu.operators.pooling.native_steps import plan_global_mean

    images = {"x": Lay().place(draw_array(1, 1, 4, 6, 6))[1]}
    node = Node("mean", "ReduceMean", ("x", "axes"), ("y",), since_version=18)
    for axes in ([1], [1, 2, 3], [2]):
        assert plan_global_mean(native.make_site([node], images, {"axes": np.array(axes)}, (1, 1, 1, 1))) is None
