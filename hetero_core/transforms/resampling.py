"""Height and width of an image brought to those of a model: nearest, bilinear, area.

nearest and bilinear are Resize with half-pixel centers, as OpenVINO and ONNX Runtime have it. area is the mean over the part of the
source that a target pixel covers, as OpenCV's INTER_AREA when it shrinks: a product with a matrix of weights for each axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hetero_core.dtypes import numpy_dtype
from hetero_core.errors import InvalidNetworkError
from hetero_core.network.types import Dimension
from hetero_core.transforms.chains import Chain

if TYPE_CHECKING:
    import numpy as np

MODES = ("nearest", "bilinear", "area")


def add_resize(chain: Chain, mode: str, layout: str, wanted: Sequence[Dimension], where: str) -> None:
    """Adds what brings axes H and W of the value, which is in the model's layout, to the model's sizes.

    Raises: InvalidNetworkError where the layout has no H and W, and where sizes that are needed are open.
    """
    if not {"H", "W"} <= set(layout):
        raise InvalidNetworkError(f"{where}: resize needs the axes H and W; the layout of the model is {layout}")
    axes = (layout.index("H"), layout.index("W"))
    sizes = [wanted[axis] for axis in axes]
    if not all(isinstance(size, int) for size in sizes):
        raise InvalidNetworkError(
            f"{where}: the model's height and width are open ({', '.join(str(size) for size in sizes)}); give them sizes with with_shapes "
            "before the resize"
        )
    assert chain.shape is not None
    target = tuple(sizes[axes.index(axis)] if axis in axes else size for axis, size in enumerate(chain.shape))
    if mode == "area":
        _add_area(chain, axes, target, where)
        return
    attributes: dict[str, Any] = {"mode": "nearest" if mode == "nearest" else "linear", "axes": axes}
    attributes["coordinate_transformation_mode"] = "half_pixel"
    if mode == "nearest":
        attributes["nearest_mode"] = "round_prefer_floor"
    chain.add("Resize", "", "", chain.hold("sizes", _array(sizes, "int64")), shape=target, attributes=attributes)


def _add_area(chain: Chain, axes: tuple[int, int], target: tuple[Dimension, ...], where: str) -> None:
    assert chain.shape is not None
    rank = len(target)
    given = [chain.shape[axis] for axis in axes]
    if not all(isinstance(size, int) and size > 0 for size in given):
        raise InvalidNetworkError(
            f"{where}: resize='area' needs the height and the width of the arrays, which are open; say them in shape, or take 'bilinear'"
        )
    # A product with a matrix works on the last two axes.
    order = (*(axis for axis in range(rank) if axis not in axes), *axes)
    chain.transpose(order)
    dtype = numpy_dtype(chain.dtype)
    kept = chain.shape[:-2]
    rows = weigh_area(int(given[0] or 0), int(target[axes[0]] or 0)).astype(dtype)
    columns = weigh_area(int(given[1] or 0), int(target[axes[1]] or 0)).astype(dtype).T
    chain.add("MatMul", begins=chain.hold("rows", rows), shape=(*kept, target[axes[0]], given[1]))
    chain.add("MatMul", chain.hold("columns", columns), shape=(*kept, target[axes[0]], target[axes[1]]))
    chain.transpose(tuple(order.index(axis) for axis in range(rank)))


def weigh_area(size: int, output: int) -> np.ndarray[Any, Any]:
    """Returns float64 (output, size): the share of each source pixel in each target pixel, which covers size / output of them."""
    import numpy as np

    step = size / output
    begin = np.arange(output)[:, None] * step
    source = np.arange(size)[None, :]
    covered = np.minimum(begin + step, source + 1) - np.maximum(begin, source)
    shares: np.ndarray[Any, Any] = np.clip(covered, 0, None) / step
    return shares


def _array(numbers: Any, dtype: str) -> np.ndarray[Any, Any]:
    import numpy as np

    return np.asarray(numbers, dtype)
