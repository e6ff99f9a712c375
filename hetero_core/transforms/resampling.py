"""Height and width of an image brought to those of a model: nearest, bilinear, cubic, area.

nearest and bilinear are Resize with half-pixel centers, as OpenVINO and ONNX Runtime have it. area is the mean over the part of the
source that a target pixel covers, as OpenCV's INTER_AREA when it shrinks: a product with a matrix of weights for each axis. cubic is such
a product, too, if sizes are known: of four pixels by Keys' kernel with a = -0.75, with the border repeated.

Each is written in the opset of the network: Resize of named axes from 18 on, of all axes from 11 on, and before, as Resize knows no
half-pixel centers, Gather for nearest and the product with weights for bilinear.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hetero_core.dtypes import numpy_dtype
from hetero_core.errors import InvalidNetworkError, enumerate_choices, suggest
from hetero_core.network.types import Dimension
from hetero_core.transforms.chains import Chain

MODES = ("nearest", "bilinear", "cubic", "area")
_NAMES_AXES = 18
_LEAVES_OUT = 13
"""The first opset in which Resize may be without the inputs that are not used."""
_HAS_CENTERS = 11


def add_resize(chain: Chain, mode: str, layout: str, model_shape: Sequence[Dimension], where: str) -> None:
    """Adds what brings axes H and W of the value, which is in the model's layout, to the model's sizes.

    Raises: InvalidNetworkError if the layout has no H and W, and if needed sizes are open.
    """
    if mode not in MODES:
        raise InvalidNetworkError(
            f"{where}: there is no resize '{mode}'{suggest(mode, MODES) or ';'} expected one of {enumerate_choices(MODES)}"
        )
    if not {"H", "W"} <= set(layout):
        raise InvalidNetworkError(f"{where}: resize needs the axes H and W; the layout of the model is {layout}")
    axes = (layout.index("H"), layout.index("W"))
    sizes = [model_shape[axis] for axis in axes]
    if not all(isinstance(size, int) for size in sizes):
        raise InvalidNetworkError(
            f"{where}: the model's height and width are open ({', '.join(str(size) for size in sizes)}); give them sizes with with_shapes "
            "before the resize"
        )
    assert chain.shape is not None
    target = tuple(sizes[axes.index(axis)] if axis in axes else size for axis, size in enumerate(chain.shape))
    are_known = all(isinstance(chain.shape[axis], int) for axis in axes)
    if mode == "area" or (are_known and (mode == "cubic" or (mode == "bilinear" and chain.opset < _HAS_CENTERS))):
        _add_products(chain, mode, axes, target, where)
    elif mode == "nearest" and chain.opset < _HAS_CENTERS and are_known:
        _add_gathers(chain, axes, target)
    else:
        _add_resize(chain, mode, axes, target)


def _add_resize(chain: Chain, mode: str, axes: tuple[int, int], target: tuple[Dimension, ...]) -> None:
    attributes: dict[str, Any] = {"mode": {"bilinear": "linear"}.get(mode, mode)}
    attributes["coordinate_transformation_mode"] = "half_pixel"
    if mode == "nearest":
        attributes["nearest_mode"] = "round_prefer_floor"
    if chain.opset >= _NAMES_AXES:
        attributes["axes"] = axes
        sizes = chain.hold("sizes", np.asarray([target[axis] for axis in axes], "int64"))
    else:
        sizes = _compute_sizes(chain, target)
    unused = "" if chain.opset >= _LEAVES_OUT else chain.hold("unused", np.asarray([], "float32"))
    chain.add("Resize", unused, unused, sizes, shape=target, attributes=attributes)


def _compute_sizes(chain: Chain, target: tuple[Dimension, ...]) -> str:
    """Returns the value that holds the sizes of all axes; an open size is taken from the array."""
    known = np.asarray([size if isinstance(size, int) else 0 for size in target], "int64")
    if all(isinstance(size, int) for size in target):
        return chain.hold("sizes", known)
    value, dtype, shape = chain.value, chain.dtype, chain.shape
    chain.add("Shape", dtype="int64", shape=(len(target),))
    chain.add("Mul", chain.hold("open", np.asarray([not isinstance(size, int) for size in target], "int64")))
    chain.add("Add", chain.hold("sizes", known))
    sizes, chain.value, chain.dtype, chain.shape = chain.value, value, dtype, shape
    return sizes


def _add_gathers(chain: Chain, axes: tuple[int, int], target: tuple[Dimension, ...]) -> None:
    for axis in axes:
        assert chain.shape is not None
        size, output = int(chain.shape[axis] or 0), int(target[axis] or 0)
        indices = chain.hold(f"pixels{axis}", find_nearest(size, output))
        shape = (*chain.shape[:axis], output, *chain.shape[axis + 1 :])
        chain.add("Gather", indices, shape=shape, attributes={"axis": axis})


def _add_products(chain: Chain, mode: str, axes: tuple[int, int], target: tuple[Dimension, ...], where: str) -> None:
    assert chain.shape is not None
    rank = len(target)
    source_sizes = [chain.shape[axis] for axis in axes]
    if not all(isinstance(size, int) and size > 0 for size in source_sizes):
        raise InvalidNetworkError(
            f"{where}: resize='area' needs the height and the width of the arrays, which are open; say them in shape, or take 'bilinear'"
        )
    # A product with a matrix works on the last two axes.
    order = (*(axis for axis in range(rank) if axis not in axes), *axes)
    chain.transpose(order)
    dtype = numpy_dtype(chain.dtype)
    leading = chain.shape[:-2]
    weigh = {"area": weigh_area, "bilinear": weigh_bilinear, "cubic": weigh_cubic}[mode]
    rows = weigh(int(source_sizes[0] or 0), int(target[axes[0]] or 0)).astype(dtype)
    columns = weigh(int(source_sizes[1] or 0), int(target[axes[1]] or 0)).astype(dtype).T
    chain.add("MatMul", begins=chain.hold("rows", rows), shape=(*leading, target[axes[0]], source_sizes[1]))
    chain.add("MatMul", chain.hold("columns", columns), shape=(*leading, target[axes[0]], target[axes[1]]))
    chain.transpose(tuple(order.index(axis) for axis in range(rank)))


def weigh_area(size: int, output: int) -> np.ndarray[Any, Any]:
    """Returns float64 (output, size): the share of each source pixel in each target pixel, which covers size / output of them."""
    step = size / output
    begin = np.arange(output)[:, None] * step
    source = np.arange(size)[None, :]
    covered = np.minimum(begin + step, source + 1) - np.maximum(begin, source)
    shares: np.ndarray[Any, Any] = np.clip(covered, 0, None) / step
    return shares


def weigh_bilinear(size: int, output: int) -> np.ndarray[Any, Any]:
    """Returns float64 (output, size): the share of the two source pixels beside the center of each target pixel."""
    center = np.clip((np.arange(output) + 0.5) * (size / output) - 0.5, 0, size - 1)
    shares: np.ndarray[Any, Any] = np.clip(1 - np.abs(center[:, None] - np.arange(size)[None, :]), 0, None)
    return shares


def weigh_cubic(size: int, output: int) -> np.ndarray[Any, Any]:
    """Returns float64 (output, size): the share of the four source pixels around the center of each target pixel.

    Source: Keys 1981, Cubic convolution interpolation, with a = -0.75, as ONNX's Resize and OpenVINO's Interpolate have it.
    """
    a = -0.75
    center = (np.arange(output) + 0.5) * (size / output) - 0.5
    first = np.floor(center).astype(np.int64) - 1
    shares = np.zeros((output, size))
    for step in range(4):
        distance = np.abs(center - (first + step))
        near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
        far = ((distance - 5) * distance + 8) * distance * a - 4 * a
        np.add.at(shares, (np.arange(output), np.clip(first + step, 0, size - 1)), np.where(distance <= 1, near, far))
    return shares


def find_nearest(size: int, output: int) -> np.ndarray[Any, Any]:
    """Returns int64 (output): the source pixel next to the center of each target pixel; of two at the same distance, the lower."""
    # The pixel's center less a half is ((2 i + 1) size - 2 output) / (2 output), rounded up in integers.
    nearest = -((2 * output - (2 * np.arange(output, dtype=np.int64) + 1) * size) // (2 * output))
    return np.clip(nearest, 0, size - 1)
