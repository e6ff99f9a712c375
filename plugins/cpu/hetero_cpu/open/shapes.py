"""Shapes of all values as sizes with symbols, and what is computed from shapes alone: `Shape` and what follows it.

A node without a rule, or one of which its rule cannot tell, pins the sizes that it reads: what the example has for it then holds for the
class. All is compared with the example afterwards, whose types onnx has inferred.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from hetero_core.network.graph import Network, Node
from hetero_core.network.known_values import compute_elements, computes_shapes
from hetero_core.network.operators import REFUSALS, Shape, SizedNode, UnknownError, infer_sizes
from hetero_core.network.types import TensorType
from hetero_cpu.open.sizes import Scope, is_open, value_of
from hetero_cpu.open.terms import NotOpenError

Elements = np.ndarray[Any, Any]

logger = logging.getLogger(__name__)

_MOST_ELEMENTS = 64
_INTEGERS = ("int32", "int64")
_REARRANGING = ("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze")
"""Operators that keep the elements of their first input in order."""
_COMPARING = ("Greater", "Less", "Range")
"""Operators whose result would hold for few sizes: it is computed when a plan is bound."""
_WITH_INDICES = ("Dropout", "MaxPool")
"""Operators whose second output follows from all sizes of the first."""


@dataclass(slots=True, eq=False)
class OpenShapes:
    """`shapes` of values; `elements` of those that follow from shapes; `derived`: all that follows from shapes and constants alone."""

    network: Network
    scope: Scope
    shapes: dict[str, Shape] = field(default_factory=dict)
    elements: dict[str, Elements] = field(default_factory=dict)
    derived: set[str] = field(default_factory=set)
    fixed: set[str] = field(default_factory=set)
    """Derived values that are the same for all sizes: what follows from sizes that are not open."""
    finite: set[str] = field(default_factory=set)
    """Derived floats without infinities and NaN, whatever the sizes."""

    def read(self, value: str) -> Elements | None:
        """Returns the elements of a value; None unless it is a small array of integers."""
        known = self.elements.get(value)
        if known is not None:
            return known
        constant = self.network.initializers.get(value)
        if constant is None or constant.dtype not in _INTEGERS or prod(constant.shape) > _MOST_ELEMENTS:
            return None
        return constant.array.astype(object)

    def read_numbers(self, value: str) -> Sequence[Any] | None:
        """Returns the numbers of a small integer value or of a constant of floats; None for all other values."""
        elements = self.read(value)
        if elements is not None:
            return list(elements.reshape(-1).tolist())
        constant = self.network.initializers.get(value)
        if constant is None or constant.dtype != "float32" or prod(constant.shape) > _MOST_ELEMENTS:
            return None
        return list(constant.array.reshape(-1).tolist())

    def view(self, node: Node) -> SizedNode:
        """Returns a node as rules of sizes ask for it."""
        constants, shapes = self.network.initializers, self.shapes
        known = [constants[value].shape if value in constants else shapes.get(value) for value in node.inputs]
        return SizedNode(node, known, self.read_numbers)

    def find_shape(self, value: str) -> Shape:
        """Returns the shape of a value. Raises: UnknownError."""
        constant = self.network.initializers.get(value)
        if constant is not None:
            return constant.shape
        if value not in self.shapes:
            raise UnknownError(value)
        return self.shapes[value]


def infer_open_shapes(network: Network, inputs: Mapping[str, Shape], example: Network, scope: Scope) -> OpenShapes:
    """Returns the shapes of a network whose inputs have such shapes; `example` is the same network with the sizes of the example.

    Raises: NotOpenError, also where a rule and the example differ.
    """
    open_shapes = OpenShapes(network, scope, dict(inputs))
    for node in network.nodes:
        is_derived = bool(node.writes) and not node.bodies and _follows_from_shapes(node, open_shapes)
        try:
            if node.bodies or (len(node.writes) > 1 and node.op_type in _WITH_INDICES):
                raise UnknownError(node.op_type)
            shapes: Sequence[Shape | None] = infer_sizes(open_shapes.view(node))
        except REFUSALS:
            shapes = _pin_node(node, open_shapes, example)
        for value, shape in zip(node.outputs, shapes, strict=False):
            if value and shape is not None:
                open_shapes.shapes[value] = shape
        if is_derived:
            open_shapes.derived.update(node.writes)
            _compute(node, open_shapes)
            if all(_is_fixed(value, open_shapes) for value in node.reads):
                open_shapes.fixed.update(node.writes)
            if _is_finite(node, open_shapes):
                open_shapes.finite.update(node.writes)
    for value, shape in open_shapes.shapes.items():
        known = _read_example(example, value)
        if known is not None and known != tuple(value_of(size) for size in shape):
            raise NotOpenError(f"value '{value}' is {known}, not {[value_of(size) for size in shape]}")
    return open_shapes


def _read_example(example: Network, value: str) -> tuple[int, ...] | None:
    constant = example.initializers.get(value)
    if constant is not None:
        return tuple(constant.shape)
    known = example.type_of(value)
    if not isinstance(known, TensorType) or known.shape is None or any(not isinstance(size, int) for size in known.shape):
        return None
    return tuple(size for size in known.shape if isinstance(size, int))


def _follows_from_shapes(node: Node, open_shapes: OpenShapes) -> bool:
    if node.op_type in ("Shape", "Size") and not node.domain:
        return True
    constants = open_shapes.network.initializers
    return bool(node.reads) and all(value in open_shapes.derived or value in constants for value in node.reads)


def _is_fixed(value: str, open_shapes: OpenShapes) -> bool:
    """Tells whether a value is a constant, or follows from sizes that are not open."""
    if value in open_shapes.elements:
        return not any(is_open(number) for number in open_shapes.elements[value].reshape(-1))
    return value in open_shapes.network.initializers or value in open_shapes.fixed


def _is_finite(node: Node, open_shapes: OpenShapes) -> bool:
    def holds(value: str) -> bool:
        constant = open_shapes.network.initializers.get(value)
        if constant is None:
            return value in open_shapes.finite or value in open_shapes.elements
        return constant.dtype != "float32" or bool(np.isfinite(constant.array).all())

    if node.op_type == "Where":
        return all(holds(value) for value in node.inputs[1:])
    if node.op_type in ("Range", "LessOrEqual", "Less", "Greater", "GreaterOrEqual", "Equal", "Not", "And", "Or"):
        return True
    if node.op_type in (
        "Shape",
        "Size",
        "Cast",
        "ConstantOfShape",
        "Expand",
        "Flatten",
        "Gather",
        "Identity",
        "Reshape",
        "Slice",
        "Squeeze",
        "Transpose",
    ):
        return all(holds(value) for value in node.inputs[:1])
    if node.op_type in ("Add", "Concat", "Max", "Min", "Mul", "Sub"):
        return all(holds(value) for value in node.inputs)
    return node.op_type in ("Unsqueeze", "Tile", "Trilu", "Cos", "Sin", "Neg") and holds(node.inputs[0])


def _pin_node(node: Node, open_shapes: OpenShapes, example: Network) -> Sequence[Shape | None]:
    """Returns the shapes that the example has; the sizes that the node reads have these values in the whole class."""
    numbers: list[Any] = []
    for value in node.reads:
        numbers += open_shapes.shapes.get(value, ())
        if value in open_shapes.elements:
            numbers += open_shapes.elements[value].reshape(-1).tolist()
    logger.debug("node %s is planned for one set of the sizes that it reads", node.label)
    are_known = all(value in open_shapes.shapes or value in open_shapes.network.initializers for value in node.reads)
    if (
        not are_known
        or node.bodies
        or any(value in open_shapes.derived and value not in open_shapes.elements for value in node.reads)
    ):
        numbers = [size for shape in open_shapes.shapes.values() for size in shape]
    for number in numbers:
        int(number)
    return [_read_example(example, value) if value else None for value in node.outputs]


def _compute(node: Node, open_shapes: OpenShapes) -> None:
    """Computes the elements of what follows from shapes, where they are few integers; the rest is computed when a plan is bound."""
    shape = open_shapes.shapes.get(node.outputs[0])
    if shape is None or any(is_open(size) for size in shape) or prod(shape) > _MOST_ELEMENTS or len(node.writes) != 1:
        return
    try:
        elements = _evaluate(node, open_shapes)
    except REFUSALS:
        return
    if elements is not None:
        filled = np.empty(shape, object)
        filled[...] = np.asarray(elements, object).reshape(shape)
        open_shapes.elements[node.outputs[0]] = filled


def _evaluate(node: Node, open_shapes: OpenShapes) -> Any:
    if node.op_type in ("Shape", "Size"):
        return compute_elements(node, (np.array(open_shapes.find_shape(node.inputs[0]), object),))
    reads = tuple(open_shapes.read(value) if value else None for value in node.inputs)
    if any(elements is None for elements in reads):
        return None
    if node.op_type in _REARRANGING:
        return reads[0]
    return compute_elements(node, reads) if computes_shapes(node) and node.op_type not in _COMPARING else None
