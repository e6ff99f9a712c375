"""Reduces a failing network to a smaller network that still fails: nodes are removed as long as the failure stays.

Pieces anywhere are removed, halves first, single nodes last. Source: Zeller & Hildebrandt 2002, minimizing delta debugging.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from hetero_core.errors import InvalidNetworkError
from hetero_core.network.graph import Network
from hetero_core.network.subnetwork import cut_subnetwork

Fails = Callable[[Network], bool]


def reduce_network(network: Network, fails: Fails) -> Network:
    """Returns a part of a failing network that still fails, and from which no single node can be removed.

    Values that the part reads and does not make become inputs. The number of calls of `fails` is about the logarithm of the number of
    nodes if a single node is bad, at worst the square of that number.

    Raises: ValueError when the whole network does not fail.
    """
    if not fails(network):
        raise ValueError(f"network '{network.name}' does not fail, so there is nothing to reduce")

    smallest = network

    def keeps(names: Sequence[str]) -> bool:
        nonlocal smallest
        part = _cut(network, names)
        for candidate in () if part is None else (part, *_hide_inner_outputs(part)):
            if fails(candidate):
                smallest = candidate
                return True
        return False

    _remove_pieces([node.name for node in network.nodes], keeps)
    # If no node could be removed this is the whole network, because a cut may hide the failure.
    return smallest


def _hide_inner_outputs(part: Network) -> tuple[Network, ...]:
    """Returns the part without the outputs that its own nodes read, if it has such outputs; else an empty tuple.

    A cut turns inner values with other readers into outputs. This changes the device's plan, and the failure may disappear.
    """
    ends = tuple(spec for spec in part.outputs if spec.name not in part.index_of_consumers)
    return (replace(part, outputs=ends),) if 0 < len(ends) < len(part.outputs) else ()


def _cut(network: Network, names: Sequence[str]) -> Network | None:
    """Returns the part of these nodes, None if it cannot be cut."""
    try:
        return cut_subnetwork(network, names) if names else None
    except InvalidNetworkError:
        return None


def _remove_pieces(names: list[str], keeps: Callable[[Sequence[str]], bool]) -> None:
    """Removes pieces as long as `keeps` says so; pieces shrink from half of the list to a single node."""
    size = len(names) // 2
    while size >= 1:
        start = 0
        removed = False
        while start < len(names):
            rest = names[:start] + names[start + size :]
            if rest and keeps(rest):
                names, removed = rest, True
            else:
                start += size
        size = size if removed and size == 1 else min(size, len(names)) // 2
