"""The order in memory of what comes in: images for convolutions are turned channels last while they are copied into the arena."""

from __future__ import annotations

from hetero_core.network.graph import Network
from hetero_core.network.types import TensorType

# Plain images have few channels; what has more comes from another part of a network, and a convolution wants it channels last.
_FEWEST_CHANNELS = 8
_READERS = frozenset({"Conv", "MaxPool", "AveragePool", "GlobalAveragePool"})


def wants_channels_last(network: Network, value: str, value_type: TensorType) -> bool:
    """Says whether an input is an image of many channels that a convolution or a pooling reads."""
    shape = value_type.shape or ()
    if len(shape) != 4 or not isinstance(shape[1], int) or shape[1] < _FEWEST_CHANNELS:
        return False
    readers = [network.nodes[index] for index in network.index_of_consumers.get(value, ())]
    return any(reader.op_type in _READERS for reader in readers)
