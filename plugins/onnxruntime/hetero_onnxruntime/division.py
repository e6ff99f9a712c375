"""Divisions that end the process: the least integer by -1, for which the processor raises a signal and ONNX Runtime has no test.

Found on ONNX Runtime 1.32 with int32 and int64, while it folds constants and while it runs; it refuses a division by 0 itself, and Mod is
right. What can be known before a run is refused; two operands that only a run tells are not.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from typing import Any

import numpy as np

from hetero_core.network.graph import Graph, Node
from hetero_core.network.initializers import Initializer
from hetero_core.network.known_values import compute_known_value

_MOST_STEPS = 64
"""Nodes of a constant computation that are followed."""


def find_fatal_division(node: Node, graph: Graph, outer: Mapping[str, Initializer] | None = None) -> str | None:
    """Returns why a node, or one in its bodies, may end the process, or None."""
    constants = ChainMap(dict(graph.initializers), dict(outer or {}))
    for body in node.bodies.values():
        for inner in body.nodes:
            reason = find_fatal_division(inner, body, constants)
            if reason is not None:
                return reason
    if node.op_type != "Div" or node.domain or len(node.inputs) != 2:
        return None
    dividend, divisor = (_find_constant(name, graph, constants, [_MOST_STEPS]) for name in node.inputs)
    known = dividend if dividend is not None else divisor
    if known is None or known.dtype not in (np.int32, np.int64):
        return None
    may_be_least = dividend is None or bool((dividend == np.iinfo(known.dtype).min).any())
    may_be_minus_one = divisor is None or bool((divisor == -1).any())
    if not may_be_least or not may_be_minus_one:
        return None
    return "ONNX Runtime ends the process where it divides the least integer by -1, which may happen here"


def _find_constant(name: str, graph: Graph, constants: Mapping[str, Initializer], steps: list[int]) -> Any:
    """Returns the array that a value has in every run, as far as it is small and easily known; None else."""
    constant = constants.get(name)
    if constant is not None:
        return constant.array
    index = graph.index_of_producer.get(name)
    steps[0] -= 1
    if index is None or steps[0] < 0:
        return None
    node = graph.nodes[index]
    sources = {value: _find_constant(value, graph, constants, steps) for value in node.reads}
    if any(array is None for array in sources.values()):
        return None
    known_value = compute_known_value(node, graph.types, {value: Initializer.of_array(array) for value, array in sources.items()})
    return known_value[name].array if name in known_value else None
