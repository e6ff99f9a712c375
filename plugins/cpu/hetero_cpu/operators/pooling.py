"""Poolings of images and volumes, channels last: MaxPool and AveragePool; and reductions of rows, and of all pixels of images."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf, prod
from operator import add

import numpy as np

from hetero_core.kernels.windows import AUTO_PADS, Windows, lay_windows
from hetero_cpu.machine.arithmetic import emit_exponential, emit_logarithm
from hetero_cpu.machine.calls import NativeCall, address_of, list_strides
from hetero_cpu.machine.code import FLOAT_BYTES, Code
from hetero_cpu.machine.compiler import find_width
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
from hetero_cpu.operators.recipe import NO_HALO, Array, Recipe, Site, order_axes
from hetero_cpu.operators.rows import choose_rows_of_chunk, cut_lines, make_unit_kernel, plan_call
from hetero_cpu.operators.windows import TileCode, WindowBody, WindowCall, make_window_kernel, plan_shape
from hetero_cpu.symbols.arrays import lay_table
from hetero_cpu.symbols.sizes import value_of

Combine = Callable[[Floats, Floats], Floats]

# Vectors of channels that are reduced together, so that whole cache lines side by side are read, and pixels that are summed apart.
BLOCK, _PHASES = 4, 4


def _emit_means(at: TileCode) -> list[list[Floats]]:
    sums = _emit_windows(at, add)
    return [[total * at.factors[r, t] for t, total in enumerate(line)] for r, line in enumerate(sums)]


def _emit_windows(at: TileCode, combine: Combine) -> list[list[Floats]]:
    """Returns outputs[row][pixel]: each column of a row's windows is combined once, for all windows that it is in."""
    tile = at.tile
    pixels: dict[tuple[int, int], Floats] = {}
    for x, of_column in enumerate(tile.list_uses(1).values()):
        columns: dict[int, Floats] = {}
        for y, of_row in enumerate(tile.list_uses(0).values()):
            pixel = at.load(y, x)
            for r, _ in of_row:
                columns[r] = combine(columns[r], pixel) if r in columns else pixel
        for t, _ in of_column:
            for r, value in columns.items():
                pixels[r, t] = combine(pixels[r, t], value) if (r, t) in pixels else value
    return [[pixels[r, t] for t in range(tile.pixels)] for r in range(tile.rows)]


_UNROLLED = 4


def visit_row(code: Code, length: Number, body: Callable[[Number, int, Mask | None], None]) -> None:
    """Emits `body(offset in bytes, number of the unrolled vector, mask)` for all vectors of a row; the last has a mask."""
    wide = code.width * _UNROLLED
    unrolled, full = length - length % wide, length - length % code.width
    with code.loop(0, unrolled, wide) as i:
        for position in range(_UNROLLED):
            body(i * FLOAT_BYTES + position * code.width * FLOAT_BYTES, position, None)
    with code.loop(unrolled, full, code.width) as i:
        body(i * FLOAT_BYTES, 0, None)
    with code.when(full < length):
        body(full * FLOAT_BYTES, 1, code.mask_first(length - full))


def reduce_row(
    code: Code, length: Number, read: Callable[[Number, Mask | None], Floats], combine: Combine, neutral: float
) -> Floats:
    """Returns a row reduced to a number."""
    first = code.constant(neutral)
    totals = [code.variable(first) for _ in range(_UNROLLED)]

    def body(offset: Number, position: int, mask: Mask | None) -> None:
        elements = read(offset, mask)
        elements = elements if mask is None else mask.choose(elements, first)
        totals[position].set(combine(totals[position].get(), elements))

    visit_row(code, length, body)
    a, b, c, d = (total.get() for total in totals)
    return combine(combine(a, b), combine(c, d)).fold(combine)


_LARGEST = 3.4028234663852886e38


