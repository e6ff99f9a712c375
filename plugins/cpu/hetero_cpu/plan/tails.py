"""The part of a network behind sizes that its numbers decide, as the decoder of a speech network behind the length that it predicts.

It becomes a branch of If: bodies have executables of their own, whose plans know the sizes.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import numpy as np

from hetero_core.dtypes import numpy_dtype
from hetero_core.network.graph import Graph, Network, Node
from hetero_core.network.initializers import Initializer
from hetero_core.network.types import TensorType, ValueSpec
from hetero_cpu.plan.passes import list_static_types

FEWEST_NODES = 8
"""Nodes of a branch of If below which the toolkit runs it as fast."""

_PRODUCTS = frozenset({"Attention", "Conv", "ConvTranspose", "GRU", "Gemm", "LSTM", "MatMul", "RNN"})
"""Operators that take most of a run; parts without them stay with the toolkit."""


def part_tail(network: Network, special: Network) -> Network | None:
    """Returns the network with all nodes behind the first computed sizes in a branch of If; None unless products read such sizes.

    `special`: the network for an example of input shapes, with its types.
    """
    indices = _list_tail(network, special)
    nodes = tuple([network.nodes[index] for index in indices])
    written = {value for node in nodes for value in node.writes}
    outputs = [spec for spec in network.outputs if spec.name in written]
    captures = tuple(dict.fromkeys([value for node in nodes for value in node.reads if value not in written]))
    types = [spec.type for spec in outputs] + [special.type_of(value) for value in captures if value not in network.initializers]
    if len(nodes) < FEWEST_NODES or not all(isinstance(own, TensorType) and own.dtype not in (None, "string") for own in types):
        return None
    name = f"{nodes[0].name}...{nodes[-1].name}"
    body = Graph("tail", (), tuple(outputs), nodes, types=network.types)
    branches = MappingProxyType({"then_branch": body, "else_branch": _write_other(name, outputs)})
    origins = tuple(dict.fromkeys([origin for node in nodes for origin in node.origins]))
    results = tuple([spec.name for spec in outputs])
    node = Node(name, "If", (f"{name}/true",), results, "", 16, 16, branches, captures, origins)
    tail = set(indices)
    others = tuple([own for index, own in enumerate(network.nodes) if index not in tail])
    constants = {**network.initializers, f"{name}/true": Initializer.of_array(np.array(True))}
    outer = {value: value_type for value, value_type in network.types.items() if value not in written}
    outer.update((spec.name, TensorType(spec.dtype)) for spec in outputs)
    outer[f"{name}/true"] = TensorType("bool", ())
    return replace(network, nodes=(*others, node), initializers=MappingProxyType(constants), types=MappingProxyType(outer))


def _write_other(name: str, outputs: list[ValueSpec]) -> Graph:
    """Returns a branch that never runs, of outputs of the same types."""
    specs = tuple([ValueSpec(f"{name}/{index}", TensorType(spec.dtype, (0,))) for index, spec in enumerate(outputs)])
    constants = {spec.name: Initializer.of_array(np.empty(0, numpy_dtype(spec.dtype or ""))) for spec in specs}
    return Graph(
        f"{name}/none", (), specs, (), MappingProxyType(constants), MappingProxyType({spec.name: spec.type for spec in specs})
    )


def _list_tail(network: Network, special: Network) -> list[int]:
    """Returns the positions of the nodes behind the first values of unknown sizes that lead through products to an output of such a size.

    Parts that come back to known sizes, as the experts of a language model, are no tail: all else would lie behind the first of them.
    """
    static = list_static_types(special)
    unknown = {value for node in special.nodes for value in node.writes if value not in static}
    first: dict[str, str] = {}

    def find(value: str) -> str:
        while (parent := first.setdefault(value, value)) != value:
            value = parent
        return value

    heavy: list[str] = []
    for node in network.nodes if unknown else ():
        values = [value for value in node.reads if value in unknown]
        if values:
            own = [*values, *(value for value in node.writes if value in unknown)]
            for value in own[1:]:
                first[find(value)] = find(own[0])
            if node.op_type in _PRODUCTS:
                heavy.append(own[0])
    roots = {find(value) for value in heavy} & {find(spec.name) for spec in network.outputs if spec.name in unknown}
    behind: set[str] = set()
    indices = []
    for index, node in enumerate(network.nodes):
        if any(value in behind or (value in unknown and find(value) in roots) for value in node.reads):
            behind.update(node.writes)
            indices.append(index)
    return indices
