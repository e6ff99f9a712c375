"""MaxPool, AveragePool and GlobalAveragePool over images, channels last: one axis after the other, so k + k passes and not k * k."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from hetero_core.kernels.windows import AUTO_PADS, Windows, lay_windows
from hetero_cpu.open.arrays import lay_table
from hetero_cpu.operators.convolution.shifted_copy import clip_outputs
from hetero_cpu.planning.recipe import Array, Call, Choice, Recipe, Site, step
from hetero_cpu.planning.scratch import cut_scratch, measure_scratch

_ATTRIBUTES = {"auto_pad", "ceil_mode", "count_include_pad", "dilations", "kernel_shape", "pads", "storage_order", "strides"}


def read_windows(site: Site) -> Windows | None:
    """Returns the windows of a pooling of float32 images; None for another one."""
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


@step("MaxPool")
def plan_max_pool(site: Site) -> Choice | None:
    """Returns the recipe of a MaxPool without indices. Source: ONNX MaxPool-22."""
    windows = read_windows(site)
    return None if windows is None else _plan_passes(site, windows, np.maximum, -np.inf, [])


@step("AveragePool")
def plan_average_pool(site: Site) -> Choice | None:
    """Returns the recipe of an AveragePool: sums, then the reciprocal of how many elements each window has."""
    windows = read_windows(site)
    if windows is None:
        return None
    counts = [count_elements(windows, axis, count_pads=bool(site.node.attributes.get("count_include_pad", 0))) for axis in (0, 1)]
    factors = [(1 / np.maximum(count, 1)).astype(np.float32) for count in counts]
    return _plan_passes(site, windows, np.add, 0.0, [factors[0][:, None, None], factors[1][None, :, None]])


def count_elements(windows: Windows, axis: int, *, count_pads: bool) -> Array:
    """Returns how many elements the windows have along an axis; what hangs over the pads in ceil_mode never counts."""
    return count_taps(windows.outputs[axis], windows.sizes[axis], *_describe_taps(windows, axis, count_pads=count_pads))


def lay_counts(windows: Windows, axis: int, *, count_pads: bool) -> Array:
    """Returns the same as float32, at least 1, where sizes may be symbols."""
    numbers = windows.outputs[axis], windows.sizes[axis], *_describe_taps(windows, axis, count_pads=count_pads)
    counts: Array = lay_table(_make_counts, numbers)
    return counts


def _describe_taps(windows: Windows, axis: int, *, count_pads: bool) -> tuple[int, ...]:
    begin, end = windows.pads[axis]
    return windows.kernel[axis], windows.strides[axis], windows.dilations[axis], begin, *((begin, end) if count_pads else (0, 0))


def count_taps(outputs: int, size: int, kernel: int, stride: int, dilation: int, pad: int, before: int, after: int) -> Array:
    """Returns how many taps of each window are elements of an axis, or of the pads around it that count."""
    taps = (np.arange(outputs) * stride - pad)[:, None] + np.arange(kernel) * dilation
    counts: Array = ((taps >= -before) & (taps < size + after)).sum(axis=1)
    return counts


def _make_counts(*numbers: int) -> Array:
    return np.maximum(count_taps(*numbers), 1).astype(np.float32)


def _plan_passes(site: Site, windows: Windows, join: Callable[..., object], neutral: float, factors: list[Array]) -> Recipe:
    source = site.node.inputs[0]
    batch, channels = site.shape(source)[:2]
    height, (_, width) = windows.sizes[0], windows.outputs
    shapes = [(height, width, channels)]

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[Call]:
        (narrow,) = cut_scratch(scratch, shapes)
        x, y = reads[0].transpose(0, 2, 3, 1), writes[0].transpose(0, 2, 3, 1)
        calls: list[Call] = []
        for image in range(batch):
            # The second axis of the image first: rows stay where they are.
            calls += _bind_pass(narrow.transpose(1, 0, 2), x[image].transpose(1, 0, 2), windows, 1, join, neutral)
            calls += _bind_pass(y[image], narrow, windows, 0, join, neutral)
            calls += [partial(np.multiply, y[image], factor, y[image]) for factor in factors]
        return calls

    return Recipe((source,), bind, measure_scratch(shapes), is_channels_last=True)


def _bind_pass(target: Array, x: Array, windows: Windows, axis: int, join: Callable[..., object], neutral: float) -> list[Call]:
    """Returns the calls for target[o] = join over taps of x[o * stride + tap * dilation - pad], along the first axis of both."""
    stride, pad = windows.strides[axis], windows.pads[axis][0]
    spans = []
    for tap in range(windows.kernel[axis]):
        offset = tap * windows.dilations[axis] - pad
        first, end = clip_outputs(offset, stride, x.shape[0], target.shape[0])
        begin = first * stride + offset
        if end > first:
            spans.append((slice(first, end), slice(begin, begin + (end - first - 1) * stride + 1, stride)))
    # Taps that reach every output need no neutral element before them.
    whole = [span for span in spans if span[0] == slice(0, target.shape[0])]
    partly = [span for span in spans if span not in whole]
    calls: list[Call] = []
    if len(whole) >= 2:
        calls.append(partial(join, x[whole[0][1]], x[whole[1][1]], out=target))
    elif whole:
        calls.append(partial(np.copyto, target, x[whole[0][1]]))
    elif target.flags.c_contiguous:
        calls.append(partial(target.fill, neutral))
    else:
        calls.append(partial(np.copyto, target, np.float32(neutral)))
    return calls + [partial(join, target[outputs], x[pixels], out=target[outputs]) for outputs, pixels in (*whole[2:], *partly)]


@step("GlobalAveragePool")
def plan_global_average_pool(site: Site) -> Choice | None:
    """Returns the recipe of the mean of each channel. Source: ONNX GlobalAveragePool-22."""
    source = site.node.inputs[0]
    if not site.is_float32(source) or len(site.shape(source)) != 4 or site.node.attributes:
        return None
    factor = np.float32(1 / (site.shape(source)[2] * site.shape(source)[3]))

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[Call]:
        x, y = reads[0].transpose(0, 2, 3, 1), writes[0][:, :, 0, 0]
        return [partial(np.sum, x, axis=(1, 2), out=y), partial(np.multiply, y, factor, y)]

    return Recipe((source,), bind)
