"""Operators of sequence networks: products, normalizations, attention, gathers, rearrangements; float (batch, length, width) mostly."""

from __future__ import annotations

import math

import numpy as np

from hetero_core.testing.graphs.builder import LARGEST_WORK, GraphBuilder, NotApplicable, Size, Value

WIDTHS = (1, 2, 3, 4, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 96, 128)
LENGTHS = (*range(1, 18), 20, 24, 27, 28, 29, 31, 32, 33, 40, 47, 48, 49, 63, 64, 65, 67)


def _pick(b: GraphBuilder, *, lowest: int = 1) -> tuple[Value, int]:
    """Returns a value whose last axis has a known size, and that size."""
    x = b.pick(lambda value: value.dtype == b.dtype and value.rank >= lowest and isinstance(value.shape[-1], int) and value.bound < 300)
    return x, int(x.shape[-1])


def grow_linear(b: GraphBuilder) -> None:
    """Adds a product with a constant matrix, at times with a bias in either order, and an activation."""
    x, width = _pick(b)
    outputs = b.choose(*WIDTHS)
    if b.count(x.shape) * outputs > LARGEST_WORK:
        raise NotApplicable
    shape = (*x.shape[:-1], outputs)
    if x.rank == 2 and b.chance(0.5):
        turned = int(b.chance(0.5))
        weight = b.weight(*((outputs, width) if turned else (width, outputs)), deviation=width**-0.5)
        read: list[Value | str] = [x, weight]
        if b.chance(0.7):
            read.append(b.weight(*b.choose((outputs,), (1, outputs), (1,), ())))
        y = b.add("Gemm", read, shape, bound=x.bound + 1, transB=turned, alpha=b.choose(1.0, 1.0, 0.5), beta=b.choose(1.0, 1.0, 0.25))
    else:
        y = b.add("MatMul", [x, b.weight(width, outputs, deviation=width**-0.5)], shape, bound=x.bound)
        if b.chance(0.6):
            y = b.add("Add", b.choose([y, b.weight(outputs)], [b.weight(outputs), y]), shape, dtype=x.dtype, bound=x.bound + 1)
    if b.chance(0.3):
        others = [one for one in b.values if one.shape == y.shape and one.dtype == y.dtype and one is not y and one.bound < 300]
        if others:
            y = b.add("Add", [b.choose(*others), y], shape, bound=2 * y.bound)
    if b.chance(0.3):
        b.add(b.choose("Relu", "Sigmoid", "Tanh", "Erf"), [y], shape, bound=y.bound)


def grow_product(b: GraphBuilder) -> None:
    """Adds a product of two values, at times of one value with itself turned round."""
    x, width = _pick(b, lowest=2)
    partners = [
        one for one in b.values
        if one.dtype == x.dtype and one.rank == x.rank and one.shape[:-2] == x.shape[:-2] and width in (one.shape[-1], one.shape[-2]) and one.bound < 100
    ]  # fmt: skip
    if not partners or x.bound > 100:
        raise NotApplicable
    y = b.choose(*partners)
    if y.shape[-2] != width:
        order = [*range(y.rank - 2), y.rank - 1, y.rank - 2]
        y = b.add("Transpose", [y], (*y.shape[:-2], y.shape[-1], y.shape[-2]), bound=y.bound, perm=order)
    if b.count(x.shape) * b.size(y.shape[-1]) > LARGEST_WORK:
        raise NotApplicable
    b.add("MatMul", [x, y], (*x.shape[:-1], y.shape[-1]), bound=x.bound * y.bound * math.sqrt(width))


def grow_einsum(b: GraphBuilder) -> None:
    """Adds an Einsum of two values or of a value and a constant."""
    x, width = _pick(b, lowest=3)
    if x.rank != 3 or x.bound > 50:
        raise NotApplicable
    outputs = b.choose(*WIDTHS[:12])
    match b.choose("weight", "self", "sum"):
        case "weight":
            b.add("Einsum", [x, b.weight(outputs, width, deviation=width**-0.5)], (*x.shape[:2], outputs), bound=x.bound, equation="bld,od->blo")
        case "self":
            b.add("Einsum", [x, x], (x.shape[0], x.shape[1], x.shape[1]), bound=x.bound**2 * math.sqrt(width), equation="bid,bjd->bij")
        case "sum":
            b.add("Einsum", [x], (x.shape[0], x.shape[2]), bound=x.bound * 8, equation="bld->bd")


