"""Regions, boxes, grids, decoded images, and windows with positions of their own: DeformConv, Col2Im, MaxUnpool."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from io import BytesIO
from math import prod
from typing import Any

import numpy as np

from hetero_core.kernels.arrays import assign, bring
from hetero_core.kernels.precision import Array, Integers, Namespace, integers_of, multiply, narrow, widen
from hetero_core.kernels.registry import BOOL, COMPLEX, FLOAT32, FLOATS, INT32, INT64, NUMBERS, UINT8, kernel, microsoft_kernel
from hetero_core.kernels.tables import InputTypes
from hetero_core.kernels.windows import Windows, lay_windows, spread_bias
from hetero_core.network.graph import Node
from hetero_core.network.types import TensorType


def read_elements(
    xp: Namespace, x: Array, positions: tuple[Array, ...], *, padding_mode: str = "zeros", align_corners: int = 0
) -> Array:
    """Returns x (batch, channels, *sizes) at integer positions (batch, points) of each axis, as (batch, channels, points).

    The mode says what positions outside of the tensor read, as in GridSample.
    """
    batch, channels, *sizes = x.shape
    flat: Array = None
    counted: Array = None
    for places, size in zip(positions, sizes, strict=True):
        if padding_mode == "zeros":
            inside = (places >= 0) & (places < size)
            counted = inside if counted is None else counted & inside
        elif padding_mode == "reflection":
            places = _reflect(xp, places.astype(np.float64), size, align_corners).astype(np.int64)
        clipped = xp.clip(places, 0, size - 1)
        flat = clipped if flat is None else flat * size + clipped
    batches = xp.arange(batch).reshape((-1, 1, 1))
    values = x.reshape((batch, channels, prod(sizes)))[batches, xp.arange(channels).reshape((1, -1, 1)), flat[:, None]]
    return values if counted is None else xp.where(counted[:, None], values, values.dtype.type(0))


def interpolate(
    xp: Namespace, x: Array, coordinates: tuple[Array, ...], weigh: Callable[[Array], list[tuple[int, Array]]], **border: Any
) -> Array:
    """Returns x at fractional coordinates (batch, points), as (batch, channels, points).

    `weigh(fraction)` gives the taps of an axis: offsets from the element below, with their weights. border: as `read_elements`.
    """
    floors = [xp.floor(coordinate) for coordinate in coordinates]
    taps = [weigh(coordinate - floor) for coordinate, floor in zip(coordinates, floors, strict=True)]
    bases = [floor.astype(np.int64) for floor in floors]
    total = None
    for choice in itertools.product(*taps):
        weight = choice[0][1]
        for _, more in choice[1:]:
            weight = weight * more
        places = tuple(base + offset for base, (offset, _) in zip(bases, choice, strict=True))
        part = read_elements(xp, x, places, **border) * weight[:, None].astype(x.dtype)
        total = part if total is None else total + part
    return total


def weigh_linear(fraction: Array) -> list[tuple[int, Array]]:
    """Returns the two neighbours and their weights."""
    return [(0, 1 - fraction), (1, fraction)]


def weigh_cubic(fraction: Array) -> list[tuple[int, Array]]:
    """Returns four neighbours weighted by Keys' cubic with a = -0.75. Source: Keys 1981, equation 4."""
    a = -0.75
    taps = []
    for offset in (-1, 0, 1, 2):
        distance = abs(offset - fraction)
        if offset in (0, 1):
            weight = ((a + 2) * distance - (a + 3)) * distance * distance + 1
        else:
            weight = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
        taps.append((offset, weight))
    return taps


_BORDERS = {"padding_mode": ("zeros", "border", "reflection"), "align_corners": (0, 1)}
Vector = np.ndarray[Integers, np.dtype[Any]]


def _refuse_interpolation(node: Node, input_types: InputTypes) -> str | None:
    """Refuses to interpolate integers, for which no source defines the rounding."""
    mode, data_type = node.attributes.get("mode", "linear"), input_types[0]
    dtype = data_type.dtype if isinstance(data_type, TensorType) else None
    if mode == "nearest" or dtype is None or dtype in FLOATS:
        return None
    return f"mode '{mode}' of {node.operator} is implemented for floats, not for {dtype}"


