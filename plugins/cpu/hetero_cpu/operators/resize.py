"""Resize and Upsample of channels-last images and volumes by machine code: nearest and linear; of a volume first along the depth."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache, partial

import numpy as np

from hetero_core.kernels.operators.resize import Axis, Sampling, find_taps, legacy_sampling
from hetero_core.network.graph import Node
from hetero_cpu.machine.calls import Array, NativeCall, address_of, list_strides
from hetero_cpu.machine.code import FLOAT_BYTES, Code
from hetero_cpu.machine.compiler import Kernel, find_width
from hetero_cpu.machine.memory import cut_scratch, measure_scratch
from hetero_cpu.machine.terms import Floats, Mask, Number
from hetero_cpu.operators.images import bind_staging, has_channel_vectors, join_pixels, join_planes, may_join, stage_image
from hetero_cpu.operators.recipe import Recipe, Site
from hetero_cpu.operators.rows import cut_lines, make_unit_kernel
from hetero_cpu.symbols.arrays import lay_table
from hetero_cpu.symbols.sizes import is_open, value_of

PARAMETERS = (
    "x", "x_image", "y", "y_image", "y_row", "y_pixel", "rows", "pixels", "row_offsets", "row_weights", "column_offsets",
    "column_weights", "lines", "lines_of_chunk", "channels",
)  # fmt: skip
"""Numbers of a row, in order: addresses and strides in bytes; `rows` of an image of y, `pixels` of a row, `lines`: rows of all images.
Offsets, in bytes, and weights: of each row and each column of y, for each tap."""


def _make_kernel(down: int, right: int) -> Kernel:
    return make_unit_kernel(f"resample_{down}x{right}", PARAMETERS, partial(_emit, down=down, right=right), unit="line")


def _emit(code: Code, p: dict[str, Number], line: Number, *, down: int, right: int) -> None:
    """Emits y[r, c, k] = sum over i < down, j < right of row_weights[r, i] * column_weights[c, j] * x[rows[r, i], columns[c, j], k].

    The weights of a single tap are not read.
    """
    image, place = line // p["rows"], line % p["rows"]
    x, y = p["x"] + image * p["x_image"], p["y"] + image * p["y_image"] + place * p["y_row"]
    lines, downs = _load_taps(code, p, "row", place, down)
    starts = [x + line for line in lines]
    with code.loop(0, p["pixels"]) as pixel:
        target = y + pixel * p["y_pixel"]
        columns, rights = _load_taps(code, p, "column", pixel, right)
        sources = [start + column for start in starts for column in columns]
        factors = [code.spread(above * beside) for above in downs for beside in rights]

        def add(channel: Number, mask: Mask | None) -> None:
            total = code.load(sources[0] + channel * FLOAT_BYTES, mask=mask) * factors[0]  # called inside the loop
            for source, weight in zip(sources[1:], factors[1:], strict=True):  # as above
                total = code.multiply_add(code.load(source + channel * FLOAT_BYTES, mask=mask), weight, total)
            code.store(target + channel * FLOAT_BYTES, total, mask=mask)  # as above

        code.visit_vectors(p["channels"], add)


def _load_taps(code: Code, p: dict[str, Number], axis: str, place: Number, taps: int) -> tuple[list[Number], list[Floats]]:
    """Returns the offsets and the weights of the taps of a row or a column."""
    offsets, weights = p[f"{axis}_offsets"] + place * (8 * taps), p[f"{axis}_weights"] + place * (FLOAT_BYTES * taps)
    factors = [code.load_scalar(weights, FLOAT_BYTES * i) for i in range(taps)] if taps > 1 else [code.constant(1.0, 1)]
    return [code.load_number(offsets, 8 * i) for i in range(taps)], factors


_ATTRIBUTES = {
    "antialias", "axes", "coordinate_transformation_mode", "cubic_coeff_a", "exclude_outside", "extrapolation_value",
    "keep_aspect_ratio_policy", "mode", "nearest_mode",
}  # fmt: skip
_TAPS = {"nearest": 1, "linear": 2}
Samplings = tuple[Sampling, ...]
Scales = tuple[float | None, ...]


def plan_resize(site: Site) -> Recipe | None:
    """Returns the recipe of an image that is resized. Source: ONNX Resize-19, Upsample-9."""
    node, source = site.node, site.node.inputs[0]
    x, mode = site.prototypes[source], node.attributes.get("mode", "nearest")
    shape = site.types[node.outputs[0]].shape
    if not set(node.attributes) <= _ATTRIBUTES or not site.is_float32(source):
        return None
    if shape is None or x.ndim not in (4, 5) or len(shape) != x.ndim or shape[:2] != x.shape[:2] or 0 in shape:
        return None
    scales = _read_scales(site, shape)
    samplings = _read_samplings(node, scales)
    if scales is None or samplings is None:
        return None
    taps = _TAPS[mode]
    if x.ndim == 5:
        return _plan_volume(site, taps, samplings, scales)
    staging, kernel = stage_image(x), _make_kernel(taps, taps)

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        staged, x = bind_staging(staging, reads[0], scratch)
        return [*staged, _bind_image(site, kernel, x, writes[0], samplings, scales)]

    kernels = (kernel,) if staging is None else (staging.kernel, kernel)
    return Recipe((source,), bind, staging.nbytes if staging else 0, is_channels_last=True, kernels=kernels)


def _plan_volume(site: Site, taps: int, samplings: Samplings, scales: Scales) -> Recipe | None:
    """Returns the recipe of a volume: its depth is resized as the height of images whose rows are planes, then each plane."""
    source, shape = site.node.inputs[0], site.output_shape()
    x = site.prototypes[source]
    if not has_channel_vectors(x) or not may_join(x):
        return None
    batch, channels, depth, *_ = shape
    middle = (batch, depth, *x.shape[3:], channels)
    kernels = _make_kernel(taps, 1), _make_kernel(taps, taps)

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        (resized,) = cut_scratch(scratch, [middle])
        deep = resized.transpose(0, 4, 1, 2, 3)
        along = (samplings[0], Sampling("nearest")), (scales[0], 1.0)
        return [
            _bind_image(site, kernels[0], join_pixels(reads[0]), join_pixels(deep), *along),
            _bind_image(site, kernels[1], join_planes(deep), join_planes(writes[0]), samplings[1:], scales[1:]),
        ]

    return Recipe((source,), bind, measure_scratch([middle]), is_channels_last=True, kernels=kernels)


def _bind_image(site: Site, kernel: Kernel, x: Array, y: Array, samplings: Samplings, scales: Scales) -> NativeCall:
    batch, channels, height, width = y.shape
    numbers, tables = {"row_weights": 0, "column_weights": 0}, []
    for axis, name in ((2, "row"), (3, "column")):
        purpose = samplings[axis - 2], scales[axis - 2]
        for part in ("offsets", "weights")[: _TAPS[purpose[0].mode]]:
            tables.append(lay_table(partial(_make_taps, part, *purpose), (x.shape[axis], y.shape[axis], x.strides[axis])))
            numbers[f"{name}_{part}"] = address_of(tables[-1])
    lines = batch * height
    lines_of_chunk = cut_lines(lines, value_of(y.size) / find_width() * 4 * _TAPS[samplings[0].mode], site.workers)
    numbers |= {
        **list_strides("x", x), **list_strides("y", y), "rows": height, "pixels": width, "lines": lines,
        "lines_of_chunk": lines_of_chunk, "channels": channels,
    }  # fmt: skip
    row = tuple(numbers[key] for key in PARAMETERS)
    return NativeCall(kernel, row, -(-lines // lines_of_chunk), (*tables, x, y))


def _read_scales(site: Site, shape: Sequence[object]) -> Scales | None:
    """Returns the scales of [depth,] height and width, None for a quotient of the sizes; None altogether if they are computed."""
    node, position = site.node, 1 if site.node.op_type == "Upsample" or site.node.since_version < 11 else 2
    if site.has_input(position + 1):
        # Sizes computed from symbols are known by the result's shape.
        sizes = site.constant(position + 1)
        is_known = any(map(is_open, shape)) if sizes is None else sizes.size > 0
        if is_known:
            return (None,) * (len(shape) - 2) if node.attributes.get("keep_aspect_ratio_policy", "stretch") == "stretch" else None
    constant = site.constant(position)
    if constant is None:
        return None
    axes = [int(axis) % len(shape) for axis in node.attributes.get("axes", range(len(shape)))]
    scales = dict(zip(axes, (float(scale) for scale in constant.reshape(-1)), strict=True))
    if any(scales.get(axis, 1.0) != 1 for axis in (0, 1)):
        return None
    return tuple(scales.get(axis, 1.0) for axis in range(2, len(shape)))


def _read_samplings(node: Node, scales: Scales | None) -> Samplings | None:
    """Returns how depth, height and width are sampled; None if the kernels cannot do it."""
    attributes, mode = node.attributes, node.attributes.get("mode", "nearest")
    if scales is None or mode not in _TAPS:
        return None
    if node.op_type == "Upsample" or node.since_version < 11:
        return (legacy_sampling(mode),) * len(scales)
    transformation = attributes.get("coordinate_transformation_mode", "half_pixel")
    if transformation == "tf_crop_and_resize" or attributes.get("antialias", 0):
        return None
    nearest, excludes = attributes.get("nearest_mode", "round_prefer_floor"), bool(attributes.get("exclude_outside", 0))
    return (Sampling(mode, transformation, nearest, exclude_outside=excludes),) * len(scales)


def _make_taps(part: str, sampling: Sampling, scale: float | None, size: int, output: int, stride: int) -> Array:
    """Returns the "offsets" or the "weights" of each tap."""
    positions, weights = _find_taps(sampling, scale, size, output)
    return np.ascontiguousarray(positions * stride if part == "offsets" else weights.astype(np.float32))


@lru_cache(64)  # for positions and weights in turn, and again for a height beside other widths
def _find_taps(sampling: Sampling, scale: float | None, size: int, output: int) -> tuple[Array, Array]:
    exact = Fraction(output, size) if scale is None else Fraction(scale)
    if exact == 1 and output == size:
        taps = _TAPS[sampling.mode]
        positions = np.repeat(np.arange(size)[:, None], taps, axis=1)
        return positions, np.broadcast_to(np.array([1.0, 0.0][:taps]), positions.shape)
    positions, weights = find_taps(Axis(0, size, output, exact), sampling)
    return positions, weights
