"""Plans and their records as plain values for JSON, and back; docs/reference/command-line.md names the fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from hetero_core.contract import freeze_mapping
from hetero_core.network.types import ValueType, type_of_json
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


def write_record(value: Any, write_type: Callable[[ValueType], Any], write_row: Callable[[dict[str, Any]], Any]) -> Any:
    """Returns a value for JSON: tuples as lists, types and the fields of records as two functions write them."""
    if isinstance(value, ValueType):
        return write_type(value)
    if is_dataclass(value):
        return write_row({each.name: write_record(getattr(value, each.name), write_type, write_row) for each in fields(value)})
    if isinstance(value, Mapping):
        return {name: write_record(entry, write_type, write_row) for name, entry in value.items()}
    return [write_record(entry, write_type, write_row) for entry in value] if isinstance(value, tuple) else value


def read_record(kind: Any, value: Any) -> Any:
    """Returns a JSON value as a value of an annotated type; a record may be a mapping or a list of its fields.

    Raises: TypeError, ValueError, KeyError for another value; no number of a record is negative.
    """
    if kind == ValueType:
        return type_of_json(value)
    if is_dataclass(kind):
        kinds = get_type_hints(kind)
        row = value if isinstance(value, Mapping) else dict(zip(kinds, value, strict=True))
        return kind(**{name: read_record(kinds[name], entry) for name, entry in row.items()})  # type: ignore[operator]  # a class
    form, inner = get_origin(kind), get_args(kind)
    if form is UnionType:
        return None if value is None and NoneType in inner else read_record(inner[0], value)
    if form is Mapping:
        return freeze_mapping((name, read_record(inner[1], entry)) for name, entry in value.items())
    if form is tuple and isinstance(value, list):
        kinds_of_entries = [inner[0]] * len(value) if inner[-1] is Ellipsis else inner
        return tuple(read_record(*pair) for pair in zip(kinds_of_entries, value, strict=True))
    if type(value) is not kind or (kind in (int, float) and value < 0):
        raise TypeError(f"expected {kind}, got {value!r}")
    return value
