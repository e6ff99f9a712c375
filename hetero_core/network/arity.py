"""Check of a node's inputs, outputs and attributes against its operator's schema; it refuses what ONNX Runtime refuses, and no more.

An engine may crash on a node without its inputs, or on an absent one of Sum, and a kernel index into nothing. Attributes that a schema
does not know are left to the devices. Operators without a schema are their authors' affair. Source: OpSchema::Verify of onnx. Imports onnx
only inside functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from hetero_core.errors import InvalidNetworkError
from hetero_core.network.attributes import KIND_NAMES, kind_of_value
from hetero_core.network.graph import Node
from hetero_core.records import record


@record(frozen=True, slots=True)
class _Demands:
    """What a schema demands; `needed` says of each formal input whether it may not be absent."""

    inputs: tuple[int, int]
    outputs: tuple[int, int]
    needed: tuple[bool, ...]
    kinds: Mapping[str, int]
    required: tuple[str, ...]


def check_arity(node: Node) -> None:
    """Refuses a node that its operator's schema does not allow.

    Raises: InvalidNetworkError that says what is there and what is expected.
    """
    if not node.since_version:
        return
    demands = _read_demands(node.op_type, node.since_version, node.domain)
    for what, values, (least, most) in (("inputs", node.inputs, demands.inputs), ("outputs", node.outputs, demands.outputs)):
        if not least <= len(values) <= most:
            raise InvalidNetworkError(
                f"node {node.label} has {len(values)} {what}; its operator has {_word_range(least, most)}. "
                "Correct the node, or export the model again."
            )
    if "" in node.inputs:
        for position, value in enumerate(node.inputs):
            # What comes after the formal inputs belongs to the last one, which is variadic.
            if not value and demands.needed[min(position, len(demands.needed) - 1)]:
                raise InvalidNetworkError(f"node {node.label} lacks its input {position}, which its operator needs. Connect it.")
    for name, value in node.attributes.items():
        kind, expected = kind_of_value(value), demands.kinds.get(name)
        # An empty list does not say of what.
        if expected is not None and kind not in (0, expected):
            raise InvalidNetworkError(
                f"attribute '{name}' of node {node.label} is {KIND_NAMES.get(kind, 'of no kind')}; its operator takes "
                f"{KIND_NAMES.get(expected, 'another kind')}. Correct it, or export the model again."
            )
    for name in demands.required:
        if name not in node.attributes:
            raise InvalidNetworkError(f"node {node.label} lacks the attribute '{name}', which its operator needs. Give it a value.")


def _word_range(least: int, most: int) -> str:
    if least == most:
        return str(least)
    return f"{least} or more" if most >= _UNBOUNDED else f"{least} to {most}"


_UNBOUNDED = 2**31 - 1
"""The number that onnx states as the most inputs of a variadic operator."""


@cache
def _read_demands(op_type: str, since_version: int, domain: str) -> _Demands:
    import onnx.defs  # heavy

    schema = onnx.defs.get_schema(op_type, since_version, domain)
    optional = onnx.defs.OpSchema.FormalParameterOption.Optional
    attributes = schema.attributes
    return _Demands(
        (schema.min_input, schema.max_input),
        (schema.min_output, schema.max_output),
        tuple(formal.option != optional for formal in schema.inputs),
        MappingProxyType({name: int(attribute.type.value) for name, attribute in attributes.items()}),
        tuple(sorted(name for name, attribute in attributes.items() if attribute.required)),
    )
