"""A pass that takes out what only copies: Identity."""

from __future__ import annotations

from hetero_core.network.graph import Network
from hetero_core.transforms.rewrite import eliminate_nodes


def eliminate_copies(network: Network) -> Network:
    """Returns the network without Identity nodes; those stay that give a network output its name or that a body reads."""
    return eliminate_nodes(network, lambda node: node.op_type == "Identity" and not node.domain and not node.attributes)
