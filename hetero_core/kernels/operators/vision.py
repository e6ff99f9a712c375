"""Regions, boxes and grids: GridSample, AffineGrid, RoiAlign, MaxRoiPool, NonMaxSuppression."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import numpy as np

from hetero_core.kernels.precision import Array, Namespace, integers_of, narrow, widen
from hetero_core.kernels.registry import BOOL, COMPLEX, FLOAT32, FLOATS, INT64, NUMBERS, kernel
from hetero_core.kernels.sampling import Resolve, count_inside, interpolate, read_elements, weigh_cubic, weigh_linear
from hetero_core.kernels.sizes import product
from hetero_core.network.graph import Node
from hetero_core.network.types import TensorType, ValueType

_PADDING = {"padding_mode": ("zeros", "border", "reflection"), "align_corners": (0, 1)}
Vector = np.ndarray[tuple[int, ...], np.dtype[Any]]


def _refuse_interpolation(node: Node, input_types: tuple[ValueType | None, ...]) -> str | None:
    """Refuses to interpolate what is no float, for which no source says how it is rounded."""
    mode, data_type = node.attributes.get("mode", "linear"), input_types[0]
    dtype = data_type.dtype if isinstance(data_type, TensorType) else None
    if mode == "nearest" or dtype is None or dtype in FLOATS:
        return None
    return f"mode '{mode}' of {node.operator} is implemented for floats, not for {dtype}"


_grid_kernel = partial(kernel, "GridSample", dtypes=(NUMBERS | BOOL | COMPLEX, FLOATS), refuse=_refuse_interpolation)


@_grid_kernel(since=(16,), choices={**_PADDING, "mode": ("bilinear", "nearest", "bicubic")})
def grid_sample_image(
    xp: Namespace, x: Array, grid: Array, *, align_corners: int = 0, mode: str = "bilinear", padding_mode: str = "zeros"
) -> Array:
    """Returns images sampled at the grid's positions. Source: ONNX GridSample-16."""
    general = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    return grid_sample(xp, x, grid, align_corners=align_corners, mode=general, padding_mode=padding_mode)


@_grid_kernel(since=(20, 22), choices={**_PADDING, "mode": ("linear", "nearest", "cubic")})
def grid_sample(
    xp: Namespace, x: Array, grid: Array, *, align_corners: int = 0, mode: str = "linear", padding_mode: str = "zeros"
) -> Array:
    """Returns x (batch, channels, *sizes) at grid (batch, *outputs, axes), whose last axis names the innermost axis first.

    -1 and 1 are the centers of the outer elements with align_corners, else their outer edges. Source: ONNX GridSample-22.
    """
    sizes = x.shape[2:]
    points = widen(grid).reshape((grid.shape[0], prod(grid.shape[1:-1]), len(sizes)))
    coordinates = []
    for axis, size in enumerate(sizes):
        normalized = points[..., len(sizes) - 1 - axis]
        place = (normalized + 1) / 2 * (size - 1) if align_corners else ((normalized + 1) * size - 1) / 2
        place = xp.rint(place) if mode == "nearest" else place
        coordinates.append(_bring_inside(xp, place, size, padding_mode, align_corners))
    resolve = _resolve_border(xp, sizes, padding_mode, align_corners)
    wide = widen(x)
    if mode == "nearest":
        y = read_elements(xp, wide, tuple(place.astype(np.int64) for place in coordinates), resolve)
    else:
        y = interpolate(xp, wide, tuple(coordinates), resolve, weigh_linear if mode == "linear" else weigh_cubic)
    return narrow(y, x.dtype).reshape((*x.shape[:2], *grid.shape[1:-1]))


def _reflect(xp: Namespace, place: Array, size: int, align_corners: int) -> Array:
    """Returns positions folded at the borders, which are the outer centers or edges, until they lie inside."""
    low, span = (0.0, size - 1.0) if align_corners else (-0.5, float(size))
    if span == 0:
        return xp.zeros_like(place)
    folded = xp.mod(xp.abs(place - low), 2 * span)
    return xp.where(folded > span, 2 * span - folded, folded) + low


def _bring_inside(xp: Namespace, place: Array, size: int, padding_mode: str, align_corners: int) -> Array:
    """Returns reflected positions inside. Those beyond a border stay where they are, as far as a cubic sees a difference.

    What a cubic reads there is the border's element, so it bends within two steps of it: PyTorch and ONNX Runtime have it so, the
    reference evaluator moves the position to the border first.
    """
    if padding_mode == "border":
        return xp.clip(place, -3, size + 2)
    return _reflect(xp, place, size, align_corners) if padding_mode == "reflection" else place


