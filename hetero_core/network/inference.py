"""Types of all values: what the model declares and what follows from it, merged.

Networks whose operators all have a rule in `operators` and whose sizes are known are inferred here, node after node: onnx's inference
takes the network as a message and gives it back as one, some 20 us per node and a library to load. A network with one node that has no
rule, one size that is open, or one declaration that says more, is left to onnx as a whole (`shapes`), and so are all errors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

from hetero_core.limits import ReadBudget
from hetero_core.network.graph import Graph, Network, Node
from hetero_core.network.growth import bound_type_bytes
from hetero_core.network.hints import forget_body_shapes, restore_body_shapes, state_hints, without_hints
from hetero_core.network.initializers import Initializer
from hetero_core.network.merging import merge_types
from hetero_core.network.operators import OPERATORS, REFUSALS, NamedSize, Shape, SizedNode
from hetero_core.network.types import LARGEST_RANK, Dimension, TensorType, ValueType

LARGEST_SIZE = 1 << 40
"""Above it onnx is asked, whose sizes have 64 bits."""
_MOST_NUMBERS = LARGEST_RANK

CustomTypes = Callable[[Node, tuple[ValueType | None, ...]], Sequence[ValueType] | None]
"""Takes a node that onnx does not know and the types of its inputs (None: unknown or absent); returns those of its outputs."""


def infer_types(network: Network, *, infer_custom_types: CustomTypes | None = None, budget: ReadBudget | None = None) -> Network:
    """Returns the network with all types completed as far as they can be inferred, bodies included.

    Nodes are shared with `network`, except those whose bodies learnt a type. Cost: linear, some 20 us per node, 5 where onnx need not be
    asked. `budget` is what the reading of the network has left; None for a network that was read before.

    Raises: InvalidNetworkError when a type in `network.types` contradicts what its producer gives; ExtensionError when
    `infer_custom_types` returns more types than the node has outputs; ReadLimitError.
    """
    if budget is not None:
        budget.require_memory(bound_type_bytes(network), "its types, each at most as large as the largest that is declared,")
    # What bodies declare, and hints, are no proof of anything outside: they are put back afterwards.
    inferred = _infer(forget_body_shapes(without_hints(network)), infer_custom_types, budget)
    restored = restore_body_shapes(inferred, network)
    return state_hints(restored, network.declarations) if network.declarations.are_stated else restored


def _infer(network: Network, infer_custom_types: CustomTypes | None, budget: ReadBudget | None) -> Network:
    plain = infer_plainly(network)
    if plain is None:
        from hetero_core.network.shapes import infer_with_onnx  # imports onnx, and the rules of ONNX Runtime's operators

        return infer_with_onnx(network, infer_custom_types, budget)
    typed = rebuild_graph(network, network.nodes, network.types if plain == network.types else plain)
    assert isinstance(typed, Network)
    return typed


def rebuild_graph(graph: Graph, nodes: tuple[Node, ...], types: Mapping[str, ValueType]) -> Graph:
    """Returns the graph with these nodes and types, and with the types of its border brought up to date."""
    if types is graph.types and all(new is old for new, old in zip(nodes, graph.nodes, strict=True)):
        return graph
    if types is graph.types:
        return replace(graph, nodes=nodes)
    return replace(
        graph,
        inputs=tuple(replace(spec, type=types.get(spec.name, spec.type)) for spec in graph.inputs),
        outputs=tuple(replace(spec, type=types.get(spec.name, spec.type)) for spec in graph.outputs),
        nodes=nodes,
        types=MappingProxyType(dict(types)),
    )


def infer_plainly(network: Network) -> dict[str, ValueType] | None:
    """Returns the types of all values of a network, or None for a network that onnx has to be asked about. Cost: linear."""
    constants = network.initializers
    types: dict[str, ValueType] = {spec.name: spec.type for spec in network.inputs}
    types.update((name, constant.type) for name, constant in constants.items())
    for node in network.nodes:
        inferred = infer_node(node, types, constants)
        if inferred is None:
            return None
        types.update(inferred)
    return types if all(says_no_more(known, types.get(name)) for name, known in network.types.items()) else None


def infer_node(node: Node, types: Mapping[str, ValueType], constants: Mapping[str, Initializer]) -> dict[str, ValueType] | None:
    """Returns the types of the outputs of a node whose inputs have these types; None if onnx has to be asked."""
    operator = None if node.domain else OPERATORS.get(node.op_type)
    if operator is None or operator.dtypes is None or node.since_version < operator.since:
        return None
    shapes: list[Shape | None] = []
    dtypes: list[str | None] = []
    for value in node.inputs:
        if not value:
            shapes.append(None)
            dtypes.append(None)
            continue
        value_type = types.get(value)
        if not isinstance(value_type, TensorType) or value_type.dtype is None or value_type.shape is None:
            return None
        if None in value_type.shape:
            return None
        shapes.append(_name_sizes(value_type.shape))
        dtypes.append(value_type.dtype)
    try:
        inferred = operator.sizes(SizedNode(node, shapes, partial(_read_numbers, constants)))
        output_dtypes = operator.dtypes(node, dtypes)
    except REFUSALS:
        return None
    outputs: dict[str, ValueType] = {}
    for index, value in enumerate(node.outputs):
        if index >= len(inferred):
            return None
        if not value:
            continue
        dtype = output_dtypes[index] if isinstance(output_dtypes, tuple) else output_dtypes
        if dtype == dtypes[0] and inferred[index] is shapes[0]:
            # Values that share a type are compared by it at once.
            outputs[value] = types[node.inputs[0]]
            continue
        shape = _plain_shape(inferred[index])
        if dtype is None or shape is None:
            return None
        outputs[value] = TensorType(dtype, shape)
    return outputs


def _name_sizes(shape: tuple[Dimension, ...]) -> Shape:
    for size in shape:
        if type(size) is not int:
            return tuple(NamedSize((size,)) if isinstance(size, str) else size for size in shape)
    return shape


def _plain_shape(sizes: Sequence[Any]) -> tuple[Dimension, ...] | None:
    """Returns inferred sizes as a shape; None if some size is not known, or is none that an array has."""
    shape: list[Dimension] = []
    for size in sizes:
        if type(size) is NamedSize and size.factor == 1 and len(size.names) == 1:
            shape.append(size.names[0])
        elif type(size) is int and 0 <= size < LARGEST_SIZE:
            shape.append(size)
        else:
            return None
    return tuple(shape) if len(shape) <= LARGEST_RANK else None


def _read_numbers(constants: Mapping[str, Initializer], value: str) -> Sequence[Any] | None:
    """Returns the elements of a small constant."""
    constant = constants.get(value)
    if constant is None or constant.dtype not in ("int32", "int64", "float32") or len(constant.shape) > 1:
        return None
    if constant.shape and constant.shape[0] > _MOST_NUMBERS:
        return None
    numbers: list[Any] = constant.array.reshape(-1).tolist()
    return numbers


def says_no_more(declared: ValueType, inferred: ValueType | None) -> bool:
    """Says whether a declaration agrees with an inferred type and adds nothing to it."""
    return inferred is not None and (declared is inferred or merge_types(declared, inferred) == inferred)
