"""Draws a graph by its seed: the family, the element type, the inputs, the operators and the outputs.

Each `grow_` adds one operator, or nodes that devices may fuse, to a GraphBuilder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx.parser

from hetero_core.conformance.graphs.builder import RUNS, DrawnValue, GraphBuilder, NotApplicable
from hetero_core.conformance.samples import TYPES

WIDTHS = (1, 2, 3, 4, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 48, 64, 65, 96, 128)
BYTES = ("uint8", "int8")
INTEGERS = ("int32", "int64")
Operators = tuple[tuple[float, Callable[[GraphBuilder], object]], ...]


def one_of(
    pick: Callable[[GraphBuilder], DrawnValue], *forms: Callable[[GraphBuilder, DrawnValue], object]
) -> Callable[[GraphBuilder], None]:
    """Returns a function that picks a value and adds one of these forms, which read it."""

    def grow_form(b: GraphBuilder) -> None:
        x = pick(b)
        b.choose(*forms)(b, x)

    return grow_form


# Elementwise functions

_PLAIN = (
    "Relu Sigmoid Tanh Neg Abs Erf HardSwish Softplus Softsign Identity Sin Cos Mish Floor Ceil Round Sign Exp LeakyRelu Elu Celu "
    "HardSigmoid ThresholdedRelu"
)


grow_unary = one_of(
    GraphBuilder.pick_float,
    *[lambda b, x: b.node(b.choose(*_PLAIN.split()), x)] * 3,
    lambda b, x: b.node(b.choose("LeakyRelu", "Elu", "HardSigmoid"), x, alpha=b.choose(0.1, 0.2, 0.7)),
    lambda b, x: b.node("Clip", x, *b.choose(("", 1), (0, 6), (-0.5, ""), (-1, 1))),
    lambda b, x: b.node("Sqrt", b.node("Abs", x)),
    lambda b, x: b.node("Log", b.node("Add", b.node("Abs", x), 1)),
    lambda b, x: b.node("Reciprocal", b.node("Add", b.node("Mul", x, x), 1)),
    lambda b, x: b.node("PRelu", x, b.weight(*(size or 1 for size in x.shape[b.integer(0, x.rank) :]), deviation=0.3)),
)


def _add_tanh_gelu(b: GraphBuilder, x: DrawnValue) -> None:
    factor = b.node("Add", b.node("Mul", b.node("Mul", x, x), 0.044715), 1)
    share = b.node("Tanh", b.node("Mul", b.node("Mul", x, factor), 0.79788456))
    b.node("Mul", b.node("Add", share, 1), x)


# Activations as exporters write them: several nodes that a device may fuse; some of their values at times have other readers.
grow_written_out = one_of(
    lambda b: b.pick_float(bound=50),
    *[lambda b, x: b.node("Mul", *b.shuffle(x, b.node("Sigmoid", x)))] * 2,
    lambda b, x: b.node("Mul", b.node("Mul", x, b.node("Add", b.node("Erf", b.node("Div", x, math.sqrt(2))), 1)), 0.5),
    lambda b, x: b.node("Div", b.node("Mul", x, b.node("Clip", b.node("Add", x, 3), 0, 6)), 6),
    _add_tanh_gelu,
    lambda b, x: b.node("Add", b.node("Mul", x, b.weight(x.size(-1))), b.weight(x.size(-1))),
)


def grow_binary(b: GraphBuilder) -> None:
    """Adds an operator on two or more values of the same shape, at times the same value twice."""
    x = b.pick_float()
    y = x if b.chance(0.15) else b.pick_like(x)
    match b.choose("Add", "Add", "Mul", "Sub", "Max", "Min", "Sum", "Mean", "Div", "Sum", "Max"):
        case "Div":
            b.node("Div", x, b.node("Add", b.node("Abs", y), 0.5))
        case "Sum" | "Mean" | "Max" | "Min" as operator:
            b.node(operator, *b.shuffle(x, y, *(b.pick_like(x) for _ in range(b.integer(0, 3)))))
        case operator:
            b.node(operator, x, y)


def grow_broadcast(b: GraphBuilder) -> None:
    """Adds an operator on operands of different shapes; mostly, an operand is a constant."""
    x = b.pick_float(bound=100)
    b.node(b.choose("Add", "Mul", "Sub", "Max", "Min"), *b.shuffle(x, b.pick_broadcast(x)))


def grow_choice(b: GraphBuilder) -> None:
    """Adds a comparison of floats or integers, logic on its result, and a Where that uses it as the condition."""
    x = b.pick(lambda value: value.dtype in (b.dtype, *INTEGERS))
    y = b.pick_like(x)
    constant = np.array(2 if x.dtype in INTEGERS else 0.1, x.dtype)
    condition = b.node(b.choose("Greater", "Less", "GreaterOrEqual", "LessOrEqual"), x, b.choose(y, constant))
    if b.chance(0.3):
        condition = b.node("Not", condition)
    if b.chance(0.4):
        condition = b.node(b.choose("And", "Or", "Xor"), condition, b.pick_like(condition))
    if b.chance(0.8):
        b.node("Where", condition, x, b.choose(y, constant))


ELEMENTWISE: Operators = ((4, grow_unary), (2, grow_written_out), (4, grow_binary), (2, grow_broadcast), (1, grow_choice))


# Arrangement


def grow_transpose(b: GraphBuilder) -> None:
    """Adds a Transpose of any order."""
    x = b.pick(lambda value: value.rank >= 2)
    b.node("Transpose", x, perm=[int(axis) for axis in b.random.permutation(x.rank)])


def grow_reshape(b: GraphBuilder) -> None:
    """Adds a Reshape, Flatten, Squeeze or Unsqueeze."""
    x = b.pick(lambda value: 1 <= value.rank <= 5)
    axis = b.integer(0, x.rank - 1)
    match b.choose("split", "merge", "unsqueeze", "squeeze", "flatten"):
        case "split" if x.rank <= 4:
            factor = b.divisor(x.size(axis), 1, 2, 3, 4, 8)
            b.node("Reshape", x, _keep(x, axis, 1, factor, x.size(axis) // factor))
        case "merge" if axis + 1 < x.rank:
            b.node("Reshape", x, _keep(x, axis, 2, x.size(axis) * x.size(axis + 1)))
        case "unsqueeze" if x.rank <= 4:
            b.node("Unsqueeze", x, (axis,))
        case "squeeze" if 1 in x.shape:
            b.node("Squeeze", x, (x.shape.index(1),))
        case "flatten":
            b.node("Flatten", x, axis=1)
        case _:
            raise NotApplicable


def _keep(x: DrawnValue, axis: int, count: int, *sizes: int) -> Any:
    """Returns the shape of a Reshape that replaces some axes: 0 for open sizes before them, -1 for an open size behind them."""
    return (*(size or 0 for size in x.shape[:axis]), *sizes, *(size or -1 for size in x.shape[axis + count :]))


def grow_gather(b: GraphBuilder) -> None:
    """Adds a Gather from a table with indices of the graph, or from a value with constant indices."""
    ids = [value for value in b.values if value.dtype == "int64" and value.rank >= 1 and 1 <= value.bound <= 100]
    if ids and b.chance(0.5):
        read, rows = b.choose(*ids), b.integer(2, 50)
        # Mod keeps the indices within the table for any input.
        b.node("Gather", b.weight(rows, b.choose(*WIDTHS)), b.node("Mod", read, np.array(rows)), axis=0)
        return
    x = b.pick(lambda value: 1 <= value.rank <= 4)
    axis = b.integer(0, x.rank - 1)
    indices = b.random.integers(-x.size(axis), x.size(axis), b.choose((), (1,), (3,), (2, 2)))
    b.node("Gather", x, np.asarray(indices).astype(b.choose(*INTEGERS)), axis=axis)


def grow_concat(b: GraphBuilder) -> None:
    """Adds a concatenation of two to four values along any axis, some of them at times the same, at times with a constant."""
    x = b.pick(lambda value: value.rank >= 1)
    axis = b.choose(min(1, x.rank - 1), b.integer(0, x.rank - 1))
    alike = (value for value in b.values if value.dtype == x.dtype and value.rank == x.rank)
    partners = [value for value in alike if _drop(value.shape, axis) == _drop(x.shape, axis)]
    operands = b.shuffle(x, *(b.choose(*partners) for _ in range(b.integer(1, 3))))
    if x.dtype == b.dtype and None not in x.shape and b.chance(0.15):
        operands.append(b.weight(*(b.integer(1, 3) if index == axis else x.size(index) for index in range(x.rank))))
    b.node("Concat", *operands, axis=axis if b.chance(0.8) else axis - x.rank)


def _drop(shape: tuple[int | None, ...], axis: int) -> tuple[int | None, ...]:
    return (*shape[:axis], *shape[axis + 1 :])


def grow_slice(b: GraphBuilder) -> None:
    """Adds a slice along an axis, at times with steps or backwards; an open axis is reversed or cut to its last row."""
    x = b.pick(lambda value: value.rank >= 1)
    axis = b.integer(0, x.rank - 1)
    size = x.shape[axis]
    if size is None:
        start, stop, step = b.choose((-1, -(2**31), -1), (-1, 2**31 - 1, 1))
    else:
        start = b.integer(0, size - 1)
        stop, step = b.integer(start + 1, size), b.choose(1, 1, 1, 2)
        if b.chance(0.1):
            start, stop, step = stop - 1, start - 1 - size, -step
        elif stop == size:
            stop = b.choose(size, 2**31 - 1)
    b.node("Slice", x, (start,), (stop,), (axis,), (step,))


def grow_split(b: GraphBuilder) -> None:
    """Adds a split into two or three pieces."""
    x = b.pick(lambda value: value.rank >= 1)
    axis, count = b.integer(0, x.rank - 1), b.integer(2, 3)
    size = x.size(axis)
    if size < count:
        raise NotApplicable
    cuts = [0, *sorted(int(cut) + 1 for cut in b.random.choice(size - 1, count - 1, replace=False)), size]
    b.nodes_outputs("Split", [x, (*np.diff(cuts),)], count, axis=axis)


def reduce(b: GraphBuilder, operator: str, x: DrawnValue, axes: Sequence[int], *, keep: bool) -> DrawnValue:
    """Adds a reduction, with its axes as attribute or input, depending on the opset."""
    if b.opset >= (13 if operator == "ReduceSum" else 18):
        return b.node(operator, x, (*axes,), keepdims=int(keep))
    return b.node(operator, x, axes=list(axes), keepdims=int(keep))


def grow_reduction(b: GraphBuilder) -> None:
    """Adds a reduction along one or two axes, with or without keeping them."""
    x = b.pick(lambda value: value.rank >= 1 and value.dtype in (b.dtype, *INTEGERS))
    axes = sorted({b.integer(0, x.rank - 1) for _ in range(b.integer(1, 2))})
    kinds = ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceMean", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSumExp")
    reduce(b, b.choose(*kinds[: 2 if x.dtype in INTEGERS else 8 if x.bound < 30 else 7]), x, axes, keep=b.chance(0.6))


# Operators that repeat or run along an axis.
grow_spread = one_of(
    lambda b: b.pick(lambda value: value.rank >= 1 and value.dtype in (b.dtype, *INTEGERS)),
    lambda b, x: b.node("Expand", x, tuple(b.integer(1, 4) if size == 1 else 1 for size in x.shape)),
    lambda b, x: b.node("Tile", x, tuple(b.integer(1, 2) for _ in x.shape)),
    lambda b, x: b.node("CumSum", x, np.array(b.integer(0, x.rank - 1)), exclusive=int(b.chance(0.3)), reverse=int(b.chance(0.3))),
    lambda b, x: b.node("Trilu", x, np.array(b.integer(-2, 2)), upper=int(b.chance(0.5))),
)


def grow_selection(b: GraphBuilder) -> None:
    """Adds TopK, ArgMax, GatherElements, ScatterND or ScatterElements."""
    x = b.pick_float(1, 2, 3, 4)
    width = x.size(-1)
    match b.choose("topk", "argmax", "elements", "scatter_nd", "scatter"):
        case "topk":
            b.nodes_outputs("TopK", [x, (b.integer(1, width),)], 2, axis=-1, largest=int(b.chance(0.7)))
        case "argmax":
            b.node(b.choose("ArgMax", "ArgMin"), x, axis=-1, keepdims=int(b.chance(0.5)))
        case "elements":
            b.node("GatherElements", x, b.random.integers(-width, width, (*x.sizes[:-1], b.integer(1, 5))), axis=-1)
        case "scatter_nd":
            places = b.random.choice(x.size(0), (b.integer(1, x.size(0)), 1), replace=False)
            b.node("ScatterND", x, places, b.weight(len(places), *x.sizes[1:]))
        case _:
            columns = b.random.choice(width, b.integer(1, width), replace=False)
            places = np.broadcast_to(columns, (*x.sizes[:-1], len(columns)))
            b.node("ScatterElements", x, places, b.weight(*places.shape), axis=x.rank - 1)


ARRANGEMENT: Operators = (
    (2, grow_transpose), (2, grow_reshape), (1, grow_gather), (3, grow_concat), (1.5, grow_slice), (1.5, grow_split),
    (1.5, grow_reduction), (1, grow_spread), (1, grow_selection)
)  # fmt: skip


# Images, and sequences as (batch, channels, length)


def pick_image(b: GraphBuilder, *ranks: int) -> DrawnValue:
    """Returns a floating-point value of rank 4, or of these ranks, of which only the batch may be open."""
    chosen = ranks or (4,)
    return b.pick(lambda x: x.dtype == b.dtype and x.rank in chosen and None not in x.shape[1:] and x.bound <= 300)


def _draw_windows(b: GraphBuilder, rank: int) -> dict[str, Any]:
    """Returns kernel, strides and pads of a convolution or pooling over this many axes."""
    kernel = [b.choose(1, 3, 3, 3, 5, 2)] * rank if b.chance(0.8) else [b.choose(1, 3, 7) for _ in range(rank)]
    strides = [b.choose(1, 1, 2, 3)] * rank if b.chance(0.8) else [b.choose(1, 2) for _ in range(rank)]
    half = [size // 2 for size in kernel]
    pads = b.choose(half * 2, half * 2, [0] * 2 * rank, [b.integer(0, (size - 1) // 2) for size in kernel * 2])
    return {"kernel_shape": kernel, "strides": strides, "pads": pads}


def grow_conv(b: GraphBuilder) -> None:
    """Adds a convolution: plain, 1x1, grouped, depthwise, strided, dilated, with pads on any side."""
    x = pick_image(b, 3, 4, 4)
    channels, windows = x.size(1), _draw_windows(b, x.rank - 2)
    group = b.divisor(channels, channels, 1, 2, 4, 8) if b.chance(0.3) else 1
    outputs = b.choose(*WIDTHS) if group == 1 else group * b.choose(1, 1, 2)
    fan = channels // group * math.prod(windows["kernel_shape"])
    b.require_work(x.arrays[0].size // channels * outputs * fan)
    bias = (b.weight(outputs, deviation=0.3),) if b.chance(0.6) else ()
    weight = b.weight(outputs, channels // group, *windows["kernel_shape"], deviation=fan**-0.5)
    dilations = [b.choose(1, 1, 1, 2)] * (x.rank - 2)
    _follow(b, b.node("Conv", x, weight, *bias, group=group, dilations=dilations, **windows))


def grow_transposed_conv(b: GraphBuilder) -> None:
    """Adds a transposed convolution."""
    x = pick_image(b)
    channels, outputs, kernel, stride = x.size(1), b.choose(1, 3, 8, 9, 16, 32), b.integer(1, 4), b.integer(1, 3)
    group = 2 if channels % 2 == 0 and b.chance(0.2) else 1
    b.require_work(x.arrays[0].size * outputs * kernel**2)
    bias = (b.weight(outputs * group, deviation=0.3),) if b.chance(0.6) else ()
    weight = b.weight(channels, outputs, kernel, kernel, deviation=(channels * kernel**2 / stride**2 / group) ** -0.5)
    windows = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [kernel // 3] * 4}
    _follow(b, b.node("ConvTranspose", x, weight, *bias, group=group, output_padding=[b.integer(0, stride - 1)] * 2, **windows))


def _follow(b: GraphBuilder, y: DrawnValue) -> None:
    """Adds operators that often follow a convolution or a product and may be fused with it."""
    if y.rank == 4 and b.chance(0.25):
        y = _normalize(b, y)
    if b.chance(0.3):
        y = b.node("Add", *b.shuffle(y, b.pick_like(y)))
    if b.chance(0.5):
        b.node(b.choose("Relu", "Relu", "Sigmoid", "Tanh", "LeakyRelu", "Elu", "HardSigmoid", "Erf"), y)


def _normalize(b: GraphBuilder, x: DrawnValue) -> DrawnValue:
    scale, shift, mean = (b.weight(x.size(1), deviation=0.3, mean=offset) for offset in (1, 0, 0))
    variance = (b.random.random(x.size(1)) + 0.5).astype(x.dtype)
    return b.node("BatchNormalization", x, scale, shift, mean, variance, epsilon=1e-5)


def grow_pool(b: GraphBuilder) -> None:
    """Adds a pooling over windows, or over the whole image."""
    x = pick_image(b, 3, 4, 4)
    if b.chance(0.2):
        b.node(b.choose("GlobalAveragePool", "GlobalMaxPool"), x)
        return
    windows, operator = _draw_windows(b, x.rank - 2), b.choose("MaxPool", "AveragePool")
    windows["pads"] = [min(pad, (size - 1) // 2) for pad, size in zip(windows["pads"], windows["kernel_shape"] * 2, strict=True)]
    # Implementations of ceil_mode differ if a window begins in the padding behind the image.
    overlaps = all(step <= size for step, size in zip(windows["strides"], windows["kernel_shape"], strict=True))
    if not any(windows["pads"]) and overlaps:
        windows["ceil_mode"] = int(b.chance(0.5))
    elif operator == "AveragePool":
        windows["count_include_pad"] = int(b.chance(0.4))
    b.node(operator, x, **windows)


def grow_excitation(b: GraphBuilder) -> None:
    """Adds a squeeze and excitation: the image times a number for each channel that is computed from it."""
    x = pick_image(b)
    channels = x.size(1)
    inner = max(1, channels // b.choose(2, 4))
    y = reduce(b, "ReduceMean", x, [2, 3], keep=True) if b.chance(0.3) else b.node("GlobalAveragePool", x)
    for operator, sources, outputs in (("Relu", channels, inner), (b.choose("Sigmoid", "HardSigmoid"), inner, channels)):
        y = b.node(operator, b.node("Conv", y, b.weight(outputs, sources, 1, 1, deviation=sources**-0.5), b.weight(outputs)))
    b.node("Mul", *b.shuffle(x, y))


def grow_image_norm(b: GraphBuilder) -> None:
    """Adds a normalization of an image: BatchNormalization, InstanceNormalization, LRN, LpNormalization."""
    x = pick_image(b)
    match b.choose("batch", "batch", "instance", "lrn", "lp"):
        case "batch":
            _normalize(b, x)
        case "instance" if x.size(2) * x.size(3) > 3:
            b.node("InstanceNormalization", x, b.weight(x.size(1), mean=1, deviation=0.3), b.weight(x.size(1)), epsilon=1e-2)
        case "lrn":
            b.node("LRN", x, size=b.choose(3, 5), alpha=1e-2, beta=0.75, bias=1.0)
        case _:
            b.node("LpNormalization", b.node("Add", x, 0.5), axis=1, p=2)


def grow_resize(b: GraphBuilder) -> None:
    """Adds a Resize by whole factors or to sizes."""
    x = pick_image(b)
    mode, factors = b.choose("nearest", "nearest", "linear"), [b.choose(1, 2, 2, 3), b.choose(1, 2, 2, 3)]
    form = b.choose("asymmetric", "half_pixel", "align_corners" if mode == "linear" else "asymmetric")
    if b.chance(0.7) or form == "half_pixel":
        target: tuple[Any, ...] = ("", np.array([1, 1, *factors], np.float32))
    else:
        target = ("", "", (x.size(0), x.size(1), x.size(2) * factors[0], x.size(3) * factors[1]))
    nearest = b.choose("floor", "round_prefer_floor") if mode == "nearest" else None
    b.node("Resize", x, *target, mode=mode, coordinate_transformation_mode=form, nearest_mode=nearest)


def grow_pad(b: GraphBuilder) -> None:
    """Adds a Pad, which a device may fuse into a following convolution or pooling."""
    x = pick_image(b)
    mode = b.choose("constant", "constant", "constant", "reflect", "edge")
    if mode == "reflect" and min(x.size(2), x.size(3)) < 4:
        raise NotApplicable
    pads = [0, 0, b.integer(0, 2), b.integer(0, 2), 0, int(mode == "constant" and b.chance(0.3)), b.integer(0, 2), b.integer(0, 2)]
    fill = (b.choose(0, -1.5),) if mode == "constant" and b.chance(0.4) else ()
    b.node("Pad", x, (*pads,), *fill, mode=mode)


def grow_shuffle(b: GraphBuilder) -> None:
    """Adds a rearrangement of channels and pixels: shuffled groups, DepthToSpace, SpaceToDepth."""
    x = pick_image(b)
    match b.choose("groups", "depth", "space"):
        case "groups":
            groups = b.divisor(x.size(1), 2, 3, 4, 8)
            split = b.node("Reshape", x, (0, groups, x.size(1) // groups, x.size(2), x.size(3)))
            b.node("Reshape", b.node("Transpose", split, perm=[0, 2, 1, 3, 4]), (0, *map(x.size, (1, 2, 3))))
        case "depth":
            b.node("DepthToSpace", x, blocksize=2, mode=b.choose("DCR", "CRD"))
        case _:
            b.node("SpaceToDepth", x, blocksize=2)


def grow_head(b: GraphBuilder) -> None:
    """Adds a classifier: Flatten or Reshape, then a product."""
    x = pick_image(b)
    _add_linear(b, b.node("Flatten", x, axis=1) if b.chance(0.5) else b.node("Reshape", x, (0, -1)))


IMAGE: Operators = (
    (5, grow_concat), (2, grow_slice), (2, grow_split), (1, grow_resize), (1, grow_pad), (1, grow_shuffle), (8, grow_conv),
    (1, grow_transposed_conv), (4, grow_pool), (1, grow_excitation), (2, grow_image_norm), (0.6, grow_head)
)  # fmt: skip


# Sequences: (batch, length, width)


def grow_linear(b: GraphBuilder) -> None:
    """Adds a product with a constant matrix."""
    _add_linear(b, b.pick_float(2, 3, 4, bound=300))


def _add_linear(b: GraphBuilder, x: DrawnValue) -> None:
    """Adds a product with a constant matrix, at times with a bias in either order, a residual and an activation."""
    width, outputs = x.size(-1), b.choose(*WIDTHS)
    b.require_work(x.arrays[0].size * outputs)
    if x.rank == 2 and b.chance(0.5):
        turned = b.chance(0.5)
        weight = b.weight(*((outputs, width) if turned else (width, outputs)), deviation=width**-0.5)
        bias = (b.weight(*b.choose((outputs,), (1, outputs), (1,), ())),) if b.chance(0.7) else ()
        y = b.node("Gemm", x, weight, *bias, transB=int(turned), alpha=b.choose(1.0, 1.0, 0.5), beta=b.choose(1.0, 1.0, 0.25))
    else:
        y = b.node("MatMul", x, b.weight(width, outputs, deviation=width**-0.5))
        if b.chance(0.6):
            y = b.node("Add", *b.shuffle(y, b.weight(outputs)))
    _follow(b, y)


def grow_product(b: GraphBuilder) -> None:
    """Adds a product of two values, at times of a value with its own transpose, or an Einsum."""
    x = b.pick_float(2, 3, 4, bound=50)
    y = b.pick(
        lambda other: (other.dtype, other.rank) == (x.dtype, x.rank) and other.bound <= 50 and x.shape[-1] in other.shape[-2:]
    )
    b.require_work(x.arrays[0].size * max(y.arrays[0].shape[-2:]))
    if x.rank == 3 and b.chance(0.3):
        b.node("Einsum", x, y, equation=b.choose("bid,bjd->bij", "bid,bdj->bij"))
    elif y.shape[-2] != x.shape[-1]:
        b.node("MatMul", x, b.node("Transpose", y, perm=[*range(y.rank - 2), y.rank - 1, y.rank - 2]))
    else:
        b.node("MatMul", x, y)


def grow_normalization(b: GraphBuilder) -> None:
    """Adds a normalization of the last axis, as one operator or written out."""
    x = b.pick_float(2, 3, 4, bound=60)
    width = x.size(-1)
    if width < 2 and b.chance(0.9):
        raise NotApplicable
    scale, shift, last = b.weight(width, mean=1, deviation=0.2), b.weight(width), [x.rank - 1]
    match b.choose("operator", "written", "rms", "softmax", "softmax", "log_softmax"):
        case "operator":
            b.node("LayerNormalization", x, scale, *((shift,) if b.chance(0.8) else ()), axis=-1, epsilon=1e-3)
        case "written":
            centered = b.node("Sub", x, reduce(b, "ReduceMean", x, last, keep=True))
            squares = b.node("Pow", centered, 2) if b.chance(0.5) else b.node("Mul", centered, centered)
            variance = b.node("Add", reduce(b, "ReduceMean", squares, last, keep=True), 1e-3)
            b.node("Add", b.node("Mul", b.node("Div", centered, b.node("Sqrt", variance)), scale), shift)
        case "rms":
            mean = b.node("Add", reduce(b, "ReduceMean", b.node("Mul", x, x), last, keep=True), 1e-3)
            b.node("Mul", b.node("Mul", x, b.node("Reciprocal", b.node("Sqrt", mean))), scale)
        case "softmax":
            b.node("Softmax", x, axis=b.choose(-1, -1, x.rank - 2))
        case _:
            b.node("LogSoftmax", x, axis=-1)


def grow_attention(b: GraphBuilder) -> None:
    """Adds attention as exporters write it: projections, heads, scores, Softmax, a mask at times, and the way back."""
    x = b.pick_float(3, bound=30)
    length, width = x.shape[1], x.size(2)
    if width not in (8, 12, 16, 24, 32, 48, 64):
        raise NotApplicable
    heads = b.divisor(width, 1, 2, 3, 4, 8)
    turned = []
    for role in ("query", "key", "value"):
        y = b.node("MatMul", x, b.weight(width, width, deviation=width**-0.5))
        if b.chance(0.5):
            y = b.node("Add", y, b.weight(width, deviation=0.3))
        y = b.node("Reshape", y, (0, -1 if length is None else 0, heads, width // heads))
        turned.append(b.node("Transpose", y, perm=[0, 2, 3, 1] if role == "key" else [0, 2, 1, 3]))
    query, key, value = turned
    factor = math.sqrt(width // heads) if b.chance(0.5) else 0.25
    scores = b.node(b.choose("Div", "Mul"), b.node("MatMul", query, key), factor)
    if length is not None and b.chance(0.4):
        scores = b.node("Add", scores, np.triu(np.full((length, length), -900), 1).astype(b.dtype))
    mixed = b.node("MatMul", b.node("Softmax", scores, axis=-1), value)
    flat = b.node("Reshape", b.node("Transpose", mixed, perm=[0, 2, 1, 3]), (0, 0, width))
    y = b.node("MatMul", flat, b.weight(width, width, deviation=width**-0.5))
    if b.chance(0.7):
        b.node("Add", x, y)


def grow_recurrent(b: GraphBuilder) -> None:
    """Adds an LSTM, GRU or RNN over (length, batch, width)."""
    x = b.pick_float(3, bound=30)
    if b.dtype != "float32":
        raise NotApplicable
    width, hidden, directions = x.size(2), b.choose(1, 3, 4, 8, 9, 16, 17), b.choose(1, 1, 2)
    operator, gates = b.choose(("LSTM", 4), ("GRU", 3), ("RNN", 1))
    b.require_work(4 * x.arrays[0].size // width * gates * hidden * (width + hidden) * directions)
    w = b.weight(directions, gates * hidden, width, deviation=width**-0.5)
    r = b.weight(directions, gates * hidden, hidden, deviation=hidden**-0.5)
    bias = (b.weight(directions, 2 * gates * hidden, deviation=0.3),) if b.chance(0.7) else ()
    direction = b.choose("forward", "reverse") if directions == 1 else "bidirectional"
    before = int(b.chance(0.5)) if operator == "GRU" else None
    count = 3 if operator == "LSTM" else 2
    b.nodes_outputs(operator, [x, w, r, *bias], count, hidden_size=hidden, direction=direction, linear_before_reset=before)


SEQUENCE: Operators = (
    (6, grow_linear), (2.5, grow_product), (3, grow_normalization), (1.2, grow_attention), (0.7, grow_recurrent), (0.7, grow_conv),
    (0.3, grow_pool)
)  # fmt: skip


# Integers and shapes


# The last form has a number of the value's type as the second operand.
grow_arithmetic = one_of(
    lambda b: b.pick(lambda value: value.dtype in INTEGERS),
    lambda b, x: b.node(b.choose("Neg", "Abs", "Sign"), x),
    lambda b, x: b.node("Clip", x, np.array(-2, x.dtype), np.array(7, x.dtype)),
    lambda b, x: b.node(b.choose("Add", "Sub", "Mul", "Max", "Min"), x, b.pick_like(x)),
    lambda b, x: b.node(b.choose("Add", "Sub", "Mul", "Max", "Min", "Div", "Mod"), x, np.array(b.integer(1, 5), x.dtype)),
)


def grow_cast(b: GraphBuilder) -> None:
    """Adds a Cast, possibly to the value's own type."""
    x = b.pick(lambda value: value.dtype in (*INTEGERS, "bool", *("float32", "float64", "float16")))
    to = b.choose("int32", "int64", "float32", "float32", "bool", "float64", "int32", "uint8", x.dtype)
    if to in ("uint8", "bool"):
        # Casts of negative numbers and of fractions to bytes differ between machines, and rounding decides whether a float is 0.
        x = b.node("Abs", x) if x.dtype in INTEGERS else x
        if x.dtype not in (*INTEGERS, "bool") or x.bound > 255:
            raise NotApplicable
    b.node("Cast", x, to=onnx.helper.np_dtype_to_tensor_dtype(np.dtype(to)))


