"""Nodes that the kernels table has and the card does not run, with the reason. One function, asked by query and load.

Values of the host are no work for a card: nodes whose kernels compute there are refused, so that nothing falls back without a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hetero_core.kernels.registry import BOOL, COMPLEX, INTEGERS, find_kernel, find_refusals
from hetero_core.network.graph import Graph, Network, Node
from hetero_core.network.types import TensorType
from hetero_cupy.namespace import ATOMIC_DTYPES, ATOMIC_REDUCTIONS

DTYPES = INTEGERS | COMPLEX | BOOL | {"float16", "float32", "float64"}
"""The element types that live on a card. CuPy 14.2 has bfloat16 in some functions only, and none of the 8-bit and 4-bit ones."""


def find_card_refusals(
    network: Network, extensions: Mapping[tuple[str, str], Any], *, dtypes: frozenset[str] = DTYPES
) -> dict[str, str]:
    """Returns node name -> reason for each node of the root graph that the card does not run.

    `extensions` are custom operators that the Core knows, functions on host arrays: they run there, between counted copies. `dtypes` are
    the element types that values may have.
    """
    reasons = find_refusals(network, extensions=extensions, dtypes=dtypes)
    for node in network.nodes:
        reason = reasons.get(node.name) or _refuse_node(node, network, dtypes)
        if reason is not None:
            reasons[node.name] = reason
    return reasons


def _refuse_node(node: Node, graph: Graph, dtypes: frozenset[str]) -> str | None:
    record = find_kernel(node)
    if record is not None and record.runs_on_host:
        return f"{node.operator} is computed on the host; HETERO:GPU,CPU runs it on CPU"
    # What a kernel reads was looked at with the table; of a custom operator nothing was.
    for value in (*(node.inputs if record is None else ()), *node.writes):
        found = graph.type_of(value)
        if isinstance(found, TensorType) and found.dtype is not None and found.dtype not in dtypes:
            return f"value '{value}' of {node.operator} has dtype {found.dtype}; a card has {', '.join(sorted(dtypes))}"
    reduction = node.attributes.get("reduction", "none")
    if node.op_type in ("ScatterElements", "ScatterND") and not node.domain and reduction != "none":
        found = graph.type_of(node.inputs[0])
        if found is None and node.inputs[0] in graph.initializers:
            found = graph.initializers[node.inputs[0]].type
        dtype = found.dtype if isinstance(found, TensorType) else None
        if reduction not in ATOMIC_REDUCTIONS or dtype not in ATOMIC_DTYPES:
            return f"reduction '{reduction}' of {node.operator} on {dtype or 'an unknown type'} has no atomic instruction"
    for attribute, body in node.bodies.items():
        for inner in body.nodes:
            reason = _refuse_node(inner, body, dtypes)
            if reason is not None:
                return f"node '{inner.name}' in {attribute} of {node.operator}: {reason}"
    return None