def _resolve_border(xp: Namespace, sizes: tuple[int, ...], padding_mode: str, align_corners: int) -> Resolve:
    if padding_mode == "zeros":
        return count_inside(xp, sizes)

    def resolve(positions: Array, axis: int) -> tuple[Array, None]:
        if padding_mode == "reflection":
            positions = _reflect(xp, positions.astype(np.float64), sizes[axis], align_corners).astype(np.int64)
        return xp.clip(positions, 0, sizes[axis] - 1), None

    return resolve


def _count_grid(theta: Array, size: Array, **_: Any) -> int:
    sizes = integers_of(size)[2:]
    return int(theta.shape[0]) * product(sizes) * len(sizes) * int(theta.itemsize)


@kernel("AffineGrid", since=(20,), dtypes=(FLOATS, INT64), host=(1,), choices={"align_corners": (0, 1)}, count_bytes=_count_grid)
def affine_grid(xp: Namespace, theta: Array, size: Array, *, align_corners: int = 0) -> Array:
    """Returns theta applied to the positions of an image or a volume in [-1, 1]. Source: ONNX AffineGrid-20."""
    sizes = integers_of(size)[2:]
    rank = len(sizes)
    wide = widen(theta)
    columns = []
    for axis in reversed(range(rank)):
        steps = xp.arange(sizes[axis], dtype=wide.dtype)
        line = steps * 2 / (sizes[axis] - 1) - 1 if align_corners else (2 * steps + 1) / sizes[axis] - 1
        shape = [1] * rank
        shape[axis] = -1
        columns.append(xp.broadcast_to(line.reshape(shape), sizes).reshape(-1))
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


