"""Inputs by position: a list of values, positions as keys, or the value of the only input, brought to a mapping of names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hetero_core.errors import InputNameError
from hetero_core.network.types import ValueSpec


def is_by_name(inputs: Any) -> bool:
    """Says whether the caller's inputs are a mapping without positions among its keys."""
    return isinstance(inputs, Mapping) and not any(type(key) is int for key in inputs)


def name_inputs(inputs: Any, specs: Sequence[ValueSpec], *, network: str) -> Mapping[str, Any]:
    """Returns input name -> value. A list or tuple has one value for each input; anything else that is no mapping is the only input's.

    Raises: InputNameError for a number of values that the network does not take, a position that it does not have, and a name given twice.
    """
    names = [spec.name for spec in specs]
    if isinstance(inputs, Mapping):
        return _name_keys(inputs, names, network)
    values = inputs if isinstance(inputs, list | tuple) else (inputs,)
    if len(values) != len(names):
        advice = "; a single input that is a list goes by its name, or as an array" if len(names) == 1 else ""
        raise InputNameError(
            f"network '{network}' got {len(values)} values by position; its inputs are {', '.join(names) or 'none'}, in this order{advice}"
        )
    return dict(zip(names, values, strict=True))


def _name_keys(inputs: Mapping[Any, Any], names: list[str], network: str) -> dict[str, Any]:
    """Returns the mapping with names in place of positions."""
    named: dict[str, Any] = {}
    for key, value in inputs.items():
        if type(key) is int and not 0 <= key < len(names):
            raise InputNameError(f"network '{network}' has no input at position {key}; it has {len(names)}, counted from 0")
        name = names[key] if type(key) is int else key
        if name in named:
            raise InputNameError(f"network '{network}': input '{name}' is given twice, by name and by position")
        named[name] = value
    return named
