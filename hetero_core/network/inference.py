"""Types of all values: the declared types, merged with the inferred types.

Each node is asked in order: by the rule of its operator (`operators`, `contrib_types`), by the author of a custom operator, or, without
a rule or if the rule cannot tell, by onnx, which sees this node alone (`onnx_types`). So onnx is not imported for a network whose
operators have rules. Known elements of shapes are followed, also sizes that have only a name. A known type never becomes less known.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hetero_core.errors import ExtensionError, InvalidNetworkError
from hetero_core.limits import ReadBudget
from hetero_core.network.contrib_types import find_operator
from hetero_core.network.graph import Graph, GraphLike, Network, Node, iterate_graphs
from hetero_core.network.hints import (
    forget_body_shapes,
    rebuild_graph,
    restore_body_shapes,
    state_hints,
    without_hints,
    word_source,
)
from hetero_core.network.initializers import Initializer
from hetero_core.network.known_values import COUNTING_DTYPES, LARGEST_VALUE, compute_elements, computes_shapes
from hetero_core.network.operators import KEPT_RANKS, OPERATORS, REFUSALS, STANDARD_DOMAINS, OpenSize, Shape, SizedNode, open_size
from hetero_core.network.scopes import find_schema
from hetero_core.network.types import (
    LARGEST_RANK,
    Dimension,
    TensorType,
    ValueType,
    find_tensor,
    has_known_element,
    merge_types,
    shape_of,
    sizes_of,
    unite_types,
)

LARGEST_SIZE = 1 << 40
"""A larger size is left to onnx, which has sizes of 64 bits."""
LARGEST_READ_CONSTANT = 1024
"""Bytes up to which inference reads a constant's values: shapes, axes and the like are small."""
_MOST_ROUNDS = 8
_UNKNOWN = TensorType(None)

_INPUT_THAT_GIVES_RANK = {"ConstantOfShape": 0, "Expand": 1, "Reshape": 1, "Tile": 1}
"""The inputs with as many elements as the output has axes."""

CustomTypes = Callable[[Node, tuple[ValueType | None, ...]], Sequence[ValueType] | None]
"""Takes a node that onnx does not know and the types of its inputs (None: unknown or absent); returns those of its outputs."""
Read = Callable[[str], Sequence[Any] | None]
Types = Mapping[str, ValueType]
Constants = Mapping[str, Initializer]


def infer_types(network: Network, *, infer_custom_types: CustomTypes | None = None, budget: ReadBudget | None = None) -> Network:
    """Returns the network with all types completed as far as they can be inferred, bodies included.

    Nodes are shared with `network` unless a body of theirs learnt a type. Cost: linear, some 8 us per node, 100 if onnx is asked.
    `budget` is the rest of the budget for reading; None for a network that was read before.

    Raises: InvalidNetworkError when a type in `network.types` contradicts the type that its producer gives; ExtensionError when
    `infer_custom_types` returns more types than the node has outputs; ReadLimitError.
    """
    if budget is not None:
        graphs = list(iterate_graphs(network))
        largest = max((_measure(value_type) for graph in graphs for value_type in graph.types.values()), default=0)
        count = sum(len(node.outputs) for graph in graphs for node in graph.nodes)
        budget.require_memory(count * largest, "its types, each at most as large as the largest that is declared,")
    # Declarations of bodies, and hints, prove nothing outside: they are put back afterwards.
    start = forget_body_shapes(without_hints(network))
    inferred = _Inference(infer_custom_types, budget).infer(start)
    restored = restore_body_shapes(inferred, network)
    return state_hints(restored, network.declarations) if network.declarations.are_stated else restored


def find_contradictions(network: Network) -> Mapping[str, str]:
    """Returns the objections of onnx by node name; onnx is only asked about a node if its rule cannot tell."""
    inference = _Inference(None, None)
    inference.infer(forget_body_shapes(without_hints(network)))
    return inference.objections


