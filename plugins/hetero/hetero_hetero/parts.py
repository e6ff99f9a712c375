"""Parts of a network as their devices get them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hetero_core.contract import freeze_mapping
from hetero_core.network.graph import Network
from hetero_core.network.subnetwork import cut_subnetwork


def cut_part(network: Network, names: Sequence[str], *, name: str | None = None) -> Network:
    """Returns the network of these nodes without pins: they are settled, and mean nothing to an inner HETERO.

    Outputs of the network that no node makes are left out, also where the part has all nodes.

    Raises: InvalidNetworkError where a value at a border has no known element type.
    """
    return without_pins(cut_subnetwork(network, names, name=name))


def without_pins(network: Network) -> Network:
    """Returns the network with no node pinned."""
    return replace(network, affinity=freeze_mapping({})) if network.affinity else network
