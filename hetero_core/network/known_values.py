"""Values that are known before any run: arithmetic on known sizes, which onnx's own inference does not follow.

Integers and bools of at most a kilobyte; a table of the operators that compute shapes, each by NumPy. `infer_types` uses the values to
learn types and keeps none of them: a network is not folded here. NumPy is imported when a value is first computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np

from hetero_core.dtypes import dtype_of_onnx, numpy_dtype
from hetero_core.network.graph import Node
from hetero_core.network.operators import UnknownError, is_unknown

LARGEST_VALUE = 1024
"""Bytes; shapes, axes and the like are small."""

Arrays = tuple[Any, ...]


def computes_shapes(node: Node) -> bool:
    """Says whether elements are followed through the operator of a node."""
    return node.op_type in _OPERATORS and not node.domain and len(node.outputs) == 1


def compute_elements(node: Node, inputs: Arrays) -> Any:
    """Returns the output of a node for arrays of integers, or of objects: sizes with names, or symbols; None if it is not known.

    Of Shape and Size, the input is the shape.
    """
    try:
        array = np.array(_OPERATORS[node.op_type](node, inputs), order="C")
    except (UnknownError, ArithmeticError, AttributeError, IndexError, MemoryError, TypeError, ValueError):
        # The node cannot be computed at all; the device reports it in the run.
        return None
    if array.nbytes > LARGEST_VALUE or (array.ndim == 0 and array.item() is None):
        return None
    if array.dtype != object:
        return array
    kinds = {type(element) for element in array.reshape(-1).tolist()}
    return array.astype(np.int64) if kinds <= {int} else array.astype(bool) if kinds <= {bool} else array


COUNTING_DTYPES = ("int32", "int64", "bool")
"""The element types of values that are followed."""


def _cast(node: Node, inputs: Arrays) -> Any:
    number = node.attributes.get("to")
    dtype = dtype_of_onnx(number) if isinstance(number, int | str) else None
    if inputs[0].dtype == object:
        return inputs[0] if dtype in ("int32", "int64") else None
    return inputs[0].astype(numpy_dtype(dtype)) if dtype in COUNTING_DTYPES else None


def _divide(node: Node, inputs: Arrays) -> Any:
    dividend, divisor = inputs
    if dividend.dtype == object or divisor.dtype == object:
        elements = (*dividend.reshape(-1).tolist(), *divisor.reshape(-1).tolist())
        return dividend // divisor if all(is_unknown(element) or element >= 0 for element in elements) else None
    if not divisor.all():
        return None
    # The standard cuts fractions off; NumPy's quotient of integers is rounded down.
    quotient = np.abs(dividend) // np.abs(divisor) * np.sign(dividend) * np.sign(divisor)
    return quotient.astype(dividend.dtype)


def _slice(node: Node, inputs: Arrays) -> Any:
    bounds: list[Any] = [*map(node.attributes.get, ("starts", "ends", "axes")), None]
    for index, array in enumerate(inputs[1:]):
        bounds[index] = bounds[index] if array is None else array.tolist()
    starts, ends, axes, steps = bounds
    cut = [slice(None)] * inputs[0].ndim
    for index, (start, end) in enumerate(zip(starts, ends, strict=True)):
        cut[index if axes is None else axes[index]] = slice(start, end, 1 if steps is None else steps[index])
    return inputs[0][tuple(cut)]


def _read_axes(node: Node, inputs: Arrays) -> tuple[int, ...] | None:
    axes = node.attributes.get("axes") if len(inputs) < 2 or inputs[1] is None else inputs[1].tolist()
    return None if axes is None else tuple(axes)


def _fill(node: Node, inputs: Arrays) -> Any:
    value = node.attributes.get("value")
    sizes = inputs[0].tolist()
    # Python's product, which does not wrap around.
    if not isinstance(value, np.ndarray) or value.dtype.name not in COUNTING_DTYPES or prod(sizes) > LARGEST_VALUE:
        return None
    return np.full(sizes, value.reshape(())[()], value.dtype)


def _expand(node: Node, inputs: Arrays) -> Any:
    sizes = [int(size) for size in inputs[1].tolist()]
    return np.broadcast_to(inputs[0], np.broadcast_shapes(inputs[0].shape, sizes)) if prod(sizes) <= LARGEST_VALUE else None


def _count(node: Node, inputs: Arrays) -> Any:
    start, limit, step = (int(array.reshape(())) for array in inputs)
    return np.arange(start, limit, step).astype(inputs[0].dtype) if abs(limit - start) <= LARGEST_VALUE * abs(step) else None


def _reshape(node: Node, inputs: Arrays) -> Any:
    target = inputs[1].tolist() if len(inputs) > 1 else list(node.attributes.get("shape", ()))
    if not node.attributes.get("allowzero", 0):
        target = [inputs[0].shape[axis] if size == 0 else size for axis, size in enumerate(target)]
    return inputs[0].reshape(target)


_OPERATORS: Mapping[str, Callable[[Node, Arrays], Any]] = {
    "Add": lambda node, inputs: inputs[0] + inputs[1],
    "Cast": _cast,
    "Concat": lambda node, inputs: np.concatenate(inputs, node.attributes.get("axis", 1)),
    "ConstantOfShape": _fill,
    "Div": _divide,
    "Expand": _expand,
    "Equal": lambda node, inputs: inputs[0] == inputs[1],
    "Gather": lambda node, inputs: np.take(inputs[0], inputs[1].astype(np.int64), node.attributes.get("axis", 0)),
    "Greater": lambda node, inputs: inputs[0] > inputs[1],
    "Identity": lambda node, inputs: inputs[0],
    "Less": lambda node, inputs: inputs[0] < inputs[1],
    "Mul": lambda node, inputs: inputs[0] * inputs[1],
    "Neg": lambda node, inputs: -inputs[0],
    "Range": _count,
    "Reshape": _reshape,
    # start and end are Shape-15's; before, the whole shape is returned.
    "Shape": lambda node, inputs: inputs[0][node.attributes.get("start", 0) : node.attributes.get("end")],
    "Size": lambda node, inputs: np.array(inputs[0].prod(), inputs[0].dtype),
    "Slice": _slice,
    "Squeeze": lambda node, inputs: inputs[0].squeeze(_read_axes(node, inputs)),
    "Sub": lambda node, inputs: inputs[0] - inputs[1],
    "Transpose": lambda node, inputs: np.transpose(inputs[0], node.attributes.get("perm")),
    "Unsqueeze": lambda node, inputs: np.expand_dims(inputs[0], _read_axes(node, inputs) or ()),
    "Where": lambda node, inputs: np.where(*inputs),
}