@dataclass(frozen=True, slots=True)
class Reduction:
    """How two elements are combined, the neutral element, and what becomes of elements before, and of the result.

    With `has_edge` the largest element is subtracted before, and added to the result.
    """

    combine: Combine = add
    neutral: float = 0.0
    begin: Callable[[Code, Floats], Floats] = lambda code, x: x
    finish: Callable[[Code, Floats], Floats] = lambda code, total: total
    has_edge: bool = False
    is_mean: bool = False

    def emit(self, code: Code, count: Number, reduce: Callable[..., list[Floats]]) -> list[Floats]:
        """Returns the results of `count` elements each, numbers or vectors, by `reduce(neutral, combine, read(element, place))`."""
        edges: list[Floats] = []
        if self.has_edge:
            peaks = reduce(-inf, lambda a, b: b.at_least(a), lambda x, place: x)
            # A finite number takes the place of the largest element: an infinity less itself would be NaN.
            edges = [peak.at_least(-_LARGEST).at_most(_LARGEST) for peak in peaks]
        wide = [code.spread(edge) if edge.width == 1 else edge for edge in edges]
        totals = reduce(self.neutral, self.combine, lambda x, place: self.begin(code, x - wide[place] if wide else x))
        results = [self.finish(code, total) for total in totals]
        if self.is_mean:
            divisor = count.to_floats()
            results = [total / (divisor if total.width == 1 else code.spread(divisor)) for total in results]
        return [total + edge for total, edge in zip(results, edges, strict=True)] if edges else results


REDUCTIONS: Mapping[str, Reduction] = {
    # A NaN of either side stays.
    "ReduceL1": Reduction(begin=lambda code, x: code.call_intrinsic("fabs", x)),
    "ReduceL2": Reduction(begin=lambda code, x: x * x, finish=lambda code, total: code.call_intrinsic("sqrt", total)),
    "ReduceLogSumExp": Reduction(begin=emit_exponential, finish=emit_logarithm, has_edge=True),
    "ReduceMax": Reduction(lambda a, b: a.is_nan().choose(a, b.at_least(a)), -inf),
    "ReduceMean": Reduction(is_mean=True),
    "ReduceMin": Reduction(lambda a, b: a.is_nan().choose(a, b.at_most(a)), inf),
    "ReduceSum": Reduction(),
    "ReduceSumSquare": Reduction(begin=lambda code, x: x * x),
}
_GLOBAL = {"GlobalAveragePool": "ReduceMean", "GlobalMaxPool": "ReduceMax"}


