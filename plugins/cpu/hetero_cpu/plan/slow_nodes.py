"""The nodes of a plan that take most of a run because the toolkit computes them: an estimate from the plan's own steps.

A node is slow if the toolkit takes longer for it than machine code would take for the whole network.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from hetero_core.network.graph import Network, Node
from hetero_core.network.types import TensorType
from hetero_cpu.plan.passes import list_static_types
from hetero_cpu.plan.plan import ExecutionPlan, Foreign

_LEAST_SECONDS = 2e-4
"""Seconds below which no node is slow."""
_NATIVE_PRODUCT, _NATIVE_ELEMENT = 3e-11, 5e-10
"""Seconds of machine code for a multiplication of a product, and for an element of other operators."""
_BLAS_PRODUCT, _LOOP_PRODUCT, _TOOLKIT_ELEMENT = 5e-11, 1e-9, 5e-9
"""Seconds of the toolkit: for a multiplication by BLAS, by a loop of NumPy as for integers, and for an element."""
_BLAS_TYPES = frozenset({"float32", "float64"})
_RECURRENT = frozenset({"GRU", "LSTM", "RNN"})
_TAKING = ("ArrayFeatureExtractor", "Gather", "Shape", "Size", "Slice")
"""Operators that read no more elements than they write."""


def list_slow_nodes(plan: ExecutionPlan, network: Network) -> tuple[Node, ...]:
    """Returns the slow nodes of a plan; `network` is that of the plan, with the sizes of a run. Cost: linear in nodes."""
    # Branches have plans of their own.
    foreign = [step.node for step in plan.steps if isinstance(step.work, Foreign) and step.node.op_type != "If"]
    if not foreign:
        return ()
    types = list_static_types(network)
    types.update({name: constant.type for name, constant in network.initializers.items()})
    whole = sum(estimate_seconds(node, types, _NATIVE_PRODUCT, _NATIVE_ELEMENT) for node in network.nodes)
    least = max(whole, _LEAST_SECONDS)
    return tuple(node for node in foreign if _estimate_toolkit(node, types) >= least)


def _estimate_toolkit(node: Node, types: Mapping[str, TensorType]) -> float:
    dtypes = {types[value].dtype for value in node.reads[:2] if value in types}
    return estimate_seconds(node, types, _BLAS_PRODUCT if dtypes <= _BLAS_TYPES else _LOOP_PRODUCT, _TOOLKIT_ELEMENT)


def estimate_seconds(node: Node, types: Mapping[str, TensorType], product: float, element: float) -> float:
    """Returns seconds of a node at these rates, 0 if its sizes are unknown."""
    shapes = [_read_shape(value, types) for value in node.reads]
    written = max((prod(_read_shape(value, types)) for value in node.writes), default=0)
    weights = [shape for shape in shapes if len(shape) > 1]
    if len(weights) > 1:
        if "ConvTranspose" in node.op_type:
            return product * prod(weights[0]) * prod(weights[1][1:])
        if "Conv" in node.op_type:
            return product * written * prod(weights[1][1:])
        if "MatMul" in node.op_type or "Gemm" in node.op_type:
            return product * written * weights[0][0 if node.attributes.get("transA") else -1]
        if node.op_type in _RECURRENT:
            return product * prod(weights[0][:2]) * sum(map(prod, weights[1:3]))
    reads = [] if node.op_type.startswith(_TAKING) else map(prod, shapes)
    return element * max([written, *reads])


def _read_shape(value: str, types: Mapping[str, TensorType]) -> tuple[int, ...]:
    known = types.get(value)
    return (0,) if known is None or known.shape is None else tuple(size for size in known.shape if isinstance(size, int))
