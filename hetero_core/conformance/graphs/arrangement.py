"""Operators that rearrange, reduce, repeat or select elements, for values of any shape."""

from __future__ import annotations

import math

import numpy as np

from hetero_core.conformance.graphs.builder import DrawnValue, GraphBuilder, NotApplicable, Size


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
            shape = x.with_size(axis, factor, size // factor)
            open_after = [
                index
                for index, extent in enumerate(shape)
                if isinstance(extent, str) and (index > axis or x.shape[index] != extent)
            ]
            if len(open_after) > 1:
                raise NotApplicable
            sizes = [-1 if index in open_after else 0 if isinstance(extent, str) else extent for index, extent in enumerate(shape)]
            b.add("Reshape", [x, b.numbers(*sizes)], shape, bound=x.bound)
        case "merge" if x.rank >= 2:
            axis = b.integer(0, x.rank - 2)
            first, second = x.shape[axis], x.shape[axis + 1]
            if not (isinstance(first, int) and isinstance(second, int)) or any(
                isinstance(extent, str) for extent in x.shape[axis + 2 :]
            ):
                raise NotApplicable
            shape = (*x.shape[:axis], first * second, *x.shape[axis + 2 :])
            sizes = [0 if isinstance(extent, str) else extent for extent in shape]
            b.add("Reshape", [x, b.numbers(*sizes)], shape, bound=x.bound)
        case "unsqueeze" if x.rank <= 4:
            axis = b.integer(0, x.rank)
            b.add("Unsqueeze", [x, b.numbers(axis)], (*x.shape[:axis], 1, *x.shape[axis:]), bound=x.bound)
        case "squeeze" if 1 in x.shape:
            axis = b.choose(*[index for index, extent in enumerate(x.shape) if extent == 1])
            b.add("Squeeze", [x, b.numbers(axis)], x.with_size(axis), bound=x.bound)
        case "flatten" if all(isinstance(extent, int) for extent in x.shape[1:]):
            b.add("Flatten", [x], (x.shape[0], math.prod(int(extent) for extent in x.shape[1:])), bound=x.bound, axis=1)
        case _:
            raise NotApplicable


def grow_gather(b: GraphBuilder) -> None:
    """Adds a Gather from a table with input indices, or from a value with constant indices."""
    ids = [candidate for candidate in b.values if candidate.dtype == "int64" and candidate.rank >= 1]
    if ids and b.chance(0.5):
        read = b.choose(*ids)
        width = b.choose(1, 3, 4, 8, 9, 16, 17, 32, 64)
        table = b.weight(int(read.bound), width)
        if read not in b.inputs:
            # `bound` is approximate and ignores the sign, so Mod keeps the indices within the table.
            read = b.add("Mod", [read, b.constant(np.array(int(read.bound), np.int64))], read.shape, bound=read.bound)
        b.add("Gather", [table, read], (*read.shape, width), dtype=b.dtype, axis=0)
        return
    x = b.pick_float()
    closed = [index for index, candidate in enumerate(x.shape) if isinstance(candidate, int)]
    if not closed:
        raise NotApplicable
    axis = b.choose(*closed)
    size = int(x.shape[axis])
    shape = b.choose((), (1,), (3,), (2, 2), (size,))
    indices = b.random.integers(-size, size, shape)
    result = x.with_size(axis, *shape)
    if len(result) > 5:
        raise NotApplicable
    b.add("Gather", [x, b.constant(indices.astype(b.choose(np.int64, np.int32)))], result, bound=x.bound, axis=axis)


def grow_pieces(b: GraphBuilder) -> None:
    """Adds a Concat, Slice or Split along any axis; a slice may run along an open axis."""
    x = b.pick(lambda value: value.rank >= 1 and value.bound < 1e3)
    axis = b.integer(0, x.rank - 1)
    size = x.shape[axis]
    match b.choose("concat", "concat", "slice", "slice", "split"):
        case "concat":
            partners = [
                other for other in b.values
                if other.dtype == x.dtype and other.rank == x.rank and all(other.shape[i] == x.shape[i] for i in range(x.rank) if i != axis)
                and isinstance(other.shape[axis], int) and other.bound < 1e3
            ]  # fmt: skip
            if not partners or isinstance(size, str):
                raise NotApplicable
            read = [x, *(b.choose(*partners) for _ in range(b.integer(1, 3)))]
            total, bound = sum(int(other.shape[axis]) for other in read), max(other.bound for other in read)
            b.add("Concat", read, x.with_size(axis, total), bound=bound, axis=axis)
        case "slice" if isinstance(size, int):
            start = b.integer(0, size - 1)
            stop = b.integer(start + 1, size)
            shape = x.with_size(axis, stop - start)
            b.add("Slice", [x, b.numbers(start), b.numbers(stop), b.numbers(axis)], shape, bound=x.bound)
        case "slice":
            # The whole open axis reversed, or its last row.
            if b.chance(0.5):
                b.add("Slice", [x, b.numbers(-1), b.numbers(-(2**31)), b.numbers(axis), b.numbers(-1)], x.shape, bound=x.bound)
            else:
                shape = x.with_size(axis, 1)
                b.add("Slice", [x, b.numbers(-1), b.numbers(2**31 - 1), b.numbers(axis)], shape, bound=x.bound)
        case _:
            if not isinstance(size, int) or size < 2:
                raise NotApplicable
            cut = b.integer(1, size - 1)
            shapes = [x.with_size(axis, piece) for piece in (cut, size - cut)]
            b.add_many("Split", [x, b.numbers(cut, size - cut)], shapes, bound=x.bound, axis=axis)


_REDUCTIONS = (
    *("ReduceMean", "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceSumSquare"),
    "ReduceLogSumExp",
)


def grow_reduction(b: GraphBuilder) -> None:
    """Adds a reduction along one or two axes, with or without keeping them."""
    x = b.pick_float()
    if x.rank == 0:
        raise NotApplicable
    axes = sorted({b.integer(0, x.rank - 1) for _ in range(b.integer(1, 2))})
    operator = b.choose(*_REDUCTIONS)
    if operator == "ReduceLogSumExp" and x.bound > 30:
        raise NotApplicable
    reduce(b, operator, x, axes, keep=b.chance(0.6))


def reduce(b: GraphBuilder, operator: str, x: DrawnValue, axes: list[int], *, keep: bool) -> DrawnValue:
    """Adds a reduction, with its axes as attribute or input, depending on the opset."""
    shape: list[Size] = [1 if axis in axes else size for axis, size in enumerate(x.shape)]
    if not keep:
        shape = [size for axis, size in enumerate(x.shape) if axis not in axes]
    count = math.prod(b.size(x.shape[axis]) for axis in axes)
    bound = (
        x.bound
        if operator in ("ReduceMean", "ReduceMax", "ReduceMin")
        else (x.bound**2 if operator == "ReduceSumSquare" else x.bound) * count
    )
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
            b.tile(x, repeats)
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
    x = b.pick(lambda value: value.dtype == b.dtype and value.rank >= 1 and isinstance(value.shape[-1], int) and value.bound < 300)
    width = int(x.shape[-1])
    match b.choose("topk", "argmax", "elements", "scatter_nd", "scatter"):
        case "topk":
            count = b.integer(1, width)
            shape = (*x.shape[:-1], count)
            read: list[DrawnValue | str] = [x, b.numbers(count)]
            order = {"axis": -1, "largest": int(b.chance(0.7))}
            b.add_many("TopK", read, [shape, shape], dtypes=[x.dtype, "int64"], bound=max(x.bound, width), **order)
        case "argmax":
            keep = int(b.chance(0.5))
            shape = (*x.shape[:-1], 1) if keep else x.shape[:-1]
            b.add(b.choose("ArgMax", "ArgMin"), [x], shape, dtype="int64", bound=width, axis=-1, keepdims=keep)
        case "elements" if x.is_closed:
            sizes = [int(size) for size in x.shape]
            axis = b.integer(0, x.rank - 1)
            new_sizes = [*sizes[:axis], b.integer(1, 5), *sizes[axis + 1 :]]
            indices = b.random.integers(-sizes[axis], sizes[axis], new_sizes)
            b.add("GatherElements", [x, b.constant(indices.astype(np.int64))], new_sizes, bound=x.bound, axis=axis)
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


OPERATORS = (
    (2.0, grow_transpose),
    (2.0, grow_reshape),
    (1.0, grow_gather),
    (3.0, grow_pieces),
    (1.5, grow_reduction),
    (1.0, grow_spread),
    (1.0, grow_selection),
)
"""Each operator with its weight."""