def plan_reduction(site: Site) -> Recipe | None:
    """Returns the recipe of extremes, sums, means and norms over neighbouring axes, or over all pixels of images.

    Sources: ONNX ReduceL2-18, ReduceLogSumExp-18, ReduceMax-20, GlobalAveragePool-22.
    """
    node, value = site.node, site.node.inputs[0]
    axes = site.constant(1) if site.has_input(1) else node.attributes.get("axes", ())
    if not site.is_float32(value) or axes is None:
        return None
    x, is_global = site.prototypes[value], node.op_type in _GLOBAL
    reduced = list(range(2, x.ndim)) if is_global else sorted(int(axis) % x.ndim for axis in np.reshape(axes, -1))
    operator = _GLOBAL.get(node.op_type, node.op_type)
    images = _plan_images(site, operator) if reduced == list(range(2, x.ndim)) else None
    if is_global or images is not None:
        return images
    order = order_axes(x.ndim, is_channels_last=site.is_channels_last(value))
    x = x.transpose(order)
    if not x.flags.c_contiguous or (not reduced and node.attributes.get("noop_with_empty_axes", 0)):
        return None
    reduced = sorted(map(order.index, reduced)) or list(range(x.ndim))
    kept = [order[axis] for axis in range(x.ndim) if axis not in reduced]
    first, end = (reduced[0], reduced[-1] + 1) if reduced else (0, 0)
    if reduced != list(range(first, end)) or kept != sorted(kept):
        return None
    rows, length, inner = prod(x.shape[:first]), prod(x.shape[first:end]), prod(x.shape[end:])
    if end < x.ndim:
        return _plan_pixels(
            site, operator, lambda array: array.transpose(order).reshape(rows, 1, length, inner).transpose(0, 3, 1, 2)
        )
    names, rows_of_chunk = ("x", "y", "length", "rows", "rows_of_chunk"), choose_rows_of_chunk(rows, length, site.workers)
    kernel = make_unit_kernel(f"{operator.lower()}_rows", names, partial(_emit_row, reduction=REDUCTIONS[operator]))
    numbers = (length, rows, rows_of_chunk)
    return plan_call(kernel, (value,), -(-rows // rows_of_chunk), lambda x, y: (address_of(x), address_of(y), *numbers))


def _emit_row(code: Code, p: dict[str, Number], row: Number, *, reduction: Reduction) -> None:
    x = p["x"] + row * p["length"] * FLOAT_BYTES

    def reduce(neutral: float, combine: Combine, read: Callable[[Floats, int], Floats]) -> list[Floats]:
        return [reduce_row(code, p["length"], lambda at, mask: read(code.load(x + at, mask=mask), 0), combine, neutral)]

    (result,) = reduction.emit(code, p["length"], reduce)
    code.store(p["y"] + row * FLOAT_BYTES, result)


def _plan_images(site: Site, operator: str) -> Recipe | None:
    """Returns the recipe of a reduction of each channel; in C order each is contiguous, as other kernels reduce it."""
    x = site.prototypes[site.node.inputs[0]]
    if not has_channel_vectors(x) or x.shape[1] == 1 or not np.may_share_memory(join_rows(x), x):
        return None
    return _plan_pixels(site, operator, join_rows)


_REDUCTION_PARAMETERS = (
    "x", "x_image", "x_row", "x_pixel", "height", "width", "y", "y_image", "blocks", "units", "units_of_chunk", "vectors", "last",
)  # fmt: skip
"""Addresses and strides in bytes. A unit is a block of channels of an image; `vectors`: full vectors of a pixel; `last`: elements after
them."""


def _plan_pixels(site: Site, operator: str, view: Callable[[Array], Array]) -> Recipe:
    """Returns the recipe of a reduction over the pixels of images (batch, channels, height, width), which `view` makes of the value."""
    # Sums over columns are made row by row, as ONNX Runtime and NumPy make them: some models subtract nearly equal sums.
    phases, width = _PHASES if view is join_rows else 1, find_width()
    emit = partial(_emit_pixels, reduction=REDUCTIONS[operator], phases=phases)
    kernel = make_unit_kernel(f"{operator.lower()}_pixels_{phases}", _REDUCTION_PARAMETERS, emit, unit="unit")

    x = view(site.prototypes[site.node.inputs[0]])
    batch, channels, height, length = x.shape
    blocks = -(-channels // (BLOCK * width))
    units = batch * blocks
    units_of_chunk = cut_lines(units, value_of(x.size) / width, site.workers)

    def list_numbers(x: Array, y: Array) -> tuple[int, ...]:
        places = (*list_strides("x", view(x)).values(), height, length, address_of(y))
        y_image = y.strides[0] if view is join_rows else channels * FLOAT_BYTES
        return (*places, y_image, blocks, units, units_of_chunk, channels // width, channels % width)

    return plan_call(kernel, (site.node.inputs[0],), -(-units // units_of_chunk), list_numbers)


def _emit_pixels(code: Code, p: dict[str, Number], unit: Number, *, reduction: Reduction, phases: int) -> None:
    image, block = unit // p["blocks"], unit % p["blocks"]

    def work(vector: Number, count: int, mask: Mask | None = None) -> None:
        channel = vector * (code.width * FLOAT_BYTES)
        x, y = (p[key] + image * p[f"{key}_image"] + channel for key in ("x", "y"))
        reduce = partial(reduce_pixels, code, p, x, count, mask, phases=phases)
        for v, total in enumerate(reduction.emit(code, p["height"] * p["width"], reduce)):
            code.store(y, total, v * code.width * FLOAT_BYTES, mask=mask)

    visit_block(code, p, block * BLOCK, BLOCK, work)


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
    phases: int = _PHASES,
) -> list[Floats]:
    """Returns `count` vectors of channels, from x on, each combined over all pixels of an image; `read` turns an element of a vector.

    The pixels of a row are combined in so many `phases` apart, a power of two.
    """
    vector_bytes = code.width * FLOAT_BYTES
    totals = [code.variable(code.constant(neutral)) for _ in range(count)]
    even = p["width"] - p["width"] % phases
    with code.loop(0, p["height"]) as line:
        here = code.variable(x + line * p["x_row"])
        sums = [[code.variable(code.constant(neutral)) for _ in range(count)] for _ in range(phases)]

        def advance(pixels: int) -> None:
            start = here.get()
            for phase in range(pixels):
                for v in range(count):
                    value = read(code.load(start + p["x_pixel"] * phase, v * vector_bytes, mask=mask), v)
                    sums[phase][v].set(combine(sums[phase][v].get(), value))
            here.set(start + p["x_pixel"] * pixels)

        with code.loop(0, even, phases):
            advance(phases)
        with code.loop(even, p["width"]):
            advance(1)
        for v, total in enumerate(totals):
            parts = [phase[v].get() for phase in sums]
            while len(parts) > 1:
                parts = list(map(combine, parts[::2], parts[1::2]))
            total.set(combine(total.get(), parts[0]))
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
        return _plan_images(site, "ReduceMean")
    return _plan_volume(site, windows) if len(windows.sizes) == 3 else _plan_image(site, windows)


def _make_call(site: Site, windows: Windows) -> WindowCall | None:
    source, width, is_mean = site.node.inputs[0], find_width(), site.node.op_type == "AveragePool"
    # The zeros of a halo are larger than negative elements.
    zeros = site.halos.get(source, NO_HALO) if is_mean else NO_HALO
    shape = plan_shape(windows, site.shape(source)[1], width, zeros=zeros)
    if shape is None:
        return None
    if not is_mean:
        # A NaN of either side stays.
        emit = partial(_emit_windows, combine=lambda a, b: a.is_nan().choose(a, (a > b).choose(a, b)))
        kernel = make_window_kernel(shape, WindowBody("max", emit))
        return WindowCall(kernel, shape, windows, width, -np.inf, site.workers, {})
    counts_pads = bool(site.node.attributes.get("count_include_pad", 0))
    counts = {}
    for axis, name in enumerate(("row", "column")):
        window = windows.outputs[axis], windows.sizes[axis], windows.kernel[axis], windows.strides[axis], windows.dilations[axis]
        pads = windows.pads[axis]
        counts[f"{name}_counts"] = lay_table(_count_taps, (*window, pads[0], *(pads if counts_pads else (0, 0))))
    kernel = make_window_kernel(shape, WindowBody("average", _emit_means, counts=True))
    return WindowCall(kernel, shape, windows, width, 0.0, site.workers, counts)


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


def _read_windows(site: Site) -> Windows | None:
    """Returns the windows of a pooling; None if its operands are not float32 images."""
    node = site.node
    source = node.inputs[0]
    if not site.is_float32(source) or len(site.shape(source)) not in (4, 5) or not set(node.attributes) <= _ATTRIBUTES:
        return None
    if any(node.outputs[1:]) or node.attributes.get("auto_pad", "NOTSET") not in AUTO_PADS:
        return None
    names = _ATTRIBUTES - {"count_include_pad", "kernel_shape", "storage_order"}
    geometry = {name: value for name, value in node.attributes.items() if name in names}
    windows = lay_windows(site.shape(source)[2:], node.attributes["kernel_shape"], **geometry)
    expected = site.types[node.outputs[0]].shape
    return windows if expected == (*site.shape(source)[:2], *windows.outputs) and 0 not in expected else None


def _count_taps(outputs: int, size: int, kernel: int, stride: int, dilation: int, pad: int, before: int, after: int) -> Array:
    """Returns how many taps of each window are elements of an axis, or of the pads around it that count; at least 1."""
    taps = (np.arange(outputs) * stride - pad)[:, None] + np.arange(kernel) * dilation
    counts: Array = np.maximum(((taps >= -before) & (taps < size + after)).sum(axis=1), 1).astype(np.float32)
    return counts
