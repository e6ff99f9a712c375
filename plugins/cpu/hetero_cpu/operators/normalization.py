"""Softmax and normalizations by machine code: rows along the fastest axis, of sequences in C order or of images channels last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import inf, prod
from operator import add

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from hetero_cpu.machine.arithmetic import emit_exponential, emit_exponential_of_negative, emit_logarithm
from hetero_cpu.machine.calls import Array, NativeCall, address_of, bits_of, list_strides
from hetero_cpu.machine.code import FLOAT_BYTES, Code
from hetero_cpu.machine.compiler import Kernel, find_width
from hetero_cpu.machine.terms import Floats, Mask, Number
from hetero_cpu.operators.images import join_rows
from hetero_cpu.operators.pooling import BLOCK, REDUCTIONS, reduce_pixels, reduce_row, visit_block, visit_row
from hetero_cpu.operators.recipe import Recipe, Site, order_axes
from hetero_cpu.operators.rows import RowWalk, call_rows, choose_rows_of_chunk, list_rows, make_unit_kernel, plan_call
from hetero_cpu.symbols.arrays import lay_empty
from hetero_cpu.symbols.sizes import is_open

_Emit = Callable[[Code, Number, Sequence[Number], Sequence[Floats]], None]
"""Emits a row of a length: the addresses of arrays, the result first, then x; and the kernel's own numbers."""


def _make_row_kernel(title: str, emit: _Emit, *, arrays: int = 2, numbers: int = 0) -> Kernel:
    """Returns the kernel that walks over rows; its own numbers are the bits of floats."""

    def emit_rows(name: str, width: int) -> Code:
        code = Code(name, 3, width)
        walk = RowWalk(code, arrays, numbers)
        own = [code.spread(code.float_of(number)) for number in walk.own]
        with walk.visit(range(arrays)) as (addresses, length):
            emit(code, length, [addresses[index] for index in range(arrays)], own)
        return code.finish()

    return Kernel(title, emit_rows)


def _emit_softmax(code: Code, length: Number, addresses: Sequence[Number], own: Sequence[Floats], *, is_logarithm: bool) -> None:
    """Emits e**(x - max) / sum, or its logarithm."""
    y, x = addresses
    # A NaN is ignored here; the sum becomes NaN.
    edge = code.spread(reduce_row(code, length, lambda at, mask: code.load(x + at, mask=mask), lambda a, b: b.at_least(a), -inf))

    def raise_and_keep(at: Number, mask: Mask | None) -> Floats:
        elements = emit_exponential_of_negative(code, code.load(x + at, mask=mask) - edge)
        if not is_logarithm:
            code.store(y + at, elements, mask=mask)
        return elements

    total = reduce_row(code, length, raise_and_keep, add, 0.0)
    last = code.spread(emit_logarithm(code, total) if is_logarithm else 1.0 / total)

    def write(at: Number, _: int, mask: Mask | None) -> None:
        if is_logarithm:
            code.store(y + at, code.load(x + at, mask=mask) - edge - last, mask=mask)
        else:
            code.store(y + at, code.load(y + at, mask=mask) * last, mask=mask)

    visit_row(code, length, write)


def _make_moments(*, has_mean: bool, kind: str, has_shift: bool) -> Kernel:
    """Returns the kernel of (x - mean) / sqrt(variance + epsilon) * scale + shift over rows; arrays: result, x, scale, shift.

    `kind`: how scale and shift lie, "v" or "r".
    """
    title = f"normalize_{'has_mean_' * has_mean}{kind}{'_has_shift' * has_shift}"
    return _make_row_kernel(title, partial(_emit_moments, has_mean=has_mean, kind=kind), arrays=3 + has_shift, numbers=1)


def _emit_moments(
    code: Code, length: Number, addresses: Sequence[Number], own: Sequence[Floats], *, has_mean: bool, kind: str
) -> None:
    (y, x, *operands), count = addresses, length.to_floats()
    mean = code.constant(0.0)
    if has_mean:
        mean = code.spread(reduce_row(code, length, lambda at, mask: code.load(x + at, mask=mask), add, 0.0) / count)

    def square(at: Number, mask: Mask | None) -> Floats:
        centered = code.load(x + at, mask=mask) - mean
        return centered * centered

    variance = code.spread(reduce_row(code, length, square, add, 0.0) / count)
    factor = 1.0 / code.call_intrinsic("sqrt", variance + own[0])
    numbers = [code.spread(code.load_scalar(operand)) for operand in operands if kind == "r"]

    def write(at: Number, _: int, mask: Mask | None) -> None:
        scale, *shift = numbers or [code.load(operand + at, mask=mask) for operand in operands]
        normalized = (code.load(x + at, mask=mask) - mean) * factor
        result = code.multiply_add(normalized, scale, shift[0]) if shift else normalized * scale
        code.store(y + at, result, mask=mask)

    visit_row(code, length, write)


