"""The geometry of sliding windows, shared by convolution and pooling: pads, output sizes, strided slices.

Works on sizes, never on elements, so it runs on the host for every device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from hetero_core.kernels.arrays import assign
from hetero_core.kernels.precision import Array, Integers, Namespace
from hetero_core.network.operators import count_windows

AUTO_PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")
SLIDING: Mapping[str, Any] = {"auto_pad": "NOTSET", "dilations": None, "pads": None, "strides": None}
"""The attributes of operators with windows that `lay_windows` takes, with their defaults."""
CONVOLVING: Mapping[str, Any] = {"shared": SLIDING, "unread": {"kernel_shape": None}, "choices": {"auto_pad": AUTO_PADS}}
"""Declarations of operators with weights: the sizes of the kernel are those of the weights."""
POOLING: Mapping[str, Any] = {"shared": {**SLIDING, "ceil_mode": 0}, "choices": {"auto_pad": AUTO_PADS}}


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows over the spatial axes of one tensor; every tuple has an entry per spatial axis.

    `pads` holds (begin, end). `reach` is the length that the windows touch, counted from the padded begin; it passes the padded end when
    the last window hangs over (ceil_mode).
    """

    sizes: Integers
    kernel: Integers
    strides: Integers
    dilations: Integers
    pads: tuple[tuple[int, int], ...]
    outputs: Integers

    @property
    def reach(self) -> Integers:
        """The length that the windows touch in each axis."""
        return tuple(
            (output - 1) * stride + (kernel - 1) * dilation + 1
            for output, stride, kernel, dilation in zip(self.outputs, self.strides, self.kernel, self.dilations, strict=True)
        )

    @property
    def is_pointwise(self) -> bool:
        """Says whether each window is a single element and all elements are windows, in order."""
        return all(size == 1 for size in self.kernel + self.strides) and not any(end for pad in self.pads for end in pad)

    def slices(self) -> Iterator[tuple[Integers, tuple[slice, ...]]]:
        """Yields each position in the kernel with the slices that pick its elements out of the padded tensor, for all windows."""
        for position in product(*(range(size) for size in self.kernel)):
            yield (
                position,
                tuple(
                    slice(index * dilation, index * dilation + output * stride, stride)
                    for index, dilation, output, stride in zip(position, self.dilations, self.outputs, self.strides, strict=True)
                ),
            )

    def shifts(self) -> Iterator[Integers]:
        """Yields for each position in the kernel how far behind a window's own place, without strides, its element lies."""
        for _, picked in self.slices():
            yield tuple(part.start - begin for part, (begin, _) in zip(picked, self.pads, strict=True))

    def pad(self, xp: Namespace, x: Array, value: float) -> Array:
        """Returns x (batch, channels, *sizes) with its border filled, so that every slice fits; x itself if it needs no border."""
        widths = [(0, 0), (0, 0)]
        for size, (begin, _), reach in zip(self.sizes, self.pads, self.reach, strict=True):
            widths.append((begin, max(reach - begin - size, 0)))
        if not any(end for width in widths for end in width):
            return x
        shape = tuple(size + sum(width) for size, width in zip(x.shape, widths, strict=True))
        inner = tuple(slice(begin, begin + size) for size, (begin, _) in zip(x.shape, widths, strict=True))
        return assign(xp.full(shape, value, dtype=x.dtype), inner, x)


def lay_windows(
    sizes: Integers,
    kernel: Integers,
    *,
    auto_pad: str = "NOTSET",
    pads: Integers | None = None,
    strides: Integers | None = None,
    dilations: Integers | None = None,
    ceil_mode: int = 0,
) -> Windows:
    """Returns the windows of a convolution or a pooling, with ONNX's defaults filled in. Raises: as `operators.count_windows`."""
    rank = len(sizes)
    geometry = {"strides": strides or (1,) * rank, "dilations": dilations or (1,) * rank}
    resolved, outputs = count_windows(sizes, kernel, auto_pad=auto_pad, pads=pads, ceil_mode=ceil_mode, **geometry)
    return Windows(sizes, kernel, geometry["strides"], geometry["dilations"], resolved, outputs)


def spread_bias(b: Array, y: Array) -> Array:
    """Returns the bias as it is added to y (batch, channels, *sizes). Raises: ValueError if there is not one number for each channel."""
    if b.size not in (1, y.shape[1]):
        raise ValueError(f"a bias of shape {tuple(b.shape)} for {y.shape[1]} channels: expected ({y.shape[1]},)")
    return b.reshape((-1, *(1,) * (y.ndim - 2)))