def grow_shape(b: GraphBuilder) -> None:
    """Adds arithmetic on a shape that ends in a Reshape, an Expand, a Range or a constant of that shape."""
    x = b.pick(lambda value: 2 <= value.rank <= 4 and value.dtype in (*INTEGERS, "float32"))
    shape = b.node("Shape", x)
    match b.choose("reshape", "constant", "expand", "range", "size"):
        case "reshape":
            b.node("Reshape", x, b.node("Concat", b.node("Gather", shape, (0,), axis=0), (-1,), axis=0))
        case "constant":
            fill = onnx.numpy_helper.from_array(np.array([b.integer(0, 3)], x.dtype))
            b.node("Add", x, b.node("ConstantOfShape", shape, value=fill))
        case "expand":
            b.node("Expand", np.array(b.integer(-3, 3), x.dtype), shape)
        case "range":
            last = b.node("Gather", shape, np.array(x.rank - 1), axis=0)
            line = b.node("Range", np.array(0), last, np.array(1))
            if x.dtype == "int64":
                b.node("Add", x, line)
        case _:
            b.node("Size", x)


def grow_one_hot(b: GraphBuilder) -> None:
    """Adds a OneHot of indices that are kept within its depth."""
    x = b.pick(lambda value: value.dtype in INTEGERS and value.rank <= 2)
    depth = b.choose(3, 8, 17)
    index = b.node("Mod", b.node("Abs", x), np.array(depth, x.dtype))
    b.node("OneHot", index, np.array(depth, np.int64), np.array([0, 1], np.float32), axis=-1)


