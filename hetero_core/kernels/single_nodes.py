"""Programs of single nodes, bodies and extensions included: a node that a device has no step for, or a constant that is folded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hetero_core.errors import HeteroError
from hetero_core.kernels.execution import Program
from hetero_core.kernels.program import compile_program
from hetero_core.kernels.registry import NO_EXTENSIONS, find_kernel
from hetero_core.limits import RunLimits
from hetero_core.network.graph import Graph, Node
from hetero_core.network.initializers import Initializer
from hetero_core.network.types import TensorType, ValueSpec, ValueType
from hetero_core.transforms.constants import LARGEST_GROWTH

_UNKNOWN = TensorType(None, None)


def compile_node(
    node: Node,
    types: Mapping[str, ValueType],
    initializers: Mapping[str, Initializer],
    extensions: Mapping[tuple[str, str], Any] = NO_EXTENSIONS,
) -> Program:
    """Returns a program of one node: its inputs are the non-constant values that the node reads, its outputs the values that it writes."""
    constants = {name: initializers[name] for name in node.reads if name in initializers}
    inputs = tuple(ValueSpec(name, types.get(name, _UNKNOWN)) for name in node.reads if name not in constants)
    outputs = tuple(ValueSpec(name, types.get(name, _UNKNOWN)) for name in node.writes)
    known = {name: types[name] for name in (*node.reads, *node.writes) if name in types}
    return compile_program(Graph(node.name, inputs, outputs, (node,), constants, known), extensions=extensions)


def evaluate_node(node: Node, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Returns the outputs of a node by position, None if it has no kernel or fails: the run then reports the reason.

    A node that would make much more than it reads fails before it does: a file of a kilobyte can ask for terabytes.
    """
    if find_kernel(node) is None:
        return None
    constants = {name: Initializer.of_array(np.asarray(array)) for name, array in zip(node.inputs, inputs, strict=True) if name}
    limits = RunLimits(node.label, memory_limit=sum(constant.nbytes for constant in constants.values()) + LARGEST_GROWTH)
    try:
        results = compile_node(node, {name: constant.type for name, constant in constants.items()}, constants).run(
            (), limits=limits
        )
    except (HeteroError, ArithmeticError, LookupError, TypeError, ValueError):
        return None
    array_of_value = dict(zip(node.writes, results, strict=True))
    return tuple(array_of_value.get(name) for name in node.outputs)
