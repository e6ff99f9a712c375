"""Parts of a network as their devices get them, and constants as a network of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hetero_core.contract import freeze_mapping
from hetero_core.network.graph import Network
from hetero_core.network.initializers import Initializer
from hetero_core.network.subnetwork import cut_subnetwork
from hetero_core.network.types import ValueSpec


def cut_part(network: Network, names: Sequence[str]) -> Network:
    """Returns the network of these nodes without pins: they are settled, and mean nothing to an inner HETERO.

    Outputs of the network that no node makes are left out, even if the part has all nodes.

    Raises: InvalidNetworkError if a value at a border has no known element type.
    """
    return without_pins(cut_subnetwork(network, names))


def hold_constants(constants: Mapping[str, np.ndarray[Any, Any]]) -> Network:
    """Returns a network without nodes that has these arrays as outputs, so that they are stored as weights are."""
    initializers = {name: Initializer.of_array(array) for name, array in constants.items()}
    outputs = tuple(ValueSpec(name, constant.type) for name, constant in initializers.items())
    types = freeze_mapping((name, constant.type) for name, constant in initializers.items())
    return Network("constants", (), outputs, (), freeze_mapping(initializers), types, freeze_mapping({"": 17}))


def without_pins(network: Network) -> Network:
    """Returns the network with no node pinned."""
    return replace(network, affinity=freeze_mapping({})) if network.affinity else network