def _emit_neighbour_norm(
    code: Code, length: Number, addresses: Sequence[Number], own: Sequence[Floats], *, before: int, after: int, beta: float
) -> None:
    """Emits x / (bias + factor * sum of squares of c - before to c + after) ** beta over channels. Source: ONNX LRN-13."""
    (y, x), (bias, factor) = addresses, own
    with code.loop(0, length, code.width) as first:
        # Two sums, as a single sum would wait for itself.
        sums, place = [code.constant(0.0), code.constant(0.0)], first * FLOAT_BYTES
        for distance in range(-before, after + 1):
            mask = code.mask_between(0 - first - distance, length - first - distance)
            elements = code.load(x + place, distance * FLOAT_BYTES, mask=mask)
            sums[distance % 2] = code.multiply_add(elements, elements, sums[distance % 2])
        inner, mask = code.multiply_add(sums[0] + sums[1], factor, bias), code.mask_first(length - first)
        code.store(y + place, code.load(x + place, mask=mask) * _emit_power(code, inner, beta), mask=mask)


def _emit_power(code: Code, x: Floats, beta: float) -> Floats:
    """Returns x ** -beta for positive x."""
    if beta == 1.0:
        return 1.0 / x
    if beta in (0.5, 0.75):
        root = code.call_intrinsic("sqrt", x)
        return 1.0 / (root if beta == 0.5 else root * code.call_intrinsic("sqrt", root))
    return emit_exponential(code, emit_logarithm(code, x) * -beta)


def plan_native_softmax(site: Site) -> Recipe | None:
    """Returns the recipe along one axis; before version 13 along all axes from `axis` on. Source: ONNX Softmax-13, Softmax-11."""
    node, value = site.node, site.node.inputs[0]
    shape, is_old = site.shape(value), node.since_version < 13
    if not site.is_float32(value):
        return None
    axis = normalize_axis_index(int(node.attributes.get("axis", 1 if is_old else -1)), len(shape))
    is_logarithm = node.op_type == "LogSoftmax"
    kernel = _make_row_kernel(f"{'log_' * is_logarithm}softmax", partial(_emit_softmax, is_logarithm=is_logarithm))
    if is_old or prod(shape[axis + 1 :]) == 1:
        # Axes that are contiguous from `axis` on are a single row.
        sizes = (prod(shape[:axis]), prod(shape[axis:]))
        if site.prototypes[value].flags.c_contiguous:
            return _plan_rows(site, kernel, (), turn=lambda array: array.reshape(sizes), axis=1, overwrites=True)
    return None if is_old else _plan_rows(site, kernel, (), axis=axis, overwrites=True)


def plan_native_layer_norm(site: Site) -> Recipe | None:
    """Returns the recipe of a normalization over the last axes. Source: ONNX LayerNormalization-17, RMSNormalization-23."""
    node, shape = site.node, site.shape(site.node.inputs[0])
    names = [name for name in node.inputs if name]
    axis = int(node.attributes.get("axis", -1)) % max(len(shape), 1)
    if not site.is_float32(*names) or len(node.writes) != 1 or not node.outputs[0] or node.attributes.get("stash_type", 1) != 1:
        return None
    if not site.has_input(1) or not all(site.prototypes[name].flags.c_contiguous for name in names):
        return None
    sizes = (prod(shape[:axis]), prod(shape[axis:]))
    if any(site.shape(name) != shape[axis:] for name in names[1:]):
        return None
    kernel = _make_moments(has_mean=node.op_type == "LayerNormalization", kind="v", has_shift=site.has_input(2))
    epsilon = bits_of(node.attributes.get("epsilon", 1e-5))

    def turn(array: Array) -> Array:
        return array.reshape(sizes) if array.size == prod(shape) and array.shape == shape else array.reshape(1, -1)

    return _plan_rows(site, kernel, (epsilon,), turn=turn, axis=1, overwrites=True)