_grid_kernel = partial(kernel, "GridSample", dtypes=(NUMBERS | BOOL | COMPLEX, FLOATS), refuse=_refuse_interpolation)


@_grid_kernel(since=(20, 22), choices={**_BORDERS, "mode": ("linear", "nearest", "cubic")})
def grid_sample(
    xp: Namespace, x: Array, grid: Array, *, align_corners: int = 0, mode: str = "linear", padding_mode: str = "zeros"
) -> Array:
    """Returns x (batch, channels, *sizes) at grid (batch, *outputs, axes), the last axis names the innermost axis first.

    -1 and 1 are the centers of the outer elements with align_corners, else their outer edges. Source: ONNX GridSample-22.
    """
    sizes, mode = x.shape[2:], mode.removeprefix("bi")
    points = widen(grid).reshape((grid.shape[0], prod(grid.shape[1:-1]), len(sizes)))
    coordinates = []
    for axis, size in enumerate(sizes):
        normalized = points[..., len(sizes) - 1 - axis]
        place = (normalized + 1) / 2 * (size - 1) if align_corners else ((normalized + 1) * size - 1) / 2
        place = xp.rint(place) if mode == "nearest" else place
        if padding_mode == "border":
            # Positions beyond a border stay, as far as a cubic sees a difference: what it reads there is the border's element, so it bends
            # within two steps of it. PyTorch and ONNX Runtime have it so, the reference evaluator moves the position to the border first.
            place = xp.clip(place, -3, size + 2)
        coordinates.append(_reflect(xp, place, size, align_corners) if padding_mode == "reflection" else place)
    wide = widen(x)
    border: dict[str, Any] = {"padding_mode": padding_mode, "align_corners": align_corners}
    if mode == "nearest":
        y = read_elements(xp, wide, tuple(place.astype(np.int64) for place in coordinates), **border)
    else:
        y = interpolate(xp, wide, tuple(coordinates), weigh_linear if mode == "linear" else weigh_cubic, **border)
    return narrow(y, x.dtype).reshape((*x.shape[:2], *grid.shape[1:-1]))


_IMAGES = {**_BORDERS, "mode": ("bilinear", "nearest", "bicubic")}
for _declare in (_grid_kernel(since=(16,), choices=_IMAGES), microsoft_kernel("GridSample", dtypes=FLOAT32, choices=_IMAGES)):
    _declare(partial(grid_sample, mode="bilinear"))


def _reflect(xp: Namespace, place: Array, size: int, align_corners: int) -> Array:
    """Returns positions folded at the borders, which are the outer centers or edges, until they lie inside."""
    low, span = (0.0, size - 1.0) if align_corners else (-0.5, float(size))
    if span == 0:
        return xp.zeros_like(place)
    folded = xp.mod(xp.abs(place - low), 2 * span)
    return xp.where(folded > span, 2 * span - folded, folded) + low


@kernel("AffineGrid", since=(20,), dtypes=(FLOATS, INT64), host=(1,), choices={"align_corners": (0, 1)})
def affine_grid(xp: Namespace, theta: Array, size: Array, *, align_corners: int = 0) -> Array:
    """Returns theta applied to the positions of an image or a volume in [-1, 1]."""
    sizes = integers_of(size)[2:]
    rank = len(sizes)
    wide = widen(theta)
    columns = []
    for axis in reversed(range(rank)):
        steps = xp.arange(sizes[axis], dtype=wide.dtype)
        line = steps * 2 / (sizes[axis] - 1) - 1 if align_corners else (2 * steps + 1) / sizes[axis] - 1
        columns.append(xp.broadcast_to(line.reshape((-1, *(1,) * (rank - axis - 1))), sizes).reshape(-1))
    columns.append(xp.ones_like(columns[0]))
    points = xp.matmul(wide, xp.stack(columns))
    return narrow(xp.swapaxes(points, 1, 2), theta.dtype).reshape((theta.shape[0], *sizes, rank))


_ROI = {"mode": ("avg", "max")}