def grow_normalization(b: GraphBuilder) -> None:
    """Adds a normalization of the last axis, as one operator or written out."""
    x, width = _pick(b, lowest=2)
    if width < 2 and b.chance(0.9):
        raise NotApplicable
    scale, shift = b.weight(width, mean=1, deviation=0.2), b.weight(width)
    match b.choose("operator", "written", "rms", "softmax", "softmax", "log_softmax"):
        case "operator" if b.opset >= 17:
            read = [x, scale, shift] if b.chance(0.8) else [x, scale]
            b.add("LayerNormalization", read, x.shape, axis=-1, epsilon=1e-3)
        case "written" | "operator":
            mean = reduce(b, "ReduceMean", x, [x.rank - 1], keep=True)
            centered = b.add("Sub", [x, mean], x.shape, bound=x.bound)
            if b.chance(0.5):
                squares = b.add("Pow", [centered, b.scalar(2)], x.shape, bound=x.bound**2)
            else:
                squares = b.add("Mul", [centered, centered], x.shape, bound=x.bound**2)
            variance = b.add("Add", [reduce(b, "ReduceMean", squares, [x.rank - 1], keep=True), b.scalar(1e-3)], mean.shape)
            root = b.add("Sqrt", [variance], mean.shape)
            normalized = b.add("Div", [centered, root], x.shape)
            scaled = b.add("Mul", [normalized, scale], x.shape)
            b.add("Add", [scaled, shift], x.shape)
        case "rms":
            squares = b.add("Mul", [x, x], x.shape, bound=x.bound**2)
            mean = b.add("Add", [reduce(b, "ReduceMean", squares, [x.rank - 1], keep=True), b.scalar(1e-3)], (*x.shape[:-1], 1))
            inverse = b.add("Reciprocal", [b.add("Sqrt", [mean], mean.shape)], mean.shape)
            b.add("Mul", [b.add("Mul", [x, inverse], x.shape), scale], x.shape)
        case "softmax":
            if x.bound > 60:
                raise NotApplicable
            b.add("Softmax", [x], x.shape, bound=1, axis=b.choose(-1, -1, x.rank - 2))
        case _:
            if x.bound > 60:
                raise NotApplicable
            b.add("LogSoftmax", [x], x.shape, bound=x.bound + 5, axis=-1)


def grow_attention(b: GraphBuilder) -> None:
    """Adds attention as exporters write it: projections, heads, scores, Softmax, a mask at times, and the way back."""
    x = b.pick(lambda value: value.dtype == b.dtype and value.rank == 3 and value.shape[2] in (8, 12, 16, 24, 32, 48, 64) and value.bound < 30)
    batch, length, width = x.shape[0], x.shape[1], int(x.shape[2])
    heads = b.choose(*[count for count in (1, 2, 3, 4, 8) if width % count == 0])
    size = width // heads
    if b.count((batch, heads, length, length)) > 80_000:
        raise NotApplicable
    turned = []
    for role in ("query", "key", "value"):
        y = b.add("MatMul", [x, b.weight(width, width, deviation=width**-0.5)], x.shape, bound=x.bound)
        if b.chance(0.5):
            y = b.add("Add", [y, b.weight(width, deviation=0.3)], x.shape, bound=x.bound)
        y = b.add("Reshape", [y, b.numbers(0, -1 if length == "L" else 0, heads, size)], (batch, length, heads, size), bound=x.bound)
        if role == "key":
            y = b.add("Transpose", [y], (batch, heads, size, length), bound=x.bound, perm=[0, 2, 3, 1])
        else:
            y = b.add("Transpose", [y], (batch, heads, length, size), bound=x.bound, perm=[0, 2, 1, 3])
        turned.append(y)
    query, key, value = turned
    scores = b.add("MatMul", [query, key], (batch, heads, length, length), bound=x.bound)
    scaled = b.add(b.choose("Div", "Mul"), [scores, b.scalar(math.sqrt(size) if b.chance(0.5) else 0.25)], scores.shape, bound=x.bound)
    if isinstance(length, int) and b.chance(0.4):
        mask = np.triu(np.full((length, length), -1e4), 1).astype(b.dtype)
        scaled = b.add("Add", [scaled, b.constant(mask)], scores.shape, bound=x.bound)
    shares = b.add("Softmax", [scaled], scores.shape, bound=1, axis=-1)
    mixed = b.add("MatMul", [shares, value], (batch, heads, length, size), bound=x.bound)
    back = b.add("Transpose", [mixed], (batch, length, heads, size), bound=x.bound, perm=[0, 2, 1, 3])
    flat = b.add("Reshape", [back, b.numbers(0, 0, width)], x.shape, bound=x.bound)
    y = b.add("MatMul", [flat, b.weight(width, width, deviation=width**-0.5)], x.shape, bound=x.bound)
    if b.chance(0.7):
        b.add("Add", [x, y], x.shape, bound=2 * x.bound)


