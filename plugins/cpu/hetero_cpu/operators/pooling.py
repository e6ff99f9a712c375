"""Poolings of images and volumes, channels last: MaxPool, AveragePool, and the mean and the maximum of all pixels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf

import numpy as np

from hetero_core.kernels.windows import AUTO_PADS, Windows, lay_windows
from hetero_cpu.machine.calls import NativeCall, address_of, list_strides
from hetero_cpu.machine.code import FLOAT_BYTES, Code, begin_kernel
from hetero_cpu.machine.compiler import Kernel, find_width
from hetero_cpu.machine.memory import cut_scratch, measure_scratch
from hetero_cpu.machine.terms import Floats, Mask, Number
from hetero_cpu.operators.images import (
    bind_staging,
    find_overhang,
    has_channel_vectors,
    join_pixels,
    join_planes,
    join_rows,
    may_join,
    pick_axes,
    stack_axes,
    stage_image,
)
from hetero_cpu.operators.recipe import NO_HALO, Array, Recipe, Site
from hetero_cpu.operators.rows import cut_lines
from hetero_cpu.operators.windows import (
    TileCode,
    WindowBody,
    WindowCall,
    WindowShape,
    make_window_kernel,
    plan_shape,
)
from hetero_cpu.symbols.arrays import lay_table
from hetero_cpu.symbols.sizes import value_of

Combine = Callable[[Floats, Floats], Floats]

# Vectors of channels that are reduced together, so that whole cache lines side by side are read, and pixels that are summed apart.
GLOBAL_BLOCK, _PHASES = 4, 4

GLOBAL_PARAMETERS = (
    "x", "x_image", "x_row", "x_pixel", "height", "width", "y", "y_image", "factor", "blocks", "units", "units_of_chunk", "vectors", "last",
)  # fmt: skip
"""Numbers of a row, in order; `factor` is its address. A unit is a block of channels of an image; `vectors`: full vectors of a
pixel; `last`: elements after them."""


def emit_maximum(first: Floats, second: Floats) -> Floats:
    """Returns the larger of both; a NaN of either."""
    return first.is_nan().choose(first, (first > second).choose(first, second))


def make_average_pool(shape: WindowShape) -> Kernel:
    """Returns the kernel of sums of windows, each divided by row_counts[r] * column_counts[c]."""

    def emit(at: TileCode) -> list[list[Floats]]:
        sums = _emit_windows(at, lambda first, second: first + second)
        return [[total * at.factors[r, t] for t, total in enumerate(line)] for r, line in enumerate(sums)]

    return make_window_kernel(shape, WindowBody("average", emit, counts=True))


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


GLOBAL_MEAN = Kernel("global_mean", lambda name, width: _emit_global(name, width, 0.0, lambda first, second: first + second))
"""The kernel y[k] = factor * sum over all pixels of x[pixel, k]; the pixels of a row are summed apart, four by four."""
GLOBAL_MAX = Kernel("global_max", lambda name, width: _emit_global(name, width, -inf, emit_maximum))
"""The kernel y[k] = max over all pixels of x[pixel, k]; `factor` is 1."""


def _emit_global(name: str, width: int, neutral: float, combine: Combine) -> Code:
    code, p, chunk, _ = begin_kernel(name, width, GLOBAL_PARAMETERS)
    vector_bytes = width * FLOAT_BYTES
    factor = code.spread(code.load_scalar(p["factor"]))
    with code.visit_chunk(chunk, p["units_of_chunk"], p["units"]) as unit:
        image, block = unit // p["blocks"], unit % p["blocks"]
        x, y = p["x"] + image * p["x_image"], p["y"] + image * p["y_image"]

        def reduce(vector: Number, count: int, mask: Mask | None = None) -> None:
            channel = vector * vector_bytes
            totals = reduce_pixels(code, p, x + channel, count, mask, neutral, combine)
            for v, total in enumerate(totals):
                code.store(y + channel, total * factor, v * vector_bytes, mask=mask)

        visit_block(code, p, block * GLOBAL_BLOCK, GLOBAL_BLOCK, reduce)
    return code.finish()


def visit_block(code: Code, p: Mapping[str, Number], begin: Number, block: int, work: Callable[..., None]) -> None:
    """Emits `work(vector, count, mask)` for a block of vectors of channels: once if it is full, else for each vector and the rest."""
    with code.either(begin + block <= p["vectors"]) as (full, rest):
        with full:
            work(begin, block)
        with rest:
            with code.loop(begin, p["vectors"]) as vector:
                work(vector, 1)
            with code.when(p["last"] > 0):
                work(p["vectors"], 1, code.mask_first(p["last"]))


def reduce_pixels(
    code: Code,
    p: Mapping[str, Number],
    x: Number,
    count: int,
    mask: Mask | None,
    neutral: float,
    combine: Combine,
    read: Callable[[Floats, int], Floats] = lambda value, vector: value,
) -> list[Floats]:
    """Returns `count` vectors of channels, from x on, each combined over all pixels of an image; `read` turns an element of a vector."""
    vector_bytes = code.width * FLOAT_BYTES
    totals = [code.variable(code.constant(neutral)) for _ in range(count)]
    even = p["width"] - p["width"] % _PHASES
    with code.loop(0, p["height"]) as line:
        here = code.variable(x + line * p["x_row"])
        sums = [[code.variable(code.constant(neutral)) for _ in range(count)] for _ in range(_PHASES)]

        def advance(pixels: int) -> None:
            start = here.get()
            for phase in range(pixels):
                for v in range(count):
                    value = read(code.load(start + p["x_pixel"] * phase, v * vector_bytes, mask=mask), v)
                    sums[phase][v].set(combine(sums[phase][v].get(), value))
            here.set(start + p["x_pixel"] * pixels)

        with code.loop(0, even, _PHASES):
            advance(_PHASES)
        with code.loop(even, p["width"]):
            advance(1)
        for v, total in enumerate(totals):
            parts = [phase[v].get() for phase in sums]
            total.set(combine(total.get(), combine(combine(parts[0], parts[1]), combine(parts[2], parts[3]))))
    return [total.get() for total in totals]


_ATTRIBUTES = {"auto_pad", "ceil_mode", "count_include_pad", "dilations", "kernel_shape", "pads", "storage_order", "strides"}


def plan_pool(site: Site) -> Recipe | None:
    """Returns the recipe of an AveragePool, or of a MaxPool without indices. Source: ONNX AveragePool-22, MaxPool-22."""
    windows = _read_windows(site)
    if windows is None:
        return None
    is_unpadded = not any(end for pad in windows.pads for end in pad)
    is_whole = windows.kernel == windows.sizes and set(windows.dilations) == {1} and is_unpadded
    if is_whole and site.node.op_type == "AveragePool":
        return _reduce_pixels(site)
    return _plan_volume(site, windows) if len(windows.sizes) == 3 else _plan_image(site, windows)


def _make_call(site: Site, windows: Windows) -> WindowCall | None:
    source, width, is_mean = site.node.inputs[0], find_width(), site.node.op_type == "AveragePool"
    # The zeros of a halo are larger than negative elements.
    zeros = site.halos.get(source, NO_HALO) if is_mean else NO_HALO
    shape = plan_shape(windows, site.shape(source)[1], width, zeros=zeros)
    if shape is None:
        return None
    if not is_mean:
        body = WindowBody("max", lambda at: _emit_windows(at, emit_maximum))
        return WindowCall(make_window_kernel(shape, body), shape, windows, width, -np.inf, site.workers, {})
    counts_pads = bool(site.node.attributes.get("count_include_pad", 0))
    counts = {f"{name}_counts": _lay_counts(windows, axis, count_pads=counts_pads) for axis, name in enumerate(("row", "column"))}
    return WindowCall(make_average_pool(shape), shape, windows, width, 0.0, site.workers, counts)


def _plan_image(site: Site, windows: Windows) -> Recipe | None:
    staging, call = stage_image(site.prototypes[site.node.inputs[0]]), _make_call(site, windows)
    # A MaxPool of 320 x 320 pixels takes 1.1 ms in C order by NumPy and 13 as a copy with 3 channels; with 8 it takes 2.0 and 0.8.
    if call is None or (staging is not None and staging.shape[3] < find_width() // 2):
        return None

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        staged, x = bind_staging(staging, reads[0], scratch)
        return [*staged, call.bind(x, writes[0])]

    reaches = () if call.shape.clips else (find_overhang(call.windows),)
    kernels = (call.kernel,) if staging is None else (staging.kernel, call.kernel)
    return Recipe(
        (site.node.inputs[0],), bind, staging.nbytes if staging else 0, is_channels_last=True, kernels=kernels, reaches=reaches
    )


def _plan_volume(site: Site, windows: Windows) -> Recipe | None:
    """Returns the recipe of a volume: its planes are pooled, then the pixels along the depth, as the height of images of its planes.

    The mean of a window is the mean of the means of its planes: they have the same number of elements.
    """
    source = site.node.inputs[0]
    x = site.prototypes[source]
    if not has_channel_vectors(x) or not may_join(x):
        return None
    batch, channels, depth, *_ = x.shape
    deep, flat = pick_axes(windows, slice(0, 1)), pick_axes(windows, slice(1, 3))
    pixels = flat.outputs[0] * flat.outputs[1]
    line = Windows((pixels,), (1,), (1,), (1,), ((0, 0),), (pixels,))
    planes, depths = _make_call(site, flat), _make_call(site, stack_axes(deep, line))
    if planes is None or depths is None:
        return None
    middle = (batch, depth, *flat.outputs, channels)

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        x, y = reads[0], writes[0]
        if deep.is_pointwise:
            return [planes.bind(join_planes(x), join_planes(y))]
        calls = []
        if not flat.is_pointwise:
            pooled = cut_scratch(scratch, [middle])[0].transpose(0, 4, 1, 2, 3)
            calls.append(planes.bind(join_planes(x), join_planes(pooled)))
            x = pooled
        return [*calls, depths.bind(join_pixels(x), join_pixels(y))]

    has_both = not deep.is_pointwise and not flat.is_pointwise
    kernels = (planes.kernel, depths.kernel)
    return Recipe((source,), bind, measure_scratch([middle] if has_both else []), is_channels_last=True, kernels=kernels)


def plan_global_pool(site: Site) -> Recipe | None:
    """Returns the recipe of the mean or the maximum of each channel of an image. Source: ONNX GlobalAveragePool-22, ReduceMax-20."""
    return _reduce_pixels(site) if _reduces_pixels(site) else None


def _reduces_pixels(site: Site) -> bool:
    node, source = site.node, site.node.inputs[0]
    rank = len(site.shape(source))
    if site.group.epilogue or not site.is_float32(source) or rank not in (4, 5):
        return False
    if node.op_type.startswith("Global"):
        return not node.attributes
    if not set(node.attributes) <= {"axes", "keepdims", "noop_with_empty_axes"}:
        return False
    axes = site.constant(1) if site.has_input(1) else node.attributes.get("axes")
    return axes is not None and sorted(int(axis) % rank for axis in np.asarray(axes).reshape(-1)) == list(range(2, rank))


def _reduce_pixels(site: Site) -> Recipe | None:
    source, width, is_mean = site.node.inputs[0], find_width(), "Max" not in site.node.op_type
    kernel = GLOBAL_MEAN if is_mean else GLOBAL_MAX
    x = site.prototypes[source]
    # In C order each channel is contiguous, which other kernels sum up.
    if width == 0 or x.size == 0 or not has_channel_vectors(x) or x.shape[1] == 1 or not np.may_share_memory(join_rows(x), x):
        return None

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        x, y = join_rows(reads[0]), writes[0]
        batch, channels, height, length = x.shape
        blocks = -(-channels // (GLOBAL_BLOCK * width))
        units = batch * blocks
        units_of_chunk = cut_lines(units, value_of(x.size) / width, site.workers)
        factor = lay_table(_make_factor, (height, length) if is_mean else (1, 1))
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
    if not site.is_float32(source) or len(site.shape(source)) not in (4, 5) or not set(node.attributes) <= _ATTRIBUTES:
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
