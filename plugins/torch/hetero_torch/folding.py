"""Constants computed ahead, by the toolkit on the host: passes find numbers that exporters leave as nodes, as the root of a scale."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero_core.kernels.program import evaluate_node
from hetero_core.kernels.registry import find_kernel
from hetero_core.network.graph import Network, Node
from hetero_core.transforms.constants import fold_constants

_LARGEST = 1 << 12
"""Bytes of an input of a node that is folded: numbers and axes. What is larger is computed by PyTorch in the first run."""


def fold_numbers(network: Network) -> Network:
    """Returns the network with what depends on small constants alone as constants."""
    return fold_constants(network, _evaluate_small)


def _evaluate_small(node: Node, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Returns the outputs of a node on host arrays, None if it is large, has no kernel or fails: the run will say why."""
    kernel = find_kernel(node)
    is_large = any(np.asarray(array).nbytes > _LARGEST for name, array in zip(node.inputs, inputs, strict=True) if name)
    return None if kernel is None or kernel.count_bytes is not None or is_large else evaluate_node(node, inputs)
