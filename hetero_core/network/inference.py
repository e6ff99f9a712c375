"""Types of all values: what the model declares and what follows from it, merged.

Networks whose operators are common and whose sizes are known need neither onnx nor the file that asks it (`shapes`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from hetero_core.limits import ReadBudget
from hetero_core.network.graph import Graph, Network, Node
from hetero_core.network.growth import bound_type_bytes
from hetero_core.network.hints import forget_body_shapes, restore_body_shapes, state_hints, without_hints
from hetero_core.network.plain_types import infer_plainly
from hetero_core.network.types import ValueType

CustomTypes = Callable[[Node, tuple[ValueType | None, ...]], Sequence[ValueType] | None]
"""Takes a node that onnx does not know and the types of its inputs (None: unknown or absent); returns those of its outputs."""


def infer_types(network: Network, *, infer_custom_types: CustomTypes | None = None, budget: ReadBudget | None = None) -> Network:
    """Returns the network with all types completed as far as they can be inferred, bodies included.

    Nodes are shared with `network`, except those whose bodies learnt a type. Cost: linear, some 20 us per node, 3 where onnx need not be
    asked (`plain_types`). `budget` is what the reading of the network has left; None for a network that was read before.

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
