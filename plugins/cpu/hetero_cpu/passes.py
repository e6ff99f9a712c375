"""The passes of this device, in order. The query asks about the same network that is compiled."""

from __future__ import annotations

from hetero_core.network.graph import Network
from hetero_core.transforms.affine import fold_affines
from hetero_core.transforms.constants import fold_constants
from hetero_core.transforms.copies import eliminate_copies, eliminate_dropout
from hetero_core.transforms.patterns import fuse_gelu, fuse_layer_normalization
from hetero_core.transforms.rewrite import run_passes
from hetero_cpu.foreign import evaluate_node


def _fold(network: Network) -> Network:
    return fold_constants(network, evaluate_node)


PASSES = (eliminate_dropout, eliminate_copies, _fold, fold_affines, fuse_layer_normalization, fuse_gelu)


def transform_network(network: Network) -> Network:
    """Returns the network as it is compiled."""
    return run_passes(network, PASSES)
