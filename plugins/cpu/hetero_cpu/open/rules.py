"""The shape of a result by ONNX's text: one rule for each operator, for sizes that are symbols or plain."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from math import prod
from typing import Any, Protocol

from hetero_core.kernels.windows import lay_windows
from hetero_core.network.graph import Node
from hetero_cpu.open.sizes import is_open

Shape = tuple[Any, ...]

_LIKE_FIRST = frozenset({
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BatchNormalization", "BitwiseNot", "Cast", "CastLike", "Ceil",
    "Celu", "Clip", "Cos", "Cosh", "CumSum", "DequantizeLinear", "Dropout", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid",
    "HardSwish", "Hardmax", "Identity", "InstanceNormalization", "IsInf", "IsNaN", "LRN", "LayerNormalization", "LeakyRelu", "Log",
    "LogSoftmax", "LpNormalization", "MeanVarianceNormalization", "Mish", "Neg", "Not", "QuantizeLinear", "RMSNormalization",
    "Reciprocal", "Relu", "Round", "ScatterElements", "ScatterND", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Softmax",
    "Softplus", "Softsign", "Sqrt", "Swish", "Tan", "Tanh", "ThresholdedRelu", "Trilu", "SimplifiedLayerNormalization",
    "GroupNormalization",
})  # fmt: skip
_BROADCASTS = frozenset({
    "Add", "And", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual",
    "Max", "Mean", "Min", "Mod", "Mul", "Or", "Pow", "PRelu", "Sub", "Sum", "Where", "Xor",
})  # fmt: skip
_REDUCTIONS = frozenset({
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum",
    "ReduceSumSquare",
})  # fmt: skip


class UnknownError(Exception):
    """A rule cannot tell the shape of a result."""


class Values(Protocol):
    """The questions of rules about values that are known already."""

    def read(self, value: str) -> Any:
        """Returns the elements of a small integer value; None for another one."""

    def read_scales(self, value: str) -> Sequence[float]:
        """Returns the elements of a constant of floats. Raises: UnknownError."""

    def find_shape(self, value: str) -> Shape:
        """Returns the shape of a value. Raises: UnknownError."""


Rule = Callable[[Node, Values], Sequence[Shape]]


def infer_shapes(node: Node, values: Values) -> Sequence[Shape]:
    """Returns the shapes of the results of a node. Raises: UnknownError; ValueError and the like for what contradicts itself."""
    if node.op_type in _LIKE_FIRST:
        if len(node.writes) > 1 and any(node.outputs[1:]):
            raise UnknownError(node.op_type)
        return [values.find_shape(node.inputs[0])]
    if node.op_type in _BROADCASTS:
        return [broadcast_sizes(*(values.find_shape(value) for value in node.inputs))]
    if node.op_type in _REDUCTIONS:
        return [_reduce(node, values)]
    rule = _RULES.get(node.op_type)
    if rule is None:
        from hetero_cpu.open.further_rules import FURTHER_RULES  # most networks have none of them

        rule = FURTHER_RULES.get(node.op_type)
    if rule is None:
        raise UnknownError(node.op_type)
    return rule(node, values)


def broadcast_sizes(*shapes: Shape) -> Shape:
    """Returns the shape to which shapes broadcast. Raises: ValueError."""
    result: list[Any] = []
    for sizes in zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1):
        size: Any = 1
        for other in sizes:
            if other is size or other == 1:
                continue
            if size == 1:
                size = other
            elif other != size:
                raise ValueError("shapes that do not broadcast")
        result.append(size)
    return tuple(reversed(result))


def _read_numbers(node: Node, values: Values, position: int, name: str = "") -> list[Any] | None:
    """Returns integers that are an input or an attribute; None where they are absent."""
    if name and name in node.attributes:
        return list(node.attributes[name])
    if position >= len(node.inputs) or not node.inputs[position]:
        return None
    elements = values.read(node.inputs[position])
    if elements is None:
        raise UnknownError(node.op_type)
    return list(elements.reshape(-1).tolist())


def read_axis(node: Node, rank: int) -> int:
    """Returns the axis that a node names, from 0 on."""
    axis = int(node.attributes.get("axis", 0))
    if not -rank <= axis < max(rank, 1):
        raise UnknownError(node.op_type)
    return axis % max(rank, 1)


def _reduce(node: Node, values: Values) -> Shape:
    shape = values.find_shape(node.inputs[0])
    axes = _read_numbers(node, values, 1, "axes")
    if not axes:
        if node.attributes.get("noop_with_empty_axes", 0):
            return shape
        axes = list(range(len(shape)))
    chosen = {int(axis) % len(shape) for axis in axes}
    keeps = bool(node.attributes.get("keepdims", 1))
    return tuple(1 if axis in chosen else size for axis, size in enumerate(shape) if keeps or axis not in chosen)


def _arg(node: Node, values: Values) -> Sequence[Shape]:
    shape = values.find_shape(node.inputs[0])
    axis, keeps = read_axis(node, len(shape)), bool(node.attributes.get("keepdims", 1))
    return [(*shape[:axis], *((1,) if keeps else ()), *shape[axis + 1 :])]


def _mat_mul(node: Node, values: Values) -> Sequence[Shape]:
    return [multiply_shapes(*(values.find_shape(value) for value in node.inputs[:2]))]


def multiply_shapes(a: Shape, b: Shape) -> Shape:
    """Returns the shape of the product of two matrices or stacks of them. Raises: UnknownError for a vector."""
    if len(a) < 2 or len(b) < 2:
        raise UnknownError("MatMul")
    return (*broadcast_sizes(a[:-2], b[:-2]), a[-2], b[-1])


def _gemm(node: Node, values: Values) -> Sequence[Shape]:
    a, b = (values.find_shape(value) for value in node.inputs[:2])
    return [(a[1 if node.attributes.get("transA", 0) else 0], b[0 if node.attributes.get("transB", 0) else 1])]


def _transpose(node: Node, values: Values) -> Sequence[Shape]:
    shape = values.find_shape(node.inputs[0])
    order = node.attributes.get("perm") or tuple(reversed(range(len(shape))))
    if sorted(order) != list(range(len(shape))):
        raise UnknownError(node.op_type)
    return [tuple(shape[axis] for axis in order)]


def _reshape(node: Node, values: Values) -> Sequence[Shape]:
    shape, target = values.find_shape(node.inputs[0]), _read_numbers(node, values, 1, "shape")
    if target is None:
        raise UnknownError(node.op_type)
    allows_zero = bool(node.attributes.get("allowzero", 0))
    sizes: list[Any] = [shape[axis] if size == 0 and not allows_zero else size for axis, size in enumerate(target)]
    holes = [axis for axis, size in enumerate(sizes) if size == -1]
    if len(holes) == 1:
        others = prod(size for axis, size in enumerate(sizes) if axis != holes[0])
        whole = prod(shape)
        sizes[holes[0]] = whole // others if not is_open(others) or others > 0 else 0
    if len(holes) > 1 or (allows_zero and holes and 0 in target) or not prod(sizes) == prod(shape):
        raise UnknownError(node.op_type)
    return [tuple(sizes)]


def _flatten(node: Node, values: Values) -> Sequence[Shape]:
    shape = values.find_shape(node.inputs[0])
    axis = int(node.attributes.get("axis", 1))
    axis += len(shape) if axis < 0 else 0
    return [(prod(shape[:axis]), prod(shape[axis:]))]


def _squeeze(node: Node, values: Values) -> Sequence[Shape]:
    shape, axes = values.find_shape(node.inputs[0]), _read_numbers(node, values, 1, "axes")
    gone = {axis for axis, size in enumerate(shape) if size == 1} if axes is None else {int(axis) % len(shape) for axis in axes}
    return [tuple(size for axis, size in enumerate(shape) if axis not in gone)]


def _unsqueeze(node: Node, values: Values) -> Sequence[Shape]:
    shape, axes = values.find_shape(node.inputs[0]), _read_numbers(node, values, 1, "axes") or []
    rank = len(shape) + len(axes)
    new, sizes = {int(axis) % rank for axis in axes}, iter(shape)
    return [tuple(1 if axis in new else next(sizes) for axis in range(rank))]


def _concat(node: Node, values: Values) -> Sequence[Shape]:
    shapes = [values.find_shape(value) for value in node.inputs]
    axis = read_axis(node, len(shapes[0]))
    return [(*shapes[0][:axis], sum(shape[axis] for shape in shapes), *shapes[0][axis + 1 :])]


def _slice(node: Node, values: Values) -> Sequence[Shape]:
    sizes = list(values.find_shape(node.inputs[0]))
    for axis, start, end, step in read_slices(node, values, len(sizes)):
        begin, stop = clip_slice(start, end, sizes[axis], step)
        sizes[axis] = -((begin - stop) // step) if step > 0 else -((stop - begin) // -step)
        if sizes[axis] < 0:
            sizes[axis] = 0
    return [tuple(sizes)]


def read_slices(node: Node, values: Values, rank: int) -> list[tuple[int, Any, Any, int]]:
    """Returns the axis, begin, end and step of each slice."""
    if node.since_version < 10:
        raise UnknownError(node.op_type)
    starts, ends, axes, steps = (_read_numbers(node, values, position) for position in range(1, 5))
    if starts is None or ends is None:
        raise UnknownError(node.op_type)
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    return [(int(axis) % rank, start, end, int(step)) for axis, start, end, step in zip(axes, starts, ends, steps, strict=True)]


def clip_slice(start: Any, end: Any, size: Any, step: int) -> tuple[Any, Any]:
    """Returns where a slice begins and ends, as Python reads it."""
    low, high = (0, size) if step > 0 else (-1, size - 1)
    places = []
    for place in (start, end):
        place = place + size if place < 0 else place
        places.append(low if place < low else high if place > high else place)
    return places[0], places[1]


def _split(node: Node, values: Values) -> Sequence[Shape]:
    shape = values.find_shape(node.inputs[0])
    axis, parts = read_axis(node, len(shape)), _read_numbers(node, values, 1, "split")
    if parts is None:
        count = len(node.outputs)
        size = -(-shape[axis] // count)
        parts = [size] * (count - 1)
        parts.append(shape[axis] - size * (count - 1))
    return [(*shape[:axis], part, *shape[axis + 1 :]) for part in parts]


def _gather(node: Node, values: Values) -> Sequence[Shape]:
    shape, indices = (values.find_shape(value) for value in node.inputs)
    axis = read_axis(node, len(shape))
    return [(*shape[:axis], *indices, *shape[axis + 1 :])]


def _expand(node: Node, values: Values) -> Sequence[Shape]:
    target = _read_numbers(node, values, 1)
    return [broadcast_sizes(values.find_shape(node.inputs[0]), tuple(target or ()))]


def _tile(node: Node, values: Values) -> Sequence[Shape]:
    shape, repeats = values.find_shape(node.inputs[0]), _read_numbers(node, values, 1)
    if repeats is None or node.since_version < 6:
        raise UnknownError(node.op_type)
    return [tuple(size * times for size, times in zip(shape, repeats, strict=True))]


def _pad(node: Node, values: Values) -> Sequence[Shape]:
    shape, pads, axes = values.find_shape(node.inputs[0]), _read_numbers(node, values, 1, "pads"), _read_numbers(node, values, 3)
    if pads is None or axes is not None or len(pads) != 2 * len(shape):
        raise UnknownError(node.op_type)
    return [tuple(pads[axis] + size + pads[axis + len(shape)] for axis, size in enumerate(shape))]


def _shape_of(node: Node, values: Values) -> Sequence[Shape]:
    if node.op_type == "Size":
        return [()]
    rank = len(values.find_shape(node.inputs[0]))
    return [(len(range(rank)[read_part(node)]),)]


def read_part(node: Node) -> slice:
    """Returns which sizes `Shape` gives."""
    return slice(int(node.attributes.get("start", 0)), node.attributes.get("end"))


def _range(node: Node, values: Values) -> Sequence[Shape]:
    parts = [values.read(value) for value in node.inputs]
    if any(part is None for part in parts):
        raise UnknownError(node.op_type)
    begin, end, step = (part.reshape(-1)[0] for part in parts if part is not None)
    step = int(step)
    count = -((begin - end) // step) if step > 0 else -((end - begin) // -step)
    return [(count if count > 0 else 0,)]


def _constant_of_shape(node: Node, values: Values) -> Sequence[Shape]:
    return [tuple(_read_numbers(node, values, 0) or ())]


def _convolution(node: Node, values: Values) -> Sequence[Shape]:
    return [convolve_shapes(node, *(values.find_shape(value) for value in node.inputs[:2]))]


def convolve_shapes(node: Node, shape: Shape, weight: Shape) -> Shape:
    """Returns the shape of the convolution of an image with filters."""
    return (shape[0], weight[0], *_slide(node, shape[2:], node.attributes.get("kernel_shape") or weight[2:]))


def _pool(node: Node, values: Values) -> Sequence[Shape]:
    if len(node.writes) > 1:
        raise UnknownError(node.op_type)
    shape = values.find_shape(node.inputs[0])
    return [(*shape[:2], *_slide(node, shape[2:], node.attributes["kernel_shape"]))]


def _slide(node: Node, sizes: Shape, kernel: Sequence[Any]) -> Shape:
    attributes = node.attributes
    pads, strides, dilations = (attributes.get(name) for name in ("pads", "strides", "dilations"))
    mode, rounds_up = attributes.get("auto_pad", "NOTSET"), int(attributes.get("ceil_mode", 0))
    kernel = tuple(kernel)
    return lay_windows(sizes, kernel, auto_pad=mode, pads=pads, strides=strides, dilations=dilations, ceil_mode=rounds_up).outputs


def _transposed_convolution(node: Node, values: Values) -> Sequence[Shape]:
    shape, weight = (values.find_shape(value) for value in node.inputs[:2])
    attributes, axes = node.attributes, len(shape) - 2
    if attributes.get("auto_pad", "NOTSET") != "NOTSET" or "output_shape" in attributes:
        raise UnknownError(node.op_type)
    kernel, pads = attributes.get("kernel_shape") or weight[2:], attributes.get("pads") or [0] * (2 * axes)
    strides, dilations, more = (
        attributes.get(name) or [default] * axes for name, default in (("strides", 1), ("dilations", 1), ("output_padding", 0))
    )
    sizes = [
        (size - 1) * strides[axis] + more[axis] + (kernel[axis] - 1) * dilations[axis] + 1 - pads[axis] - pads[axis + axes]
        for axis, size in enumerate(shape[2:])
    ]
    return [(shape[0], weight[1] * int(attributes.get("group", 1)), *sizes)]


def _resize(node: Node, values: Values) -> Sequence[Shape]:
    shape = values.find_shape(node.inputs[0])
    if (node.op_type == "Resize" and node.since_version < 11) or "axes" in node.attributes or "scales" in node.attributes:
        raise UnknownError(node.op_type)
    if node.attributes.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise UnknownError(node.op_type)
    sizes = _read_numbers(node, values, 3)
    if sizes is not None and sizes:
        return [tuple(sizes)]
    scales = values.read_scales(node.inputs[1 if node.op_type == "Upsample" else 2])
    return [tuple(_scale(size, scale) for size, scale in zip(shape, scales, strict=True))]


def _scale(size: Any, scale: float) -> Any:
    """Returns a size times a scale that is a whole number or one by a whole number, which float32 has exactly."""
    if scale >= 1 and scale == int(scale):
        return size * int(scale)
    if scale > 0 and 1 / scale == int(1 / scale) and int(1 / scale) & (int(1 / scale) - 1) == 0:
        return size // int(1 / scale)
    raise UnknownError("Resize")


def _move_depth(node: Node, values: Values) -> Sequence[Shape]:
    batch, channels, height, width = values.find_shape(node.inputs[0])
    side = int(node.attributes["blocksize"])
    if node.op_type == "DepthToSpace":
        return [(batch, channels // (side * side), height * side, width * side)]
    return [(batch, channels * side * side, height // side, width // side)]


def _global_pool(node: Node, values: Values) -> Sequence[Shape]:
    shape = values.find_shape(node.inputs[0])
    return [(*shape[:2], *[1] * (len(shape) - 2))]


_RULES: Mapping[str, Rule] = {
    "ArgMax": _arg, "ArgMin": _arg, "AveragePool": _pool, "Concat": _concat, "ConstantOfShape": _constant_of_shape,
    "Conv": _convolution, "ConvTranspose": _transposed_convolution, "DepthToSpace": _move_depth,
    "Expand": _expand, "Flatten": _flatten, "Gather": _gather,
    "Gemm": _gemm,
    "GlobalAveragePool": _global_pool, "GlobalMaxPool": _global_pool, "MatMul": _mat_mul, "MaxPool": _pool, "Pad": _pad,
    "Range": _range, "Reshape": _reshape, "Resize": _resize, "Shape": _shape_of, "Size": _shape_of, "Slice": _slice,
    "SpaceToDepth": _move_depth, "Split": _split,
    "Squeeze": _squeeze, "Tile": _tile, "Transpose": _transpose, "Unsqueeze": _unsqueeze, "Upsample": _resize,
}  # fmt: skip
