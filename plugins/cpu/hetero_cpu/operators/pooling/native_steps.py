"""MaxPool, AveragePool, GlobalAveragePool, GlobalMaxPool, and ReduceMean and ReduceMax over the pixels of images, channels last."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hetero_core.kernels.windows import AUTO_PADS, Windows, lay_windows
from hetero_cpu.machine.chunks import choose_chunk_size
from hetero_cpu.machine.compiler import Kernel, find_width
from hetero_cpu.machine.native import NativeCall, address_of, list_strides, native_step
from hetero_cpu.open.arrays import lay_table
from hetero_cpu.open.sizes import value_of
from hetero_cpu.operators.pooling.kernel import (
    GLOBAL_BLOCK,
    GLOBAL_PARAMETERS,
    make_average_pool,
    make_global_max,
    make_global_mean,
    make_max_pool,
)
from hetero_cpu.operators.windows.images import ImageReading, read_image
from hetero_cpu.operators.windows.window_plan import WindowCall, count_chunks, find_overhang, has_channel_vectors, plan_shape
from hetero_cpu.planning.recipe import NO_HALO, Array, Recipe, Site

_ATTRIBUTES = {"auto_pad", "ceil_mode", "count_include_pad", "dilations", "kernel_shape", "pads", "storage_order", "strides"}


@native_step("MaxPool")
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
    call = WindowCall(make_max_pool(shape), shape, windows, find_width(), -np.inf, site.workers, {})
    return _make_recipe(site, reading, call)


@native_step("AveragePool")
def plan_average_pool(site: Site) -> Recipe | None:
    """Returns the recipe of an AveragePool. Source: ONNX AveragePool-22."""
    windows = _read_windows(site)
    if windows is None:
        return None
    is_unpadded = not any(end for pad in windows.pads for end in pad)
    if windows.kernel == windows.sizes and windows.dilations == (1, 1) and is_unpadded:
        return _plan_global(site, make_global_mean(), divides=True)
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
    """Returns how the image is read; None if kernels cannot, or where a copy would have too few channels for its vectors.

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


@native_step("GlobalAveragePool", "ReduceMean")
def plan_global_mean(site: Site) -> Recipe | None:
    """Returns the recipe of the mean of each channel of an image. Source: ONNX GlobalAveragePool-22, ReduceMean-18."""
    return _plan_global(site, make_global_mean(), divides=True) if _reduces_pixels(site) else None


@native_step("GlobalMaxPool", "ReduceMax")
def plan_global_max(site: Site) -> Recipe | None:
    """Returns the recipe of the maximum of each channel of an image. Source: ONNX GlobalMaxPool-22, ReduceMax-20."""
    return _plan_global(site, make_global_max(), divides=False) if _reduces_pixels(site) else None


def _reduces_pixels(site: Site) -> bool:
    node, source = site.node, site.node.inputs[0]
    if site.group.epilogue or not site.is_float32(source) or len(site.shape(source)) != 4:
        return False
    if node.op_type.startswith("Global"):
        return not node.attributes
    if not set(node.attributes) <= {"axes", "keepdims", "noop_with_empty_axes"}:
        return False
    axes = site.constant(1) if site.has_input(1) else node.attributes.get("axes")
    return axes is not None and sorted(int(axis) % 4 for axis in np.asarray(axes).reshape(-1)) == [2, 3]


def _plan_global(site: Site, kernel: Kernel, *, divides: bool) -> Recipe | None:
    source, width = site.node.inputs[0], find_width()
    x = site.prototypes[source]
    # In C order each channel is one run, which other kernels sum up.
    if width == 0 or x.size == 0 or not has_channel_vectors(x) or x.shape[1] == 1:
        return None

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        x, y = reads[0], writes[0]
        batch, channels, height, length = x.shape
        blocks = -(-channels // (GLOBAL_BLOCK * width))
        units = batch * blocks
        units_of_chunk = choose_chunk_size(units, count_chunks(units, value_of(x.size) / width, site.workers), site.workers)
        factor = lay_table(_make_factor, (height, length) if divides else (1, 1))
        numbers = {
            **list_strides("x", x), "height": height, "width": length, "y": address_of(y), "y_image": y.strides[0],
            "factor": address_of(factor), "blocks": blocks, "units": units, "units_of_chunk": units_of_chunk,
            "vectors": channels // width, "last": channels % width,
        }  # fmt: skip
        return [NativeCall(kernel, tuple(numbers[key] for key in GLOBAL_PARAMETERS), -(-units // units_of_chunk), (factor, x, y))]

    return Recipe((source,), bind, kernels=(kernel,))


def _make_factor(height: int, length: int) -> Array:
    return np.array([1 / (height * length)], np.float32)


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
    """Returns the same as float32, at least 1, where sizes may be symbols."""
    numbers = windows.outputs[axis], windows.sizes[axis], *_describe_taps(windows, axis, count_pads=count_pads)
    counts: Array = lay_table(_make_counts, numbers)
    return counts


def _describe_taps(windows: Windows, axis: int, *, count_pads: bool) -> tuple[int, ...]:
    begin, end = windows.pads[axis]
    return windows.kernel[axis], windows.strides[axis], windows.dilations[axis], begin, *((begin, end) if count_pads else (0, 0))


def _count_taps(outputs: int, size: int, kernel: int, stride: int, dilation: int, pad: int, before: int, after: int) -> Array:
    """Returns how many taps of each window are elements of an axis, or of the pads around it that count."""
    taps = (np.arange(outputs) * stride - pad)[:, None] + np.arange(kernel) * dilation
    counts: Array = ((taps >= -before) & (taps < size + after)).sum(axis=1)
    return counts


def _make_counts(*numbers: int) -> Array:
    return np.maximum(_count_taps(*numbers), 1).astype(np.float32)