def _count_aligned(
    x: Array, rois: Array, *_: Any, output_height: int = 1, output_width: int = 1, sampling_ratio: int = 0, **__: Any
) -> int:
    """The samples, of which each bin has several."""
    samples = output_height * output_width * max(sampling_ratio, 1) ** 2
    return int(rois.shape[0]) * int(x.shape[1]) * samples * int(x.itemsize)


_roi_kernel = partial(kernel, "RoiAlign", dtypes=(FLOATS, FLOATS, INT64), host=(1, 2), count_bytes=_count_aligned)


@_roi_kernel(since=(16, 22), choices={**_ROI, "coordinate_transformation_mode": ("half_pixel", "output_half_pixel")})
def roi_align(
    xp: Namespace,
    x: Array,
    rois: Array,
    batch_indices: Array,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Array:
    """Returns regions pooled from interpolated samples."""
    shift = 0.5 if coordinate_transformation_mode == "half_pixel" else 0.0
    outputs = (output_height, output_width)
    wide = widen(x)
    regions = []
    for roi, item in zip(rois.astype(np.float64), integers_of(batch_indices), strict=True):
        left, top, right, bottom = roi * spatial_scale - shift
        lines = zip((top, left), (bottom, right), outputs, x.shape[2:], strict=True)
        corners = [_sample_line(*line, sampling_ratio, keeps_one=shift == 0) for line in lines]
        # Only memory of the host may be asked whether a number is finite.
        mean = _average_region(wide[item], corners, outputs) if mode == "avg" and xp is np else None
        regions.append(_pool_region(xp, wide[item], corners, outputs, mode) if mean is None else mean)
    if not regions:
        return xp.zeros((0, x.shape[1], *outputs), dtype=x.dtype)
    return narrow(xp.stack(regions), x.dtype)


_unshifted = partial(roi_align, coordinate_transformation_mode="output_half_pixel")
_roi_kernel(since=(10,), choices=_ROI, without=("coordinate_transformation_mode",))(_unshifted)


_Line = tuple[Vector, Vector]


def _sample_line(begin: float, end: float, outputs: int, size: int, sampling_ratio: int, *, keeps_one: bool) -> _Line:
    """Returns the lower and the upper neighbours of all samples along an axis, (2, samples), and their weights (0 far outside).

    Without the half-pixel shift a region is at least an element long.
    """
    length = max(end - begin, 1.0) if keeps_one else end - begin
    samples = sampling_ratio if sampling_ratio > 0 else int(np.ceil(length / outputs))
    places = begin + (np.arange(outputs * samples) + 0.5) * (length / outputs / max(samples, 1))
    counted = (places >= -1) & (places <= size)
    clipped = np.minimum(np.maximum(places, 0), size - 1)
    low = np.floor(clipped).astype(int)
    high = np.minimum(low + 1, size - 1)
    fraction = clipped - low
    return np.stack([low, high]), np.stack([(1 - fraction) * counted, fraction * counted])


def _average_region(x: Array, corners: list[_Line], outputs: tuple[int, int]) -> Array | None:
    """Returns the mean of the samples of each bin as two products of matrices; None if a sum is not finite.

    Products with the zeros of a matrix would spread an infinity or NaN to bins that do not read it.
    """
    matrices, cut = [], [slice(None)]
    for (positions, weights), count in zip(corners, outputs, strict=True):
        samples = positions.shape[1] // count
        if samples == 0:
            return None
        first, end = int(positions.min()), int(positions.max()) + 1
        places = np.arange(count).repeat(samples) * (end - first) + positions - first
        sums = np.bincount(places.reshape(-1), weights.reshape(-1) / samples, count * (end - first))
        matrices.append(sums.reshape(count, -1).astype(x.dtype))
        cut.append(slice(first, end))
    with np.errstate(invalid="ignore"):
        y = np.matmul(np.matmul(matrices[0], x[tuple(cut)]), matrices[1].T)
    return y if np.isfinite(y).all() else None


def _pool_region(xp: Namespace, x: Array, corners: list[_Line], outputs: tuple[int, int], mode: str) -> Array:
    """Returns (channels, *outputs): the mean of the samples of each bin, or the largest weighted corner of all its samples.

    Taking the maximum of weighted corners instead of samples is what the official case and ONNX Runtime both do.
    """
    combine = xp.add if mode == "avg" else xp.maximum
    pooled: Array = None
    for rows, row_weights in zip(*corners[0], strict=True):
        for columns, column_weights in zip(*corners[1], strict=True):
            read = xp.take(xp.take(x, bring(xp, rows, np.int64), axis=1), bring(xp, columns, np.int64), axis=2)
            weights = bring(xp, row_weights, x.dtype)[:, None] * bring(xp, column_weights, x.dtype)[None]
            part = read * weights
            pooled = part if pooled is None else combine(pooled, part)
    channels, height, width = pooled.shape
    if height * width == 0:
        return xp.zeros((channels, *outputs), dtype=x.dtype)
    bins = pooled.reshape((channels, outputs[0], height // outputs[0], outputs[1], width // outputs[1]))
    return xp.mean(bins, axis=(2, 4)) if mode == "avg" else xp.max(bins, axis=(2, 4))


@kernel("MaxRoiPool", since=(1, 22), dtypes=FLOATS, host=(1,))
def max_roi_pool(xp: Namespace, x: Array, rois: Array, *, pooled_shape: Integers, spatial_scale: float = 1.0) -> Array:
    """Returns the largest element of each bin of each region, 0 for an empty bin. rois: (regions, 5).

    Corners are rounded half away from zero to elements, and both belong to the region.
    """
    regions = []
    for roi in rois.astype(np.float32):
        image = x[int(roi[0])]
        left, top, right, bottom = np.floor(roi[1:] * np.float32(spatial_scale) + np.float32(0.5)).astype(int).tolist()
        rows = _cut_bins(top, bottom, pooled_shape[0], x.shape[2])
        columns = _cut_bins(left, right, pooled_shape[1], x.shape[3])
        zero = xp.zeros(x.shape[1], dtype=x.dtype)
        bins = [
            xp.max(image[:, row, column], axis=(1, 2)) if row.start < row.stop and column.start < column.stop else zero
            for row in rows
            for column in columns
        ]
        regions.append(xp.stack(bins, axis=1).reshape((x.shape[1], *pooled_shape)))
    return xp.stack(regions) if regions else xp.zeros((0, x.shape[1], *pooled_shape), dtype=x.dtype)


def _cut_bins(begin: int, end: int, count: int, size: int) -> list[slice]:
    length = np.float32(max(end - begin + 1, 1)) / np.float32(count)
    places = np.arange(count + 1, dtype=np.float32) * length
    edges = (np.clip(bound.astype(int) + begin, 0, size).tolist() for bound in (np.floor(places[:-1]), np.ceil(places[1:])))
    return list(map(slice, *edges))


_BOXES = (FLOAT32, FLOAT32, INT64, FLOAT32)


@kernel("NonMaxSuppression", since=(10, 11), dtypes=_BOXES, choices={"center_point_box": (0, 1)}, runs_on_host=True)
def non_max_suppression(
    xp: Namespace,
    boxes: Array,
    scores: Array,
    max_output_boxes_per_class: Array | None = None,
    iou_threshold: Array | None = None,
    score_threshold: Array | None = None,
    *,
    center_point_box: int = 0,
) -> Array:
    """Returns (batch, class, box) of the boxes that no better box of their class overlaps by more than the threshold.

    In descending order of score; the lower index goes first among equals.
    """
    limit = 0 if max_output_boxes_per_class is None else integers_of(max_output_boxes_per_class)[0]
    overlap = np.float32(0) if iou_threshold is None else iou_threshold.reshape(-1)[0]
    chosen = [np.empty((0, 3), np.int64)]
    for batch in range(scores.shape[0]):
        corners = _find_corners(boxes[batch], is_centered=bool(center_point_box)).T
        sides = np.concatenate([corners, [(corners[2] - corners[0]) * (corners[3] - corners[1])]])
        for label, points in enumerate(scores[batch]):
            ranked = np.arange(len(points)) if score_threshold is None else np.flatnonzero(points > score_threshold.reshape(-1)[0])
            ranked = ranked[np.argsort(-points[ranked], kind="stable")]
            survivors = _suppress(sides, ranked, limit, overlap)
            chosen.append(np.stack([np.full_like(survivors, batch), np.full_like(survivors, label), survivors], axis=1))
    return np.concatenate(chosen)


def _find_corners(boxes: Vector, *, is_centered: bool) -> Vector:
    """Returns (boxes, 4): lower and upper corner of each box."""
    if is_centered:
        center, half = boxes[:, [1, 0]], boxes[:, [3, 2]] / 2
        return np.concatenate([center - half, center + half], axis=1)
    return np.concatenate([np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])], axis=1)


_BLOCK = 128
"""Boxes that are compared with each other at once."""


def _suppress(sides: Vector, ranked: Vector, limit: int, overlap: Any) -> Vector:
    """Returns which of the ranked boxes are chosen. sides: (5, boxes), both corners and the area.

    Blocks of boxes are compared with those chosen before and with each other; the bits of a row are the boxes that it suppresses.
    """
    chosen = [ranked[:0]]
    for begin in range(0, len(ranked), _BLOCK):
        block, before = ranked[begin : begin + _BLOCK], np.concatenate(chosen)
        if len(before) >= limit:
            break
        block = block[~_overlap(sides[:, before], sides[:, block], overlap).any(axis=0)]
        hits = np.packbits(_overlap(sides[:, block], sides[:, block], overlap), axis=1, bitorder="little")
        places: list[int] = []
        alive = (1 << len(block)) - 1
        while alive and len(before) + len(places) < limit:
            places.append((alive & -alive).bit_length() - 1)
            alive &= ~(int.from_bytes(hits[places[-1]], "little") | 1 << places[-1])
        chosen.append(block[places])
    return np.concatenate(chosen)


def _overlap(best: Vector, others: Vector, overlap: Any) -> Vector:
    """Returns (best, others): whether the shared area is more than this part of the area that both cover."""
    first, second = best[:, :, None], others[:, None, :]
    shared = np.minimum(first[2], second[2])
    shared -= np.maximum(first[0], second[0])
    np.maximum(shared, 0, out=shared)
    width = np.minimum(first[3], second[3])
    width -= np.maximum(first[1], second[1])
    shared *= width
    union = np.add(first[4], second[4], out=width)
    union -= shared
    # Boxes without a common area have a quotient that is not positive, or NaN.
    with np.errstate(divide="ignore", invalid="ignore"):
        hits: Vector = np.divide(shared, union, out=shared) > overlap
    return hits


_MODES = {"RGB": "RGB", "BGR": "RGB", "Grayscale": "L"}
# First bytes of formats with an optional codec in Pillow, and Pillow's name of the codec.
_CODECS = (
    (b"\xff\xd8\xff", "jpg", "JPEG"),
    (b"\x00\x00\x00\x0cjP  ", "jpg_2000", "JPEG 2000"),
    (b"\xff\x4f\xff\x51", "jpg_2000", "JPEG 2000"),
    (b"\x89PNG", "zlib", "PNG"),
    (b"RIFF", "webp", "WebP"),
)


def _need_pillow(node: Node, input_types: InputTypes) -> str | None:
    if find_spec("PIL") is None:
        return f"{node.operator} needs Pillow, which is not installed; pip install hetero-core[images]"
    return None


@kernel("ImageDecoder", since=(20,), dtypes=UINT8, choices={"pixel_format": tuple(_MODES)}, runs_on_host=True, refuse=_need_pillow)
def decode_image(xp: Namespace, encoded_stream: Array, *, pixel_format: str = "RGB") -> Array:
    """Returns the pixels of an encoded image, uint8 (height, width, channels); no pixels if it is damaged or unknown.

    Raises: RuntimeError when the image has a format for which this Pillow was built without a codec.
    """
    from PIL import Image, UnidentifiedImageError, features  # optional, and slow to import

    encoded = encoded_stream.tobytes()
    for magic, feature, name in _CODECS:
        if encoded.startswith(magic) and not features.check(feature):
            raise RuntimeError(f"cannot decode a {name} image: Pillow was built without '{feature}'; install a Pillow that has it")
    try:
        with Image.open(BytesIO(encoded)) as image:
            pixels = np.asarray(image.convert(_MODES[pixel_format]))
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError):
        # Pillow raises these for damaged or unknown images; the operator then returns an empty matrix.
        return np.zeros((0, 0, 1 if pixel_format == "Grayscale" else 3), dtype=np.uint8)
    if pixel_format == "Grayscale":
        return pixels[:, :, None]
    return pixels[:, :, ::-1] if pixel_format == "BGR" else pixels