@kernel("RoiAlign", since=(10,), dtypes=(FLOATS, FLOATS, INT64), host=(1, 2), choices=_ROI, count_bytes=_count_aligned)
def roi_align_unshifted(
    xp: Namespace,
    x: Array,
    rois: Array,
    batch_indices: Array,
    *,
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Array:
    """Returns pooled regions without the shift by half a pixel. Source: ONNX RoiAlign-10."""
    return _align_rois(xp, x, rois, batch_indices, mode, (output_height, output_width), sampling_ratio, spatial_scale, shift=0.0)


@kernel(
    "RoiAlign",
    since=(16, 22),
    dtypes=(FLOATS, FLOATS, INT64),
    host=(1, 2),
    choices={**_ROI, "coordinate_transformation_mode": ("half_pixel", "output_half_pixel")},
    count_bytes=_count_aligned,
)
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
    """Returns regions pooled from interpolated samples. Source: ONNX RoiAlign-22."""
    shift = 0.5 if coordinate_transformation_mode == "half_pixel" else 0.0
    return _align_rois(xp, x, rois, batch_indices, mode, (output_height, output_width), sampling_ratio, spatial_scale, shift=shift)


def _align_rois(
    xp: Namespace,
    x: Array,
    rois: Array,
    batch_indices: Array,
    mode: str,
    outputs: tuple[int, int],
    sampling_ratio: int,
    spatial_scale: float,
    *,
    shift: float,
) -> Array:
    wide = widen(x)
    regions = []
    for roi, item in zip(rois.astype(np.float64), integers_of(batch_indices), strict=True):
        corners = []
        for axis, (begin, end) in enumerate(((roi[1], roi[3]), (roi[0], roi[2]))):
            corners.append(
                _sample_line(
                    begin * spatial_scale - shift,
                    end * spatial_scale - shift,
                    outputs[axis],
                    sampling_ratio,
                    x.shape[2 + axis],
                    keeps_one=shift == 0,
                )
            )
        regions.append(_pool_region(xp, wide[item], corners, outputs, mode))
    if not regions:
        return xp.zeros((0, x.shape[1], *outputs), dtype=x.dtype)
    return narrow(xp.stack(regions), x.dtype)


def _sample_line(
    begin: float, end: float, outputs: int, sampling_ratio: int, size: int, *, keeps_one: bool
) -> list[tuple[list[int], list[float]]]:
    """Returns the lower and the upper neighbours of all samples along one axis, with their weights (0 far outside).

    Without the half-pixel shift a region is at least one element long.
    """
    length = max(end - begin, 1.0) if keeps_one else end - begin
    samples = sampling_ratio if sampling_ratio > 0 else int(np.ceil(length / outputs))
    places = begin + (np.arange(outputs * samples) + 0.5) * (length / outputs / max(samples, 1))
    counted = (places >= -1) & (places <= size)
    clipped = np.clip(places, 0, size - 1)
    low = np.floor(clipped).astype(int)
    high = np.minimum(low + 1, size - 1)
    fraction = clipped - low
    return [(low.tolist(), ((1 - fraction) * counted).tolist()), (high.tolist(), (fraction * counted).tolist())]


def _pool_region(
    xp: Namespace, x: Array, corners: list[list[tuple[list[int], list[float]]]], outputs: tuple[int, int], mode: str
) -> Array:
    """Returns (channels, *outputs): the mean of the samples of each bin, or the largest weighted corner of all its samples.

    Taking the maximum of weighted corners instead of samples is what the official case and ONNX Runtime both do.
    """
    combine = xp.add if mode == "avg" else xp.maximum
    pooled: Array = None
    for rows, row_weights in corners[0]:
        for columns, column_weights in corners[1]:
            read = xp.take(xp.take(x, xp.asarray(rows, dtype=np.int64), axis=1), xp.asarray(columns, dtype=np.int64), axis=2)
            weights = xp.asarray(row_weights, dtype=x.dtype)[:, None] * xp.asarray(column_weights, dtype=x.dtype)[None]
            part = read * weights
            pooled = part if pooled is None else combine(pooled, part)
    channels, height, width = pooled.shape
    if height * width == 0:
        return xp.zeros((channels, *outputs), dtype=x.dtype)
    bins = pooled.reshape((channels, outputs[0], height // outputs[0], outputs[1], width // outputs[1]))
    return xp.mean(bins, axis=(2, 4)) if mode == "avg" else xp.max(bins, axis=(2, 4))


def _count_regions(x: Array, rois: Array, *, pooled_shape: tuple[int, ...], **_: Any) -> int:
    return int(rois.shape[0]) * int(x.shape[1]) * product(pooled_shape) * int(x.itemsize)


@kernel("MaxRoiPool", since=(1, 22), dtypes=FLOATS, host=(1,), count_bytes=_count_regions)
def max_roi_pool(xp: Namespace, x: Array, rois: Array, *, pooled_shape: tuple[int, ...], spatial_scale: float = 1.0) -> Array:
    """Returns the largest element of each bin of each region, 0 where a bin is empty. rois: (regions, 5).

    Corners are rounded half away from zero to elements, and both belong to the region. Source: ONNX MaxRoiPool-22.
    """
    regions = []
    for roi in rois.astype(np.float32):
        image = x[int(roi[0])]
        left, top, right, bottom = (
            int(np.floor(np.float32(corner) * np.float32(spatial_scale) + np.float32(0.5))) for corner in roi[1:]
        )
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
    return [
        slice(
            min(max(int(np.floor(index * length)) + begin, 0), size), min(max(int(np.ceil((index + 1) * length)) + begin, 0), size)
        )
        for index in range(count)
    ]


@kernel(
    "NonMaxSuppression",
    since=(10, 11),
    dtypes=(FLOAT32, FLOAT32, INT64, FLOAT32),
    choices={"center_point_box": (0, 1)},
    runs_on_host=True,
)
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
    """Returns (batch, class, box) of the boxes that no better one of their class overlaps by more than the threshold.

    In descending order of score; the lower index goes first among equals. Source: ONNX NonMaxSuppression-11.
    """
    limit = 0 if max_output_boxes_per_class is None else integers_of(max_output_boxes_per_class)[0]
    overlap = np.float32(0) if iou_threshold is None else iou_threshold.reshape(-1)[0]
    chosen: list[tuple[int, int, int]] = []
    for batch in range(scores.shape[0]):
        corners = _find_corners(boxes[batch], is_centered=bool(center_point_box))
        for label in range(scores.shape[1]):
            ranked = np.argsort(-scores[batch, label], kind="stable")
            if score_threshold is not None:
                ranked = ranked[scores[batch, label][ranked] > score_threshold.reshape(-1)[0]]
            chosen += [(batch, label, box) for box in _suppress(corners, ranked, limit, overlap)]
    return np.asarray(chosen, dtype=np.int64).reshape((-1, 3))


def _find_corners(boxes: Vector, *, is_centered: bool) -> Vector:
    """Returns (boxes, 4): lower and upper corner of each box."""
    if is_centered:
        center, half = boxes[:, [1, 0]], boxes[:, [3, 2]] / 2
        return np.concatenate([center - half, center + half], axis=1)
    return np.concatenate([np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])], axis=1)


def _suppress(corners: Vector, ranked: Vector, limit: int, overlap: Any) -> list[int]:
    areas = np.prod(corners[:, 2:] - corners[:, :2], axis=1)
    chosen: list[int] = []
    while len(ranked) and len(chosen) < limit:
        best, ranked = int(ranked[0]), ranked[1:]
        chosen.append(best)
        low = np.maximum(corners[best, :2], corners[ranked, :2])
        high = np.minimum(corners[best, 2:], corners[ranked, 2:])
        shared = np.prod(np.maximum(high - low, 0), axis=1)
        union = areas[best] + areas[ranked] - shared
        ratio = np.where((shared > 0) & (union > 0), shared / np.where(union > 0, union, 1), 0)
        ranked = ranked[ratio <= overlap]
    return chosen
