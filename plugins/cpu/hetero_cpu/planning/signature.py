"""Shapes of inputs, by which plans are told apart."""

from __future__ import annotations

from collections.abc import Sequence

from hetero_core.network.types import ValueSpec

Signature = tuple[tuple[int, ...] | None, ...]
"""The shape of each input; None for a sequence or an absent optional."""


def read_static_signature(inputs: Sequence[ValueSpec]) -> Signature | None:
    """Returns the shapes that a network declares for its inputs; None when a size is open, or an input is no tensor."""
    shapes: list[tuple[int, ...]] = []
    for spec in inputs:
        if spec.shape is None or any(not isinstance(size, int) for size in spec.shape):
            return None
        shapes.append(tuple(size for size in spec.shape if isinstance(size, int)))
    return tuple(shapes)
