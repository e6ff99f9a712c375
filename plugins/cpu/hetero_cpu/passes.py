"""The passes of this device, in order.

The query applies only those that take nodes away: the others look into nodes, which a stranger's may not stand, so they come after
every node has been accepted. They make nodes that the device takes out of nodes that it takes, so the query's answer holds.
"""

from __future__ import annotations

from hetero_core.network.graph import Network
from hetero_core.transforms.activations import fuse_gelu
from hetero_core.transforms.affine import fold_affines
from hetero_core.transforms.constants import fold_constants
from hetero_core.transforms.copies import eliminate_copies, eliminate_dropout
from hetero_core.transforms.normalizations import fuse_layer_normalization
from hetero_core.transforms.rewrite import run_passes
from hetero_cpu.foreign import evaluate_node


def _fold(network: Network) -> Network:
    return fold_constants(network, evaluate_node)


PASSES_OF_QUERY = (eliminate_dropout, eliminate_copies)
PASSES = (*PASSES_OF_QUERY, _fold, fold_affines, fuse_layer_normalization, fuse_gelu)


def strip_network(network: Network) -> Network:
    """Returns the network as the query sees it."""
    return run_passes(network, PASSES_OF_QUERY)


def transform_network(network: Network) -> Network:
    """Returns the network as it is compiled; every node of it has to be one that the device takes."""
    return run_passes(network, PASSES)