def _measure(value_type: ValueType) -> int:
    # In bytes: a dimension takes 40 bytes: in a message, in its bytes and in a tuple.
    return 64 + sum(40 + (len(size) if isinstance(size, str) else 0) for size in find_tensor(value_type).shape or ())


@dataclass(slots=True, eq=False)
class _Inference:
    """A single inference over a network; `objections` are errors of onnx by node name."""

    custom_types: CustomTypes | None
    budget: ReadBudget | None
    learnt: bool = False
    objections: dict[str, str] = field(default_factory=dict)

    def infer(self, network: Network) -> Network:
        """Returns the network with its types. A body tells the node that has it of types, and the node tells the body: in rounds."""
        for graph in iterate_graphs(network):
            for node in graph.nodes:
                _check_axes(node)
        # A branch of If reads what is known before it; bodies of loops also read what they write.
        has_loops = any(node.bodies and node.op_type != "If" for graph in iterate_graphs(network) for node in graph.nodes)
        for _ in range(_MOST_ROUNDS):
            self.learnt = False
            network = self._sweep(network, {}, {}, {})
            if not has_loops or not self.learnt:
                break
        return network

    def _sweep(self, graph: GraphLike, outer: Types, constants: Constants, elements: Mapping[str, Any]) -> GraphLike:
        """Returns the graph with the types of its values; `outer`, `constants` and `elements` are known around it."""
        types = dict(graph.types)
        state = _Scope(types, graph.initializers, {})
        if outer:
            state = _Scope(_nest(types, outer), _nest(dict(graph.initializers), constants), _nest({}, elements))
        nodes: list[Node] = []
        learnt = False
        for node in graph.nodes:
            if self.budget is not None:
                self.budget.check_time(f"node {node.label}", steps=16)
            bodies = node.bodies
            if bodies:
                node = node.with_bodies(
                    {key: self._sweep(body, state.types, state.constants, state.elements) for key, body in bodies.items()}
                )
            node, inferred = self._infer_node(node, state)
            nodes.append(node)
            inferred.update(state.follow(node, inferred))
            for name, value_type in inferred.items():
                learnt |= merge_into(graph, types, name, value_type)
        # A body may hand out a value of the graph around it as it is, and need not declare its type.
        for output in graph.outputs if outer else ():
            captured = None if has_known_element(types.get(output.name)) else state.find_type(output.name)
            if captured is not None and output.name not in graph.initializers:
                learnt |= merge_into(graph, types, output.name, captured)
        self.learnt |= learnt
        return rebuild_graph(graph, tuple(nodes), types if learnt else graph.types)

    def _infer_node(self, node: Node, state: _Scope) -> tuple[Node, dict[str, ValueType]]:
        """Returns the node, its bodies perhaps with more types, and the types of its outputs that could be learnt."""
        input_types = [state.find_type(value) if value else None for value in node.inputs]
        if node.since_version == 0:
            return node, self._ask_author(node, input_types) or infer_contrib(node, input_types, state.read)
        if self.budget is not None:  # a model that is read: its passes keep the types
            _check_element_types(node, input_types)
        if node.op_type == "If" and not node.domain:
            united = _unite_branches(node)
            # As of opset 10 onnx takes the branches' types for two descriptions of a single type.
            if node.since_version < 11 or all(has_known_element(united.get(value)) for value in node.writes):
                return node, united
        types = apply_rule(node, input_types, state.read)
        if node.bodies or (types is None and not all(_is_complete(state.types.get(value)) for value in node.writes)):
            # onnx makes a message for each dimension, of which a few bytes in a file can ask for 2**31.
            index = _INPUT_THAT_GIVES_RANK.get(node.op_type, len(input_types))
            shape = shape_of(input_types[index]) if index < len(input_types) and not node.domain else None
            if shape and isinstance(shape[0], int):
                _check_rank(node, shape[0])
            from hetero_core.network.onnx_types import ask_onnx  # imports onnx

            node, types = ask_onnx(node, state.types, state.constants, state.elements, self.objections)
            if node.op_type in KEPT_RANKS and not node.domain and isinstance(input_types[0], TensorType):
                shape = input_types[0].shape
                ranked = TensorType(None, None if shape is None else (None,) * len(shape))
                types = {value: merge_types(types.get(value, ranked), ranked) or types[value] for value in node.writes}
            for value, typed in _apply_type_rule(node, input_types).items():
                types[value] = merge_types(types.get(value, typed), typed) or types[value]
        for value_type in (types or {}).values():
            if isinstance(value_type, TensorType) and value_type.shape is not None:
                _check_rank(node, len(value_type.shape))
        return node, types or {}

    def _ask_author(self, node: Node, input_types: Sequence[ValueType | None]) -> dict[str, ValueType]:
        answer = None if self.custom_types is None else self.custom_types(node, tuple(input_types))
        if answer is None:
            return {}
        if len(answer) > len(node.outputs):
            raise ExtensionError(
                f"infer_types of the operator of node {node.label} gave {len(answer)} types; the node has {len(node.outputs)} "
                "outputs. Return one type for each output."
            )
        return {value: value_type for value, value_type in zip(node.outputs, answer, strict=False) if value}


