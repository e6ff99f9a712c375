"""Pad and CenterCropPad: negative pads cut first, then a border is filled, or read through a list of source positions."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero_core.kernels.precision import Array, Namespace, integers_of, normalize_axes
from hetero_core.kernels.registry import ANY, FLOATS, INDEX, INT64, kernel
from hetero_core.kernels.sizes import product

_MODES = ("constant", "reflect", "edge")
Pads = tuple[int, ...]


def count_padded(
    x: Array, pads: Array | Pads, constant_value: Array | None = None, axes: Array | None = None, *, mode: str = "constant"
) -> int:
    """Returns the bytes of the result; all but the constant mode work with a list of positions for each axis, 40 bytes each."""
    spread = _spread_pads(integers_of(np.asarray(pads)), axes, x.ndim)
    sizes = [int(size) + begin + end for size, (begin, end) in zip(x.shape, spread, strict=True)]
    return product(sizes) * int(x.itemsize) + (0 if mode == "constant" else max(sizes) * 40)


def _count_by_attributes(x: Array, *, pads: Pads = (), paddings: Pads = (), mode: str = "constant", **_: Any) -> int:
    return count_padded(x, (*pads, *paddings), mode=mode)


@kernel(
    "Pad",
    since=(19, 21, 23, 24, 25),
    dtypes=(ANY, INT64, ANY, INDEX),
    host=(1, 3),
    choices={"mode": (*_MODES, "wrap")},
    count_bytes=count_padded,
)
@kernel("Pad", since=(18,), dtypes=(ANY, INT64, ANY, INDEX), host=(1, 3), choices={"mode": _MODES}, count_bytes=count_padded)
def pad(
    xp: Namespace, x: Array, pads: Array, constant_value: Array | None = None, axes: Array | None = None, *, mode: str = "constant"
) -> Array:
    """Returns x with a border on the axes; negative pads cut. Source: ONNX Pad-25."""
    return _pad(xp, x, _spread_pads(integers_of(pads), axes, x.ndim), constant_value, mode)


@kernel("Pad", since=(11, 13), dtypes=(ANY, INT64, ANY), host=(1,), choices={"mode": _MODES}, count_bytes=count_padded)
def pad_all(xp: Namespace, x: Array, pads: Array, constant_value: Array | None = None, *, mode: str = "constant") -> Array:
    """Returns x with a border on every axis; negative pads cut. Source: ONNX Pad-13."""
    return _pad(xp, x, _spread_pads(integers_of(pads), None, x.ndim), constant_value, mode)


@kernel("Pad", since=(2,), dtypes=FLOATS, choices={"mode": _MODES}, count_bytes=_count_by_attributes)
def pad_by_attributes(xp: Namespace, x: Array, *, mode: str = "constant", pads: Pads, value: float = 0.0) -> Array:
    """Returns x with a border on every axis; negative pads cut. Source: ONNX Pad-2."""
    return _pad(xp, x, _spread_pads(pads, None, x.ndim), xp.full((), value, dtype=x.dtype), mode)


@kernel("Pad", since=(1,), dtypes=FLOATS, choices={"mode": _MODES}, count_bytes=_count_by_attributes)
def pad_by_first_attributes(xp: Namespace, x: Array, *, mode: str = "constant", paddings: Pads, value: float = 0.0) -> Array:
    """Returns what Pad-2 returns; the attribute has another name. Source: ONNX Pad-1."""
    return pad_by_attributes(xp, x, mode=mode, pads=paddings, value=value)


def _spread_pads(pads: Pads, axes: Array | None, rank: int) -> list[tuple[int, int]]:
    """Returns (begin, end) for every axis."""
    named = tuple(range(rank)) if axes is None else normalize_axes(integers_of(axes), rank)
    if len(pads) != 2 * len(named):
        raise ValueError(f"{len(pads)} pads are given for {len(named)} axes")
    spread = [(0, 0)] * rank
    for index, axis in enumerate(named):
        spread[axis] = (pads[index], pads[index + len(named)])
    return spread


def _pad(xp: Namespace, x: Array, pads: list[tuple[int, int]], value: Array | None, mode: str) -> Array:
    # Cutting comes first: what was cut off is not mirrored or repeated.
    y = x[tuple(slice(max(-begin, 0), size - max(-end, 0)) for size, (begin, end) in zip(x.shape, pads, strict=True))]
    grown = [(max(begin, 0), max(end, 0)) for begin, end in pads]
    if mode == "constant":
        return _surround(xp, y, grown, value)
    for axis, (begin, end) in enumerate(grown):
        if begin or end:
            sources = find_sources(y.shape[axis], begin, end, mode)
            y = xp.take(y, xp.asarray(sources, dtype=np.int64), axis=axis)
    return y


def _surround(xp: Namespace, x: Array, pads: list[tuple[int, int]], value: Array | None) -> Array:
    shape = tuple(size + begin + end for size, (begin, end) in zip(x.shape, pads, strict=True))
    inner = tuple(slice(begin, begin + size) for size, (begin, _) in zip(x.shape, pads, strict=True))
    if value is None:
        y = xp.full(shape, "", dtype=object) if x.dtype.kind == "O" else xp.zeros(shape, dtype=x.dtype)
    else:
        y = xp.empty(shape, dtype=x.dtype)
        y[...] = value.reshape(())
    y[inner] = x
    return y


def find_sources(size: int, begin: int, end: int, mode: str) -> list[int]:
    """Returns for each element of the padded axis the position that it is read from."""
    if size == 0:
        raise ValueError(f"an empty axis cannot be padded in mode {mode}")
    positions = range(-begin, size + end)
    if mode == "edge":
        return [min(max(position, 0), size - 1) for position in positions]
    if mode == "wrap":
        return [position % size for position in positions]
    # Reflection has the period 2 (size - 1); the border elements are not repeated.
    period = max(2 * (size - 1), 1)
    return [min(position % period, period - position % period) if size > 1 else 0 for position in positions]


def _count_centered(x: Array, shape: Array, *, axes: tuple[int, ...] | None = None) -> int:
    sizes = list(x.shape)
    for axis, size in zip(range(x.ndim) if axes is None else normalize_axes(axes, x.ndim), integers_of(shape), strict=True):
        sizes[axis] = size
    return product(sizes) * int(x.itemsize)


@kernel("CenterCropPad", since=(18,), dtypes=(ANY, INDEX), host=(1,), count_bytes=_count_centered)
def center_crop_pad(xp: Namespace, x: Array, shape: Array, *, axes: tuple[int, ...] | None = None) -> Array:
    """Returns the center of x in the wanted sizes, cut or surrounded by zeros. Source: ONNX CenterCropPad-18."""
    named = tuple(range(x.ndim)) if axes is None else normalize_axes(axes, x.ndim)
    pads = [(0, 0)] * x.ndim
    for axis, size in zip(named, integers_of(shape), strict=True):
        missing = size - x.shape[axis]
        # Both halves of a crop and of a pad begin with the smaller one.
        begin = missing // 2 if missing >= 0 else -((-missing) // 2)
        pads[axis] = (begin, missing - begin)
    return _pad(xp, x, pads, None, "constant")