def plan_native_instance_norm(site: Site) -> Recipe | None:
    """Returns the recipe of a normalization of each channel of each image. Source: ONNX InstanceNormalization-6."""
    node, value = site.node, site.node.inputs[0]
    shape = site.shape(value)
    if node.since_version < 6 or not site.is_float32(*node.inputs) or len(shape) < 3:
        return None
    if not all(site.prototypes[name].flags.c_contiguous for name in node.inputs[1:]):
        return None
    if site.is_channels_last(value):
        return _plan_pixel_norm(site)
    if not site.prototypes[value].flags.c_contiguous:
        return None
    batch, channels = shape[:2]
    kernel = _make_moments(has_mean=True, kind="r", has_shift=True)

    def turn(array: Array) -> Array:
        return array.reshape(batch, channels, -1) if array.ndim == len(shape) else array.reshape(1, channels, 1)

    epsilon = bits_of(node.attributes.get("epsilon", 1e-5))
    return _plan_rows(site, kernel, (epsilon,), turn=turn, axis=2, overwrites=True)


_PIXEL_PARAMETERS = (
    "x", "x_image", "x_row", "x_pixel", "y", "y_image", "y_row", "y_pixel", "scale", "bias", "epsilon", "height", "width",
    "blocks", "units", "units_of_chunk", "vectors", "last",
)  # fmt: skip
"""Addresses and strides in bytes; `epsilon`: its bits. A unit is a block of channels of an image; `vectors`: full vectors of a pixel;
`last`: elements after them."""