@dataclass(slots=True, eq=False)
class _Scope:
    """All that is known at a place of a graph: types, constants, and the elements of values that follow from shapes, as arrays."""

    types: Types
    constants: Constants
    elements: MutableMapping[str, Any]

    def find_type(self, value: str) -> ValueType | None:
        """Returns the type of a value."""
        constant = self.constants.get(value)
        return self.types.get(value) if constant is None else constant.type

    def read(self, value: str) -> Sequence[Any] | None:
        """Returns the elements of a small value of numbers; open sizes if only their number is known."""
        array = self.elements.get(value)
        if array is None:
            constant = self.constants.get(value)
            if constant is not None:
                return read_numbers(self.constants, value)
            value_type = self.types.get(value)
            sizes = sizes_of(value_type)
            if sizes is None or len(sizes) > 1 or (sizes and sizes[0] > LARGEST_RANK):
                return None
            return [open_size() for _ in range(sizes[0] if sizes else 1)]
        numbers: list[Any] = array.reshape(-1).tolist()
        return numbers

    def follow(self, node: Node, inferred: Types) -> dict[str, ValueType]:
        """Notes the elements that a node computes from shapes; returns the type of its output if it tells more than `inferred`."""
        if not computes_shapes(node):
            return {}
        arrays = tuple(self._find_elements(value, node) if value else None for value in node.inputs)
        if any(value and array is None for value, array in zip(node.inputs, arrays, strict=True)) or not any(node.inputs):
            return {}
        array = compute_elements(node, arrays)
        if array is None:
            return {}
        (output,) = node.outputs
        self.elements[output] = array
        known = inferred.get(output, self.types.get(output))
        dtype = known.dtype if isinstance(known, TensorType) and known.dtype is not None else str(array.dtype)
        return {output: TensorType("int64" if dtype == "object" else dtype, tuple(array.shape))}

    def _find_elements(self, value: str, node: Node) -> Any:
        """Returns the elements that a node reads of an input; of Shape and Size, the sizes. None if they are not known."""
        if node.op_type in ("Shape", "Size"):
            shape = shape_of(self.find_type(value))
            sizes = None if shape is None else _name_sizes(shape)
            return None if sizes is None else np.array(sizes, np.int64 if all(type(size) is int for size in sizes) else object)
        constant = self.constants.get(value)
        if constant is None:
            return self.elements.get(value)
        is_small = constant.nbytes <= LARGEST_VALUE and constant.dtype in COUNTING_DTYPES
        return constant.array if is_small else None


def _nest(inner: dict[str, Any], outer: Mapping[str, Any]) -> ChainMap[str, Any]:
    """Returns the facts about a body in front of those about the graph around it."""
    return ChainMap(inner, *(outer.maps if isinstance(outer, ChainMap) else (outer,)))


