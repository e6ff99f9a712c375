"""From the geometry of a node to the kernel of its windows, and from arrays to the numbers of a call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from hetero_core.kernels.windows import Windows
from hetero_cpu.machine.chunks import choose_chunk_size
from hetero_cpu.machine.compiler import Kernel
from hetero_cpu.machine.native import NativeCall, address_of, list_strides
from hetero_cpu.open.choices import is_same
from hetero_cpu.open.sizes import is_open, least, value_of
from hetero_cpu.operators.windows.walk import PARAMETERS, WindowShape
from hetero_cpu.planning.recipe import Array, Halo

# Outputs of a tile: fourteen sums and nine weights fit the registers of AVX-512; AVX2 has half as many.
_LONGEST_TILE = 7
# Of an open number of outputs: a sum of tiles of this size and of one less, whatever the number; larger tiles are not faster.
_OPEN_TILE = 2
_MANY_REGISTERS = 16
# Windows with more elements are left to others: each one is an instruction or two for each output of a tile.
_LARGE_WINDOW, _LARGEST_WINDOW = 49, 225
# What a chunk should take at least, and what an instruction takes about; both in nanoseconds.
_CHUNK_TIME, _INSTRUCTION_TIME = 4000.0, 0.25
_CHUNKS_OF_WORKER = 16


def find_overhang(windows: Windows) -> Halo:
    """Returns what the windows read beyond each side of the image."""
    (top, _), (left, _) = windows.pads
    bottom, right = (_find_end(windows, axis) for axis in (0, 1))
    return Halo(top, left, bottom, right)


def _find_end(windows: Windows, axis: int) -> int:
    size, (begin, end), stride = windows.sizes[axis], windows.pads[axis], windows.strides[axis]
    if not is_open(size):
        return max(windows.reach[axis] - begin - size, 0)
    # Of a symbol as far as any reaches: to the end of the pads, or with ceil_mode less than a stride beyond it.
    extent = (windows.kernel[axis] - 1) * windows.dilations[axis] + 1
    is_within = is_same(windows.outputs[axis], (size + begin + end - extent) // stride + 1)
    return int(max(end, 0) if is_within else max(end, 0) + stride - 1)


def plan_shape(windows: Windows, channels: int, width: int, *, zeros: Halo) -> WindowShape | None:
    """Returns what is compiled for windows over images of so many channels; None if kernels do not take them.

    `zeros`: those around the image that windows may read instead of neutral elements.
    """
    taps = prod(windows.kernel)
    if width == 0 or taps > _LARGEST_WINDOW:
        return None
    height, length = windows.outputs
    # Two rows of windows that lie apart read nothing together, and their code is three times as long.
    shares_rows = (windows.kernel[0] - 1) * windows.dilations[0] >= windows.strides[0]
    rows = 2 if width >= _MANY_REGISTERS and height > 1 and taps <= _LARGE_WINDOW and shares_rows else 1
    pixels, has_short_tiles = _choose_pixels(length)
    overhang = find_overhang(windows)
    clips = not zeros.covers(overhang)
    kernel, strides, dilations = ((first, second) for first, second in (windows.kernel, windows.strides, windows.dilations))
    short_rows = rows - 1 if is_open(height) else height % rows
    return WindowShape(kernel, strides, dilations, rows, short_rows, pixels, has_short_tiles, channels % width != 0, clips)


def _choose_pixels(length: int) -> tuple[int, bool]:
    """Returns how many pixels a tile has, and whether some have one less."""
    if is_open(length):
        return _OPEN_TILE, True
    tiles = -(-length // _LONGEST_TILE)
    pixels = -(-length // tiles)
    return pixels, tiles * pixels != length


def has_channel_vectors(array: Array) -> bool:
    """Says whether the channels of each pixel of (batch, channels, height, width) lie side by side."""
    return array.ndim == 4 and array.dtype == np.float32 and (array.strides[1] == array.itemsize or array.shape[1] == 1)


def count_chunks(units: int, instructions: float, workers: int) -> int:
    """Returns into how many chunks work of so many vector instructions is cut."""
    chunk_target = max(1, int(value_of(instructions) * _INSTRUCTION_TIME / _CHUNK_TIME))
    chunks: int = least(units, chunk_target, _CHUNKS_OF_WORKER * workers)
    return chunks


@dataclass(frozen=True, slots=True)
class WindowCall:
    """Data that all calls of one recipe share. `weights`, `row_counts` and `column_counts` are read by the kernel where it wants them."""

    kernel: Kernel
    shape: WindowShape
    windows: Windows
    width: int
    neutral: float
    workers: int
    constants: Mapping[str, Array]

    def bind(self, x: Array, y: Array, added: Array | None = None) -> NativeCall:
        """Returns the call. All arrays: (batch, channels, height, width) with channels side by side."""
        shape, batch, channels = self.shape, x.shape[0], x.shape[1]
        height, length = self.windows.outputs
        groups, tiles = -(-height // shape.rows), -(-length // shape.pixels)
        lines = batch * groups
        vectors = -(-channels // self.width)
        instructions = batch * height * length * vectors * (prod(self.windows.kernel) + 4)
        lines_of_chunk = choose_chunk_size(lines, count_chunks(lines, instructions, self.workers), self.workers)
        neutral = np.full(channels, self.neutral, np.float32)
        third = y if added is None else added
        numbers = {
            **{key: address_of(array) for key, array in self.constants.items()},
            **list_strides("x", x), **list_strides("y", y), **list_strides("added", third),
            "height": x.shape[2], "width": x.shape[3], "top": self.windows.pads[0][0], "left": self.windows.pads[1][0],
            "neutral": address_of(neutral), "lines": lines, "groups": groups, "long_groups": height // shape.rows,
            "tiles": tiles, "long_tiles": length - tiles * (shape.pixels - 1), "lines_of_chunk": lines_of_chunk,
            "channel_bytes": channels // self.width * self.width * x.itemsize, "last": channels % self.width,
        }  # fmt: skip
        keep = (neutral, *self.constants.values(), x, y, third)
        return NativeCall(self.kernel, tuple(numbers.get(key, 0) for key in PARAMETERS), -(-lines // lines_of_chunk), keep)
