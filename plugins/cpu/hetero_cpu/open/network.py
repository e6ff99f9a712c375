"""A network for all sizes of a class: its types with symbols, and constants that are computed when a plan is bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from hetero_core.kernels.execution import Program
from hetero_core.kernels.program import compile_program
from hetero_core.network.graph import Graph, Network, Node
from hetero_core.network.initializers import Initializer
from hetero_core.network.types import TensorType, ValueSpec
from hetero_cpu.open.arrays import Shape
from hetero_cpu.open.shapes import Elements, OpenShapes, infer_open_shapes
from hetero_cpu.open.sizes import Scope, is_open
from hetero_cpu.open.terms import NotOpenError

Signature = tuple[tuple[int, ...] | None, ...]


@dataclass(frozen=True)
class OpenNetwork:
    """`network` with symbols in its types; `symbols`: of each, by its atom, the input and the axis that have it; `shapes` of the origin."""

    network: Network
    scope: Scope
    symbols: Mapping[int, tuple[tuple[int, int], ...]]
    shapes: OpenShapes


class LateConstant(Initializer):
    """A constant that follows from the sizes of the inputs. Reading its elements pins these sizes."""

    __slots__ = ("elements", "example", "is_finite", "open_shapes")

    def __init__(
        self, example: Initializer, shape: Shape, elements: Elements | None, open_shapes: OpenShapes, *, is_finite: bool
    ) -> None:
        super().__init__(example.dtype, shape, lambda: example.array)
        self.example, self.elements, self.open_shapes, self.is_finite = example, elements, open_shapes, is_finite

    @property
    def array(self) -> Any:
        """The elements as symbols, or what pins all sizes when it is looked into."""
        return LateElements(self) if self.elements is None else self.elements

    @property
    def digest(self) -> bytes:
        """The digest of the example."""
        self.pin()
        return self.example.digest

    def pin(self) -> None:
        """Has all sizes of the class those of the example."""
        for shape in self.open_shapes.shapes.values():
            for size in shape:
                int(size)


class LateElements:
    """Stands for the elements of a late constant."""

    def __init__(self, constant: LateConstant) -> None:
        self._constant = constant
        self.shape, self.size = constant.shape, int(constant.example.array.size)

    def __array_ufunc__(self, function: Any, method: str, *operands: Any, **keywords: Any) -> Any:
        if function is np.isfinite:
            # Nobody knows of the others, which is no reason to pin sizes.
            return np.full((), self._constant.is_finite, np.bool_)
        return getattr(function, method)(*(np.asarray(operand) for operand in operands), **keywords)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        self._constant.pin()
        return np.array(self._constant.example.array, dtype)

    def __getattr__(self, name: str) -> Any:
        # NumPy asks for protocols that this class does not have, before it calls __array__.
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(np.asarray(self), name)


def open_network(network: Network, signature: Signature, example: Network) -> OpenNetwork:
    """Returns a network whose open sizes are symbols; `example` is what it is made for one set of input shapes.

    Raises: NotOpenError.
    """
    scope = Scope()
    inputs: dict[str, Shape] = {}
    symbols: dict[int, list[tuple[int, int]]] = {}
    symbol_of_name: dict[tuple[str, int], Any] = {}
    for index, (spec, sizes) in enumerate(zip(network.inputs, signature, strict=True)):
        if sizes is None or spec.dtype in (None, "string"):
            raise NotOpenError("an input that is no array of numbers")
        declared = spec.shape or (None,) * len(sizes)
        shape: list[Any] = []
        for axis, (size, dimension) in enumerate(zip(sizes, declared, strict=True)):
            if isinstance(dimension, int):
                shape.append(size)
                continue
            key = (dimension or f"{spec.name}/{axis}", size)
            if key not in symbol_of_name:
                symbol_of_name[key] = scope.open_size(key[0], size)
            symbol = symbol_of_name[key]
            shape.append(symbol)
            if is_open(symbol):
                ((number,),) = symbol.terms
                symbols.setdefault(number, []).append((index, axis))
        inputs[spec.name] = tuple(shape)
    if not symbols:
        raise NotOpenError("no size is open")
    shapes = infer_open_shapes(network, inputs, example, scope)
    types = {value: _open_type(known, shapes.shapes.get(value)) for value, known in example.types.items()}
    initializers = {name: _find_constant(name, initializer, network, shapes) for name, initializer in example.initializers.items()}
    specs = tuple(replace(spec, type=TensorType(spec.dtype, inputs[spec.name])) for spec in example.inputs)
    opened = replace(example, inputs=specs, types=MappingProxyType(types), initializers=MappingProxyType(initializers))
    return OpenNetwork(opened, scope, {number: tuple(places) for number, places in symbols.items()}, shapes)


def _open_type(known: Any, shape: Shape | None) -> Any:
    if shape is None or not isinstance(known, TensorType) or known.shape is None or len(known.shape) != len(shape):
        return known
    if any(not isinstance(size, int) for size in known.shape):
        return known
    return TensorType(known.dtype, shape)


def _find_constant(name: str, initializer: Initializer, network: Network, open_shapes: OpenShapes) -> Initializer:
    """Returns a constant of the example, a late one where it follows from sizes."""
    if name in network.initializers or name not in open_shapes.derived or name in open_shapes.fixed:
        return initializer
    elements = open_shapes.elements.get(name)
    shape = open_shapes.shapes.get(name)
    if shape is None:
        raise NotOpenError(f"constant '{name}' has a shape that nobody knows")
    if elements is not None and not any(is_open(number) for number in elements.reshape(-1)):
        return initializer
    return LateConstant(initializer, shape, elements, open_shapes, is_finite=name in open_shapes.finite)


def expose_late(network: Network) -> tuple[Network, tuple[str, ...]]:
    """Returns a network whose late constants are inputs behind its own, and their names."""
    late = tuple(name for name, initializer in network.initializers.items() if type(initializer) is LateConstant)
    specs = tuple(ValueSpec(name, network.initializers[name].type) for name in late)
    types = {**network.types, **{spec.name: spec.type for spec in specs}}
    constants = {name: initializer for name, initializer in network.initializers.items() if name not in late}
    exposed = replace(
        network, inputs=(*network.inputs, *specs), types=MappingProxyType(types), initializers=MappingProxyType(constants)
    )
    return exposed, late


def compile_late(names: Sequence[str], open_shapes: OpenShapes) -> tuple[Program | None, tuple[str, ...], tuple[str, ...]]:
    """Returns what computes late constants, its nodes by name, and the values whose elements it reads, which are symbols."""
    needed, nodes = set(names), []
    for node in reversed(open_shapes.network.nodes):
        if needed.isdisjoint(node.writes) or set(node.writes) <= set(open_shapes.elements):
            continue
        nodes.append(node)
        needed.update(node.reads)
    reads = sorted(value for value in needed if value in open_shapes.elements)
    if any(node.op_type in ("Shape", "Size") for node in nodes):
        raise NotOpenError("a shape of unknown elements")
    nodes.reverse()
    ranks = {name: tuple(open_shapes.elements[name].shape) for name in reads}
    computed = tuple(name for name in names if name not in open_shapes.elements)
    program = compile_late_nodes(open_shapes.network, nodes, ranks, computed)
    return program, tuple(node.name for node in nodes), tuple(reads)


def compile_late_nodes(
    network: Network, nodes: Sequence[Node], shapes: Mapping[str, tuple[int, ...]], names: Sequence[str]
) -> Program | None:
    """Returns what computes late constants of these names by nodes of the network from values of int64 of these shapes."""
    if not nodes:
        return None
    types, values = network.types, {value for node in nodes for value in node.reads}
    inputs = tuple(ValueSpec(name, TensorType("int64", shape)) for name, shape in shapes.items())
    outputs = tuple(ValueSpec(name, types.get(name, TensorType(None, None))) for name in names)
    constants = {name: network.initializers[name] for name in sorted(values) if name in network.initializers}
    # A kernel whose types are known does not look at them in each run.
    values.update(value for node in nodes for value in node.writes)
    known = {name: TensorType(own.dtype, None) for name in sorted(values) if isinstance(own := types.get(name), TensorType)}
    return compile_program(Graph("late", inputs, outputs, tuple(nodes), constants, known))
