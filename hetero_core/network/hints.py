"""Declared shapes beside inferred ones: forgotten before inference, compared after it, so that no wrong declaration reaches a device.

Element types and the inputs of the root graph are no hints. Imports nothing heavy.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from hetero_core.errors import InvalidNetworkError, NetworkDeclarationWarning
from hetero_core.network.declarations import Contradiction, Declarations, Hint
from hetero_core.network.graph import Graph, Network, Node
from hetero_core.network.merging import merge_types
from hetero_core.network.types import Dimension, MapType, TensorType, ValueType


def forget_shapes(network: Network) -> Network:
    """Returns the network with the element types alone of all values but its inputs and constants, bodies included."""
    forgetful = _forget_in_graph(network, {spec.name: spec.type for spec in network.inputs})
    assert isinstance(forgetful, Network)
    return forgetful


def _forget_in_graph(graph: Graph, given: Mapping[str, ValueType]) -> Graph:
    def forget(name: str, value_type: ValueType) -> ValueType:
        if name in given:
            return given[name]
        return graph.initializers[name].type if name in graph.initializers else drop_shape(value_type)

    return replace(
        graph,
        nodes=tuple(
            _with_bodies(node, {key: _forget_in_graph(body, {}) for key, body in node.bodies.items()}) for node in graph.nodes
        ),
        inputs=tuple(replace(spec, type=forget(spec.name, spec.type)) for spec in graph.inputs),
        outputs=tuple(replace(spec, type=forget(spec.name, spec.type)) for spec in graph.outputs),
        types=MappingProxyType({name: forget(name, value_type) for name, value_type in graph.types.items()}),
    )


def _with_bodies(node: Node, bodies: Mapping[str, Graph]) -> Node:
    return replace(node, attributes=MappingProxyType({**node.attributes, **bodies})) if bodies else node


def drop_shape(value_type: ValueType) -> ValueType:
    """Returns the type with its kind and element type alone."""
    if isinstance(value_type, TensorType):
        return TensorType(value_type.dtype)
    if isinstance(value_type, MapType):
        return MapType(value_type.key, drop_shape(value_type.value))
    return type(value_type)(drop_shape(value_type.element))


def compare_declarations(declared: Network, inferred: Network) -> Network:
    """Returns the inferred network with the declared names of its open sizes, and with the declarations that it does not confirm.

    `inferred` has the nodes of `declared`. Warns of each declaration that is proved wrong: NetworkDeclarationWarning.

    Raises: InvalidNetworkError for a value of another kind or element type than it is declared with.
    """
    comparison = _Comparison(frozenset(_names_of_sizes(inferred)), list(declared.declarations.contradictions))
    network = comparison.compare(declared, inferred)
    assert isinstance(network, Network)
    if not comparison.contradictions and not comparison.hints:
        return network
    for contradiction in comparison.contradictions:
        warnings.warn(
            f"{contradiction}; the computed shape is used. Correct the declaration or remove it.",
            NetworkDeclarationWarning,
            stacklevel=2,
        )
    declarations = Declarations(tuple(comparison.contradictions), MappingProxyType(comparison.hints))
    return replace(network, declarations=declarations)


def drop_unproved_ranks(network: Network) -> Network:
    """Returns the network as devices are given it: values of the root graph whose rank is only declared have none."""
    names = {name for name, hint in network.declarations.hints.items() if not hint.has_proved_rank}
    if not names:
        return network
    return replace(
        network,
        outputs=tuple(replace(spec, type=drop_shape(spec.type)) if spec.name in names else spec for spec in network.outputs),
        types=MappingProxyType({name: drop_shape(own) if name in names else own for name, own in network.types.items()}),
    )


def _names_of_sizes(network: Network) -> Iterator[str]:
    for spec in network.inputs:
        yield from (size for size in spec.shape or () if isinstance(size, str))


@dataclass
class _Comparison:
    """What the comparison of two networks, graph by graph, has shown; `names_of_inputs` are those of sizes of the inputs."""

    names_of_inputs: frozenset[str]
    contradictions: list[Contradiction]
    hints: dict[str, Hint] = field(default_factory=dict)

    def compare(self, declared: Graph, inferred: Graph) -> Graph:
        types = dict(inferred.types)
        for name, value_type in declared.types.items():
            computed = types.get(name)
            if computed is not None and computed != value_type:
                types[name] = self._compare_value(inferred, name, value_type, computed)
        nodes = tuple(
            _with_bodies(node, {key: self.compare(own.bodies[key], body) for key, body in node.bodies.items()})
            for own, node in zip(declared.nodes, inferred.nodes, strict=True)
        )
        return replace(
            inferred,
            nodes=nodes,
            inputs=tuple(replace(spec, type=types.get(spec.name, spec.type)) for spec in inferred.inputs),
            outputs=tuple(replace(spec, type=types.get(spec.name, spec.type)) for spec in inferred.outputs),
            types=MappingProxyType(types),
        )

    def _compare_value(self, graph: Graph, name: str, declared: ValueType, computed: ValueType) -> ValueType:
        producer = graph.index_of_producer.get(name)
        source = "the network" if producer is None else f"node {graph.nodes[producer].label}"
        contradiction = Contradiction(name, graph.name, declared, computed, source)
        if merge_types(declared, computed) is None:
            if merge_types(drop_shape(declared), drop_shape(computed)) is None:
                raise InvalidNetworkError(f"{contradiction}; correct the declaration or remove it.")
            self.contradictions.append(contradiction)
            return computed
        if not isinstance(declared, TensorType) or not isinstance(computed, TensorType) or declared.shape is None:
            return computed
        says_more = computed.shape is None or any(
            isinstance(size, int) and not isinstance(own, int) for size, own in zip(declared.shape, computed.shape, strict=True)
        )
        if says_more and isinstance(graph, Network):
            self.hints[name] = Hint(name, declared, source, has_proved_rank=computed.shape is not None)
        if computed.shape is None:
            # What a body carries from one iteration to the next has no inferred rank, and onnx's checker wants one of each output.
            return TensorType(computed.dtype, (None,) * len(declared.shape))
        return TensorType(computed.dtype, tuple(map(self._name_size, declared.shape, computed.shape)))

    def _name_size(self, declared: Dimension, computed: Dimension) -> Dimension:
        """Returns the size that is computed, under its declared name where it is open; two names of inputs are two sizes."""
        if not isinstance(declared, str) or isinstance(computed, int):
            return computed
        return computed if computed in self.names_of_inputs and declared in self.names_of_inputs else declared