def compute_known_value(node: Node, types: Types, constants: Constants) -> dict[str, Initializer]:
    """Returns the output of a node by name if it follows from constants and known shapes; nothing if it does not."""
    scope = _Scope(types, constants, {})
    scope.follow(node, {})
    return {value: Initializer.of_array(array) for value, array in scope.elements.items() if array.dtype != object}


def _check_axes(node: Node) -> None:
    """Refuses a node that names an axis which no tensor has, or more inputs or outputs than it has: inference counts up to them."""
    if not node.attributes or node.domain:
        return
    limits = {"axis": (-LARGEST_RANK, LARGEST_RANK), "batch_dims": (0, LARGEST_RANK), "num_scan_inputs": (0, len(node.inputs))}
    if node.op_type == "Split":
        limits["num_outputs"] = (len(node.outputs),) * 2
    for name, (least, most) in limits.items():
        number = node.attributes.get(name, least)
        if isinstance(number, int) and not least <= number <= most:
            raise InvalidNetworkError(
                f"node {node.label} has {name} {number}; expected one from {least} to {most}. Correct the attribute, or export the model "
                "again."
            )


def merge_into(graph: Graph, types: dict[str, ValueType], name: str, inferred: ValueType) -> bool:
    """Merges a type into `types`; says whether it added knowledge."""
    known = types.get(name)
    if known is inferred:
        return False
    merged = inferred if known is None else merge_types(known, inferred)
    if merged is None:
        raise InvalidNetworkError(
            f"value '{name}' of '{graph.name}' is declared as {known}, but {word_source(graph, name)} gives {inferred}; "
            "correct the declaration or remove it."
        )
    if merged == known:
        return False
    types[name] = merged
    return True


def _unite_branches(node: Node) -> dict[str, ValueType]:
    """Returns the types of the outputs of an `If`, as far as both branches state them."""
    branches = [[body.types.get(spec.name, spec.type) for spec in body.outputs] for body in node.bodies.values()]
    united = map(unite_types, *branches) if len(branches) == 2 else ()
    return {name: value_type for name, value_type in zip(node.outputs, united, strict=False) if name}


def _is_complete(value_type: ValueType | None) -> bool:
    shape = shape_of(value_type)
    return isinstance(value_type, TensorType) and value_type.dtype is not None and shape is not None and None not in shape


def apply_rule(node: Node, input_types: Sequence[ValueType | None], read: Read) -> dict[str, ValueType] | None:
    """Returns the types that the rule of an operator of ONNX gives; None without a rule, or if it cannot tell."""
    operator = find_operator(node)
    if operator is None:
        return None
    tensor_types = [each if isinstance(each, TensorType) else _UNKNOWN for each in input_types]
    shapes = [None if each.shape is None else _name_sizes(each.shape) for each in tensor_types]
    dtypes = [each.dtype for each in tensor_types]
    try:
        inferred = operator.sizes(SizedNode(node, shapes, read))
        output_dtypes = operator.infer_dtypes(node, dtypes)
    except REFUSALS:
        return None
    outputs: dict[str, ValueType] = {}
    for index, value in enumerate(node.outputs):
        if index >= len(inferred):
            return None
        if not value:
            continue
        dtype = output_dtypes[index]
        if inferred[index] is shapes[0] and dtype == dtypes[0] is not None:
            # Values that share a type are compared by it at once.
            outputs[value] = input_types[0]  # type: ignore[assignment]  # it is no None, as its element type is known
            continue
        shape = _plain_shape(inferred[index])
        if dtype is None or shape is None:
            return None
        outputs[value] = TensorType(dtype, shape)
    return outputs


def _apply_type_rule(node: Node, input_types: Sequence[ValueType | None]) -> dict[str, ValueType]:
    """Returns the types without sizes that the rule of an operator tells of its outputs."""
    # They hold in every version, other than the sizes.
    operator = find_operator(node) or (OPERATORS.get(node.op_type) if node.domain in STANDARD_DOMAINS else None)
    if operator is None:
        return {}
    try:
        dtypes = operator.infer_dtypes(node, [each.dtype if isinstance(each, TensorType) else None for each in input_types])
    except REFUSALS:
        return {}
    return {value: TensorType(dtype) for value, dtype in zip(node.outputs, dtypes, strict=True) if value and dtype is not None}


