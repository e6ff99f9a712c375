"""Passes that take out copies: Identity, and Dropout, which does nothing outside of training."""

from __future__ import annotations

from hetero_core.network.graph import Network, Node
from hetero_core.network.scopes import since_version
from hetero_core.transforms.rewrite import Replacement, eliminate_nodes, replace_nodes


def eliminate_copies(network: Network) -> Network:
    """Returns the network without Identity nodes; a node stays if it names a network output or if a body reads it."""
    return eliminate_nodes(network, lambda node: node.op_type == "Identity" and not node.domain and not node.attributes)


def eliminate_dropout(network: Network) -> Network:
    """Returns the network with Identity in place of each Dropout that copies: its mask is not read, and it is not told to train.

    Versions before 7 had an attribute for training; they are left alone. Source: ONNX Dropout-22.
    """
    if "Dropout" not in network.op_types:
        return network
    read = {value for node in network.nodes for value in node.reads} | network.names_of_outputs

    def find(node: Node) -> Replacement | None:
        if node.op_type != "Dropout" or node.domain or node.since_version < 7 or not set(node.attributes) <= {"ratio", "seed"}:
            return None
        if not node.inputs or not node.inputs[0] or not node.outputs or read.intersection(node.outputs[1:]):
            return None
        training = node.inputs[2] if len(node.inputs) > 2 else ""
        if training and (training not in network.initializers or network.initializers[training].array.any()):
            return None
        version = since_version("Identity", "", node.opset)
        return Replacement((Node(node.name, "Identity", node.inputs[:1], node.outputs[:1], "", node.opset, version),))

    return replace_nodes(network, find)
