"""A part of an image taken out, and an image put into a larger one: crop and pad of InputInfo, by letters of a layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hetero_core.dtypes import numpy_dtype
from hetero_core.errors import InvalidNetworkError, enumerate_choices
from hetero_core.network.types import Dimension
from hetero_core.transforms.chains import Chain

Bounds = Mapping[str, tuple[int, int]]
"""Letter of an axis -> two numbers: begin and end of the crop, or the number of pixels padded before and after."""
_LETTERS = "DHW"


def read_bounds(bounds: Bounds | None, purpose: str, layout: str, where: str) -> dict[int, tuple[int, int]]:
    """Returns the numbers by axis of the layout. Raises: InvalidNetworkError for other letters and values that are no pairs of integers."""
    axes: dict[int, tuple[int, int]] = {}
    for letter, pair in (bounds or {}).items():
        known = [axis for axis in _LETTERS if axis in layout]
        if letter not in known:
            raise InvalidNetworkError(
                f"{where}: {purpose} has the axis '{letter}'; the axes that it can have in layout {layout} are {enumerate_choices(known)}"
            )
        numbers = tuple(pair)
        is_pair = len(numbers) == 2 and all(isinstance(number, int) and not isinstance(number, bool) for number in numbers)
        if not is_pair or (purpose == "pad" and min(numbers) < 0):
            expected = "two numbers of pixels, 0 or more" if purpose == "pad" else "begin and end"
            raise InvalidNetworkError(f"{where}: {purpose} has {pair!r} for the axis {letter}; expected {expected}")
        axes[layout.index(letter)] = (numbers[0], numbers[1])
    return axes


def find_cropped(shape: Sequence[Dimension], crop: Mapping[int, tuple[int, int]], where: str) -> tuple[Dimension, ...]:
    """Returns the shape of the crop; negative numbers count from the end. Raises: InvalidNetworkError if the crop is empty."""
    sizes = list(shape)
    for axis, (begin, end) in crop.items():
        size = sizes[axis]
        if isinstance(size, int):
            first, last, _ = slice(begin, end).indices(size)
            if last <= first or not -size <= begin < size or not -size < end <= size:
                raise InvalidNetworkError(f"{where}: crop takes {begin} to {end} out of {size} pixels")
            sizes[axis] = last - first
        else:
            sizes[axis] = end - begin if (begin >= 0) == (end > 0) and end > begin else None
    return tuple(sizes)


def add_crop(chain: Chain, crop: Mapping[int, tuple[int, int]], where: str) -> None:
    """Adds a Slice."""
    if crop:
        assert chain.shape is not None
        begins, ends = zip(*crop.values(), strict=True)
        named = {"crop_begin": begins, "crop_end": ends, "crop_axes": tuple(crop)}
        bounds = [chain.hold(purpose, np.asarray(numbers, np.int64)) for purpose, numbers in named.items()]
        chain.add("Slice", *bounds, shape=find_cropped(chain.shape, crop, where))


def find_inner(shape: Sequence[Dimension], pad: Mapping[int, tuple[int, int]], where: str) -> tuple[Dimension, ...]:
    """Returns the shape of the image inside of the model's. Raises: InvalidNetworkError if that shape is empty."""
    inner = list(shape)
    for axis, (before, after) in pad.items():
        size = inner[axis]
        if isinstance(size, int):
            inner[axis] = size - before - after
            if size - before - after < 1:
                raise InvalidNetworkError(f"{where}: pad has {before} and {after} pixels; the model's axis has {size} in all")
    return tuple(inner)


def add_pad(chain: Chain, pad: Mapping[int, tuple[int, int]], value: float, sizes: Sequence[Dimension]) -> None:
    """Adds a Pad with one value."""
    if pad:
        sides = [pad.get(axis, (0, 0))[side] for side in (0, 1) for axis in range(len(sizes))]
        filling = chain.hold("pad_value", np.asarray(value, numpy_dtype(chain.dtype)))
        chain.add(
            "Pad", chain.hold("pads", np.asarray(sides, np.int64)), filling, shape=tuple(sizes), attributes={"mode": "constant"}
        )
