"""The passes of this device, in order.

The query applies only those that take nodes away: the others look into nodes, which a stranger's may not stand, so they come after
every node has been accepted. They make nodes that the device takes out of nodes that it takes, so the query's answer holds.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from hetero_core.kernels.program import evaluate_node
from hetero_core.network.graph import Network
from hetero_core.transforms.constants import fold_constants
from hetero_core.transforms.copies import eliminate_copies, eliminate_dropout
from hetero_core.transforms.rewrite import run_passes
from hetero_cpu.planning.specialization import is_turned_for_products

if TYPE_CHECKING:
    from hetero_cpu.open.sizes import Scope


class LatePass:
    """A pass of `hetero_core.transforms`, imported and run where a network has one of the operators without which it changes nothing."""

    def __init__(self, module: str, name: str, operators: str, *others: str) -> None:
        """`operators` and each of `others`: operators of which a network has to have one."""
        self.module, self.name, self.operators = f"hetero_core.transforms.{module}", name, frozenset(operators.split())
        self.others = tuple(frozenset(names.split()) for names in others)

    def __call__(self, network: Network) -> Network:
        """Returns the network after the pass."""
        if any(names.isdisjoint(network.op_types) for names in (self.operators, *self.others)):
            return network
        transformed: Network = getattr(importlib.import_module(self.module), self.name)(network)
        return transformed


def _fold(network: Network) -> Network:
    return fold_constants(network, evaluate_node, is_kept=is_turned_for_products)


PASSES_OF_QUERY = (eliminate_dropout, eliminate_copies)
# What was written out is found first: a turned or folded part of it would not be known again.
PASSES = (
    *PASSES_OF_QUERY,
    _fold,
    LatePass("normalizations", "fuse_layer_normalization", "ReduceMean"),
    LatePass("normalizations", "fuse_rms_normalization", "ReduceMean"),
    LatePass("normalizations", "fuse_softmax", "ReduceMax"),
    LatePass("activations", "fuse_gelu", "Erf Tanh"),
    LatePass("activations", "fuse_hard_swish", "Clip HardSigmoid Max Min"),
    LatePass("activations", "fuse_swish", "Exp Sigmoid"),
    LatePass("transposes", "cancel_transposes", "Transpose"),
    LatePass("pads", "fold_pads", "Pad"),
    LatePass("scalars", "fold_scalars", "Add Div Mul Sub"),
    LatePass("affine", "fold_affines", "Add BatchNormalization Mul", "BatchNormalization Conv"),
)
_ELIMINATE_IDLE = LatePass(
    "reshapes", "eliminate_idle", "Cast Concat Expand Flatten Identity Max Mean Min Pad Reshape Slice Squeeze Sum Tile Unsqueeze"
)
_MERGE_RESHAPES = LatePass("reshapes", "merge_reshapes", "Flatten Reshape Squeeze Unsqueeze")
# These ask for sizes, so they see the network once for each set of input shapes.
PASSES_OF_SHAPES = (
    _ELIMINATE_IDLE,
    _MERGE_RESHAPES,
    LatePass("reshapes", "merge_stacked_transposes", "Transpose"),
    LatePass("attention", "fuse_attention", "Softmax"),
    LatePass("shared_heads", "share_heads", "Attention"),
    LatePass("transposes", "merge_transposes", "Transpose"),
    LatePass("attention", "pack_heads", "Attention"),
    LatePass("caches", "fuse_caches", "Attention"),
)


# `merge_reshapes` writes shapes as plain numbers, which nothing after it needs where chains of reshapes are views.
PASSES_OF_OPEN_SHAPES = tuple(apply for apply in PASSES_OF_SHAPES if apply not in (_ELIMINATE_IDLE, _MERGE_RESHAPES))


def strip_network(network: Network) -> Network:
    """Returns the network as the query sees it."""
    return run_passes(network, PASSES_OF_QUERY)


def transform_network(network: Network) -> Network:
    """Returns the network as it is compiled; every node of it has to be one that the device takes."""
    return run_passes(network, PASSES)


def join_network(network: Network) -> Network:
    """Returns a network whose shapes are known, after the passes that need to know them."""
    return run_passes(network, PASSES_OF_SHAPES)


def join_open_network(network: Network, scope: Scope) -> Network:
    """Returns a network whose sizes are symbols of `scope`, after the passes that ask for them.

    A reshape that happens to change nothing for the sizes of the example stays: without it the class would be these sizes alone, or all
    but these.
    """
    scope.is_structural = True
    try:
        stripped = run_passes(network, (_ELIMINATE_IDLE,))
    finally:
        scope.is_structural = False
    return run_passes(stripped, PASSES_OF_OPEN_SHAPES)
