"""The passes of this device, in order.

The query applies only those that take nodes away: the others look into nodes, which a stranger's may not stand, so they come after
every node has been accepted. They make nodes that the device takes out of nodes that it takes, so the query's answer holds.
"""

from __future__ import annotations

from hetero_core.network.graph import Network
from hetero_core.transforms.activations import fuse_gelu, fuse_hard_swish, fuse_swish
from hetero_core.transforms.affine import fold_affines
from hetero_core.transforms.attention import fuse_attention, pack_heads
from hetero_core.transforms.caches import fuse_caches
from hetero_core.transforms.constants import fold_constants
from hetero_core.transforms.copies import eliminate_copies, eliminate_dropout
from hetero_core.transforms.normalizations import fuse_layer_normalization, fuse_rms_normalization, fuse_softmax
from hetero_core.transforms.pads import fold_pads
from hetero_core.transforms.reshapes import eliminate_idle, merge_reshapes, merge_stacked_transposes
from hetero_core.transforms.rewrite import run_passes
from hetero_core.transforms.scalars import fold_scalars
from hetero_core.transforms.transposes import cancel_transposes, merge_transposes
from hetero_cpu.foreign import evaluate_node
from hetero_cpu.signature import is_turned_for_products


def _fold(network: Network) -> Network:
    return fold_constants(network, evaluate_node, is_kept=is_turned_for_products)


PASSES_OF_QUERY = (eliminate_dropout, eliminate_copies)
# What was written out is found first: a turned or folded part of it would not be known again.
PASSES = (
    *PASSES_OF_QUERY,
    _fold,
    fuse_layer_normalization,
    fuse_rms_normalization,
    fuse_softmax,
    fuse_gelu,
    fuse_hard_swish,
    fuse_swish,
    cancel_transposes,
    fold_pads,
    fold_scalars,
    fold_affines,
)
# These ask for sizes, so they see the network once for each set of input shapes.
PASSES_OF_SHAPES = (
    eliminate_idle,
    merge_reshapes,
    merge_stacked_transposes,
    fuse_attention,
    merge_transposes,
    pack_heads,
    fuse_caches,
)


# One writes shapes as plain numbers, which nothing after it needs where chains of reshapes are views.
PASSES_OF_OPEN_SHAPES = tuple(apply for apply in PASSES_OF_SHAPES if apply is not merge_reshapes)


def strip_network(network: Network) -> Network:
    """Returns the network as the query sees it."""
    return run_passes(network, PASSES_OF_QUERY)


def transform_network(network: Network) -> Network:
    """Returns the network as it is compiled; every node of it has to be one that the device takes."""
    return run_passes(network, PASSES)


def join_network(network: Network) -> Network:
    """Returns a network whose shapes are known, after the passes that need to know them."""
    return run_passes(network, PASSES_OF_SHAPES)


def join_open_network(network: Network) -> Network:
    """Returns a network whose sizes are symbols, after the passes that ask for them."""
    return run_passes(network, PASSES_OF_OPEN_SHAPES)
