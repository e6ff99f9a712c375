"""Rules of the types of common operators, for networks whose sizes are known: each gives the type of an operator's first output.

A rule returns what onnx infers, and None where onnx has to be asked. Imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from hetero_core.dtypes import dtype_of_onnx
from hetero_core.network.graph import Node
from hetero_core.network.initializers import Initializer
from hetero_core.network.types import LARGEST_RANK, Dimension, TensorType

LARGEST_SIZE = 1 << 40
"""Above it onnx is asked, whose sizes have 64 bits."""
Shape = tuple[Dimension, ...]
Inputs = list[TensorType]
Constants = Mapping[str, Initializer]
Rule = Callable[[Node, Inputs, Constants], TensorType | None]


def _keep(node: Node, inputs: Inputs, constants: Constants) -> TensorType | None:
    return inputs[0]


def _keep_along_axis(node: Node, inputs: Inputs, constants: Constants) -> TensorType | None:
    default = -1 if node.since_version >= 13 or node.op_type == "LayerNormalization" else 1
    return None if _find_axis(node, inputs[0], default) is None else inputs[0]


def _drop_out(node: Node, inputs: Inputs, constants: Constants) -> TensorType | None:
    return inputs[0] if all(each.shape == () for each in inputs[1:]) else None


def _normalize_batch(node: Node, inputs: Inputs, constants: Constants) -> TensorType | None:
    shape = _shape(inputs[0])
    fits = len(shape) >= 2 and all(each.shape == shape[1:2] for each in inputs[1:])
    return inputs[0] if fits and not node.attributes.get("training_mode", 0) else None


def _cast(node: Node, inputs: Inputs, constants: Constants) -> TensorType | None:
    number = node.attributes.get("to")
    dtype = dtype_of_onnx(number) if isinstance(number, int) else None
    return None if dtype is None else TensorType(dtype, inputs[0].shape)


def _broadcast(node: Node, inputs: Inputs, constants: Constants) -> TensorType | None:
    first = inputs[0]
    others = inputs[1:]
    for each in others:
        if each.dtype != first.dtype:
            return None
    shapes = [_shape(each) for each in inputs]
    if shapes.count(shapes[0]) == len(shapes):
        return first
    shape = _broadcast_shapes(shapes)
    return None if shape is None else TensorType(first.dtype, shape)


def _raise_to_power(node: Node, inputs: Inputs, constants: Constants) -> TensorType | None:
    shape = _broadcast_shapes([_shape(each) for each in inputs])
    return None if shape is None else TensorType(inputs[0].dtype, shape)


def _compare(node: Node, inputs: Inputs, constants: Constants) -> TensorType | None:
    together = _broadcast(node, inputs, constants)
    return None if together is None else TensorType("bool", together.shape)


def _select(node: Node, inputs: Inputs, constants: Constants) -> TensorType | None:
    shape = _broadcast_shapes([_shape(each) for each in inputs])
    return None if shape is None or inputs[1].dtype != inputs[2].dtype else TensorType(inputs[1].dtype, shape)


def _broadcast_shapes(shapes: Sequence[Shape]) -> Shape | None:
    """Returns the shape of an operation on arrays of these shapes, None where it is an error or depends on a named size."""
    rank = max(map(len, shapes))
    result: list[Dimension] = [1] * rank
    for shape in shapes:
        for position, size in enumerate(shape, rank - len(shape)):
            if result[position] == 1:
                result[position] = size
            elif size not in (1, result[position]):
                return None
    return tuple(result)


def _multiply_matrices(node: Node, inputs: Inputs, constants: Constants) -> TensorType | None:
    first, second = map(_shape, inputs)
    if not first or not second or inputs[0].dtype != inputs[1].dtype:
        return None
    rows, columns = first[-2:-1], second[-1:] if len(second) > 1 else ()
    inner = second[-2] if len(second) > 1 else second[0]
    batch = _broadcast_shapes([first[:-2], second[:-2]])
    if batch is None or first[-1] != inner:
        return None
    shape = (*batch, *rows, *columns)
    return inputs[0] if shape == first else TensorType(inputs[0].dtype, shape)


def _gemm(node: Node, inputs: Inputs, constants: Constants) -> TensorType | None:
    first, second = _shape(inputs[0]), _shape(inputs[1])
    if len(first) != 2 or len(second) != 2 or inputs[0].dtype != inputs[1].dtype:
        return None
    first = first[::-1] if node.attributes.get("transA", 0) else first
    second = second[::-1] if node.attributes.get("transB", 0) else second
    return None if first[1] != second[0] else TensorType(inputs[0].dtype, (first[0], second[1]))


def _convolve(node: Node, inputs: Inputs, constants: Constants) -> TensorType | None:
    shape, weight = _shape(inputs[0]), _shape(inputs[1])
    group = node.attributes.get("group", 1)
    if len(shape) != len(weight) or len(shape) < 3 or not isinstance(weight[1], int) or shape[1] != weight[1] * group:
        return None
    kernel = node.attributes.get("kernel_shape", weight[2:])
    spatial = _slide_window(node, shape[2:], kernel) if kernel == weight[2:] else None
    return None if spatial is None else TensorType(inputs[0].dtype, (shape[0], weight[0], *spatial))


def _pool(node: Node, inputs: Inputs, constants: Constants) -> TensorType | None:
    shape = _shape(inputs[0])
    if len(shape) < 3 or node.attributes.get("ceil_mode", 0) or (node.op_type == "AveragePool" and "dilations" in node.attributes):
        return None
    spatial = _slide_window(node, shape[2:], node.attributes.get("kernel_shape"))
    return None if spatial is None else TensorType(inputs[0].dtype, (*shape[:2], *spatial))


def _slide_window(node: Node, sizes: Shape, kernel: Any) -> tuple[int, ...] | None:
    """Returns how many windows there are along each axis. Source: ONNX Conv-22 and MaxPool-22, rounded down."""
    rank, attributes = len(sizes), node.attributes
    lists = [kernel] + [attributes.get(key, (1,) * rank) for key in ("strides", "dilations")]
    pads = attributes.get("pads", (0,) * (2 * rank))
    if attributes.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID") or ("auto_pad" in attributes and any(pads)):
        return None
    if not all(isinstance(each, tuple) and len(each) == rank for each in lists) or len(pads) != 2 * rank:
        return None
    numbers = (*sizes, *pads, *(number for each in lists for number in each))
    if not all(isinstance(number, int) and 0 <= number < LARGEST_SIZE for number in numbers) or 0 in lists[1]:
        return None
    counts = []
    for size, before, after, length, stride, dilation in zip(sizes, pads[:rank], pads[rank:], *lists, strict=True):
        room = int(size or 0) + before + after - ((length - 1) * dilation + 1)
        if room < 0 or not length or not size:
            return None
        counts.append(room // stride + 1)
    return tuple(counts)


def _pool_all(node: Node, inputs: Inputs, constants: Constants) -> TensorType | None:
    shape = _shape(inputs[0])
    return None if len(shape) < 3 else TensorType(inputs[0].dtype, (*shape[:2], *[1] * (len(shape) - 2)))


def _concatenate(node: Node, inputs: Inputs, constants: Constants) -> TensorType | None:
    shapes = [_shape(each) for each in inputs]
    axis = _find_axis(node, inputs[0])
    if axis is None or any(each.dtype != inputs[0].dtype or len(_shape(each)) != len(shapes[0]) for each in inputs):
        return None
    sizes = [shape[axis] for shape in shapes]
    around = {(shape[:axis], shape[axis + 1 :]) for shape in shapes}
    if len(around) > 1 or not all(isinstance(size, int) for size in sizes):
        return None
    total = sum(size for size in sizes if isinstance(size, int))
    return TensorType(inputs[0].dtype, (*shapes[0][:axis], total, *shapes[0][axis + 1 :]))


def _flatten(node: Node, inputs: Inputs, constants: Constants) -> TensorType | None:
    shape, axis = _shape(inputs[0]), node.attributes.get("axis", 1)
    if (
        not _is_fixed(shape)
        or not isinstance(axis, int)
        or not (0 if node.since_version < 11 else -len(shape)) <= axis <= len(shape)
    ):
        return None
    axis = axis + len(shape) if axis < 0 else axis
    return TensorType(inputs[0].dtype, (_count(shape[:axis]), _count(shape[axis:])))


def _transpose(node: Node, inputs: Inputs, constants: Constants) -> TensorType | None:
    shape = _shape(inputs[0])
    order = node.attributes.get("perm", tuple(range(len(shape)))[::-1])
    if not shape or not isinstance(order, tuple) or sorted(order) != list(range(len(shape))):
        return None
    return TensorType(inputs[0].dtype, tuple(shape[axis] for axis in order))


def _reshape(node: Node, inputs: Inputs, constants: Constants) -> TensorType | None:
    sizes, shape = _read_integers(node, 1, constants), _shape(inputs[0])
    if sizes is None or not _is_fixed(shape) or 0 in shape or min(sizes, default=0) < -1 or sizes.count(-1) > 1:
        return None
    if node.attributes.get("allowzero", 0) or any(not size and axis >= len(shape) for axis, size in enumerate(sizes)):
        return None
    copied = [size or _count(shape[axis : axis + 1]) for axis, size in enumerate(sizes)]
    count, known = _count(shape), prod(size for size in copied if size != -1)
    if count % known or (-1 not in copied and count != known):
        return None
    return TensorType(inputs[0].dtype, tuple(count // known if size == -1 else size for size in copied))


def _squeeze(node: Node, inputs: Inputs, constants: Constants) -> TensorType | None:
    shape = _shape(inputs[0])
    axes = _read_axes(node, len(shape), constants)
    # Of axes that are not in order older versions of the rule in onnx drop some.
    if axes is None or list(axes) != sorted(axes) or any(shape[axis] != 1 for axis in axes):
        return None
    return TensorType(inputs[0].dtype, tuple(size for axis, size in enumerate(shape) if axis not in axes))


def _unsqueeze(node: Node, inputs: Inputs, constants: Constants) -> TensorType | None:
    shape = _shape(inputs[0])
    listed = _read_list(node, constants)
    axes = None if listed is None else _normalize_axes(node, listed, len(shape) + len(listed))
    if axes is None:
        return None
    rest = iter(shape)
    return TensorType(inputs[0].dtype, tuple(1 if axis in axes else next(rest) for axis in range(len(shape) + len(axes))))


def _reduce(node: Node, inputs: Inputs, constants: Constants) -> TensorType | None:
    shape = _shape(inputs[0])
    is_listed = "axes" in node.attributes or len(node.inputs) > 1
    axes = _read_axes(node, len(shape), constants) if is_listed else tuple(range(len(shape)))
    if not axes or node.attributes.get("noop_with_empty_axes", 0):
        return None
    if node.attributes.get("keepdims", 1):
        return TensorType(inputs[0].dtype, tuple(1 if axis in axes else size for axis, size in enumerate(shape)))
    return TensorType(inputs[0].dtype, tuple(size for axis, size in enumerate(shape) if axis not in axes))


def _gather(node: Node, inputs: Inputs, constants: Constants) -> TensorType | None:
    axis, shape = _find_axis(node, inputs[0], 0), _shape(inputs[0])
    return None if axis is None else TensorType(inputs[0].dtype, (*shape[:axis], *_shape(inputs[1]), *shape[axis + 1 :]))


def _shape(value_type: TensorType) -> Shape:
    """Returns the shape of the type of an input, which has one."""
    assert value_type.shape is not None
    return value_type.shape


def _is_fixed(shape: Shape) -> bool:
    return all(isinstance(size, int) for size in shape)


def _count(shape: Shape) -> int:
    return prod(size for size in shape if isinstance(size, int))


def _find_axis(node: Node, value_type: TensorType, default: int | None = None) -> int | None:
    """Returns the attribute `axis`, counted from the front; None where there is none, or it is no axis of the value."""
    axis, rank = node.attributes.get("axis", default), len(_shape(value_type))
    if not isinstance(axis, int) or not (0 if node.since_version < 11 else -rank) <= axis < rank:
        return None
    return axis + rank if axis < 0 else axis


def _read_axes(node: Node, rank: int, constants: Constants) -> tuple[int, ...] | None:
    listed = _read_list(node, constants)
    return None if listed is None else _normalize_axes(node, listed, rank)


def _read_list(node: Node, constants: Constants) -> tuple[int, ...] | None:
    """Returns the axes that an attribute or, in later versions, a constant input lists."""
    if len(node.inputs) > 1:
        return _read_integers(node, 1, constants)
    axes = node.attributes.get("axes")
    return axes if isinstance(axes, tuple) else None


def _normalize_axes(node: Node, listed: tuple[int, ...], rank: int) -> tuple[int, ...] | None:
    if not all(isinstance(axis, int) and (0 if node.since_version < 11 else -rank) <= axis < rank for axis in listed):
        return None
    axes = tuple(axis + rank if axis < 0 else axis for axis in listed)
    return axes if len(set(axes)) == len(axes) else None


def _read_integers(node: Node, position: int, constants: Constants) -> tuple[int, ...] | None:
    """Returns the elements of an input that is a constant list of int64."""
    constant = constants.get(node.inputs[position]) if position < len(node.inputs) else None
    if constant is None or constant.dtype != "int64" or len(constant.shape) != 1 or constant.shape[0] > LARGEST_RANK:
        return None
    return tuple(constant.array.tolist())


def _give_up(node: Node, inputs: Inputs, constants: Constants) -> TensorType | None:
    return None


NO_RULE: tuple[int, Rule] = (0, _give_up)

_KEPT_SINCE = {
    1: "Identity Softplus Softsign",
    6: "Abs Ceil Clip Elu Exp Floor HardSigmoid LeakyRelu Log Neg Reciprocal Relu Selu Sigmoid Sqrt Tanh",
    7: "Acos Asin Atan Cos PRelu Sin Tan",
    9: "Acosh Asinh Atanh Cosh Erf Sign Sinh",
    10: "ThresholdedRelu",
    11: "Round",
    12: "Celu",
    14: "HardSwish",
    18: "Mish",
    20: "Gelu",
}
"""The operators whose output has the type of their first input, by the version from which they do."""
_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")

PLAIN_RULES: Mapping[str, tuple[int, Rule]] = {
    **{name: (since, _keep) for since, names in _KEPT_SINCE.items() for name in names.split()},
    **dict.fromkeys(("Softmax", "LogSoftmax"), (1, _keep_along_axis)),
    "LayerNormalization": (17, _keep_along_axis),
    "Dropout": (7, _drop_out),
    "BatchNormalization": (9, _normalize_batch),
    "Cast": (6, _cast),
    **dict.fromkeys(("Add", "Sub", "Mul", "Div"), (7, _broadcast)),
    **dict.fromkeys(("Max", "Min", "Sum", "Mean"), (8, _broadcast)),
    "Pow": (7, _raise_to_power),
    **dict.fromkeys(("And", "Or", "Xor", "Equal", "Greater", "Less"), (7, _compare)),
    **dict.fromkeys(("GreaterOrEqual", "LessOrEqual"), (12, _compare)),
    "Where": (9, _select),
    "MatMul": (1, _multiply_matrices),
    "Gemm": (7, _gemm),
    "Conv": (1, _convolve),
    "MaxPool": (1, _pool),
    "AveragePool": (1, _pool),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool"), (1, _pool_all)),
    "Concat": (4, _concatenate),
    "Flatten": (1, _flatten),
    "Transpose": (1, _transpose),
    "Reshape": (5, _reshape),
    "Squeeze": (1, _squeeze),
    "Unsqueeze": (1, _unsqueeze),
    "Gather": (1, _gather),
    **{f"Reduce{name}": (1, _reduce) for name in _REDUCTIONS},
}
"""Operator -> the first version that its rule holds for, and the rule."""

SECOND_OUTPUTS: Mapping[tuple[str, int], tuple[int, str]] = {("Dropout", 2): (10, "bool"), ("MaxPool", 2): (8, "int64")}
"""Operator and number of outputs -> the first version in which the second one has the shape of the first, and its element type."""
