"""In which memory each input and output of a network lies: on the card, or on the host where only the host looks at it."""

from __future__ import annotations

from hetero_core.network.types import HOST, MapType, TensorType, ValueSpec, ValueType
from hetero_cupy.refusals import DTYPES


def place_value(spec: ValueSpec, memory: str) -> ValueSpec:
    """Returns the spec with its memory: the host for texts, maps and element types that a card does not have."""
    return ValueSpec(spec.name, spec.type, memory if _fits_card(spec.type) else HOST)


def _fits_card(value_type: ValueType) -> bool:
    if isinstance(value_type, MapType):
        return False
    if isinstance(value_type, TensorType):
        return value_type.dtype is None or value_type.dtype in DTYPES
    return _fits_card(value_type.element)
