"""Prepares a network for the card: removes and folds nodes, and lowers the precision.

The result holds the weights as they are written to the card; it is also what a blob holds. The query sees the network as it was read.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import numpy as np

from hetero_core.kernels.program import evaluate_node
from hetero_core.network.graph import Network, Node
from hetero_core.transforms.activations import fuse_gelu
from hetero_core.transforms.affine import fold_affines
from hetero_core.transforms.constants import fold_constants
from hetero_core.transforms.copies import eliminate_copies, eliminate_dropout
from hetero_core.transforms.normalizations import fuse_layer_normalization
from hetero_core.transforms.rewrite import Replacement, replace_nodes, run_passes
from hetero_cupy.precision import lower_precision

LOWERED = {"f16": "float16", "bf16": "bfloat16"}
"""The hint -> the element type that float32 becomes."""


def prepare_network(network: Network, *, precision: str) -> Network:
    """Returns the network of ONNX's operators with its weights as the card gets them."""
    network = run_passes(
        network,
        (
            eliminate_dropout,
            eliminate_copies,
            lambda current: fold_constants(current, evaluate_node),
            fold_affines,
            fuse_layer_normalization,
            fuse_gelu,
        ),
    )
    if precision in LOWERED:
        network = lower_precision(network, LOWERED[precision])
    return round_numbers(network)


def round_numbers(network: Network) -> Network:
    """Returns the network with the numbers of its nodes as ONNX writes them, float32, so that it computes the same from a blob."""

    def find(node: Node) -> Replacement | None:
        floats = {name: float(np.float32(value)) for name, value in node.attributes.items() if isinstance(value, float)}
        if all(value == node.attributes[name] or value != value for name, value in floats.items()):
            return None
        return Replacement((replace(node, attributes=MappingProxyType({**node.attributes, **floats})),))

    return replace_nodes(network, find)
