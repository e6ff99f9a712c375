"""A network for all sizes of a class: its types with symbols, and constants that are computed when a plan is bound."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np

from hetero_core.kernels.execution import Program
from hetero_core.kernels.program import compile_program
from hetero_core.network.contrib_types import infer_contrib_sizes
from hetero_core.network.graph import Graph, Network, Node
from hetero_core.network.initializers import Initializer
from hetero_core.network.known_values import compute_elements, computes_shapes
from hetero_core.network.operators import REFUSALS, STANDARD_DOMAINS, Shape, SizedNode, UnknownError, infer_sizes
from hetero_core.network.types import TensorType, ValueSpec, ValueType, sizes_of
from hetero_cpu.symbols.evaluation import Signature
from hetero_cpu.symbols.sizes import NotOpenError, Scope, is_open, value_of

Elements = np.ndarray[Any, Any]

logger = logging.getLogger(__name__)

_MOST_ELEMENTS = 64
_LARGEST_WHOLE = 1 << 24
"""The largest number up to which float32 holds each whole number."""
_INTEGERS = ("int32", "int64")
_REARRANGING = ("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze")
"""Operators that keep the elements of their first input in order."""
_TAKING = ("Cast", "ConstantOfShape", "Expand", "Gather", "Shape", "Size", "Slice", "Transpose")
"""Further operators that pass on elements of their first input, or its sizes."""
_COMPARING = ("Greater", "Less", "Range")
"""Operators with a result for few sizes: it is computed when a plan is bound."""
_WITH_INDICES = ("Dropout", "MaxPool")
"""Operators with a second output that follows from all sizes of the first."""


_FINITE: Mapping[str, slice] = {
    "Where": slice(1, None),
    **dict.fromkeys(("And", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "Or", "Range"), slice(0)),
    **dict.fromkeys((*_REARRANGING, *_TAKING, "Cos", "Neg", "Sin", "Tile", "Trilu"), slice(1)),
    **dict.fromkeys(("Add", "Concat", "Max", "Min", "Mul", "Sub"), slice(None)),
}
"""Operators whose result is finite if these of their inputs are."""


class OpenShapes:
    """`shapes` of values; `elements` of values that follow from shapes; `whole`: their numbers as floats, which rules may
    read and nobody computes with; `derived`: values that follow from shapes and constants alone.

    `fixed`: derived values that are the same for all sizes, since they follow from sizes that are not open; `finite`: derived values
    without infinities and NaN for all sizes. `undecided`: names of the nodes whose results have sizes that only a run decides.
    """

    def __init__(self, network: Network, inputs: Mapping[str, Shape], example: Network, scope: Scope) -> None:
        """`inputs`: their shapes; `example`: the same network with the sizes of the example.

        Raises: NotOpenError, also if a rule and the example differ.
        """
        self.network, self.scope, self._example = network, scope, example
        self.shapes: dict[str, Shape] = dict(inputs)
        self.elements: dict[str, Elements] = {}
        self.whole: dict[str, Elements] = {}
        self.derived, self.fixed, self.finite, self.undecided = set[str](), set[str](), set[str](), set[str]()
        for node in network.nodes:
            self._infer(node)
        for value, shape in self.shapes.items():
            known = self._read_example(value)
            if known is not None and known != tuple(value_of(size) for size in shape):
                raise NotOpenError(f"value '{value}' is {known}, not {[value_of(size) for size in shape]}")

    def read(self, value: str, dtypes: tuple[str, ...] = _INTEGERS) -> Elements | None:
        """Returns the elements of a value; None unless it is a small array of integers, or a small constant of these types."""
        constant = self.network.initializers.get(value)
        if value in self.elements or constant is None or constant.dtype not in dtypes or prod(constant.shape) > _MOST_ELEMENTS:
            return self.elements.get(value)
        return constant.array.astype(object)

    def read_numbers(self, value: str) -> Sequence[Any] | None:
        """Returns the numbers of a small integer value or of a constant of floats; None for all other values."""
        elements = self.read(value, (*_INTEGERS, "float32"))
        elements = self.whole.get(value) if elements is None else elements
        return None if elements is None else list(elements.reshape(-1).tolist())

    def _view(self, node: Node) -> SizedNode:
        """Returns a node as rules of sizes ask for it."""
        constants, shapes = self.network.initializers, self.shapes
        known = [constants[value].shape if value in constants else shapes.get(value) for value in node.inputs]
        return SizedNode(node, known, self.read_numbers)

    def _infer(self, node: Node) -> None:
        constants, is_shape = self.network.initializers, node.op_type in ("Shape", "Size") and not node.domain
        follows = is_shape or (bool(node.reads) and all(value in self.derived or value in constants for value in node.reads))
        try:
            if node.bodies or (len(node.writes) > 1 and node.op_type in _WITH_INDICES):
                raise UnknownError(node.op_type)
            infer = infer_sizes if node.domain in STANDARD_DOMAINS else infer_contrib_sizes
            is_map = find_map_types(node, self.network) is not None
            shapes: Sequence[Shape | None] = () if is_map else infer(self._view(node))
        except REFUSALS:
            shapes = self._pin_node(node)
        self.shapes.update(
            (value, shape) for value, shape in zip(node.outputs, shapes, strict=False) if value and shape is not None
        )
        if not (follows and node.writes) or node.bodies:
            return
        self.derived.update(node.writes)
        self._compute(node)
        source = self.elements.get(node.reads[0]) if node.op_type == "Cast" else None
        if source is not None and all(number <= _LARGEST_WHOLE for number in source.reshape(-1)):
            self.whole[node.outputs[0]] = source
        if all(map(self._is_fixed, node.reads)):
            self.fixed.update(node.writes)
        if node.op_type in _FINITE and all(map(self._is_finite, node.inputs[_FINITE[node.op_type]])):
            self.finite.update(node.writes)

    def _read_example(self, value: str) -> tuple[int, ...] | None:
        constant = self._example.initializers.get(value)
        return sizes_of(self._example.type_of(value) if constant is None else constant.type)

    def _is_fixed(self, value: str) -> bool:
        """Says whether a value is a constant, or follows from sizes that are not open."""
        if value in self.elements:
            return not any(is_open(number) for number in self.elements[value].reshape(-1))
        return value in self.network.initializers or value in self.fixed

    def _is_finite(self, value: str) -> bool:
        constant = self.network.initializers.get(value)
        if constant is None:
            return value in self.finite or value in self.elements
        return constant.dtype != "float32" or bool(np.isfinite(constant.array).all())

    def _pin_node(self, node: Node) -> Sequence[Shape | None]:
        """Returns the shapes that the example has; the sizes that the node reads have these values in the whole class.

        If the example knows none either, as the numbers of a run decide, the toolkit computes the node for all sizes.
        """
        if node.writes and not any(map(self._read_example, node.writes)):
            self.undecided.add(node.name)
            return [None] * len(node.outputs)
        logger.debug("node %s is planned for one set of the sizes that it reads", node.label)
        are_known = all(value in self.shapes or value in self.network.initializers for value in node.reads)
        if not are_known or node.bodies or any(value in self.derived and value not in self.elements for value in node.reads):
            self.pin()
        for value in node.reads:
            for number in (*self.shapes.get(value, ()), *self.elements.get(value, np.empty(0, object)).reshape(-1)):
                int(number)
        return [self._read_example(value) if value else None for value in node.outputs]

    def pin(self) -> None:
        """Has all sizes of the class those of the example."""
        for shape in self.shapes.values():
            for size in shape:
                int(size)

    def _compute(self, node: Node) -> None:
        """Computes the elements of a value that follows from shapes if they are few integers; others are computed when a plan is bound."""
        shape = self.shapes.get(node.outputs[0])
        if shape is None or any(is_open(size) for size in shape) or prod(shape) > _MOST_ELEMENTS or len(node.writes) != 1:
            return
        try:
            elements = self._evaluate(node)
        except REFUSALS:
            return
        if elements is not None:
            filled = np.empty(shape, object)
            filled[...] = np.asarray(elements, object).reshape(shape)
            self.elements[node.outputs[0]] = filled

    def _evaluate(self, node: Node) -> Any:
        if node.op_type in ("Shape", "Size"):
            return compute_elements(node, (np.array(self._view(node).shape(), object),))
        reads = tuple(self.read(value) if value else None for value in node.inputs)
        if any(elements is None for elements in reads):
            return None
        if node.op_type in _REARRANGING:
            return reads[0]
        return compute_elements(node, reads) if computes_shapes(node) and node.op_type not in _COMPARING else None


def find_map_types(node: Node, network: Network) -> dict[str, ValueType] | None:
    """Returns the types of the results of a ZipMap, which has no sizes; None for all other nodes."""
    if node.op_type != "ZipMap" or node.domain != "ai.onnx.ml" or node.outputs[0] not in network.types:
        return None
    return {node.outputs[0]: network.types[node.outputs[0]]}


class ShapeConstant(Initializer):
    """A constant that follows from the sizes of the inputs. Reading its elements pins these sizes."""

    __slots__ = ("elements", "example", "is_finite", "open_shapes")

    def __init__(
        self, example: Initializer, shape: Shape, elements: Elements | None, open_shapes: OpenShapes, *, is_finite: bool
    ) -> None:
        super().__init__(example.dtype, shape, lambda: example.array)
        self.example, self.elements, self.open_shapes, self.is_finite = example, elements, open_shapes, is_finite

    @property
    def array(self) -> Any:
        """The elements as symbols, or an array that pins all sizes when it is read."""
        return ShapeConstantElements(self) if self.elements is None else self.elements

    @property
    def digest(self) -> bytes:
        """The digest of the example."""
        self.open_shapes.pin()
        return self.example.digest


class ShapeConstantElements:
    """Stands for the elements of a late constant."""

    def __init__(self, constant: ShapeConstant) -> None:
        self._constant = constant
        self.shape, self.size = constant.shape, int(constant.example.array.size)

    def __array_ufunc__(self, function: Any, method: str, *operands: Any, **keywords: Any) -> Any:
        if function is np.isfinite:
            # Unknown elements are no reason to pin sizes.
            return np.full((), self._constant.is_finite, np.bool_)
        return getattr(function, method)(*(np.asarray(operand) for operand in operands), **keywords)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        self._constant.open_shapes.pin()
        return np.array(self._constant.example.array, dtype)

    def __getattr__(self, name: str) -> Any:
        # NumPy asks for protocols that this class does not have, before it calls __array__.
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(np.asarray(self), name)


def open_network(network: Network, signature: Signature, example: Network) -> tuple[Network, OpenShapes]:
    """Returns a network whose open sizes are symbols; `example` is the same network for a set of input shapes.

    Raises: NotOpenError.
    """
    scope = Scope()
    inputs: dict[str, Shape] = {}
    for spec, sizes in zip(network.inputs, signature, strict=True):
        if sizes is None or spec.dtype in (None, "string"):
            raise NotOpenError("an input that is no array of numbers")
        declared = spec.shape or (None,) * len(sizes)
        inputs[spec.name] = tuple(
            size if isinstance(dimension, int) else scope.open_size(dimension or f"{spec.name}/{axis}", size)
            for axis, (size, dimension) in enumerate(zip(sizes, declared, strict=True))
        )
    if not scope.atoms:
        raise NotOpenError("no size is open")
    shapes = OpenShapes(network, inputs, example, scope)
    types = {value: _open_type(known, shapes.shapes.get(value)) for value, known in example.types.items()}
    initializers = {name: _find_constant(name, initializer, network, shapes) for name, initializer in example.initializers.items()}
    specs = tuple(replace(spec, type=TensorType(spec.dtype, inputs[spec.name])) for spec in example.inputs)
    # The bodies of the example know its sizes.
    general = {node.name: node for node in network.nodes if node.bodies and node.name in shapes.undecided}
    nodes = tuple([general.get(node.name, node) for node in example.nodes])
    opened = replace(example, nodes=nodes, inputs=specs, types=MappingProxyType(types), initializers=MappingProxyType(initializers))
    return opened, shapes


def _open_type(known: Any, shape: Shape | None) -> Any:
    if shape is None and isinstance(known, TensorType) and known.shape is not None:
        return TensorType(known.dtype, (None,) * len(known.shape))
    sizes = sizes_of(known)
    return known if shape is None or sizes is None or len(sizes) != len(shape) else TensorType(known.dtype, shape)


def _find_constant(name: str, initializer: Initializer, network: Network, open_shapes: OpenShapes) -> Initializer:
    """Returns a constant of the example, a `ShapeConstant` if it follows from sizes."""
    if name in network.initializers or name not in open_shapes.derived or name in open_shapes.fixed:
        return initializer
    elements = open_shapes.elements.get(name)
    shape = open_shapes.shapes.get(name)
    if shape is None:
        raise NotOpenError(f"constant '{name}' has a shape that nobody knows")
    if elements is not None and not any(is_open(number) for number in elements.reshape(-1)):
        return initializer
    return ShapeConstant(initializer, shape, elements, open_shapes, is_finite=name in open_shapes.finite)


def expose_shape_constants(network: Network) -> tuple[Network, tuple[str, ...]]:
    """Returns a network with its shape constants as inputs behind its own, and their names."""
    shape_constants = tuple(name for name, initializer in network.initializers.items() if type(initializer) is ShapeConstant)
    specs = tuple(ValueSpec(name, network.initializers[name].type) for name in shape_constants)
    types = {**network.types, **{spec.name: spec.type for spec in specs}}
    constants = {name: initializer for name, initializer in network.initializers.items() if name not in shape_constants}
    exposed = replace(
        network, inputs=(*network.inputs, *specs), types=MappingProxyType(types), initializers=MappingProxyType(constants)
    )
    return exposed, shape_constants


def compile_shape_constants(names: Sequence[str], open_shapes: OpenShapes) -> tuple[tuple[Elements, ...], Program]:
    """Returns the elements that the program of shape constants reads, with symbols, and the program."""
    network, needed, nodes = open_shapes.network, set(names), []
    for node in reversed(network.nodes):
        if needed.isdisjoint(node.writes) or set(node.writes) <= set(open_shapes.elements):
            continue
        nodes.append(node)
        needed.update(node.reads)
    reads = tuple(sorted(value for value in needed if value in open_shapes.elements))
    if any(node.op_type in ("Shape", "Size") for node in nodes):
        raise NotOpenError("a shape of unknown elements")
    types, values = network.types, {value for node in nodes for value in node.reads}
    inputs = tuple(ValueSpec(name, TensorType("int64", tuple(open_shapes.elements[name].shape))) for name in reads)
    outputs = tuple(ValueSpec(name, types.get(name, TensorType(None, None))) for name in names)
    constants = {name: network.initializers[name] for name in sorted(values) if name in network.initializers}
    # A kernel with known types does not look at them in each run.
    values.update(value for node in nodes for value in node.writes)
    known = {name: TensorType(own.dtype, None) for name in sorted(values) if isinstance(own := types.get(name), TensorType)}
    program = compile_program(Graph("shape constants", inputs, outputs, tuple(reversed(nodes)), constants, known))
    return tuple([open_shapes.elements[name] for name in reads]), program
