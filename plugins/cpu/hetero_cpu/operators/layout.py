"""Steps that move or rename elements: views if possible, Concat in place, else copies by machine code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np

from hetero_cpu.machine.calls import Array, NativeCall, address_of, list_strides
from hetero_cpu.machine.code import FLOAT_BYTES, Code, begin_kernel
from hetero_cpu.machine.compiler import Kernel, find_width
from hetero_cpu.machine.terms import Floats, Mask, Number
from hetero_cpu.operators.elementwise import Expression, make_elementwise
from hetero_cpu.operators.recipe import Choice, Join, Recipe, Site, Views, is_channels_last, order_axes
from hetero_cpu.operators.rows import (
    call_rows,
    choose_rows_of_chunk,
    cut_lines,
    cut_rows,
    find_kind,
    find_kinds,
    make_unit_kernel,
    merge_axes,
    plan_call,
)
from hetero_cpu.symbols.arrays import broadcast, broadcast_shapes, lay_empty
from hetero_cpu.symbols.sizes import value_of

_PARAMETERS = (
    "rows", "columns", "blocks", "middle", "inner", "units", "units_of_chunk",
    "y", "y_outer", "y_middle", "y_inner", "y_row", "x", "x_outer", "x_middle", "x_inner", "x_column",
)  # fmt: skip
"""Of each matrix: y has contiguous `rows` at a stride of `y_row`; x has them as columns, `x_column` apart, so that its
columns of y are contiguous there. Matrices stand along three axes. A unit is a block of rows of a matrix."""


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


_Matrices = tuple[list[int], list[tuple[int, ...]], int, int, int, int]


def _find_matrices(y: Array, x: Array) -> _Matrices | None:
    """Returns matrices that are turned: sizes and strides of y and x along at most three axes; rows of y, their stride in y, columns of
    y, their stride in x."""
    sizes, strides = merge_axes([y, x])
    if not sizes or strides[-1][0] != FLOAT_BYTES:
        return None
    row_axis = next((axis for axis in range(len(sizes) - 1) if strides[axis][1] == FLOAT_BYTES), None)
    if row_axis is None or len(sizes) > 5:
        return None
    columns, (_, x_column) = sizes.pop(), strides.pop()
    rows, (y_row, _) = sizes.pop(row_axis), strides.pop(row_axis)
    return sizes, strides, rows, y_row, columns, x_column


def _call_turn(y: Array, x: Array, workers: int) -> NativeCall:
    matrices = _find_matrices(y, x)
    assert matrices is not None
    sizes, strides, rows, y_row, columns, x_column = matrices
    missing = 3 - len(sizes)
    _, middle, inner = (1,) * missing + tuple(sizes)
    # A block has as many rows as a vector has elements.
    blocks = -(-rows // find_width())
    units = blocks * prod(sizes)
    units_of_chunk = choose_rows_of_chunk(units, y.size // units, workers)
    numbers = [rows, columns, blocks, middle, inner, units, units_of_chunk]
    for k, array, step in ((0, y, y_row), (1, x, x_column)):
        numbers += [address_of(array), *(0,) * missing, *(pair[k] for pair in strides), step]
    return NativeCall(TURN, tuple(numbers), -(-units // units_of_chunk), (y, x))


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
                """Copies a block of at most `width` rows and columns; nothing beside it is touched."""
                source, target = from_x + column * p["x_column"], to_y + column * FLOAT_BYTES  # called inside the loop

                def mask(position: int, count: Number, others: Number) -> Mask | None:
                    return None if is_full else code.mask_first((count > position).choose(others, code.number(0)))

                vectors = [code.load(source + p["x_column"] * k, mask=mask(k, columns, rows)) for k in range(width)]  # as above
                for k, vector in enumerate(turn_vectors(vectors)):
                    code.store(target + p["y_row"] * k, vector, mask=mask(k, rows, columns))  # as above

            with code.either(rows.equals(width)) as (whole, part):
                with whole:
                    with code.loop(0, full_columns, width) as column:
                        turn(column, code.number(width), is_full=True)
                    with code.when(full_columns < p["columns"]):
                        turn(full_columns, p["columns"] - full_columns, is_full=False)
                with part, code.loop(0, p["columns"], width) as column:
                    turn(column, (p["columns"] - column).at_most(width), is_full=False)
    return code.finish()


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
    perm = site.node.attributes.get("perm") or tuple(reversed(range(len(site.shape(value)))))
    if sorted(perm) != list(range(len(site.shape(value)))):
        return None  # the kernel of the toolkit says what is wrong
    turned = site.prototypes[value].transpose(perm)
    is_for_products = bool(site.readers) and _PRODUCTS.issuperset(site.readers) and value not in site.halos
    last = turned.transpose(order_axes(turned.ndim, is_channels_last=True))
    is_in_order = turned.flags.c_contiguous or (is_channels_last(turned) and last.flags.c_contiguous)
    is_shuffle = tuple(perm) == _PERM and site.readers == ("Reshape",) and _is_turned(turned)
    if value in site.constants or is_for_products or is_in_order or is_shuffle:
        return Views(value, (lambda array: array.transpose(perm),))
    return _plan_copy(site, value, lambda array: array.transpose(perm), turned.shape)


def plan_reshape(site: Site) -> Choice | None:
    """Returns a view of the same elements in another shape, or a copy into C order of elements that do not lie so."""
    value, shape = site.node.inputs[0], site.output_shape()
    prototype = site.prototypes[value]
    if prototype.size != prod(shape):
        return None
    if np.may_share_memory(prototype.reshape(shape), prototype):
        return None if value in site.halos else Views(value, (lambda array: array.reshape(shape),))
    return _plan_copy(site, value, lambda array: array, prototype.shape)


def plan_expand(site: Site) -> Recipe | None:
    """Returns the copy of an array into every place that it is broadcast to."""
    value, shape = site.node.inputs[0], site.output_shape()
    # NumPy 2 broadcasts shapes of up to 32 dimensions.
    if len(shape) > 32 or broadcast_shapes(site.shape(value), shape) != shape:
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
    bounds = [site.constant(position) for position in range(1, 5)]
    if node.inputs[0] in site.halos or node.since_version < 10:
        return None
    if any(bound is None and site.has_input(position) for position, bound in enumerate(bounds, 1)):
        return None
    shape = site.shape(node.inputs[0])
    starts, ends, axes, steps = (None if bound is None else bound.reshape(-1).tolist() for bound in bounds)
    if starts is None or ends is None:
        return None
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    if min(steps, default=1) < 1:
        return None
    cut = [slice(None)] * len(shape)
    for start, end, axis, stride in zip(starts, ends, axes, steps, strict=True):
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
    sizes, shapes = site.output_shape(), list(map(site.shape, node.inputs))
    axis = int(node.attributes["axis"]) % len(sizes)
    if any((*shape[:axis], sizes[axis], *shape[axis + 1 :]) != sizes for shape in shapes):
        return None
    if sum(shape[axis] for shape in shapes) != sizes[axis]:
        return None
    are_last = [site.is_channels_last(value) for value in node.inputs]
    is_last = all(is_one or all(size == 1 for size in shape[2:]) for is_one, shape in zip(are_last, shapes, strict=True))
    return Join(tuple(node.inputs), axis, is_last and any(are_last))


def plan_pad(site: Site) -> Recipe | None:
    """Returns the copy of an array into the middle of a constant; other modes are Gathers before. Source: ONNX Pad-19."""
    node, value = site.node, site.node.inputs[0]
    pads, filler, axes = (site.constant(position) for position in (1, 2, 3))
    if node.attributes.get("mode", "constant") != "constant" or node.since_version < 11 or pads is None:
        return None
    if any(array is None and site.has_input(position) for position, array in ((2, filler), (3, axes))):
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


# Channel shuffles of channels-last images: Reshape to groups, Transpose of groups and their channels, Reshape back. Written so by
# exporters, it would bring the image into C order twice; here the Transpose is a view, and the second Reshape permutes channels.
_MOST_GROUPS = 8
_PERM = (0, 2, 1, 3, 4)


def plan_shuffle(site: Site) -> Recipe | None:
    """Returns the recipe of the second Reshape of a shuffle, which gives the groups' channels in turn."""
    value = site.node.inputs[0]
    x = site.prototypes[value]
    if not site.is_float32(value) or value in site.constants or not _is_turned(x):
        return None
    batch, own, groups, height, width = x.shape
    if site.types[site.node.outputs[0]].shape != (batch, own * groups, height, width):
        return None
    emit = partial(_emit_shuffle, groups=int(groups))
    kernel = make_unit_kernel(f"interleave_{groups}", _SHUFFLE_PARAMETERS, emit, unit="line")
    # A load, a permutation or two, and a store for each vector.
    lines = batch * height
    lines_of_chunk = cut_lines(lines, value_of(x.size) / find_width() * 4, site.workers)

    def list_numbers(x: Array, y: Array) -> tuple[int, ...]:
        image, _, group, *steps = x.strides
        places = (address_of(x), image, *steps, group, *list_strides("y", y).values())
        return (*places, height, width, lines, lines_of_chunk, own)

    return plan_call(kernel, (value,), -(-lines // lines_of_chunk), list_numbers, is_channels_last=True)


def _is_turned(array: Array) -> bool:
    """Says whether an array of (batch, channels, groups, height, width) has the channels of each group side by side in a pixel."""
    if array.ndim != 5 or array.itemsize != 4 or not 2 <= array.shape[2] <= _MOST_GROUPS or array.shape[1] < 2:
        return False
    _, channel, group, row, pixel = array.strides
    return channel == 4 and group >= 4 * array.shape[1] and min(row, pixel) >= 4 * array.shape[1] * array.shape[2]


_SHUFFLE_PARAMETERS = (
    "x", "x_image", "x_row", "x_pixel", "x_group", "y", "y_image", "y_row", "y_pixel", "rows", "pixels", "lines", "lines_of_chunk", "own",
)  # fmt: skip
"""Numbers of a row, in order: addresses and strides in bytes; `rows` of an image, `pixels` of a row, `lines`: rows of all images; `own`:
the channels of a group."""


def _emit_shuffle(code: Code, p: dict[str, Number], line: Number, *, groups: int) -> None:
    """Emits y[pixel, k * groups + g] = x[pixel, g, k]."""
    image, place = line // p["rows"], line % p["rows"]
    x_line, y_line = (p[key] + image * p[f"{key}_image"] + place * p[f"{key}_row"] for key in ("x", "y"))
    with code.loop(0, p["pixels"]) as pixel:
        x, y = x_line + pixel * p["x_pixel"], y_line + pixel * p["y_pixel"]

        def move(channel: Number, mask: Mask | None) -> None:
            read = [code.load(x + channel * FLOAT_BYTES + p["x_group"] * group, mask=mask) for group in range(groups)]
            for v, vector in enumerate(interleave(read)):
                place = y + channel * (groups * FLOAT_BYTES)  # called inside the loop
                guard = None if mask is None else code.mask_first((p["own"] - channel) * groups - v * code.width)
                code.store(place, vector, v * code.width * FLOAT_BYTES, mask=guard)

        code.visit_vectors(p["own"], move)


def interleave(vectors: list[Floats]) -> list[Floats]:
    """Returns the elements of all vectors in turn, as many vectors as there are."""
    count, width = len(vectors), vectors[0].width
    if count == 1:
        return vectors
    if count % 2 == 0:
        # Elements of even and of odd vectors take turns.
        order = [e // 2 + width * (e % 2) for e in range(2 * width)]
        pairs = zip(interleave(vectors[::2]), interleave(vectors[1::2]), strict=True)
        return [even.shuffle(odd, half) for even, odd in pairs for half in (order[:width], order[width:])]
    interleaved = []
    for v in range(count):
        lanes = [divmod(v * width + e, count) for e in range(width)]
        mixed = vectors[0].shuffle(vectors[0], [k for k, _ in lanes])
        for index in range(1, count):
            mixed = mixed.shuffle(vectors[index], [width + k if g == index else e for e, (k, g) in enumerate(lanes)])
        interleaved.append(mixed)
    return interleaved
