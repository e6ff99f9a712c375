"""Plans and their records as plain values for JSON; docs/reference/command-line.md names the fields."""

from __future__ import annotations

from typing import Any

from hetero_core.network.types import write_record
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
    return write_record(value, str, lambda row: {_NAME_IN_JSON.get(name, name): entry for name, entry in row.items()})