INTEGER: Operators = (
    (5, grow_arithmetic), (2, grow_cast), (2, grow_choice), (1.5, grow_shape), (0.5, grow_one_hot), (1, grow_concat)
)  # fmt: skip


# Quantized networks


def _draw_scale(b: GraphBuilder, dtype: str) -> tuple[Any, Any]:
    """Returns a scale and a zero point of this type."""
    low, high = (0, 255) if dtype == "uint8" else (-128, 127)
    zero = b.choose(0, 0, b.integer(low + 90, high - 90), low + 128)
    return np.array(b.choose(0.01, 0.02, 0.05, 0.037), np.float32), np.array(zero, dtype)


def _draw_bytes(b: GraphBuilder, *shape: int, dtype: str = "int8") -> Any:
    low, high = (0, 256) if dtype == "uint8" else (-127, 128)
    return np.asarray(b.random.integers(low, high, shape), dtype)


def pick_bytes(b: GraphBuilder, *ranks: int) -> DrawnValue:
    """Returns a value of bytes whose sizes but the first are known. Raises: NotApplicable."""
    return b.pick(lambda value: value.dtype in BYTES and value.rank in ranks and None not in value.shape[1:])


def grow_quantize(b: GraphBuilder) -> None:
    """Adds QuantizeLinear, at times followed by DequantizeLinear."""
    x = b.pick(lambda value: value.dtype == "float32" and value.bound < 300)
    scale, zero = _draw_scale(b, b.choose("uint8", "uint8", "int8"))
    y = b.node("QuantizeLinear", x, scale, zero)
    if b.chance(0.5):
        b.node("DequantizeLinear", y, scale, zero)


