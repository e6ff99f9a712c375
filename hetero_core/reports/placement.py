"""A measured placement, and the memory of a split, as lines of text."""

from __future__ import annotations

from hetero_core.plan import HeldMemory, Placement, PlacementCandidate


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