def grow_transpose(b: GraphBuilder) -> None:
    """Adds a Transpose of any order."""
    x = b.pick(lambda value: value.rank >= 2 and value.bound < 1e3)
    order = [int(axis) for axis in b.random.permutation(x.rank)]
    b.add("Transpose", [x], [x.shape[axis] for axis in order], bound=x.bound, perm=order)


def grow_reshape(b: GraphBuilder) -> None:
    """Adds a Reshape, Flatten, Squeeze or Unsqueeze."""
    x = b.pick(lambda value: 1 <= value.rank <= 5 and value.bound < 1e3)
    match b.choose("split", "merge", "unsqueeze", "squeeze", "flatten"):
        case "split":
            axis = b.integer(0, x.rank - 1)
            size = x.shape[axis]
            if not isinstance(size, int) or x.rank > 4:
                raise NotApplicable
            factor = b.choose(*[number for number in (1, 2, 3, 4, 8) if size % number == 0])
            shape = (*x.shape[:axis], factor, size // factor, *x.shape[axis + 1 :])
            open_after = [index for index, one in enumerate(shape) if isinstance(one, str) and (index > axis or x.shape[index] != one)]
            if len(open_after) > 1:
                raise NotApplicable
            sizes = [-1 if index in open_after else 0 if isinstance(one, str) else one for index, one in enumerate(shape)]
            b.add("Reshape", [x, b.numbers(*sizes)], shape, bound=x.bound)
        case "merge" if x.rank >= 2:
            axis = b.integer(0, x.rank - 2)
            first, second = x.shape[axis], x.shape[axis + 1]
            if not (isinstance(first, int) and isinstance(second, int)) or any(isinstance(one, str) for one in x.shape[axis + 2 :]):
                raise NotApplicable
            shape = (*x.shape[:axis], first * second, *x.shape[axis + 2 :])
            sizes = [0 if isinstance(one, str) else one for one in shape]
            b.add("Reshape", [x, b.numbers(*sizes)], shape, bound=x.bound)
        case "unsqueeze" if x.rank <= 4:
            axis = b.integer(0, x.rank)
            b.add("Unsqueeze", [x, b.numbers(axis)], (*x.shape[:axis], 1, *x.shape[axis:]), bound=x.bound)
        case "squeeze" if 1 in x.shape:
            axis = b.choose(*[index for index, one in enumerate(x.shape) if one == 1])
            b.add("Squeeze", [x, b.numbers(axis)], (*x.shape[:axis], *x.shape[axis + 1 :]), bound=x.bound)
        case "flatten" if all(isinstance(one, int) for one in x.shape[1:]):
            b.add("Flatten", [x], (x.shape[0], math.prod(int(one) for one in x.shape[1:])), bound=x.bound, axis=1)
        case _:
            raise NotApplicable


def grow_gather(b: GraphBuilder) -> None:
    """Adds a Gather from a table by an input of indices, or from a value by constant ones."""
    ids = [one for one in b.values if one.dtype == "int64" and one.rank >= 1]
    if ids and b.chance(0.5):
        read = b.choose(*ids)
        width = b.choose(*WIDTHS)
        table = b.weight(int(read.bound), width)
        b.add("Gather", [table, read], (*read.shape, width), dtype=b.dtype, axis=0)
        return
    x = b.pick_float()
    closed = [index for index, one in enumerate(x.shape) if isinstance(one, int)]
    if not closed:
        raise NotApplicable
    axis = b.choose(*closed)
    size = int(x.shape[axis])
    shape = b.choose((), (1,), (3,), (2, 2), (size,))
    indices = b.random.integers(-size, size, shape)
    result = (*x.shape[:axis], *shape, *x.shape[axis + 1 :])
    if len(result) > 5:
        raise NotApplicable
    b.add("Gather", [x, b.constant(indices.astype(b.choose(np.int64, np.int32)))], result, bound=x.bound, axis=axis)


def grow_pieces(b: GraphBuilder) -> None:
    """Adds a Concat, Slice or Split along any axis; a slice may run along an open one."""
    x = b.pick(lambda value: value.rank >= 1 and value.bound < 1e3)
    axis = b.integer(0, x.rank - 1)
    size = x.shape[axis]
    match b.choose("concat", "concat", "slice", "slice", "split"):
        case "concat":
            partners = [
                one for one in b.values
                if one.dtype == x.dtype and one.rank == x.rank and all(one.shape[i] == x.shape[i] for i in range(x.rank) if i != axis)
                and isinstance(one.shape[axis], int) and one.bound < 1e3
            ]  # fmt: skip
            if not partners or isinstance(size, str):
                raise NotApplicable
            read = [x, *(b.choose(*partners) for _ in range(b.integer(1, 3)))]
            total = sum(int(one.shape[axis]) for one in read)
            b.add("Concat", read, (*x.shape[:axis], total, *x.shape[axis + 1 :]), bound=max(one.bound for one in read), axis=axis)
        case "slice" if isinstance(size, int):
            start = b.integer(0, size - 1)
            stop = b.integer(start + 1, size)
            shape = (*x.shape[:axis], stop - start, *x.shape[axis + 1 :])
            b.add("Slice", [x, b.numbers(start), b.numbers(stop), b.numbers(axis)], shape, bound=x.bound)
        case "slice":
            # The whole of an open axis backwards, or its last row.
            if b.chance(0.5):
                b.add("Slice", [x, b.numbers(-1), b.numbers(-(2**31)), b.numbers(axis), b.numbers(-1)], x.shape, bound=x.bound)
            else:
                shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
                b.add("Slice", [x, b.numbers(-1), b.numbers(2**31 - 1), b.numbers(axis)], shape, bound=x.bound)
        case _:
            if not isinstance(size, int) or size < 2:
                raise NotApplicable
            cut = b.integer(1, size - 1)
            shapes = [(*x.shape[:axis], piece, *x.shape[axis + 1 :]) for piece in (cut, size - cut)]
            b.add_many("Split", [x, b.numbers(cut, size - cut)], shapes, bound=x.bound, axis=axis)


def grow_reduction(b: GraphBuilder) -> None:
    """Adds a reduction along one or two axes, with or without keeping them."""
    x = b.pick_float()
    if x.rank == 0:
        raise NotApplicable
    axes = sorted({b.integer(0, x.rank - 1) for _ in range(b.integer(1, 2))})
    operator = b.choose("ReduceMean", "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSumExp")
    if operator == "ReduceLogSumExp" and x.bound > 30:
        raise NotApplicable
    reduce(b, operator, x, axes, keep=b.chance(0.6))


def reduce(b: GraphBuilder, operator: str, x: Value, axes: list[int], *, keep: bool) -> Value:
    """Adds a reduction, its axes where the opset has them."""
    shape: list[Size] = [1 if axis in axes else size for axis, size in enumerate(x.shape)]
    if not keep:
        shape = [size for axis, size in enumerate(x.shape) if axis not in axes]
    count = math.prod(b.size(x.shape[axis]) for axis in axes)
    bound = x.bound if operator in ("ReduceMean", "ReduceMax", "ReduceMin") else (x.bound**2 if operator == "ReduceSumSquare" else x.bound) * count
    as_input = b.opset >= (13 if operator == "ReduceSum" else 18)
    if as_input:
        return b.add(operator, [x, b.numbers(*axes)], shape, bound=bound, keepdims=int(keep))
    return b.add(operator, [x], shape, bound=bound, axes=axes, keepdims=int(keep))


def grow_spread(b: GraphBuilder) -> None:
    """Adds an operator that repeats or runs along an axis: Expand, Tile, CumSum, Pad."""
    x = b.pick_float(bound=100)
    match b.choose("expand", "tile", "cumsum", "cumsum", "trilu"):
        case "expand":
            if not x.is_closed:
                raise NotApplicable
            sizes = [b.integer(1, 4) if size == 1 else int(size) for size in x.shape]
            sizes = [b.integer(1, 3), *sizes] if b.chance(0.3) and x.rank < 4 else sizes
            b.add("Expand", [x, b.numbers(*sizes)], sizes, bound=x.bound)
        case "tile" if x.is_closed and x.rank:
            repeats = [b.integer(1, 2) for _ in x.shape]
            b.add("Tile", [x, b.numbers(*repeats)], [int(size) * count for size, count in zip(x.shape, repeats, strict=True)], bound=x.bound)
        case "cumsum" if x.rank:
            axis = b.integer(0, x.rank - 1)
            bound = x.bound * b.size(x.shape[axis])
            where = b.constant(np.array(axis, np.int64))
            b.add("CumSum", [x, where], x.shape, bound=bound, exclusive=int(b.chance(0.3)), reverse=int(b.chance(0.3)))
        case "trilu" if x.rank >= 2 and b.opset >= 14:
            b.add("Trilu", [x, b.constant(np.array(b.integer(-2, 2), np.int64))], x.shape, bound=x.bound, upper=int(b.chance(0.5)))
        case _:
            raise NotApplicable


def grow_selection(b: GraphBuilder) -> None:
    """Adds TopK, ArgMax, GatherElements, ScatterND or ScatterElements."""
    x, width = _pick(b)
    match b.choose("topk", "argmax", "elements", "scatter_nd", "scatter"):
        case "topk":
            count = b.integer(1, width)
            shape = (*x.shape[:-1], count)
            read: list[Value | str] = [x, b.numbers(count)]
            b.add_many("TopK", read, [shape, shape], dtypes=[x.dtype, "int64"], bound=max(x.bound, width), axis=-1, largest=int(b.chance(0.7)))
        case "argmax":
            keep = int(b.chance(0.5))
            shape = (*x.shape[:-1], 1) if keep else x.shape[:-1]
            b.add(b.choose("ArgMax", "ArgMin"), [x], shape, dtype="int64", bound=width, axis=-1, keepdims=keep)
        case "elements" if x.is_closed:
            sizes = [int(size) for size in x.shape]
            axis = b.integer(0, x.rank - 1)
            wanted = [*sizes[:axis], b.integer(1, 5), *sizes[axis + 1 :]]
            indices = b.random.integers(-sizes[axis], sizes[axis], wanted)
            b.add("GatherElements", [x, b.constant(indices.astype(np.int64))], wanted, bound=x.bound, axis=axis)
        case "scatter_nd" if x.is_closed and x.rank >= 2:
            rows = int(x.shape[0])
            count = b.integer(1, rows)
            places = b.random.choice(rows, count, replace=False).reshape(count, 1)
            updates = b.weight(count, *(int(size) for size in x.shape[1:]))
            b.add("ScatterND", [x, b.constant(places.astype(np.int64)), updates], x.shape, bound=x.bound)
        case "scatter" if x.is_closed:
            sizes = [int(size) for size in x.shape]
            count = b.integer(1, width)
            places = np.broadcast_to(b.random.choice(width, count, replace=False), (*sizes[:-1], count))
            updates = b.weight(*sizes[:-1], count)
            b.add("ScatterElements", [x, b.constant(places.astype(np.int64)), updates], x.shape, bound=x.bound, axis=x.rank - 1)
        case _:
            raise NotApplicable


def grow_recurrent(b: GraphBuilder) -> None:
    """Adds an LSTM, GRU or RNN over (length, batch, width)."""
    x = b.pick(lambda value: value.dtype == b.dtype == "float32" and value.rank == 3 and isinstance(value.shape[2], int) and value.bound < 30)
    length, batch, width = x.shape[0], x.shape[1], int(x.shape[2])
    hidden = b.choose(1, 3, 4, 8, 9, 16, 17)
    directions = b.choose(1, 1, 2)
    operator, gates = b.choose(("LSTM", 4), ("GRU", 3), ("RNN", 1))
    if b.size(length) * b.size(batch) * gates * hidden * (width + hidden) * directions > LARGEST_WORK // 4:
        raise NotApplicable
    w = b.weight(directions, gates * hidden, width, deviation=width**-0.5)
    r = b.weight(directions, gates * hidden, hidden, deviation=hidden**-0.5)
    read: list[Value | str] = [x, w, r]
    if b.chance(0.7):
        read.append(b.weight(directions, 2 * gates * hidden, deviation=0.3))
    shapes: list[tuple[Size, ...]] = [(length, directions, batch, hidden), (directions, batch, hidden)]
    if operator == "LSTM":
        shapes.append((directions, batch, hidden))
    more = {"linear_before_reset": int(b.chance(0.5))} if operator == "GRU" else {}
    direction = b.choose("forward", "reverse") if directions == 1 else "bidirectional"
    b.add_many(operator, read, shapes, bound=1, hidden_size=hidden, direction=direction, **more)


def grow_convolution(b: GraphBuilder) -> None:
    """Adds a convolution or a pooling over (batch, channels, length)."""
    x = b.pick(lambda value: value.dtype == b.dtype and value.rank == 3 and value.bound < 300 and isinstance(value.shape[1], int) and isinstance(value.shape[2], int))
    batch, channels, length = x.shape[0], int(x.shape[1]), int(x.shape[2])
    kernel, stride = b.choose(1, 3, 3, 5), b.choose(1, 1, 2)
    pad = kernel // 2
    shape_length = (length + 2 * pad - kernel) // stride + 1
    if b.chance(0.25):
        operator = b.choose("MaxPool", "AveragePool")
        b.add(operator, [x], (batch, channels, shape_length), bound=x.bound, kernel_shape=[kernel], strides=[stride], pads=[pad, pad])
        return
    outputs = b.choose(*WIDTHS[:16])
    group = channels if b.chance(0.25) else 1
    outputs = channels if group > 1 else outputs
    if b.count((batch, outputs, shape_length)) * channels * kernel > LARGEST_WORK:
        raise NotApplicable
    weight = b.weight(outputs, channels // group, kernel, deviation=(channels * kernel / group) ** -0.5)
    read: list[Value | str] = [x, weight, b.weight(outputs)] if b.chance(0.6) else [x, weight]
    y = b.add("Conv", read, (batch, outputs, shape_length), bound=x.bound + 1, kernel_shape=[kernel], strides=[stride], pads=[pad, pad], group=group)
    if b.chance(0.4):
        b.add(b.choose("Relu", "Sigmoid"), [y], y.shape, bound=y.bound)


OPERATORS = (
    (6, grow_linear), (2, grow_product), (0.7, grow_einsum), (3, grow_normalization), (1.2, grow_attention), (2, grow_transpose),
    (2, grow_reshape), (1, grow_gather), (3, grow_pieces), (1.5, grow_reduction), (1, grow_spread), (1, grow_selection),
    (0.7, grow_recurrent), (1, grow_convolution),
)  # fmt: skip
"""Each operator with its weight."""
