"""Plans and their records as plain values for JSON; docs/reference/command-line.md names the fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from hetero_core.network.types import MapType, OptionalType, SequenceType, TensorType
from hetero_core.plan import Plan

_NAME_IN_JSON = {"stages": "subgraphs", "nbytes": "bytes"}
_PARTS = ("network", "priorities", "subgraphs", "boundaries", "device_of_node", "operator_of_node", "pins", "refusals", "conflicts",
          "unexplained", "procedures")  # fmt: skip
_OPTIONAL_PARTS = ("selection", "placement", "memory")


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """Returns the plan as values that JSON can hold."""
    values = record_to_json(plan)
    return {name: values[name] for name in _PARTS} | {name: values[name] for name in _OPTIONAL_PARTS if values[name]}


def record_to_json(value: Any) -> Any:
    """Returns a record as a dict of its fields: tuples as lists, types as texts, and the records within it in the same way."""
    if isinstance(value, TensorType | SequenceType | OptionalType | MapType):
        return str(value)
    if is_dataclass(value):
        return {_NAME_IN_JSON.get(each.name, each.name): record_to_json(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {name: record_to_json(entry) for name, entry in value.items()}
    return [record_to_json(entry) for entry in value] if isinstance(value, tuple) else value