# Bytes, or sums of int32.
grow_dequantize = one_of(
    lambda b: b.pick(lambda value: value.dtype in (*BYTES, "int32")),
    lambda b, x: b.node("DequantizeLinear", x, *((np.float32(1e-4),) if x.dtype == "int32" else _draw_scale(b, x.dtype))),
)


def grow_dynamic(b: GraphBuilder) -> None:
    """Adds DynamicQuantizeLinear, MatMulInteger and the product of both scales, as exporters write it."""
    x = b.pick(lambda value: value.dtype == "float32" and value.rank >= 2 and value.bound < 300)
    outputs, elements = b.choose(1, 4, 8, 15, 16, 17, 32, 33), x.arrays[0]
    # On a grid of few numbers, such as dequantized bytes, many elements would be at the same tie.
    if np.unique(elements).size < elements.size / 2:
        raise NotApplicable
    b.require_work(elements.size * outputs)
    y, scale, zero = b.nodes_outputs("DynamicQuantizeLinear", [x], 3)
    dtype = b.choose("int8", "int8", "uint8")
    weight = _draw_bytes(b, x.size(-1), outputs, dtype=dtype)
    total = b.node("MatMulInteger", y, weight, zero, np.array(0 if dtype == "int8" else 128, dtype))
    wide = b.node("Cast", total, to=1)
    z = b.node("Mul", wide, b.node("Mul", scale, np.array(0.01, np.float32)))
    if b.chance(0.5):
        b.node("Add", z, b.weight(outputs))


