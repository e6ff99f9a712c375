"""Declared shapes beside inferred shapes: forgotten before inference, compared after it, so that no wrong declaration reaches a
device.

Element types and the inputs of the root graph are no hints; the shapes of a sequence's items are. The bodies of a Loop or Scan keep the
declared shapes of their inputs and outputs, since without iterations a scan output has its declared size; inference starts without it.
Imports nothing heavy.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod
from types import MappingProxyType

from hetero_core.errors import InvalidNetworkError, NetworkDeclarationWarning
from hetero_core.network.border import NO_DECLARATIONS, Declarations, Hint, word_contradiction
from hetero_core.network.graph import Graph, GraphLike, Network, Node
from hetero_core.network.types import OptionalType, SequenceType, TensorType, ValueType, map_tensor, merge_types, shape_of


def rebuild_graph(graph: GraphLike, nodes: tuple[Node, ...], types: Mapping[str, ValueType]) -> GraphLike:
    """Returns the graph with these nodes and types, and with the types of its border brought up to date."""
    if types is graph.types:
        return graph if all(new is old for new, old in zip(nodes, graph.nodes, strict=True)) else replace(graph, nodes=nodes)
    return replace(
        graph,
        inputs=tuple(replace(spec, type=types.get(spec.name, spec.type)) for spec in graph.inputs),
        outputs=tuple(replace(spec, type=types.get(spec.name, spec.type)) for spec in graph.outputs),
        nodes=nodes,
        types=MappingProxyType(dict(types)),
    )


def forget_shapes(network: Network) -> Network:
    """Returns the network with the element types alone of all values but its inputs and constants, bodies included.

    Items of a sequence may have any shape, as in ONNX Runtime, whatever an input declares.
    """
    known = {spec.name: spec.type for spec in network.inputs}
    for name, value_type in known.items():
        if isinstance(value_type.element if isinstance(value_type, OptionalType) else value_type, SequenceType):
            known[name] = drop_shape(value_type)
    return rebuild_graph(network, tuple(map(_forget_in_bodies, network.nodes)), _forget_types(network, known))


def forget_body_shapes(network: Network) -> Network:
    """Returns the network with the element types alone of the values in its bodies; itself if it has none."""
    return rebuild_graph(network, tuple(map(_forget_in_bodies, network.nodes)), network.types)


def restore_body_shapes(network: Network, before: Network) -> Network:
    """Returns the network with the types of `before` in its bodies unless an inferred type contradicts them."""
    return rebuild_graph(network, _Comparison(frozenset(), []).compare_bodies(before.nodes, network.nodes), network.types)


def _forget_in_bodies(node: Node) -> Node:
    def forget(body: Graph) -> Graph:
        # ONNX Runtime refuses a Loop whose iteration number and condition are not declared as scalars.
        numbers = body.inputs[:2] if node.op_type == "Loop" else ()
        scalars = {spec.name: spec.type for spec in numbers if shape_of(spec.type) == ()}
        return rebuild_graph(body, tuple(map(_forget_in_bodies, body.nodes)), _forget_types(body, scalars))

    return node.with_bodies({key: forget(body) for key, body in node.bodies.items()})


def _forget_types(graph: Graph, known: Mapping[str, ValueType]) -> dict[str, ValueType]:
    constants = graph.initializers
    return {
        name: known[name] if name in known else constants[name].type if name in constants else drop_shape(value_type)
        for name, value_type in graph.types.items()
    }


def drop_shape(value_type: ValueType) -> ValueType:
    """Returns the type with its kind and element type alone."""
    return map_tensor(value_type, lambda tensor: TensorType(tensor.dtype))


def without_hints(network: Network) -> Network:
    """Returns the network as devices are given it: its types are proved, and say nothing that is only declared."""
    declarations = network.declarations
    if not declarations.are_stated:
        return network
    types = {**network.types, **{name: hint.proved for name, hint in declarations.hints.items() if name in network.types}}
    return replace(rebuild_graph(network, network.nodes, types), declarations=replace(declarations, are_stated=False))


def drop_hints(network: Network) -> Network:
    """Returns the network without hints, for an edit that gives values of the same names other shapes."""
    proved = without_hints(network)
    return replace(proved, declarations=replace(network.declarations, hints=MappingProxyType({})))


def state_hints(network: Network, declarations: Declarations) -> Network:
    """Returns the network, whose types are proved, with those hints stated that these types do not contradict."""
    hints: dict[str, Hint] = {}
    types = dict(network.types)
    for name, hint in declarations.hints.items():
        proved = types.get(name)
        stated = None if proved is None else merge_types(hint.declared, proved)
        if isinstance(stated, TensorType) and isinstance(proved, TensorType) and stated != proved:
            types[name] = stated
            hints[name] = replace(hint, proved=proved)
    declarations = replace(declarations, hints=MappingProxyType(hints), are_stated=bool(hints))
    return replace(rebuild_graph(network, network.nodes, types), declarations=declarations)


def compare_declarations(declared: Network, inferred: Network) -> Network:
    """Returns the inferred network with the further claims of `declared` as stated hints; `inferred` has the nodes of `declared`.

    Raises: InvalidNetworkError for a value of another kind or element type than it is declared with.
    """
    names = frozenset(size for spec in inferred.inputs for size in spec.shape or () if isinstance(size, str))
    comparison = _Comparison(names, list(declared.declarations.contradictions))
    comparison.find_hints(declared, inferred)
    nodes = comparison.compare_bodies(declared.nodes, inferred.nodes)
    if not comparison.contradictions and not comparison.hints:
        return replace(inferred, nodes=nodes, declarations=NO_DECLARATIONS)
    reported = set() if declared.declarations is NO_DECLARATIONS else declared.declarations.reported
    declarations = Declarations(tuple(comparison.contradictions), MappingProxyType(comparison.hints), reported)
    return state_hints(replace(inferred, nodes=nodes), declarations)


def warn_of_declarations(network: Network) -> None:
    """Warns of each declaration that inference has proved wrong, of each constant with two values, and of each Reshape to a constant
    shape that only one value of an input's open size fits, as an exporter writes the size of its example: NetworkDeclarationWarning.
    """
    for contradiction in network.declarations.contradictions:
        warnings.warn(contradiction, NetworkDeclarationWarning, stacklevel=2)
    open_sizes = {size for spec in network.inputs for size in spec.shape or () if isinstance(size, str)}
    for node in network.nodes if open_sizes else ():
        target = network.initializers.get(node.inputs[1]) if node.op_type == "Reshape" and len(node.inputs) == 2 else None
        shape = shape_of(network.types.get(node.inputs[0])) if target is not None and node.domain == "" else None
        names = {size for size in shape or () if not isinstance(size, int)}
        if target is None or shape is None or len(names) != 1 or not names <= open_sizes:
            continue
        (name,) = names
        sizes, step = target.array.reshape(-1).tolist(), prod(size for size in shape if isinstance(size, int))
        if min(sizes, default=1) < 1 or shape.count(name) != 1 or step == 0 or prod(sizes) % step:
            continue
        warnings.warn(
            f"network '{network.name}': node {node.label} reshapes '{node.inputs[0]}' [{', '.join(map(str, shape))}] to the constant "
            f"shape {sizes}, so that only {name} = {prod(sizes) // step} can run, and not every {name} as the input says. Export the "
            f"model with this size open: dynamic_shapes of torch.onnx.export, or dynamic_axes with dynamo=False; if the model itself "
            "has the number, write -1 in its place",
            NetworkDeclarationWarning,
            stacklevel=2,
        )


@dataclass(slots=True, eq=False)
class _Comparison:
    """The result of comparing two networks graph by graph; `names_of_inputs` are those of sizes of the inputs."""

    names_of_inputs: frozenset[str]
    contradictions: list[str]
    hints: dict[str, Hint] = field(default_factory=dict)

    def find_hints(self, declared: Network, inferred: Network) -> None:
        for name, value_type in declared.types.items():
            computed = inferred.types.get(name)
            if computed is None or computed == value_type or name in inferred.index_of_input:
                continue
            stated = self._compare(inferred, name, value_type, computed)
            if isinstance(stated, TensorType) and isinstance(computed, TensorType) and stated != computed:
                self.hints[name] = Hint(name, stated, computed, word_source(inferred, name))

    def compare_bodies(self, declared: tuple[Node, ...], inferred: tuple[Node, ...]) -> tuple[Node, ...]:
        return tuple(
            node.with_bodies({key: self._compare_body(node, own.bodies[key], body) for key, body in node.bodies.items()})
            for own, node in zip(declared, inferred, strict=True)
        )

    def _compare_body(self, owner: Node, declared: Graph, inferred: Graph) -> Graph:
        types = dict(inferred.types)
        # Nobody needs the outputs of a branch before it has run.
        specs = declared.inputs if owner.op_type == "If" else (*declared.inputs, *declared.outputs)
        names = {spec.name for spec in specs}
        for name, value_type in declared.types.items():
            computed = types.get(name)
            if computed is not None and computed != value_type:
                stated = self._compare(inferred, name, value_type, computed)
                types[name] = stated if name in names else computed
        return rebuild_graph(inferred, self.compare_bodies(declared.nodes, inferred.nodes), types)

    def _compare(self, graph: Graph, name: str, declared: ValueType, computed: ValueType) -> ValueType:
        """Returns the type that joins both claims; the computed type if they contradict each other."""
        stated = merge_types(declared, computed)
        if stated is None:
            contradiction = word_contradiction(name, graph.name, declared, computed, word_source(graph, name))
            if merge_types(drop_shape(declared), drop_shape(computed)) is None:
                raise InvalidNetworkError(f"{contradiction}; correct the declaration or remove it.")
            self.contradictions.append(contradiction)
            return computed
        if not isinstance(stated, TensorType) or not isinstance(computed, TensorType) or not stated.shape or not computed.shape:
            return stated
        # The computed size if both are names of sizes of inputs, which differ.
        names, sizes = self.names_of_inputs, zip(stated.shape, computed.shape, strict=True)
        return TensorType(stated.dtype, tuple(own if size in names and own in names else size for size, own in sizes))


def word_source(graph: Graph, name: str) -> str:
    """Returns the source of a value for messages: its node, or the network."""
    producer = graph.find_producer(name)
    return "the network" if producer is None else f"node {producer.label}"
