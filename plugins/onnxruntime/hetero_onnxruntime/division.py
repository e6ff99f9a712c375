"""Divisions that end the process: the least integer by -1, for which the processor raises a signal and ONNX Runtime has no test.

Found on ONNX Runtime 1.32 with int32 and int64, while it folds constants and while it runs; it refuses a division by 0 itself, and Mod is
right. What can be known before a run is refused; two operands that only a run tells are not.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping

import numpy as np

from hetero_core.engines.inspection import find_constant
from hetero_core.network.graph import Graph, Node
from hetero_core.network.initializers import Initializer


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
    dividend, divisor = (find_constant(name, graph, constants) for name in node.inputs)
    known = dividend if dividend is not None else divisor
    if known is None or known.dtype not in (np.int32, np.int64):
        return None
    may_be_least = dividend is None or bool((dividend == np.iinfo(known.dtype).min).any())
    may_be_minus_one = divisor is None or bool((divisor == -1).any())
    if not may_be_least or not may_be_minus_one:
        return None
    return "ONNX Runtime ends the process where it divides the least integer by -1, which may happen here"