@microsoft_kernel(
    "CropAndResize", halves=(0,), dtypes=(FLOAT32, FLOAT32, INT32, INT32), host=(3,), choices={"mode": ("bilinear", "nearest")}
)
def crop_and_resize(
    xp: Namespace, x: Array, rois: Array, items: Array, crop: Array, *, extrapolation_value: float = 0.0, mode: str = "bilinear"
) -> Array:
    """Returns each region (top, left, bottom, right, from 0 to 1), resized with its corners kept; a fixed value outside of the image.

    items: the image of each region.
    """
    sizes, counts = x.shape[2:], integers_of(crop)
    rows, columns = (_lay_line(xp, rois[:, axis], rois[:, axis + 2], sizes[axis], count) for axis, count in enumerate(counts))
    shape = (rois.shape[0], *counts)
    places = [xp.broadcast_to(line, shape).reshape((shape[0], prod(counts))) for line in (rows[:, :, None], columns[:, None, :])]
    inside = [(place >= 0) & (place <= size - 1) for place, size in zip(places, sizes, strict=True)]
    images = xp.take(x, items, axis=0)
    if mode == "nearest":  # halves go away from zero
        nearest = tuple(xp.floor(place + np.float32(0.5)).astype(np.int64) for place in places)
        y = read_elements(xp, images, nearest, padding_mode="border")
    else:
        y = interpolate(xp, images, tuple(places), weigh_linear, padding_mode="border")
    y = xp.where((inside[0] & inside[1])[:, None], y, np.float32(extrapolation_value))
    return y.reshape((*images.shape[:2], *counts))


