"""GridSample of images is a step, and gives the samples of ONNX's formula in float64, whichever way images and grids lie in memory."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import onnx.parser
import pytest
from hetero_cpu.plan.plan import Foreign

from hetero_core import Core

from ..trial import WIDTHS

pytestmark = pytest.mark.skipif(not WIDTHS, reason="no kernels are made for this processor, or llvmlite is not installed")


def draw(*shape: int) -> Any:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


def sample(x: Any, grid: Any, mode: str, padding: str, align: int) -> Any:
    """Returns x (batch, channels, height, width) at the points of a grid (batch, rows, columns, 2)."""
    x, grid = x.astype(np.float64), grid.astype(np.float64)
    y = np.zeros((*x.shape[:2], *grid.shape[1:3]))
    for image, row, column in np.ndindex(grid.shape[:3]):
        axes = []
        for place, size in zip(grid[image, row, column, ::-1], x.shape[2:], strict=True):
            place = (place + 1) / 2 * (size - 1) if align else ((place + 1) * size - 1) / 2
            below = np.floor(place)
            axes.append(
                [(np.rint(place), 1.0)] if mode == "nearest" else [(below, 1 - (place - below)), (below + 1, place - below)]
            )
        for (i, down), (j, right) in product(*axes):
            inside = [np.clip(each, 0, size - 1) for each, size in zip((i, j), x.shape[2:], strict=True)]
            if padding == "border" or inside == [i, j]:
                y[image, :, row, column] += down * right * x[image, :, int(inside[0]), int(inside[1])]
    return y


BEGIN = '<ir_version: 8, opset_import: ["": 20]> g '
# Images and grid as inputs, the function that the network computes before, and what stands between them and the node.
LAYOUTS = {
    "planes": ("x", "grid", (2, 3, 5, 7), (2, 4, 6, 2), ""),
    "single": ("x", "grid", (5, 1, 4, 4), (5, 9, 9, 2), ""),
    "many": ("x", "grid", (2, 21, 9, 6), (2, 11, 13, 2), ""),
    "last": ("a", "grid", (2, 9, 6, 21), (2, 11, 13, 2), "x = Transpose <perm = [0, 3, 1, 2]> (a)"),
    "strided": ("x", "b", (1, 21, 9, 6), (1, 2, 11, 13), "grid = Transpose <perm = [0, 2, 3, 1]> (b)"),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("padding", ["border", "zeros"])
@pytest.mark.parametrize("mode", ["linear", "nearest"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_samples_are_those_of_the_formula(core: Core, layout: str, mode: str, padding: str, align: int, dtype: Any) -> None:
    source, points, shape, places, before = LAYOUTS[layout]
    kind = "float" if dtype == np.float32 else "double"
    model = onnx.parser.parse_model(
        f"{BEGIN} (float{list(shape)} {source}, {kind}{list(places)} {points}) => (float[n, c, h, w] y) {{ {before} "
        f'y = GridSample <mode = "{mode}", padding_mode = "{padding}", align_corners = {align}> (x, grid) }}'
    )
    x, grid = draw(*shape), draw(*places).astype(dtype)
    grid.flat[:6] = [-1, 1, 0, 30, -30, 1]
    loaded: Any = core.load_network(model, "CPU", {"CPU_KERNELS": "JIT", "INFERENCE_NUM_THREADS": 2})
    answer = loaded.infer({source: x, points: grid})["y"]
    (plan,) = loaded.executable._plans
    assert not [step.node.name for step in plan.plan.steps if isinstance(step.work, Foreign)]
    x, grid = x.transpose(0, 3, 1, 2) if before and source == "a" else x, grid.transpose(0, 2, 3, 1) if points == "b" else grid
    np.testing.assert_allclose(answer, sample(x, grid, mode, padding, align), rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("padding", ["border", "zeros"])
def test_points_that_are_no_numbers_or_far_outside(core: Core, padding: str) -> None:
    """An infinite pixel outside counts nothing, and a point that is NaN gives NaN, as in the toolkit."""
    model = onnx.parser.parse_model(
        f"{BEGIN} (float[1, 2, 3, 3] x, float[1, 1, 6, 2] grid) => (float[1, 2, 1, 6] y) {{ "
        f'y = GridSample <padding_mode = "{padding}"> (x, grid) }}'
    )
    x = draw(1, 2, 3, 3)
    x[0, 0, 0, 0] = np.inf
    grid = np.zeros((1, 1, 6, 2), np.float32)
    grid[0, 0, :, 0] = [np.nan, np.inf, -np.inf, 3e38, -3e38, 0]
    answers = [
        core.load_network(model, "CPU", {"CPU_KERNELS": kernels}).infer({"x": x, "grid": grid})["y"] for kernels in ("JIT", "NUMPY")
    ]
    assert np.isnan(answers[0][..., 0]).all()
    np.testing.assert_allclose(*answers, rtol=1e-6)


def test_open_sizes_and_a_halo_give_the_samples_of_the_formula(core: Core) -> None:
    """The convolution behind wants zeros around the samples; the second run has other sizes."""
    model = onnx.parser.parse_model(
        f"""{BEGIN} (float[n, h, w, 8] a, float[n, r, s, 2] grid) => (float[n, 8, r, s] y)
        <float[8, 8, 3, 3] weight> {{
            x = Transpose <perm = [0, 3, 1, 2]> (a)
            z = GridSample (x, grid)
            y = Conv <pads = [1, 1, 1, 1]> (z, weight)
        }}"""
    )
    weight = np.zeros((8, 8, 3, 3), np.float32)
    weight[range(8), range(8), 1, 1] = 1
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "weight"))
    loaded: Any = core.load_network(model, "CPU", {"CPU_KERNELS": "JIT"})
    for n, h, w, r, s in ((2, 9, 6, 5, 7), (1, 4, 11, 8, 70)):
        x, grid = draw(n, h, w, 8), draw(n, r, s, 2)
        answer = loaded.infer({"a": x, "grid": grid})["y"]
        expected = sample(x.transpose(0, 3, 1, 2), grid, "linear", "zeros", 0)
        np.testing.assert_allclose(answer, expected, rtol=1e-5, atol=2e-5)
