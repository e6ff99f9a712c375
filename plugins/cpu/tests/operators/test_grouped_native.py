"""Machine code for convolutions in groups, against a formula in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hetero_cpu.operators.recipe import Halo
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hetero_core.network.graph import Node

from ..conftest import Lay, NativeRun

SETTINGS = settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
HALF_ULP = 2.0**-24

# Kernel, strides, dilations, pads (top, left, bottom, right).
GEOMETRIES = (
    ((1, 1), (1, 1), (1, 1), (0, 0, 0, 0)),
    ((1, 1), (2, 2), (1, 1), (0, 0, 0, 0)),
    ((3, 3), (1, 1), (1, 1), (1, 1, 1, 1)),
    ((3, 2), (2, 1), (1, 2), (1, 0, 1, 2)),
)
lays = st.builds(Lay, before=st.sampled_from([0, 3]), after=st.sampled_from([0, 5]), gap=st.sampled_from([0, 2]))


def draw_array(seed: int, *shape: int) -> Any:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def convolve(x: Any, w: Any, geometry: Any, group: int) -> Any:
    kernel, strides, dilations, (top, left, bottom, right) = geometry
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (top, bottom), (left, right)))
    counts = [(padded.shape[a + 2] - (kernel[a] - 1) * dilations[a] - 1) // strides[a] + 1 for a in (0, 1)]
    split = w.astype(np.float64).reshape(group, -1, *w.shape[1:])
    y = np.zeros((x.shape[0], w.shape[0], *counts))
    for i, j in np.ndindex(*kernel):
        rows, columns = (
            slice(k * d, k * d + (n - 1) * s + 1, s) for k, d, n, s in zip((i, j), dilations, counts, strides, strict=True)
        )
        met = padded[:, :, rows, columns].reshape(x.shape[0], group, -1, *counts)
        y += np.einsum("ngchw,goc->ngohw", met, split[..., i, j]).reshape(y.shape)
    return y


@SETTINGS
@given(
    geometry=st.sampled_from(GEOMETRIES),
    batch=st.integers(1, 2),
    group=st.integers(2, 4),
    own=st.sampled_from([1, 3, 17]),
    made=st.sampled_from([1, 2, 16, 37]),
    size=st.tuples(st.integers(4, 9), st.integers(4, 9)),
    after=st.sampled_from([(), ("Relu",), ("Add",)]),
    has_halo=st.booleans(),
    x_lay=lays,
    y_lay=lays,
)
def test_grouped_convolution_of_any_geometry_equals_the_formula(native: NativeRun, **drawn: Any) -> None:
    from hetero_cpu.operators.convolution import plan_product_convolution

    geometry, group, (own, filters) = drawn["geometry"], drawn["group"], (drawn["own"], drawn["made"])
    x, w = draw_array(1, drawn["batch"], group * own, *drawn["size"]), draw_array(2, group * filters, own, *geometry[0])
    b = draw_array(3, group * filters)
    exact = convolve(x, w, geometry, group) + b[:, None, None]
    size_of_terms = convolve(abs(x), abs(w), geometry, group) + abs(b)[:, None, None]
    halo = Halo(2, 3, 2, 3) if drawn["has_halo"] else Halo()
    lay = drawn["x_lay"]
    images = {"x": Lay(lay.before, lay.after, halo, lay.gap).place(x)[1]}
    attributes = dict(zip(("kernel_shape", "strides", "dilations", "pads"), geometry, strict=True))
    nodes = [Node("conv", "Conv", ("x", "w", "b"), ("y0",), since_version=22, attributes={**attributes, "group": group})]
    if drawn["after"] == ("Relu",):
        nodes.append(Node("relu", "Relu", ("y0",), ("y1",), since_version=14))
        exact = np.maximum(exact, 0)
    elif drawn["after"] == ("Add",):
        r = draw_array(4, *exact.shape)
        images["r"] = drawn["y_lay"].place(r)[1]
        nodes.append(Node("add", "Add", ("y0", "r"), ("y1",), since_version=14))
        exact, size_of_terms = exact + r, size_of_terms + abs(r)
    # The plan gives the halo of the output; a halo keeps pixels in their rows.
    y_halo = Halo(1, 0, 0, 1)
    site = native.make_site(
        nodes, images, {"w": w, "b": b}, exact.shape, halos={"x": halo} if drawn["has_halo"] else {}, output_halo=y_halo
    )
    recipe = plan_product_convolution(site)
    assert recipe is not None
    memory, y = Lay(drawn["y_lay"].before, drawn["y_lay"].after, y_halo, drawn["y_lay"].gap).place(np.zeros(exact.shape))
    before = memory.copy()
    chunks = native.run(recipe, images, y)
    assert chunks >= group
    limit = (own * np.prod(geometry[0]) + 3) * HALF_ULP * size_of_terms
    assert np.all(np.abs(y - exact) <= limit), np.abs(y - exact).max()
    y[...] = 0
    np.testing.assert_array_equal(memory, before)


@pytest.mark.parametrize("batch", [1, 2])
def test_pointwise_groups_of_even_pixels_equal_the_formula(native: NativeRun, batch: int) -> None:
    from hetero_cpu.operators.convolution import plan_product_convolution

    geometry = GEOMETRIES[0]
    x, w = draw_array(1, batch, 24, 9, 7), draw_array(2, 84, 8, 1, 1)
    exact, size_of_terms = convolve(x, w, geometry, 3), convolve(abs(x), abs(w), geometry, 3)
    images = {"x": Lay().place(x)[1]}
    node = Node("conv", "Conv", ("x", "w"), ("y",), since_version=22, attributes={"group": 3})
    recipe = plan_product_convolution(native.make_site([node], images, {"w": w}, exact.shape))
    assert recipe is not None
    _, y = Lay().place(np.zeros(exact.shape))
    native.run(recipe, images, y)
    assert np.all(np.abs(y - exact) <= 10 * HALF_ULP * size_of_terms)


def test_grouped_convolution_overwrites_the_added_image_alone(native: NativeRun) -> None:
    from hetero_cpu.operators.convolution import plan_product_convolution

    x = Lay().place(draw_array(1, 1, 4, 6, 6))[1]
    for added, overwritten in (("r", (1,)), ("x", ())):
        nodes = [
            Node("conv", "Conv", ("x", "w"), ("t",), since_version=22, attributes={"group": 2}),
            Node("add", "Add", ("t", added), ("y",), since_version=14),
        ]
        site = native.make_site(nodes, {"x": x, "r": Lay().place(x)[1]}, {"w": draw_array(2, 4, 2, 1, 1)}, x.shape)
        recipe = plan_product_convolution(site)
        assert recipe is not None
        assert recipe.overwrites == overwritten
