"""Steps that move or rename elements: views if possible, Concat in place, else copies by machine code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from hetero_cpu.machine.calls import Array, NativeCall, address_of
from hetero_cpu.machine.code import FLOAT_BYTES, Code, begin_kernel
from hetero_cpu.machine.compiler import Kernel, find_width
from hetero_cpu.machine.terms import Floats, Mask, Number
from hetero_cpu.operators.elementwise import Expression, make_elementwise
from hetero_cpu.operators.recipe import Choice, Join, Recipe, Site, Views, is_channels_last, order_axes
from hetero_cpu.operators.rows import call_rows, cut_rows, find_kind, find_kinds, merge_axes
from hetero_cpu.symbols.arrays import broadcast, broadcast_shapes, lay_empty
from hetero_cpu.symbols.sizes import largest, least

_PARAMETERS = (
    "rows", "columns", "blocks", "middle", "inner", "units", "units_of_chunk",
    "y", "y_outer", "y_middle", "y_inner", "y_row", "x", "x_outer", "x_middle", "x_inner", "x_column",
)  # fmt: skip
"""Of each matrix: y has contiguous `rows` at a stride of `y_row`; x has them as columns, `x_column` apart, so that its
columns of y are contiguous there. Matrices stand along three axes. A unit is a block of rows of a matrix."""
_CHUNK = 1 << 15
_CHUNKS_OF_WORKER = 8


@dataclass(frozen=True, slots=True)
class Copy:
    """A kernel, and `bind(y, x)`, which returns its call for arrays of the same shape."""

    kernel: Kernel
    bind: Callable[[Array, Array], NativeCall]


def plan_copy(y: Array, x: Array, *, workers: int) -> Copy | None:
    """Returns the copy of x, broadcast, into y; None if neither has contiguous elements.

    The arrays stand for those that are copied: only their shapes and strides count. Elements have four bytes.
    """
    if y.dtype.itemsize != FLOAT_BYTES or x.dtype != y.dtype or y.size == 0:
        return None
    is_turn = find_kind(x, y) is None and _find_matrices(y, broadcast(x, y.shape)) is not None
    kinds = None if is_turn else find_kinds([x], y)
    if kinds is not None:
        kernel = make_elementwise(Expression(kinds[0], ()))
        if cut_rows(y, [x]) is None:
            return None
        return Copy(kernel, lambda y, x: call_rows(kernel, cut_rows(y, [x]), [y, x], workers=workers))
    return Copy(TURN, lambda y, x: _call_turn(y, broadcast(x, y.shape), workers)) if is_turn else None


def plan_pieces(y: Array, cuts: Sequence[tuple[slice, ...]], sources: Mapping[str, Array], *, workers: int) -> Recipe | None:
    """Returns the recipe that copies each source into its piece of y; None if a source cannot be copied so."""
    copies = [plan_copy(y[cut], array, workers=workers) for cut, array in zip(cuts, sources.values(), strict=True)]
    plans = [copy for copy in copies if copy is not None]
    # If the result becomes a piece itself, it may have more axes than rows can have.
    if len(plans) != len(copies) or (y.ndim > 4 and not is_channels_last(y)):
        return None

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        return [copy.bind(writes[0][cut], array) for copy, cut, array in zip(plans, cuts, reads, strict=True)]

    return Recipe(tuple(sources), bind, kernels=tuple(dict.fromkeys(copy.kernel for copy in plans)), parts=tuple(cuts))


@dataclass(frozen=True, slots=True)
class _Matrices:
    """Sizes and strides of matrices that are turned: the batch along at most three axes, rows and columns of y."""

    sizes: tuple[int, ...]
    y_bytes: tuple[int, ...]
    x_bytes: tuple[int, ...]
    rows: int
    y_row: int
    columns: int
    x_column: int


def _find_matrices(y: Array, x: Array) -> _Matrices | None:
    sizes, strides = merge_axes([y, x])
    if not sizes or strides[-1][0] != FLOAT_BYTES:
        return None
    row_axis = next((axis for axis in range(len(sizes) - 1) if strides[axis][1] == FLOAT_BYTES), None)
    if row_axis is None or len(sizes) > 5:
        return None
    columns, (_, x_column) = sizes.pop(), strides.pop()
    rows, (y_row, _) = sizes.pop(row_axis), strides.pop(row_axis)
    y_bytes, x_bytes = (tuple(pair[k] for pair in strides) for k in (0, 1))
    return _Matrices(tuple(sizes), y_bytes, x_bytes, rows, y_row, columns, x_column)


def _call_turn(y: Array, x: Array, workers: int) -> NativeCall:
    matrices = _find_matrices(y, x)
    assert matrices is not None
    missing = 3 - len(matrices.sizes)
    _, middle, inner = (1,) * missing + matrices.sizes
    # A block has as many rows as a vector has elements.
    blocks = -(-matrices.rows // find_width())
    units = blocks * prod(matrices.sizes)
    elements = largest(_CHUNK, -(-y.size // (workers * _CHUNKS_OF_WORKER)))
    units_of_chunk = largest(1, least(units, elements * units // y.size))
    zeros = (0,) * missing
    numbers = (matrices.rows, matrices.columns, blocks, middle, inner, units, units_of_chunk)
    places = (address_of(y), *zeros, *matrices.y_bytes, matrices.y_row, address_of(x), *zeros, *matrices.x_bytes, matrices.x_column)
    return NativeCall(TURN, numbers + places, -(-units // units_of_chunk), (y, x))


def _emit_turn(name: str, width: int) -> Code:
    code, p, chunk, _ = begin_kernel(name, width, _PARAMETERS)
    # Whole vectors, whatever the width that the numbers were made for.
    rows_of_block = ((p["rows"] + (p["blocks"] - 1)) // p["blocks"] + (width - 1)) // width * width
    with code.visit_chunk(chunk, p["units_of_chunk"], p["units"]) as unit:
        matrix, block = unit // p["blocks"], unit % p["blocks"]
        line, third = matrix // p["inner"], matrix % p["inner"]
        first, second = line // p["middle"], line % p["middle"]
        y, x = (p[key] + first * p[f"{key}_outer"] + second * p[f"{key}_middle"] + third * p[f"{key}_inner"] for key in ("y", "x"))
        start = (block * rows_of_block).at_most(p["rows"])
        end = (start + rows_of_block).at_most(p["rows"])
        full_columns = p["columns"] - p["columns"] % width
        with code.loop(start, end, width) as begin_row:
            rows = (end - begin_row).at_most(width)
            from_x, to_y = x + begin_row * FLOAT_BYTES, y + begin_row * p["y_row"]

            def turn(column: Number, columns: Number, *, is_full: bool) -> None:
                _emit_block(
                    code,
                    from_x + column * p["x_column"],  # called inside the loop
                    p["x_column"],
                    to_y + column * FLOAT_BYTES,  # called inside the loop
                    p["y_row"],
                    rows,  # called inside the loop
                    columns,
                    is_full=is_full,
                )

            with code.either(rows.equals(width)) as (whole, part):
                with whole:
                    with code.loop(0, full_columns, width) as column:
                        turn(column, code.number(width), is_full=True)
                    with code.when(full_columns < p["columns"]):
                        turn(full_columns, p["columns"] - full_columns, is_full=False)
                with part, code.loop(0, p["columns"], width) as column:
                    turn(column, (p["columns"] - column).at_most(width), is_full=False)
    return code.finish()


def _emit_block(
    code: Code, x: Number, x_column: Number, y: Number, y_row: Number, rows: Number, columns: Number, *, is_full: bool
) -> None:
    """Emits the copy of a block of at most `width` rows and columns; nothing beside it is touched."""
    width = code.width

    def mask(position: int, count: Number, others: Number) -> Mask | None:
        return None if is_full else code.mask_first((count > position).choose(others, code.number(0)))

    vectors = [code.load(x + x_column * column, mask=mask(column, columns, rows)) for column in range(width)]
    for position, vector in enumerate(turn_vectors(vectors)):
        code.store(y + y_row * position, vector, mask=mask(position, rows, columns))


def turn_vectors(vectors: list[Floats]) -> list[Floats]:
    """Returns the columns of a matrix, given as vectors of its rows: each round interleaves halves."""
    width = len(vectors)
    low = [index // 2 + width * (index % 2) for index in range(width)]
    high = [position + width // 2 for position in low]
    for _ in range(width.bit_length() - 1):
        half = width // 2
        vectors = [vectors[k // 2].shuffle(vectors[k // 2 + half], low if k % 2 == 0 else high) for k in range(width)]
    return vectors


TURN = Kernel("turn_matrices", _emit_turn)
"""The kernel that copies matrices transposed."""


_PRODUCTS = frozenset({"MatMul", "Transpose"})


def plan_transpose(site: Site) -> Choice | None:
    """Returns a view of a constant, for products, and if the turned value is in C order or channels last; else a copy."""
    (value,) = site.node.inputs
    if site.group.epilogue:
        return None
    perm = site.node.attributes.get("perm") or tuple(reversed(range(len(site.shape(value)))))
    if sorted(perm) != list(range(len(site.shape(value)))):
        return None  # the kernel of the toolkit says what is wrong
    turned = site.prototypes[value].transpose(perm)
    is_for_products = bool(site.readers) and _PRODUCTS.issuperset(site.readers) and value not in site.halos
    is_in_order = turned.flags.c_contiguous or _is_dense_channels_last(turned)
    if value in site.constants or is_for_products or is_in_order:
        return Views(value, (lambda array: array.transpose(perm),))
    return _plan_copy(site, value, lambda array: array.transpose(perm), turned.shape)


def _is_dense_channels_last(array: Array) -> bool:
    return is_channels_last(array) and bool(array.transpose(order_axes(array.ndim, is_channels_last=True)).flags.c_contiguous)


def plan_reshape(site: Site) -> Choice | None:
    """Returns a view of the same elements in another shape, or a copy into C order of elements that do not lie so."""
    value, shape = site.node.inputs[0], site.output_shape()
    prototype = site.prototypes[value]
    if site.group.epilogue or prototype.size != prod(shape):
        return None
    if np.may_share_memory(prototype.reshape(shape), prototype):
        return None if value in site.halos else Views(value, (lambda array: array.reshape(shape),))
    return _plan_copy(site, value, lambda array: array, prototype.shape)


def plan_expand(site: Site) -> Recipe | None:
    """Returns the copy of an array into every place that it is broadcast to."""
    value, shape = site.node.inputs[0], site.output_shape()
    # NumPy 2 broadcasts shapes of up to 32 dimensions.
    if site.group.epilogue or len(shape) > 32 or broadcast_shapes(site.shape(value), shape) != shape:
        return None
    return _plan_copy(site, value, lambda array: array, shape)


def plan_split(site: Site) -> Choice | None:
    """Returns a view for each part."""
    value = site.node.inputs[0]
    if value in site.halos:
        return None
    axis = int(site.node.attributes.get("axis", 0)) % len(site.shape(value))
    makes: list[Callable[[Array], Array]] = []
    begin = 0
    for position, name in enumerate(site.node.outputs):
        if not name:
            return None
        size = site.output_shape(position)[axis]
        cut = (slice(None),) * axis + (slice(begin, begin + size),)
        makes.append(lambda array, cut=cut: array[cut])  # type: ignore[misc]  # a default binds the loop's value
        begin += size
    return Views(value, tuple(makes)) if begin == site.shape(value)[axis] else None


def plan_slice(site: Site) -> Choice | None:
    """Returns a view. Source: ONNX Slice-13; before 10 the bounds were attributes, which are left to the toolkit."""
    node = site.node
    bounds = [site.constant(position) for position in range(1, len(node.inputs))]
    if (
        node.inputs[0] in site.halos
        or node.since_version < 10
        or any(bound is None and name for bound, name in zip(bounds, node.inputs[1:], strict=True))
    ):
        return None
    shape = site.shape(node.inputs[0])
    numbers = [None if bound is None else [int(number) for number in bound.reshape(-1)] for bound in bounds]
    starts, ends, axes, steps = (*numbers, None, None)[:4]
    if starts is None or ends is None:
        return None
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    cut = [slice(None)] * len(shape)
    for start, end, axis, stride in zip(starts, ends, axes, steps, strict=True):
        if stride < 1:
            return None
        cut[axis % len(shape)] = slice(start, end, stride)
    picked = tuple(cut)
    if site.prototypes[node.inputs[0]][picked].shape != site.output_shape():
        return None
    return Views(node.inputs[0], (lambda array: array[picked],))


def plan_concat(site: Site) -> Choice | None:
    """Returns a join of all inputs."""
    node = site.node
    if "axis" not in node.attributes or len({site.prototypes[value].dtype for value in node.inputs}) != 1:
        return None
    sizes = site.output_shape()
    axis = int(node.attributes["axis"]) % len(sizes)
    shapes = [site.shape(value) for value in node.inputs]
    if any(shape[:axis] + shape[axis + 1 :] != sizes[:axis] + sizes[axis + 1 :] for shape in shapes):
        return None
    if any(len(shape) != len(sizes) for shape in shapes) or sum(shape[axis] for shape in shapes) != sizes[axis]:
        return None
    is_last = all(site.is_channels_last(value) or all(size == 1 for size in site.shape(value)[2:]) for value in node.inputs)
    is_last = is_last and any(site.is_channels_last(value) for value in node.inputs)
    return Join(tuple(node.inputs), axis, is_last)


def plan_pad(site: Site) -> Recipe | None:
    """Returns the copy of an array into the middle of a constant; other modes are Gathers before. Source: ONNX Pad-19."""
    node, value = site.node, site.node.inputs[0]
    pads, filler, axes = (site.constant(position) for position in (1, 2, 3))
    if node.attributes.get("mode", "constant") != "constant" or node.since_version < 11 or pads is None or site.group.epilogue:
        return None
    if (filler is None and site.has_input(2)) or (axes is None and site.has_input(3)):
        return None
    x, shape = site.prototypes[value], site.output_shape()
    counts = np.zeros((2, x.ndim), np.int64)
    counts[:, range(x.ndim) if axes is None else axes] = pads.reshape(2, -1)
    # A negative count takes elements away.
    cut = tuple(slice(-min(begin, 0), size + min(end, 0)) for size, begin, end in zip(x.shape, *counts.tolist(), strict=True))
    inner = tuple(slice(max(begin, 0), size - max(end, 0)) for size, begin, end in zip(shape, *counts.tolist(), strict=True))
    y = lay_empty(shape, x.dtype)
    source = np.zeros(1, x.dtype) if filler is None else np.asarray(filler, x.dtype).reshape(1)
    if y[inner].shape != x[cut].shape or x.dtype.itemsize != FLOAT_BYTES:
        return None
    fill, copy = plan_copy(y, source, workers=site.workers), plan_copy(y[inner], x[cut], workers=site.workers)
    if fill is None or copy is None:
        return None

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        return [fill.bind(writes[0], source), copy.bind(writes[0][inner], reads[0][cut])]

    return Recipe((value,), bind, kernels=tuple(dict.fromkeys((fill.kernel, copy.kernel))))


def plan_gather(site: Site) -> Choice | None:
    """Returns the view of a row of a table, by a constant number. Source: ONNX Gather-13."""
    value, indices = site.node.inputs
    axis = int(site.node.attributes.get("axis", 0)) % max(len(site.shape(value)), 1)
    constant = site.constants.get(indices)
    size = site.shape(value)[axis]
    if value in site.halos or constant is None or constant.size != 1 or constant.ndim > 1 or not -size <= constant.item() < size:
        return None
    index = int(constant.item()) % size
    picked = index if constant.ndim == 0 else slice(index, index + 1)
    # Without the dots a single element would be a number, not a view.
    return Views(value, (lambda array: array[(*(slice(None),) * axis, picked, ...)],))


def _plan_copy(site: Site, value: str, turn: Callable[[Array], Array], shape: tuple[int, ...]) -> Recipe | None:
    """Returns the copy of a turned value into a result in C order, seen in the shape that it is copied in."""
    prototype = site.prototypes[value]
    copy = plan_copy(lay_empty(shape, prototype.dtype), turn(prototype), workers=site.workers)
    if copy is None:
        return None

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        return [copy.bind(writes[0].reshape(shape), turn(reads[0]))]

    return Recipe((value,), bind, kernels=(copy.kernel,))
