"""What the engine gets wrong of quantizing nodes where OPENVINO_QUANTIZED=YES allows a difference of one step. Imports nothing heavy."""

from __future__ import annotations

from hetero_core.network.graph import Graph, Node
from hetero_core.network.types import TensorType

QUANTIZING = frozenset({"DynamicQuantizeLinear", "QuantizeLinear"})
"""Operators that the engine computes up to one step of the quantization, and that are taken where the user says so."""


def find_quantizing_error(node: Node, graph: Graph) -> str | None:
    """Returns what the engine gets wrong by more than a step, in words, or None."""
    return _check_pair_behind_pair(node, graph) or _check_saturation(node, graph)


def _check_pair_behind_pair(node: Node, graph: Graph) -> str | None:
    # No case: a Concat, QuantizeLinear, DequantizeLinear, Dropout and another QuantizeLinear: SIGSEGV while it compiles.
    producer = graph.find_producer(node.inputs[0])
    while producer is not None and producer.op_type in ("Dropout", "Identity"):
        producer = graph.find_producer(producer.inputs[0])
    if producer is None or producer.op_type != "DequantizeLinear":
        return None
    return "OpenVINO may end the process on a QuantizeLinear of what was dequantized"


def _check_saturation(node: Node, graph: Graph) -> str | None:
    # No case: codes of 16 bits and a DequantizeLinear, out of which the engine takes both, so that -100 stays where -3.28 is the least.
    codes = graph.types.get(node.outputs[0]) if node.outputs else None
    if not isinstance(codes, TensorType) or codes.dtype not in ("int16", "uint16"):
        return None
    return f"OpenVINO does not saturate what it quantizes to {codes.dtype}"
