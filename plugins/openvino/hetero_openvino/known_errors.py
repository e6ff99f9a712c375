"""What the engine computes wrongly, or fails at when it runs."""

from __future__ import annotations

from hetero_core.network.graph import Network, Node


def find_known_error(node: Node, network: Network) -> str | None:
    """Returns what the engine gets wrong about a node, in words, or None."""
    return None