def refuses_inputs(node: Node, network: Network) -> bool:
    """Says whether the rule of an operator refuses inputs of known ranks; open sizes are never refused."""
    operator = find_operator(node)
    shapes = [shape_of(network.type_of(value)) if value else None for value in node.inputs]
    if operator is None or any(value and shape is None for value, shape in zip(node.inputs, shapes, strict=True)):
        return False
    try:
        named = [None if shape is None else _name_sizes(shape) for shape in shapes]
        operator.sizes(SizedNode(node, named, lambda value: read_numbers(network.initializers, value)))
    except REFUSALS:
        return True
    return False


def infer_contrib(node: Node, input_types: Sequence[ValueType | None], read: Read) -> dict[str, ValueType]:
    """Returns the types that the rule of an operator gives; element types alone if it cannot tell the sizes."""
    return apply_rule(node, input_types, read) or _apply_type_rule(node, input_types)


def _check_element_types(node: Node, input_types: Sequence[ValueType | None]) -> None:
    """Refuses a node with inputs of different element types to which ONNX gives one, as ONNX Runtime does."""
    dtypes = [each.dtype if isinstance(each, TensorType) else None for each in input_types]
    if len({*dtypes, None}) <= 2:
        return
    types = find_schema(node.op_type, node.since_version, node.domain).types
    first_of_type: dict[str, int] = {}
    for index, dtype in enumerate(dtypes):
        type_name = types[min(index, len(types) - 1)]
        first = first_of_type.setdefault(type_name, index) if type_name and dtype is not None else index
        if dtypes[first] != dtype:
            raise InvalidNetworkError(
                f"inputs '{node.inputs[first]}' and '{node.inputs[index]}' of node {node.label} have element types {dtypes[first]} and "
                f"{dtype}; expected one type. Convert one of them with a Cast, or export the model again."
            )


def _check_rank(node: Node, rank: int) -> None:
    if rank > LARGEST_RANK:
        raise InvalidNetworkError(
            f"node {node.label} makes an array of {rank} dimensions; an array has at most {LARGEST_RANK}. "
            "Correct the shapes, or export the model again."
        )


def infer_fixed_node(node: Node, types: Types, constants: Constants) -> dict[str, ValueType] | None:
    """Returns the output types by `apply_rule` for inputs of known types; None also if a size of an output is open."""
    inputs = [constants[value].type if value in constants else types.get(value) for value in node.inputs]
    outputs = apply_rule(node, inputs, lambda value: read_numbers(constants, value))
    return None if outputs is None or not all(map(_is_complete, outputs.values())) else outputs


def _name_sizes(shape: tuple[Dimension, ...]) -> Shape:
    for size in shape:
        if type(size) is not int:
            return tuple(size if isinstance(size, int) else open_size(size) for size in shape)
    return shape


def _plain_shape(sizes: Sequence[Any]) -> tuple[Dimension, ...] | None:
    """Returns inferred sizes as a shape; None for a size that no array has."""
    shape: list[Dimension] = []
    for size in sizes:
        if type(size) is OpenSize:
            shape.append(size.name)
        elif type(size) is int and 0 <= size < LARGEST_SIZE:
            shape.append(size)
        else:
            return None
    return tuple(shape)


def read_numbers(constants: Constants, value: str) -> Sequence[Any] | None:
    """Returns the elements of a small constant of numbers."""
    constant = constants.get(value)
    if constant is None or constant.dtype not in ("int32", "int64", "float32") or len(constant.shape) > 1:
        return None
    if constant.shape and constant.shape[0] > LARGEST_RANK:
        return None
    numbers: list[Any] = constant.array.reshape(-1).tolist()
    return numbers
