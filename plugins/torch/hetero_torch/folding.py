"""Constants computed ahead, by the toolkit on the host: passes find numbers that exporters leave as nodes, as the root of a scale."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero_core.errors import HeteroError
from hetero_core.kernels.program import compile_program
from hetero_core.kernels.registry import find_kernel
from hetero_core.network.graph import Graph, Network, Node
from hetero_core.network.initializers import Initializer
from hetero_core.network.types import TensorType, ValueSpec
from hetero_core.transforms.constants import fold_constants

_LARGEST = 1 << 12
"""Bytes of an input of a node that is folded: numbers and axes. What is larger is computed by PyTorch in the first run."""


def fold_numbers(network: Network) -> Network:
    """Returns the network with what depends on small constants alone as constants."""
    return fold_constants(network, _evaluate_node)


def _evaluate_node(node: Node, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Returns the outputs of a node on host arrays, None where it is large, has no kernel or fails: the run will say why."""
    arrays = {name: np.asarray(array) for name, array in zip(node.inputs, inputs, strict=True) if name}
    kernel = find_kernel(node)
    if kernel is None or kernel.count_bytes is not None or any(array.nbytes > _LARGEST for array in arrays.values()):
        return None
    constants = {name: Initializer.of_array(array) for name, array in arrays.items()}
    outputs = tuple(ValueSpec(name, TensorType(None, None)) for name in node.writes)
    types = {name: constant.type for name, constant in constants.items()}
    try:
        results = compile_program(Graph(node.name, (), outputs, (node,), constants, types)).run(())
    except (HeteroError, ArithmeticError, LookupError, TypeError, ValueError):
        return None
    value_of_name = dict(zip(node.writes, results, strict=True))
    return tuple(value_of_name.get(name) for name in node.outputs)
