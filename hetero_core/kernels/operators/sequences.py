"""Sequences (lists of tensors) and optionals (a value or None)."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero_core.kernels.precision import Array, Namespace, integers_of, normalize_axis
from hetero_core.kernels.registry import ANY, INDEX, kernel

_INDEX = (ANY, INDEX)


@kernel("SequenceConstruct", since=(11,), dtypes=ANY)
def sequence_construct(xp: Namespace, *inputs: Array) -> list[Array]:
    """Returns the inputs as a sequence. Source: ONNX SequenceConstruct-11."""
    return list(inputs)


@kernel("SequenceEmpty", since=(11,), dtypes=ANY)
def sequence_empty(xp: Namespace, *, dtype: int = 1) -> list[Array]:
    """Returns a sequence without elements. Source: ONNX SequenceEmpty-11."""
    return []


@kernel("SequenceAt", since=(11,), dtypes=_INDEX, host=(1,))
def sequence_at(xp: Namespace, sequence: list[Array], position: Array) -> Array:
    """Returns one element; a negative position counts from the end. Source: ONNX SequenceAt-11."""
    return sequence[integers_of(position)[0]]


@kernel("SequenceErase", since=(11,), dtypes=_INDEX, host=(1,))
def sequence_erase(xp: Namespace, sequence: list[Array], position: Array | None = None) -> list[Array]:
    """Returns the sequence without one element, the last by default. Source: ONNX SequenceErase-11."""
    index = len(sequence) - 1 if position is None else integers_of(position)[0]
    if not -len(sequence) <= index < len(sequence):
        raise ValueError(f"position {index} is outside of a sequence of {len(sequence)}")
    index %= len(sequence)
    return [*sequence[:index], *sequence[index + 1 :]]


@kernel("SequenceInsert", since=(11,), dtypes=(ANY, ANY, INDEX), host=(2,))
def sequence_insert(xp: Namespace, sequence: list[Array], tensor: Array, position: Array | None = None) -> list[Array]:
    """Returns the sequence with a tensor before the position, at the end by default. Source: ONNX SequenceInsert-11."""
    index = len(sequence) if position is None else integers_of(position)[0]
    if not -len(sequence) <= index <= len(sequence):
        raise ValueError(f"position {index} is outside of a sequence of {len(sequence)}")
    index = index + len(sequence) if index < 0 else index
    return [*sequence[:index], tensor, *sequence[index:]]


@kernel("SequenceLength", since=(11,), dtypes=ANY, reads_shapes=True)
def sequence_length(xp: Namespace, sequence: list[Array]) -> Array:
    """Returns the number of elements. Source: ONNX SequenceLength-11."""
    return xp.asarray(len(sequence), dtype=np.int64)


@kernel("SplitToSequence", since=(11, 24), dtypes=_INDEX, host=(1,), choices={"keepdims": (0, 1)})
def split_to_sequence(xp: Namespace, x: Array, split: Array | None = None, *, axis: int = 0, keepdims: int = 1) -> list[Array]:
    """Returns slices along the axis: of size 1, of one size, or of the sizes given. Source: ONNX SplitToSequence-24."""
    place = normalize_axis(axis, x.ndim)
    ahead = (slice(None),) * place
    length = x.shape[place]
    if split is None and not keepdims:
        return [xp.asarray(x[(*ahead, index)]) for index in range(length)]
    if split is None or split.ndim == 0:
        size = 1 if split is None else integers_of(split)[0]
        sizes = [min(size, length - begin) for begin in range(0, length, size)]
    else:
        sizes = list(integers_of(split))
    parts, begin = [], 0
    for size in sizes:
        parts.append(x[(*ahead, slice(begin, begin + size))])
        begin += size
    return parts


@kernel("Optional", since=(15, 28), dtypes=ANY)
def optional(xp: Namespace, value: Any = None, *, type: Any = None) -> Any:  # noqa: A002 - ONNX's name
    """Returns the value as an optional, an absent one without it. Source: ONNX Optional-28."""
    return value


@kernel("OptionalGetElement", since=(15, 18, 28), dtypes=ANY)
def optional_get_element(xp: Namespace, value: Any) -> Any:
    """Returns the value of an optional. Source: ONNX OptionalGetElement-28."""
    if value is None:
        raise ValueError("the optional has no element")
    return value


@kernel("OptionalHasElement", since=(15, 18, 28), dtypes=ANY, reads_shapes=True)
def optional_has_element(xp: Namespace, value: Any = None) -> Array:
    """Returns whether the optional has a value. Source: ONNX OptionalHasElement-28."""
    return xp.asarray(value is not None)