def _draw_operator(b: GraphBuilder, x: DrawnValue) -> tuple[Any, int, dict[str, Any]]:
    """Returns a weight of bytes for a product, or for a convolution of an image, its number of outputs, and the attributes."""
    if x.rank < 4:
        outputs = b.choose(1, 3, 4, 8, 15, 16, 17, 32, 33, 64)
        b.require_work(x.arrays[0].size * outputs)
        return _draw_bytes(b, x.size(-1), outputs), outputs, {}
    channels, kernel = x.size(1), b.choose(1, 3, 3, 5)
    group = channels if b.chance(0.25) else 1
    outputs = channels if group > 1 else b.choose(1, 4, 8, 9, 16, 17, 32)
    b.require_work(x.arrays[0].size * outputs * kernel**2)
    windows = {"kernel_shape": [kernel] * 2, "strides": [b.choose(1, 1, 2)] * 2, "pads": [b.choose(kernel // 2, 0)] * 4}
    return _draw_bytes(b, outputs, channels // group, kernel, kernel), outputs, {**windows, "group": group}


def grow_integer_product(b: GraphBuilder) -> None:
    """Adds MatMulInteger, QLinearMatMul, ConvInteger or QLinearConv with constant weights: plain, grouped or depthwise."""
    x = pick_bytes(b, 2, 3, 4)
    scale, zero = _draw_scale(b, x.dtype)
    weight, outputs, attributes = _draw_operator(b, x)
    if b.chance(0.5) and (x.rank < 4 or x.dtype == "uint8"):
        b.node("ConvInteger" if attributes else "MatMulInteger", x, weight, zero, **attributes)
        return
    sizes = (outputs,) if attributes and b.chance(0.4) else ()
    weight_scale = np.asarray(b.random.random(sizes) * 0.01 + 0.005).astype(np.float32)
    result = (np.float32(0.02 * math.sqrt(weight.size // outputs)), np.array(128 if x.dtype == "uint8" else 0, x.dtype))
    bias = (b.random.integers(-500, 500, outputs).astype(np.int32),) if attributes and b.chance(0.5) else ()
    operator = "QLinearConv" if attributes else "QLinearMatMul"
    b.node(operator, x, scale, zero, weight, weight_scale, np.zeros(sizes, np.int8), *result, *bias, **attributes)


def grow_qdq(b: GraphBuilder) -> None:
    """Adds a convolution or a product in the QDQ form: dequantized bytes and weights in, quantized result out."""
    x = pick_bytes(b, 2, 3, 4)
    wide, (bytes_of_weight, _, attributes) = b.node("DequantizeLinear", x, *_draw_scale(b, x.dtype)), _draw_operator(b, x)
    weight = b.node("DequantizeLinear", bytes_of_weight, np.float32(0.01), np.array(0, np.int8))
    y = b.node("Conv" if attributes else "MatMul", wide, weight, **attributes)
    y = b.node("Relu", y) if attributes and b.chance(0.5) else y
    b.values.remove(weight)
    if b.chance(0.8):
        b.node("QuantizeLinear", y, *_draw_scale(b, b.choose(*BYTES)))


grow_bytes = one_of(lambda b: pick_bytes(b, 4), lambda b, x: b.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]))

QUANTIZED: Operators = (
    (3, grow_quantize), (2, grow_dequantize), (1.5, grow_dynamic), (4, grow_integer_product), (2, grow_qdq), (0.4, grow_bytes),
    (0.6, grow_concat), (0.4, grow_transpose)
)  # fmt: skip


# If, Loop and Scan, with bodies that capture values of the graph around them

_INNER = ("Relu", "Tanh", "Sigmoid", "Neg", "Abs")


def grow_if(b: GraphBuilder) -> None:
    """Adds an If that is steered by a number of the graph; both branches capture values."""
    x = b.pick_float(bound=100)
    y = b.pick_like(x)
    size = b.node("Size", b.pick(lambda value: value.rank >= 1))
    condition = b.node(b.choose("Greater", "Less"), size, np.array(b.choose(0, 100), np.int64))
    bodies = []
    for operator in ("Add", b.choose("Sub", "Mul", "Max")):
        first, last = b.name("v"), b.name("v")
        nodes = f"{first} = {b.choose(*_INNER)} ({x.name}) {last} = {operator} ({first}, {y.name})"
        bodies.append(_read_body(b, [], [_declare(last, x)], nodes))
    b.nodes_outputs("If", [condition], 1, captures=[x, y], then_branch=bodies[0], else_branch=bodies[1])


def grow_loop(b: GraphBuilder) -> None:
    """Adds a Loop of up to five iterations that carries a value, captures a second value and stacks a third."""
    x = b.pick_float(bound=30)
    y = b.pick_like(x)
    count, going, state, still, inner, result, stacked = (b.name("v") for _ in range(7))
    nodes = f"{still} = Identity ({going}) {inner} = {b.choose('Add', 'Sub')} ({state}, {y.name}) "
    nodes += f"{result} = {b.choose('Tanh', 'Sigmoid')} ({inner}) {stacked} = {b.choose(*_INNER)} ({inner})"
    inputs = [f"int64 {count}", f"bool {going}", _declare(state, x)]
    body = _read_body(b, inputs, [f"bool {still}", _declare(result, x), _declare(stacked, x)], nodes)
    start = np.array(True) if b.chance(0.5) else ""
    b.nodes_outputs("Loop", [np.array(b.integer(1, 5), np.int64), start, x], 2, captures=[y], body=body)


def grow_scan(b: GraphBuilder) -> None:
    """Adds a Scan along the first axis of a value, at times backwards."""
    x = b.pick_float(2, 3, 4, bound=30)
    state, item, inner, result, stacked = (b.name("v") for _ in range(5))
    nodes = f"{inner} = Add ({state}, {item}) {result} = {b.choose('Tanh', 'Sigmoid')} ({inner}) "
    nodes += f"{stacked} = {b.choose('Mul', 'Sub', 'Max')} ({result}, {item})"
    inputs, outputs = ([_declare(name, x, 1) for name in names] for names in ((state, item), (result, stacked)))
    body = _read_body(b, inputs, outputs, nodes)
    start = b.weight(*map(x.size, range(1, x.rank)))
    directions = [1] if b.chance(0.3) else None
    b.nodes_outputs("Scan", [start, x], 2, body=body, num_scan_inputs=1, scan_input_directions=directions)


def _declare(name: str, like: DrawnValue, lacking: int = 0) -> str:
    """Returns a port of a body: a name with the type of a value that lacks so many leading axes."""
    word = next(word for word, dtype in TYPES.items() if like.dtype == np.dtype(dtype).name)
    sizes = ",".join("?" if size is None else str(size) for size in like.shape[lacking:])
    return f"{word}{f'[{sizes}]' if sizes else ''} {name}"


def _read_body(b: GraphBuilder, inputs: Sequence[str], outputs: Sequence[str], nodes: str) -> onnx.GraphProto:
    return onnx.parser.parse_graph(f"{b.name('body')} ({', '.join(inputs)}) => ({', '.join(outputs)}) {{ {nodes} }}")


CONTROL: Operators = ((1, grow_if), (1, grow_loop), (0.6, grow_scan))


# Graphs

VERSION = 3
"""Version of the drawing; another version draws other graphs from the same seeds."""
LENGTHS = (*range(1, 18), 20, 24, 27, 28, 29, 31, 32, 33, 40, 47, 48, 49, 63, 64, 65, 67)
SIDES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 13, 14, 15, 16, 17, 20, 28, 32, 40)
EDGES = (16_384, 55_000, 65_536, 75_000, 120_000, 131_072, 186_000, 205_000, 262_144)
"""Bytes around which the memory of a plan changes its form: the sizes of images are drawn on both sides."""


@dataclass(frozen=True, slots=True)
class DrawnGraph:
    """A model, its family, and the inputs of each run by name; open dimensions differ from run to run."""

    seed: int
    family: str
    model: onnx.ModelProto
    feeds: tuple[Mapping[str, Any], ...]


def draw_graph(seed: int) -> DrawnGraph:
    """Returns the graph of a seed."""
    random = np.random.default_rng([VERSION, seed])
    family = str(random.choice(list(FAMILIES), p=_SHARES))
    is_bytes = family in ("quantized", "integer")
    dtype = "float32" if is_bytes else str(random.choice(["float32", "float16", "float64"], p=[0.85, 0.08, 0.07]))
    b = GraphBuilder(random, dtype=dtype, opset=int(random.choice([13, 17, 18, 21])))
    start, operators = FAMILIES[family]
    start(b)
    grow(b, operators, int(random.integers(3, 31)))
    results = [value for value in b.values if value not in b.inputs]
    # All unread values, at times also inner values and an input.
    outputs = [value for value in results if value.name not in b.reads or b.chance(0.06)]
    outputs += [b.choose(*b.inputs)] if b.chance(0.08) else []
    model = b.make_model(b.nodes, b.inputs, b.shuffle(*outputs), b.initializers, f"{family}_{seed}")
    return DrawnGraph(seed, family, model, tuple({value.name: value.arrays[run] for value in b.inputs} for run in range(RUNS)))


def grow(b: GraphBuilder, operators: Operators, count: int) -> None:
    """Adds nodes until there are `count`; if an operator finds no value to read, another operator is drawn."""
    weights = np.array([weight for weight, _ in operators])
    for _ in range(20 * count):
        if len(b.nodes) >= count:
            return
        try:
            operators[int(b.random.choice(len(operators), p=weights / weights.sum()))][1](b)
        except NotApplicable:
            continue  # nodes that were added before stay in the graph; their unread values become outputs


def start_image(b: GraphBuilder) -> None:
    """Adds one to three images, often of the same height and width, at times with an open batch."""
    first = b.choose(1, 1, 1, 2, 3)
    batch = b.open_size("N", first) if b.chance(0.15) else first
    channels, *sides = _draw_image(b, first)
    b.add_input(b.dtype, (batch, channels, *sides))
    for _ in range(b.choose(0, 0, 1, 2)):
        shape = (b.choose(channels, *WIDTHS), *sides) if b.chance(0.7) else _draw_image(b, first)
        if first * np.prod(shape) <= 60_000:
            b.add_input(b.dtype, (batch, *shape))


def _draw_image(b: GraphBuilder, batch: int) -> tuple[int, int, int]:
    """Returns channels, height and width; half of the time the size in bytes is close to an element of EDGES."""
    height = b.choose(*SIDES)
    width = height if b.chance(0.6) else b.choose(*SIDES)
    pixels = batch * height * width
    channels = b.choose(*WIDTHS)
    if b.chance(0.5):
        channels = min(400, max(1, b.choose(*EDGES) // (4 * pixels) + b.integer(-1, 1)))
    return min(channels, max(1, 60_000 // pixels)), height, width


def start_sequence(b: GraphBuilder) -> None:
    """Adds a sequence, at times with open batch and length, a second sequence of its shape or width, at times indices."""
    batch, length, width = b.choose(1, 1, 2, 3), b.choose(*LENGTHS), b.choose(*WIDTHS)
    if b.chance(0.3):
        length = b.open_size("L", length)
        batch = b.open_size("N", batch) if b.chance(0.5) else batch
    shape = (batch, length, width) if b.chance(0.85) else (length, width)
    b.add_input(b.dtype, shape)
    if b.chance(0.4):
        b.add_input(b.dtype, shape if b.chance(0.5) else (*shape[:-1], b.choose(*WIDTHS)))
    if b.chance(0.3):
        b.add_input("int64", shape[:-1], bound=b.choose(2, 10, 50))


def start_quantized(b: GraphBuilder) -> None:
    """Adds an image or a sequence of float32, and at times bytes."""
    (start_image if b.chance(0.6) else start_sequence)(b)
    if b.chance(0.4):
        b.add_input(b.choose("uint8", "int8"), [size or 1 for size in b.values[0].shape], bound=120)


def start_integer(b: GraphBuilder) -> None:
    """Adds integers of one to three dimensions, a second value of their shape, at times numbers of float32."""
    shape: list[int | str] = [b.choose(1, 2, 3, 5, 8, 17, 33) for _ in range(b.integer(1, 3))]
    if b.chance(0.25):
        shape[0] = b.open_size("N", int(shape[0]))
    dtype = b.choose("int32", "int64")
    b.add_input(dtype, shape, bound=b.choose(5, 20))
    if b.chance(0.7):
        b.add_input(dtype, shape, bound=9)
    if b.chance(0.5):
        b.add_input("float32", shape)


def start_mixed(b: GraphBuilder) -> None:
    """Adds the inputs of an image network and of a sequence network."""
    start_image(b)
    b.add_input(b.dtype, (b.choose(1, 2), b.choose(*LENGTHS), b.choose(*WIDTHS)))


def _scale(factor: float, *operators: tuple[float, Callable[[GraphBuilder], object]]) -> Operators:
    return tuple((factor * weight, operator) for weight, operator in operators)


_COMMON = (*ELEMENTWISE, *_scale(0.4, *CONTROL))
_QUANTIZED_BESIDE = (*_scale(0.15, *IMAGE, *SEQUENCE, *ARRANGEMENT), *_scale(0.2, *_COMMON))
_MIXED = (*IMAGE, *SEQUENCE, *ARRANGEMENT, *_COMMON, *CONTROL, *_scale(0.5, *INTEGER, *QUANTIZED))

FAMILIES: Mapping[str, tuple[Callable[[GraphBuilder], None], Operators]] = {
    "image": (start_image, (*IMAGE, *ELEMENTWISE)),
    "sequence": (start_sequence, (*SEQUENCE, *ARRANGEMENT, *_scale(0.5, *_COMMON))),
    "quantized": (start_quantized, (*QUANTIZED, *_QUANTIZED_BESIDE)),
    "integer": (start_integer, (*INTEGER, *_scale(0.3, *_COMMON, *ARRANGEMENT))),
    "mixed": (start_mixed, _MIXED),
}
"""Family -> the first steps of its graphs, and the operators that follow with their weights."""
_SHARES = [0.35, 0.3, 0.12, 0.08, 0.15]
