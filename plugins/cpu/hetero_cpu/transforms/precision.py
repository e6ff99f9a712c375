"""Half precision is float32 inside: the pass that widens a network of float16 or bfloat16.

```text
input (half) ── Cast ──> float32 ── node ── float32 ── node ── float32 ── Cast ──> output (half)
constant (half) ── widened when it is first read, as the packing of weights does
```

A value has up to two forms, half and float32. A form that no node makes is a Cast of the present form, inserted before its first
reader. Inputs, outputs, constants and values that bodies read keep their names and types; an inner value that a node makes in float32
keeps its name. A node that may not be widened (bodies, sequences, BitCast, Cast, random numbers, operators without a kernel in
float32) reads and makes halves. So a Cast of the model to half rounds, and a Cast of the model to float32 is an alias if the value is
float32 already.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from hetero_core.dtypes import onnx_of_dtype
from hetero_core.kernels.precision import widen
from hetero_core.kernels.registry import DTYPE_ATTRIBUTES, find_refusal
from hetero_core.network.graph import Network, Node
from hetero_core.network.inference import infer_types
from hetero_core.network.initializers import Initializer
from hetero_core.network.types import TensorType, ValueType, shape_of
from hetero_core.transforms.constants import LARGEST_KEPT, RANDOM_OPERATORS, drop_unread
from hetero_cpu.transforms.writer import Array, Writer, derive_constant

HALVES = frozenset({"float16", "bfloat16"})
_KEPT = RANDOM_OPERATORS | {"BitCast", "Cast", "CastLike", "EyeLike", "Range"}
"""Operators with results that depend on the element type itself."""
_LOOKUPS = frozenset({"Gather", "GatherElements", "GatherND"})
"""Operators that read a few rows of a table, which stays half."""
_MOVES = _LOOKUPS | frozenset(
    (
        *("Concat", "DepthToSpace", "Expand", "Flatten", "Identity", "Pad", "Reshape", "ReverseSequence", "Slice", "SpaceToDepth"),
        *("Split", "Squeeze", "Tile", "Transpose", "Unsqueeze", "Where"),
    )
)
"""Operators that only move elements: they move halves, unless an operand is float32."""
_CAST_OPSET = 13
"""The first opset whose Cast knows bfloat16."""


def widen_halves(network: Network) -> Network:
    """Returns the network with float16 and bfloat16 computed in float32; its inputs and outputs keep their types.

    Cost: linear, some 50 us for each node that reads halves; no constant is read.
    """
    if not any(map(_is_half, network.types.values())):
        return network
    widening = _Widening(network)
    for node in network.nodes:
        widening.add_node(node)
    for spec in network.outputs:
        widening.read_half(spec.name, None)
    widened = drop_unread(widening.write_network())
    # onnx does not tell the shapes of operators whose version has no bfloat16, as Conv-11.
    has_open_types = any(shape_of(widened.type_of(value)) is None for node in widened.nodes for value in node.writes)
    return infer_types(widened) if has_open_types else widened


def _is_half(value_type: ValueType | None) -> bool:
    return isinstance(value_type, TensorType) and value_type.dtype in HALVES


def _widen_type(value_type: ValueType | None) -> ValueType | None:
    return TensorType("float32", value_type.shape) if isinstance(value_type, TensorType) and _is_half(value_type) else value_type


class _Widening(Writer):
    """The nodes so far, and the names of the forms of values that are present."""

    def __init__(self, network: Network) -> None:
        super().__init__(network)
        captures = {value for node in network.nodes for value in node.captures}
        self._visible = network.names_of_outputs | captures
        # Value of the model -> its form in float32.
        self._wide: dict[str, str] = {}
        # Value of the model that a node makes in float32 -> its half form.
        self._half: dict[str, str] = {}
        self._made_wide: set[str] = set()
        self._computes = {node.name for node in network.nodes if self._can_widen(node)}

    def add_node(self, node: Node) -> None:
        """Adds a node of the model, widened or as it is."""
        if self._is_cast_to_float32(node) and (node.inputs[0] in self._made_wide or node.inputs[0] in self.network.initializers):
            source, attributes = self._read_wide(node.inputs[0], node), MappingProxyType[str, Any]({})
            alias = replace(node, op_type="Identity", inputs=(source,), since_version=_CAST_OPSET, attributes=attributes)
            self.nodes.append(alias)
        elif self._is_widened(node):
            inputs = tuple(self._read_wide(value, node) if self._is_half(value) else value for value in node.inputs)
            outputs = tuple(self._make_wide(value) if value and self._is_half(value) else value for value in node.outputs)
            self.nodes.append(replace(node, inputs=inputs, outputs=outputs))
        else:
            for value in node.captures:
                self.read_half(value, node)
            inputs = tuple(self.read_half(value, node) for value in node.inputs)
            self.nodes.append(node if inputs == node.inputs else replace(node, inputs=inputs))
            if self._is_cast_to_float32(node):
                self._wide.setdefault(node.inputs[0], node.outputs[0])

    def _find_type(self, value: str) -> ValueType | None:
        constant = self.network.initializers.get(value)
        return self.network.types.get(value) if constant is None else constant.type

    def _is_half(self, value: str) -> bool:
        return bool(value) and _is_half(self._find_type(value))

    def _can_widen(self, node: Node) -> bool:
        """Says whether a node reads halves and may read float32 instead; its outputs then are float32, too."""
        if node.bodies or node.op_type in _KEPT or not DTYPE_ATTRIBUTES.isdisjoint(node.attributes):
            return False
        if node.op_type in _LOOKUPS and node.inputs[0] in self.network.initializers:
            return False
        if not any(map(self._is_half, node.inputs)):
            return False
        types = [self._find_type(value) for value in (*node.reads, *node.writes)]
        if not all(isinstance(value_type, TensorType) and value_type.dtype is not None for value_type in types):
            return False
        inputs = [_widen_type(self._find_type(value)) if value else None for value in node.inputs]
        return find_refusal(node, inputs, type_of=lambda value: _widen_type(self._find_type(value))) is None

    def _is_widened(self, node: Node) -> bool:
        if node.name not in self._computes:
            return False
        computed = filter(self._is_half, set(node.inputs) - self.network.initializers.keys())
        is_move = node.op_type in _MOVES and not node.domain
        return (not is_move and any(map(self._is_half, node.writes))) or not self._wide.keys().isdisjoint(computed)

    def _is_cast_to_float32(self, node: Node) -> bool:
        is_cast = node.op_type == "Cast" and not node.domain and self._is_half(node.inputs[0])
        return is_cast and self.dtype(node.outputs[0]) == "float32"

    def _read_wide(self, value: str, node: Node) -> str:
        """Returns the name of a half's form in float32, which is made if it is not there yet."""
        if value not in self._wide:
            name = self._wide[value] = self.names.value(f"{value}/float32")
            constant = self.network.initializers.get(value)
            if constant is None:
                self._cast(value, name, "float32", node.origins)
            else:
                self.hold(convert_constant(constant, widen), name)
        return self._wide[value]

    def _make_wide(self, value: str) -> str:
        """Returns the name under which a widened node makes a value."""
        name = self.names.value(f"{value}/float32") if value in self._visible else value
        self.types[name] = _widen_type(self._find_type(value)) or TensorType("float32")
        self._wide[value] = name
        self._made_wide.add(value)
        return name

    def read_half(self, value: str, node: Node | None) -> str:
        """Returns the name of a value in the type that the model gives it; a half form is made if it is not there yet."""
        if value not in self._made_wide:
            return value
        if value not in self._half:
            value_type = self._find_type(value)
            assert isinstance(value_type, TensorType)
            name = self._half[value] = value if value in self._visible else self.names.value(f"{value}/{value_type.dtype}")
            owner = self.network.find_producer(value) or node
            self._cast(self._wide[value], name, str(value_type.dtype), () if owner is None else owner.origins)
        return self._half[value]

    def _cast(self, source: str, target: str, dtype: str, origins: tuple[str, ...]) -> None:
        self.origins = origins
        self.add("Cast", source, output=target, to=onnx_of_dtype(dtype))


def convert_constant(constant: Initializer, convert: Callable[[Array], Array]) -> Initializer:
    """Returns a constant as float32, made when it is first read; a large array is made again if it is asked for after it was packed."""
    is_renewable, drop_pages = constant.nbytes >= LARGEST_KEPT, constant.drop_pages if constant.is_mapped else None
    return derive_constant(constant, convert, is_renewable=is_renewable, drop_pages=drop_pages)
