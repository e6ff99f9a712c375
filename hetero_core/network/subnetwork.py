"""Parts of a network: the Network that holds just some nodes, with typed boundaries. Imports neither onnx nor NumPy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TypeVar

from hetero_core.errors import InvalidNetworkError
from hetero_core.network.graph import EMPTY, Network, Node
from hetero_core.network.types import ValueSpec, has_known_element

_Kept = TypeVar("_Kept")


def cut_subnetwork(network: Network, node_names: Iterable[str], *, name: str | None = None) -> Network:
    """Returns the part of a network that holds exactly the nodes named, in the order of the network. Any set of nodes will do.

    Inputs: values that the part reads (in bodies, too) and neither produces nor holds as a constant; network inputs come first, in the
    order of the network, then values by the position of their producer. Outputs: values that are made inside and read outside or returned
    by the network, by the position of the producer. Constants: in the order of the network. A network output that is an input or a
    constant is no output of any part. Nodes, constants and types are shared. Cost: proportional to the part, after the first.

    Raises: InvalidNetworkError for a name that is no node, and for boundary values without a known element type, all of them.
    """
    # `node` words the error for a name that is none.
    positions = sorted({network.index_of_node[network.node(node_name).name] for node_name in node_names})
    nodes = tuple(network.nodes[position] for position in positions)
    inputs, outputs = _find_border(network, set(positions), nodes)
    _check_types(network, (*inputs, *outputs))
    values = dict.fromkeys(value for node in nodes for value in (*node.reads, *node.writes))
    # ONNX Runtime 1.32 does not load some networks whose constants stand in another order than the exporter's.
    constants = sorted((value for value in values if value in network.initializers), key=network.index_of_initializer.__getitem__)
    return Network(
        network.name if name is None else name,
        tuple(ValueSpec(value, network.types[value]) for value in inputs),
        tuple(ValueSpec(value, network.types[value]) for value in outputs),
        nodes,
        _restrict(network.initializers, constants),
        _restrict(network.types, values),
        opsets=network.opsets,
        ir_version=network.ir_version,
        metadata=network.metadata,
        affinity=_restrict(network.affinity, (node.name for node in nodes)),
        declarations=network.declarations.of_part(values),
    )


def _find_border(network: Network, inside: set[int], nodes: tuple[Node, ...]) -> tuple[list[str], list[str]]:
    producer, consumers = network.index_of_producer, network.index_of_consumers
    borrowed: dict[str, None] = {}
    outputs: list[str] = []
    for node in nodes:
        borrowed.update(
            (value, None) for value in node.reads if value not in network.initializers and producer.get(value) not in inside
        )
        outputs.extend(
            value
            for value in node.writes
            if value in network.names_of_outputs or any(consumer not in inside for consumer in consumers.get(value, ()))
        )

    def rank(value: str) -> tuple[int, int]:
        index = producer.get(value)
        return (-1, network.index_of_input[value]) if index is None else (index, network.nodes[index].outputs.index(value))

    return sorted(borrowed, key=rank), outputs


def _check_types(network: Network, values: Iterable[str]) -> None:
    untyped = [value for value in values if not has_known_element(network.type_of(value))]
    if not untyped:
        return
    producers = map(network.find_producer, untyped)
    sources = [
        f"'{value}'" + ("" if node is None else f" of node {node.label}") for value, node in zip(untyped, producers, strict=True)
    ]
    raise InvalidNetworkError(
        f"cannot cut network '{network.name}': the element type of {', '.join(sources)} is not known. "
        "A custom operator's infer_types gives it; else keep the nodes on both sides in one part."
    )


def _restrict(mapping: Mapping[str, _Kept], keys: Iterable[str]) -> Mapping[str, _Kept]:
    restricted = {key: mapping[key] for key in keys if key in mapping}
    return MappingProxyType(restricted) if restricted else EMPTY
