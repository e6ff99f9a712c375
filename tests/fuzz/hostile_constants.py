"""Hostile models of one node that makes gigabytes of constants, or reads constants for hours."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
from hostile_builders import add_to_input, hostile
from onnx import helper

Constants = dict[str, Any]


def grow(op_type: str, constants: Constants, **attributes: Any) -> bytes:
    """Returns a model that adds what a node makes of constants to its input."""
    return add_to_input([helper.make_node(op_type, list(constants), ["e"], **attributes)], "e", constants)


def fill(op_type: str, shapes: list[list[int]], **attributes: Any) -> bytes:
    """Returns a model of one node over constants that are filled by ConstantOfShape."""
    nodes = [helper.make_node("ConstantOfShape", [f"s{index}"], [f"c{index}"]) for index in range(len(shapes))]
    nodes.append(helper.make_node(op_type, [f"c{index}" for index in range(len(shapes))], ["e"], **attributes))
    nodes.append(helper.make_node("ReduceMax", ["e"], ["m"], keepdims=0))
    return add_to_input(nodes, "m", {f"s{index}": np.array(shape) for index, shape in enumerate(shapes)})


def ones(*shape: int) -> Any:
    return np.ones(shape, np.float32)


_MAKERS: dict[str, Callable[[], bytes]] = {
    "expand": lambda: grow("Expand", {"c": ones(1), "s": np.array([1 << 40])}),
    "expand_to_three_gigabytes": lambda: grow("Expand", {"c": ones(1), "s": np.array([800_000_000])}),
    "tile": lambda: grow("Tile", {"c": ones(8), "r": np.array([1 << 31])}),
    "pad": lambda: grow("Pad", {"c": ones(8), "p": np.array([1 << 33, 1 << 33])}),
    "fill": lambda: grow("ConstantOfShape", {"s": np.array([1 << 20, 1 << 20])}),
    "range": lambda: grow("Range", {"a": np.float32(0), "b": np.float32(1e12), "c": np.float32(1)}),
    "outer_product": lambda: grow("MatMul", {"a": ones(100_000, 1), "b": ones(1, 100_000)}),
    "broadcast": lambda: grow("Add", {"a": ones(100_000, 1), "b": ones(100_000)}),
    "one_hot": lambda: grow("OneHot", {"i": np.arange(9), "d": np.array([1 << 36]), "v": np.array([0, 1], np.float32)}),
    "upsample": lambda: grow("Resize", {"c": ones(1, 1, 9, 9), "r": ones(0), "s": np.float32([1, 1, 1e5, 1e5])}),
    "eye": lambda: grow("EyeLike", {"c": ones(0, 1 << 40)}),
    "window": lambda: grow("HannWindow", {"n": np.array(1 << 40)}),
    "mel_weights": lambda: grow(
        "MelWeightMatrix",
        {"n": np.array(1 << 25), "d": np.array(1 << 30), "r": np.array(8192), "l": np.float32(0), "h": np.float32(4096)},
    ),
    "random": lambda: grow("RandomNormal", {}, shape=[1 << 20, 1 << 20]),
    "outer_einsum": lambda: grow("Einsum", {"a": ones(100_000), "b": ones(100_000)}, equation="i,j->ij"),
    "gather": lambda: grow("Gather", {"a": ones(1, 90_000), "i": np.zeros(70_000, np.int64)}),
    "fold_back": lambda: grow("Col2Im", {"c": ones(1, 1, 1), "s": np.array([1 << 20, 1 << 20]), "b": np.array([1, 1])}),
    "unpool": lambda: grow(
        "MaxUnpool",
        {"c": ones(1, 1, 1, 1), "i": np.zeros((1, 1, 1, 1), np.int64), "s": np.array([1, 1, 1 << 20, 1 << 20])},
        kernel_shape=[1, 1],
    ),
    "transposed_convolution": lambda: grow("ConvTranspose", {"c": ones(1, 1, 9, 9), "w": ones(1, 1, 1, 1)}, strides=[100_000] * 2),
    "affine_grid": lambda: grow("AffineGrid", {"t": ones(1, 2, 3), "s": np.array([1, 1, 1 << 18, 1 << 18])}),
    "fourier": lambda: grow("DFT", {"c": ones(1, 8, 1), "n": np.array(1 << 38), "a": np.array(1)}),
    "maximum_of_a_wide_window": lambda: grow("MaxPool", {"c": ones(1, 1, 9, 9)}, kernel_shape=[1 << 20] * 2, pads=[1 << 19] * 4),
    "mean_of_wide_windows": lambda: fill("AveragePool", [[1, 1, 2000, 2000]], kernel_shape=[1001, 1001], pads=[500] * 4),
    "wide_convolution": lambda: fill("Conv", [[1, 1, 2000, 2000], [1, 1, 1001, 1001]], pads=[500] * 4),
    "wide_transposed_convolution": lambda: fill("ConvTranspose", [[1, 1, 1000, 1000], [1, 1, 1000, 1000]]),
    "sum_of_three_axes": lambda: fill("Einsum", [[20_000], [20_000], [20_000]], equation="i,j,k->"),
    "product": lambda: fill("MatMul", [[2000, 4000], [4000, 2000]]),
}


@cache
def add_makers() -> None:
    """Adds the makers to the list, each named `constant_...`."""
    for name, make in _MAKERS.items():
        maker: Any = partial(make)
        maker.__name__ = f"constant_{name}"
        hostile(maker)
