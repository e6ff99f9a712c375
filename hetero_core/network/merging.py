"""Merges two statements about the type of one value into one. Imports nothing heavy."""

from __future__ import annotations

from hetero_core.network.types import Dimension, MapType, OptionalType, SequenceType, TensorType, ValueType


def merge_types(first: ValueType, second: ValueType) -> ValueType | None:
    """Returns the type that says all that both say; None where they contradict. Of two names of a size the first stays."""
    if first == second:
        return first
    if isinstance(first, TensorType) and isinstance(second, TensorType):
        return _merge_tensors(first, second)
    if isinstance(first, MapType) and isinstance(second, MapType):
        value = merge_types(first.value, second.value)
        return None if value is None or first.key != second.key else MapType(first.key, value)
    if isinstance(first, SequenceType) and isinstance(second, SequenceType):
        element = merge_types(first.element, second.element)
        return None if element is None else SequenceType(element)
    if isinstance(first, OptionalType) and isinstance(second, OptionalType):
        element = merge_types(first.element, second.element)
        return None if element is None else OptionalType(element)
    # A tensor type that says nothing stands for a value of which not even the kind is known.
    if first == TensorType(None):
        return second
    return first if second == TensorType(None) else None


def _merge_tensors(first: TensorType, second: TensorType) -> TensorType | None:
    if first.dtype is not None and second.dtype is not None and first.dtype != second.dtype:
        return None
    dtype = second.dtype if first.dtype is None else first.dtype
    if first.shape is None or second.shape is None:
        return TensorType(dtype, second.shape if first.shape is None else first.shape)
    if len(first.shape) != len(second.shape):
        return None
    shape: list[Dimension] = []
    for size, other in zip(first.shape, second.shape, strict=True):
        if isinstance(size, int) and isinstance(other, int) and size != other:
            return None
        shape.append(other if size is None or (isinstance(size, str) and isinstance(other, int)) else size)
    return TensorType(dtype, tuple(shape))


def unite_types(first: ValueType, second: ValueType) -> ValueType:
    """Returns the type that says no more than what both say: of a value that is one of two."""
    if first == second:
        return first
    if isinstance(first, SequenceType) and isinstance(second, SequenceType):
        return SequenceType(unite_types(first.element, second.element))
    if isinstance(first, OptionalType) and isinstance(second, OptionalType):
        return OptionalType(unite_types(first.element, second.element))
    if not (isinstance(first, TensorType) and isinstance(second, TensorType)):
        return TensorType(None)
    dtype = first.dtype if first.dtype == second.dtype else None
    if first.shape is None or second.shape is None or len(first.shape) != len(second.shape):
        return TensorType(dtype)
    return TensorType(dtype, tuple(a if a == b else None for a, b in zip(first.shape, second.shape, strict=True)))
