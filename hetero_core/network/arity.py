"""Check of a node's inputs, outputs and attributes against its operator's schema; it refuses what ONNX Runtime refuses, and no more.

An engine may crash on a node without its inputs, or on an absent one of Sum, and a kernel index into nothing. Attributes that a schema
does not know are left to the devices. Operators without a schema are their authors' affair. Source: OpSchema::Verify of onnx.
"""

from __future__ import annotations

from collections.abc import Sequence

from hetero_core.errors import InvalidNetworkError
from hetero_core.network.attributes import KIND_NAMES, LISTS, kind_of_value
from hetero_core.network.graph import Node
from hetero_core.network.schemas import find_schema


def check_arity(node: Node) -> None:
    """Refuses a node that its operator's schema does not allow.

    Raises: InvalidNetworkError that says what is there and what is expected.
    """
    if not node.since_version:
        return
    demands = find_schema(node.op_type, node.since_version, node.domain)
    _check_count(node, "inputs", node.inputs, demands.inputs)
    _check_count(node, "outputs", node.outputs, demands.outputs)
    if "" in node.inputs:
        for position, value in enumerate(node.inputs):
            # What comes after the formal inputs belongs to the last one, which is variadic.
            if not value and demands.needed[min(position, len(demands.needed) - 1)]:
                raise InvalidNetworkError(f"node {node.label} lacks its input {position}, which its operator needs. Connect it.")
    for name, value in node.attributes.items():
        kind, expected = kind_of_value(value), demands.kinds.get(name)
        # An empty list does not say of what.
        if expected is not None and kind != expected and (kind or expected not in LISTS):
            raise InvalidNetworkError(
                f"attribute '{name}' of node {node.label} is {KIND_NAMES.get(kind, 'an empty list')}; its operator takes "
                f"{KIND_NAMES.get(expected, 'another kind')}. Correct it, or export the model again."
            )
    for name in demands.required:
        if name not in node.attributes:
            raise InvalidNetworkError(f"node {node.label} lacks the attribute '{name}', which its operator needs. Give it a value.")


def _check_count(node: Node, what: str, values: Sequence[str], limits: tuple[int, int]) -> None:
    least, most = limits
    if not least <= len(values) <= most:
        raise InvalidNetworkError(
            f"node {node.label} has {len(values)} {what}; its operator has {_word_range(least, most)}. "
            "Correct the node, or export the model again."
        )


def _word_range(least: int, most: int) -> str:
    if least == most:
        return str(least)
    return f"{least} or more" if most >= _UNBOUNDED else f"{least} to {most}"


_UNBOUNDED = 2**31 - 1
"""The number that onnx states as the most inputs of a variadic operator."""
