"""Lengths of lists that the network knows and the engine cannot infer: stated by a Reshape that changes nothing.

OpenVINO 2026.4 converts no reduction whose axes have no known length, and what it is told of a value's type it does not read.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import numpy as np

from hetero_core.network.graph import EMPTY, Network, Node
from hetero_core.network.initializers import Initializer
from hetero_core.network.renaming import FreshNames
from hetero_core.network.types import TensorType

_OPEN_ENDED = frozenset({"ConstantOfShape", "Range", "Slice"})
"""Operators whose output is as long as their inputs say."""
_FIRST_OPSET = 5
"""The first opset in which Reshape has its shape as an input."""


def state_lengths(network: Network) -> Network:
    """Returns the network with a Reshape behind each list of known length that an open-ended operator makes of values of the run."""
    names = FreshNames(network)
    nodes: list[Node] = []
    initializers = dict(network.initializers)
    for node in network.nodes:
        length = _find_length(node, network)
        if length is None:
            nodes.append(node)
            continue
        list_name, constant = names.value(f"{node.name}/list"), names.value(f"{node.name}/length")
        initializers[constant] = Initializer.of_array(np.array([length], np.int64))
        nodes.append(replace(node, outputs=(list_name,)))
        reshape = names.node(f"{node.name}/reshape")
        nodes.append(Node(reshape, "Reshape", (list_name, constant), node.outputs, "", node.opset, _FIRST_OPSET, EMPTY))
    if len(nodes) == len(network.nodes):
        return network
    return replace(network, nodes=tuple(nodes), initializers=MappingProxyType(initializers))


def _find_length(node: Node, network: Network) -> int | None:
    if node.domain or node.op_type not in _OPEN_ENDED or node.opset < _FIRST_OPSET:
        return None
    if all(value in network.initializers for value in node.inputs if value):
        return None
    result_type = network.type_of(node.outputs[0])
    if not isinstance(result_type, TensorType) or result_type.dtype not in ("int32", "int64") or len(result_type.shape or ()) != 1:
        return None
    (length,) = result_type.shape or ()
    return length if isinstance(length, int) and length > 0 else None
