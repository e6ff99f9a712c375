"""A measured placement as text and as plain values: segments and devices, transfers, candidates, and the one that was chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from hetero_core.plan import HeldMemory, Placement, PlacementCandidate


def placement_to_json(placement: Placement) -> dict[str, Any]:
    """Returns the placement as values that JSON can hold."""
    return {
        **_to_fields(placement),
        "segments": [_to_fields(segment) for segment in placement.segments],
        "candidates": [_to_fields(candidate) for candidate in placement.candidates],
    }


def _to_fields(row: Any) -> dict[str, Any]:
    values = {field.name: getattr(row, field.name) for field in fields(row)}
    return {name: dict(value) if isinstance(value, Mapping) else value for name, value in values.items()}


def describe_placement(placement: Placement) -> str:
    """Returns one line: the candidate that was chosen, and the time of one run of each."""
    chosen = "priority decides" if placement.chosen is None else f"{placement.candidates[placement.chosen].title} was chosen"
    times = ", ".join(f"{candidate.title} {_describe_time(candidate)}" for candidate in placement.candidates)
    how = "measured before" if placement.is_kept else f"measured in {placement.seconds:.1f} s"
    return f"placement {how}: {chosen}; {times}" + ("" if placement.is_complete else "; the measurement was cut short")


def _describe_time(candidate: PlacementCandidate) -> str:
    return "failed" if candidate.seconds is None else f"{candidate.seconds * 1000:.3f} ms"


def describe_memory(held: HeldMemory) -> str:
    """Returns "GPU: 40 bytes of 80: constants 20, inputs and outputs 10, inner values 10"."""
    total = held.weights + held.border + held.arena
    limit = "" if held.limit is None else f" of {held.limit}"
    return f"{held.device}: {total} bytes{limit}: constants {held.weights}, inputs and outputs {held.border}, inner values {held.arena}"


def memory_to_json(held: HeldMemory) -> dict[str, Any]:
    """Returns the fields as values that JSON can hold."""
    return _to_fields(held)