def _plan_pixel_norm(site: Site) -> Recipe | None:
    """Returns the recipe of a normalization of each channel of images or volumes channels last."""
    value, width = site.node.inputs[0], find_width()
    prototype = site.prototypes[value]
    if not np.may_share_memory(join_rows(prototype), prototype):
        return None
    batch, channels = prototype.shape[:2]
    # A worker has a block of whole lines of the cache, unless there are fewer blocks than workers.
    is_many = is_open(batch) or batch * channels >= BLOCK * width * site.workers
    block = BLOCK if site.workers == 1 or is_many else 1
    kernel = make_unit_kernel(f"pixel_norm_{block}", _PIXEL_PARAMETERS, partial(_emit_pixel_norm, block=block), unit="unit")
    epsilon = bits_of(site.node.attributes.get("epsilon", 1e-5))

    blocks = -(-channels // (block * width))
    units, (height, length) = batch * blocks, join_rows(prototype).shape[2:]
    units_of_chunk = choose_rows_of_chunk(units, 4 * block * width * height * length, site.workers)

    def list_numbers(x: Array, scale: Array, bias: Array, y: Array) -> tuple[int, ...]:
        images = (*list_strides("x", join_rows(x)).values(), *list_strides("y", join_rows(y)).values())
        places = (*images, address_of(scale), address_of(bias), epsilon, height, length)
        return (*places, blocks, units, units_of_chunk, channels // width, channels % width)

    chunks = -(-units // units_of_chunk)
    return plan_call(kernel, tuple(site.node.inputs), chunks, list_numbers, is_channels_last=True)


def _emit_pixel_norm(code: Code, p: dict[str, Number], unit: Number, *, block: int) -> None:
    """Emits (x - mean) * scale / sqrt(variance + epsilon) + bias; the variance is the mean of squares of x - mean."""
    vector_bytes = code.width * FLOAT_BYTES
    epsilon = code.spread(code.float_of(p["epsilon"]))
    image, begin = unit // p["blocks"], unit % p["blocks"] * block
    count = code.spread((p["height"] * p["width"]).to_floats())

    def normalize(vector: Number, vectors: int, mask: Mask | None = None) -> None:
        channel = vector * vector_bytes
        x, y = (p[key] + image * p[f"{key}_image"] + channel for key in ("x", "y"))
        means = [total / count for total in reduce_pixels(code, p, x, vectors, mask, 0.0, add)]

        def square(value: Floats, v: int) -> Floats:
            return (value - means[v]) * (value - means[v])

        squares = reduce_pixels(code, p, x, vectors, mask, 0.0, add, square)
        places = [v * vector_bytes for v in range(vectors)]
        factors = [
            code.load(p["scale"] + channel, place, mask=mask) / code.call_intrinsic("sqrt", total / count + epsilon)
            for place, total in zip(places, squares, strict=True)
        ]
        shifts = [code.load(p["bias"] + channel, place, mask=mask) for place in places]
        with code.loop(0, p["height"]) as row, code.loop(0, p["width"]) as pixel:
            source, target = (start + row * p[f"{key}_row"] + pixel * p[f"{key}_pixel"] for key, start in (("x", x), ("y", y)))
            for place, mean, factor, shift in zip(places, means, factors, shifts, strict=True):
                centered = code.load(source, place, mask=mask) - mean
                code.store(target, code.multiply_add(centered, factor, shift), place, mask=mask)

    visit_block(code, p, begin, block, normalize)


_NORMS = {"MAX": "ReduceMax", "L1": "ReduceL1", "L2": "ReduceL2"}


def plan_normalizer(site: Site) -> Recipe | None:
    """Returns the recipe of the quotients of rows by their norm. Sources: ONNX-ML Normalizer-1, LpNormalization-22."""
    value, attributes = site.node.inputs[0], site.node.attributes
    rank, norm = len(site.shape(value)), attributes.get("norm", "MAX")
    if site.node.op_type == "LpNormalization":
        norm = f"L{attributes.get('p', 2)}" if attributes.get("axis", -1) in (-1, rank - 1) else ""
    if norm not in _NORMS or rank == 0 or not site.is_float32(value):
        return None
    kernel = _make_row_kernel(f"normalize_rows_{norm.lower()}", partial(_emit_normalizer, norm=norm))
    return _plan_rows(site, kernel, (), axis=rank - 1, overwrites=True)


def _emit_normalizer(code: Code, length: Number, addresses: Sequence[Number], own: Sequence[Floats], *, norm: str) -> None:
    (y, x), reduction = addresses, REDUCTIONS[_NORMS[norm]]

    def read(at: Number, mask: Mask | None) -> Floats:
        return reduction.begin(code, code.load(x + at, mask=mask))

    size = reduction.finish(code, reduce_row(code, length, read, reduction.combine, reduction.neutral))
    # A row of norm zero stays.
    divisor = code.spread(size.equals(0.0).choose(code.constant(1.0, 1), size))
    visit_row(code, length, lambda at, _, mask: code.store(y + at, code.load(x + at, mask=mask) / divisor, mask=mask))


def plan_native_neighbour_norm(site: Site) -> Recipe | None:
    """Returns the recipe of x / (bias + alpha / size * sum of squares of neighbouring channels) ** beta. Source: ONNX LRN-13."""
    value, numbers = site.node.inputs[0], {"alpha": 1e-4, "beta": 0.75, "bias": 1.0, **site.node.attributes}
    if not site.is_float32(value) or len(site.shape(value)) != 4:
        return None
    size, alpha, beta, bias = int(numbers["size"]), *(float(numbers[name]) for name in ("alpha", "beta", "bias"))
    if size < 1 or size > 16 or alpha < 0 or bias <= 0:
        return None
    before, after = (size - 1) // 2, size // 2
    title = f"neighbour_norm_{before}_{after}_{beta.hex().replace('-', 'n').replace('+', '').replace('.', 'p')}"
    kernel = _make_row_kernel(title, partial(_emit_neighbour_norm, before=before, after=after, beta=beta), numbers=2)
    return _plan_rows(site, kernel, (bits_of(bias), bits_of(alpha / size)), axis=1, overwrites=False)


def _plan_rows(
    site: Site,
    kernel: Kernel,
    own: tuple[int, ...],
    *,
    turn: Callable[[Array], Array] = lambda array: array,
    axis: int,
    overwrites: bool,
) -> Recipe | None:
    """Returns the recipe of a kernel over rows along an axis of the turned inputs; None if they are not laid out so."""
    values = tuple(name for name in site.node.inputs if name)
    arrays = [turn(site.prototypes[value]) for value in values]
    x = arrays[0]
    is_last = site.is_channels_last(values[0])
    y = lay_empty(x.shape, np.float32, order_axes(x.ndim, is_channels_last=is_last))
    if y.strides[axis] != y.itemsize or (x.shape[axis] > 1 and x.strides[axis] != x.itemsize) or list_rows(y, arrays, axis) is None:
        return None

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        turned = [turn(array) for array in (writes[0], *reads)]
        return [call_rows(kernel, list_rows(turned[0], turned[1:], axis), turned, own, workers=site.workers)]

    return Recipe(values, bind, is_channels_last=is_last, overwrites=(0,) if overwrites else (), kernels=(kernel,))