def _lay_line(xp: Namespace, begin: Array, end: Array, size: int, count: int) -> Array:
    """Returns (regions, count) positions along an axis of the image."""
    last = np.float32(size - 1)
    if count == 1:
        return (np.float32(0.5) * (begin + end) * last)[:, None]
    step = (end - begin) * last / np.float32(count - 1)
    return (begin * last)[:, None] + xp.arange(count).astype(np.float32)[None, :] * step[:, None]


_PADS = {"pads": None, "strides": None}
_STEPS = {"dilations": None, **_PADS}


@kernel("DeformConv", since=(19, 22), dtypes=FLOATS, shared=_STEPS, unread={"kernel_shape": None})
def deform_conv(
    xp: Namespace,
    x: Array,
    w: Array,
    offset: Array,
    b: Array | None = None,
    mask: Array | None = None,
    *,
    group: int = 1,
    offset_group: int = 1,
    **geometry: Any,
) -> Array:
    """Returns the convolution of elements that are read at a distance `offset` and weighed by `mask`.

    offset: (batch, offset_group * kernel * axes, *outputs); mask without the axes.
    """
    sizes, taps = x.shape[2:], w.shape[2:]
    windows = lay_windows(sizes, taps, **geometry)
    batch, channels = x.shape[:2]
    rank, depth, points = len(sizes), prod(taps), prod(windows.outputs)
    offsets = widen(offset).reshape((batch * offset_group, depth, rank, points))
    places = _lay_places(xp, windows)
    coordinates = tuple(
        (places[axis][None] + offsets[:, :, axis]).reshape((batch * offset_group, depth * points)) for axis in range(rank)
    )
    grouped = widen(x).reshape((batch * offset_group, channels // offset_group, *sizes))
    columns = interpolate(xp, grouped, coordinates, weigh_linear)
    columns = columns.reshape((batch, offset_group, channels // offset_group, depth, points))
    if mask is not None:
        columns = columns * widen(mask).reshape((batch, offset_group, 1, depth, points))
    outputs = w.shape[0]
    filters = widen(w).reshape((group, outputs // group, prod(w.shape[1:])))
    y = multiply(xp, filters, columns.reshape((batch, group, channels // group * depth, points)))
    y = y.reshape((batch, outputs, *windows.outputs))
    if b is not None:
        y = y + spread_bias(widen(b), y)
    return narrow(y, x.dtype)


def _lay_places(xp: Namespace, windows: Windows) -> list[Array]:
    """Returns for each axis the positions that a plain convolution reads: (kernel positions, outputs)."""
    rank = len(windows.sizes)
    places = []
    for axis in range(rank):
        behind = (1,) * (rank - axis - 1)
        of_tap = (xp.arange(windows.kernel[axis]) * windows.dilations[axis]).reshape((-1, *behind, *(1,) * rank))
        of_output = (xp.arange(windows.outputs[axis]) * windows.strides[axis] - windows.pads[axis][0]).reshape((-1, *behind))
        both = xp.broadcast_to(of_tap + of_output, (*windows.kernel, *windows.outputs))
        places.append(both.reshape((prod(windows.kernel), prod(windows.outputs))))
    return places


def _find_unpooled(x: Array, *, kernel_shape: Integers, pads: Integers | None = None, strides: Integers | None = None) -> Integers:
    """Returns the shape of the input from which a MaxPool with these attributes made x."""
    rank = x.ndim - 2
    steps, flat = strides or (1,) * rank, pads or (0,) * (2 * rank)
    sizes = ((x.shape[2 + axis] - 1) * steps[axis] + kernel_shape[axis] - flat[axis] - flat[axis + rank] for axis in range(rank))
    return (*x.shape[:2], *sizes)


@kernel("Col2Im", since=(18,), dtypes=(NUMBERS | COMPLEX, INT64, INT64), host=(1, 2), shared=_STEPS)
def col_to_im(xp: Namespace, x: Array, image_shape: Array, block_shape: Array, **geometry: Any) -> Array:
    """Returns images in which each column is added at its window. x: (batch, channels * block, windows)."""
    image, block = integers_of(image_shape), integers_of(block_shape)
    windows = lay_windows(image, block, **geometry)
    batch, channels = x.shape[0], x.shape[1] // prod(block)
    columns = widen(x).reshape((batch, channels, *block, *windows.outputs))
    padded = tuple(size + begin + end for size, (begin, end) in zip(image, windows.pads, strict=True))
    y = xp.zeros((batch, channels, *padded), dtype=columns.dtype)
    for position, picked in windows.slices():
        place = (slice(None), slice(None), *picked)
        y = assign(y, place, y[place] + columns[(slice(None), slice(None), *position)])
    inner = tuple(slice(begin, begin + size) for size, (begin, _) in zip(image, windows.pads, strict=True))
    return narrow(y[(slice(None), slice(None), *inner)], x.dtype)


def _count_unpooled(x: Array, indices: Array, output_shape: Array | None = None, **geometry: Any) -> int:
    requested = 0 if output_shape is None else prod(integers_of(output_shape))
    return int(max(prod(_find_unpooled(x, **geometry)), requested)) * int(x.itemsize)


@kernel("MaxUnpool", since=(9, 11, 22), dtypes=(FLOATS, INT64, INT64), host=(2,), count_bytes=_count_unpooled, shared=_PADS)
def max_unpool(
    xp: Namespace, x: Array, indices: Array, output_shape: Array | None = None, *, kernel_shape: Integers, **geometry: Any
) -> Array:
    """Returns zeros with the elements of x at the indices of MaxPool.

    The indices count in the shape that the attributes give; a larger output_shape adds zeros behind it.
    """
    shape = _find_unpooled(x, kernel_shape=kernel_shape, **geometry)
    y = assign(xp.zeros(prod(shape), dtype=x.dtype), indices.reshape(-1), x.reshape(-1)).reshape(shape)
    target_shape = integers_of(output_shape) or shape
    if target_shape == shape:
        return y
    return assign(xp.zeros(target_shape, dtype=x.dtype), tuple(slice(0, size) for size in shape), y)
