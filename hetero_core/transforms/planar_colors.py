"""Pictures of cameras in one plane of bytes, NV12 and I420, brought to RGB or BGR.

The plane is (N, 3/2 H, W, 1): the brightness of each pixel, then the two colors of each square of four pixels: side by side in NV12 (U, V,
U, V, ...), one behind the other in I420 (all U, all V). Formula: R = 1.164 (Y - 16) + 1.596 (V - 128), G = 1.164 (Y - 16) - 0.813 (V - 128)
- 0.391 (U - 128), B = 1.164 (Y - 16) + 2.018 (U - 128), within 0 and 255. Source: OpenVINO NV12toRGB-8, I420toRGB-8; ITU-R BT.601.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hetero_core.errors import InvalidNetworkError
from hetero_core.network.types import Dimension
from hetero_core.transforms.chains import Chain

PLANAR_COLORS = ("I420->BGR", "I420->RGB", "NV12->BGR", "NV12->RGB")
_RED, _GREEN, _BLUE = (1.164, 0.0, 1.596), (1.164, -0.391, -0.813), (1.164, 2.018, 0.0)
"""The shares of Y, U and V."""


def find_plane(
    shape: Sequence[Dimension] | None, image: tuple[Dimension, Dimension, Dimension], layout: str, where: str
) -> tuple[Dimension, int, int, int]:
    """Returns the shape of the plane: the one that is given, else the one for an image of (N, H, W).

    Raises: InvalidNetworkError where that is no plane of a picture with an even height and width that are known.
    """
    batch, height, width = image
    if shape is None and isinstance(height, int):
        shape = (batch, height * 3 // 2, width, 1)
    plane = () if shape is None else tuple(shape)
    rows, columns = plane[1:3] if len(plane) == 4 else (None, None)
    is_plane = isinstance(rows, int) and isinstance(columns, int) and rows % 3 == columns % 2 == 0 and plane[-1] == 1
    if layout != "NHWC" or not is_plane or (isinstance(height, int) and shape is None and height % 2):
        raise InvalidNetworkError(
            f"{where}: NV12 and I420 are arrays in layout='NHWC' of the shape (N, 3/2 height, width, 1), height and width even and "
            f"known; got {list(plane)} in layout {layout}"
        )
    assert isinstance(rows, int)
    assert isinstance(columns, int)
    return plane[0], rows, columns, 1


def add_planar_colors(chain: Chain, color: str) -> None:
    """Adds the steps from the plane to an image (N, H, W, 3) of floats."""
    assert chain.shape is not None
    batch, rows, width = chain.shape[0], int(chain.shape[1] or 0), int(chain.shape[2] or 0)
    height = rows * 2 // 3
    chain.cast("float64" if chain.dtype == "float64" else "float32")
    plane = chain.value, chain.shape
    _slice_rows(chain, 0, height, (batch, height, width, 1))
    brightness, (chain.value, chain.shape) = chain.value, plane
    _slice_rows(chain, height, rows, (batch, height // 2, width, 1))
    if color.startswith("NV12"):
        _reshape(chain, (batch, height // 2, width // 2, 2))
    else:
        _reshape(chain, (batch, 2, height // 2, width // 2))
        chain.transpose((0, 2, 3, 1))
    for axis, size in ((1, height), (2, width)):
        assert chain.shape is not None
        shape = (*chain.shape[:axis], size, *chain.shape[axis + 1 :])
        chain.add(
            "Gather", chain.hold(f"squares{axis}", np.asarray(range(size), "int64") // 2), shape=shape, attributes={"axis": axis}
        )
    chain.add("Concat", begins=brightness, shape=(batch, height, width, 3), attributes={"axis": 3})
    dtype = chain.dtype
    chain.add("Sub", chain.hold("zero_of_colors", np.asarray((16, 128, 128), dtype)))
    channels = (_RED, _GREEN, _BLUE) if color.endswith("RGB") else (_BLUE, _GREEN, _RED)
    chain.add("MatMul", chain.hold("colors", np.asarray(channels, dtype).T.copy()))
    chain.add("Clip", chain.hold("darkest", np.asarray(0, dtype)), chain.hold("brightest", np.asarray(255, dtype)))


def _slice_rows(chain: Chain, begin: int, end: int, shape: tuple[Dimension, ...]) -> None:
    bounds = [
        chain.hold(purpose, np.asarray([number], "int64")) for purpose, number in (("begin", begin), ("end", end), ("axis", 1))
    ]
    chain.add("Slice", *bounds, shape=shape)


def _reshape(chain: Chain, shape: tuple[Dimension, ...]) -> None:
    # 0: the number of images as it is.
    chain.add("Reshape", chain.hold("squares", np.asarray([0, *shape[1:]], "int64")), shape=shape)
