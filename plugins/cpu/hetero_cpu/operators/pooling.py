"""MaxPool and AveragePool of images, channels last."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hetero_core.kernels.windows import AUTO_PADS, Windows, lay_windows
from hetero_cpu.machine.calls import NativeCall
from hetero_cpu.machine.compiler import Kernel, find_width
from hetero_cpu.machine.terms import Floats
from hetero_cpu.operators.images import find_overhang
from hetero_cpu.operators.normalization import plan_reduction
from hetero_cpu.operators.recipe import NO_HALO, Array, Recipe, Site
from hetero_cpu.operators.windows import (
    ImageReading,
    TileCode,
    WindowBody,
    WindowCall,
    WindowShape,
    make_window_kernel,
    plan_shape,
    read_image,
)
from hetero_cpu.symbols.arrays import lay_table

Combine = Callable[[Floats, Floats], Floats]


def emit_maximum(first: Floats, second: Floats) -> Floats:
    """Returns the larger of both; a NaN of either."""
    return first.is_nan().choose(first, (first > second).choose(first, second))


def make_average_pool(shape: WindowShape) -> Kernel:
    """Returns the kernel of sums of windows, each divided by row_counts[r] * column_counts[c]."""

    def emit(at: TileCode) -> list[list[Floats]]:
        sums = _emit_windows(at, lambda first, second: first + second)
        return [[total * at.factors[r, t] for t, total in enumerate(line)] for r, line in enumerate(sums)]

    return make_window_kernel(shape, WindowBody("average", 0, emit, adds=False, finish=lambda code, x: x, counts=True))


def _emit_windows(at: TileCode, combine: Combine) -> list[list[Floats]]:
    """Returns outputs[row][pixel]: each column of a row's windows is combined once, for all windows that it is in."""
    tile = at.tile
    pixels: dict[tuple[int, int], Floats] = {}
    for x, column in enumerate(tile.list_positions(1)):
        columns: dict[int, Floats] = {}
        for y, row in enumerate(tile.list_positions(0)):
            pixel = at.load(y, x)
            for r, _ in tile.list_uses(0, row):
                columns[r] = combine(columns[r], pixel) if r in columns else pixel
        for t, _ in tile.list_uses(1, column):
            for r, value in columns.items():
                pixels[r, t] = combine(pixels[r, t], value) if (r, t) in pixels else value
    return [[pixels[r, t] for t in range(tile.pixels)] for r in range(tile.rows)]


_ATTRIBUTES = {"auto_pad", "ceil_mode", "count_include_pad", "dilations", "kernel_shape", "pads", "storage_order", "strides"}


def plan_max_pool(site: Site) -> Recipe | None:
    """Returns the recipe of a MaxPool without indices. Source: ONNX MaxPool-22."""
    windows = _read_windows(site)
    reading = None if windows is None else _read_pooled(site)
    if windows is None or reading is None:
        return None
    # The zeros of a halo are larger than negative elements.
    shape = plan_shape(windows, site.shape(site.node.inputs[0])[1], find_width(), zeros=NO_HALO)
    if shape is None:
        return None
    body = WindowBody("max", 0, lambda at: _emit_windows(at, emit_maximum), adds=False, finish=lambda code, x: x)
    call = WindowCall(make_window_kernel(shape, body), shape, windows, find_width(), -np.inf, site.workers, {})
    return _make_recipe(site, reading, call)


def plan_average_pool(site: Site) -> Recipe | None:
    """Returns the recipe of an AveragePool. Source: ONNX AveragePool-22."""
    windows = _read_windows(site)
    if windows is None:
        return None
    is_unpadded = not any(end for pad in windows.pads for end in pad)
    if windows.kernel == windows.sizes and windows.dilations == (1, 1) and is_unpadded:
        return plan_reduction(site, "ReduceMean", (2, 3))
    source = site.node.inputs[0]
    reading = _read_pooled(site)
    if reading is None:
        return None
    shape = plan_shape(windows, site.shape(source)[1], find_width(), zeros=site.halos.get(source, NO_HALO))
    if shape is None:
        return None
    counts_pads = bool(site.node.attributes.get("count_include_pad", 0))
    constants = {
        f"{name}_counts": _lay_counts(windows, axis, count_pads=counts_pads) for axis, name in enumerate(("row", "column"))
    }
    call = WindowCall(make_average_pool(shape), shape, windows, find_width(), 0.0, site.workers, constants)
    return _make_recipe(site, reading, call)


def _read_pooled(site: Site) -> ImageReading | None:
    """Returns how the image is read; None if kernels cannot read it, or if a copy would have too few channels for its vectors.

    A MaxPool of 320 x 320 pixels takes 1.1 ms in C order by NumPy and 13 as a copy with 3 channels; with 8 it takes 2.0 and 0.8.
    """
    x = site.prototypes[site.node.inputs[0]]
    reading = read_image(x, workers=site.workers)
    is_few = reading is not None and reading.copy is not None and x.shape[1] < find_width() // 2
    return None if is_few else reading


def _make_recipe(site: Site, reading: ImageReading, call: WindowCall) -> Recipe:
    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        copies, x = reading.bind(reads[0], scratch)
        return [*copies, call.bind(x, writes[0])]

    reaches = () if call.shape.clips else (find_overhang(call.windows),)
    kernels = (call.kernel,) if reading.copy is None else (reading.copy.kernel, call.kernel)
    return Recipe((site.node.inputs[0],), bind, reading.scratch, is_channels_last=True, kernels=kernels, reaches=reaches)


def _read_windows(site: Site) -> Windows | None:
    """Returns the windows of a pooling; None if its operands are not float32 images."""
    node = site.node
    source = node.inputs[0]
    if not site.is_float32(source) or len(site.shape(source)) != 4 or not set(node.attributes) <= _ATTRIBUTES:
        return None
    if any(node.outputs[1:]) or node.attributes.get("auto_pad", "NOTSET") not in AUTO_PADS or site.group.epilogue:
        return None
    windows = lay_windows(
        site.shape(source)[2:],
        node.attributes["kernel_shape"],
        auto_pad=node.attributes.get("auto_pad", "NOTSET"),
        pads=node.attributes.get("pads"),
        strides=node.attributes.get("strides"),
        dilations=node.attributes.get("dilations"),
        ceil_mode=node.attributes.get("ceil_mode", 0),
    )
    expected = site.types[node.outputs[0]].shape
    return windows if expected == (*site.shape(source)[:2], *windows.outputs) and 0 not in expected else None


def _lay_counts(windows: Windows, axis: int, *, count_pads: bool) -> Array:
    """Returns how many elements of an axis each window has, at least 1, as float32; sizes may be symbols."""
    begin, end = windows.pads[axis]
    counted = (begin, end) if count_pads else (0, 0)
    window = windows.kernel[axis], windows.strides[axis], windows.dilations[axis], begin
    counts: Array = lay_table(_count_taps, (windows.outputs[axis], windows.sizes[axis], *window, *counted))
    return counts


def _count_taps(outputs: int, size: int, kernel: int, stride: int, dilation: int, pad: int, before: int, after: int) -> Array:
    """Returns how many taps of each window are elements of an axis, or of the pads around it that count; at least 1."""
    taps = (np.arange(outputs) * stride - pad)[:, None] + np.arange(kernel) * dilation
    counts: Array = np.maximum(((taps >= -before) & (taps < size + after)).sum(axis=1), 1).astype(np.float32)
    return counts
