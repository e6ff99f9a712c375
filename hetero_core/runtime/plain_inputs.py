"""Inputs that are exactly what a network wants, taken without a closer look; all others are for `door.order_inputs`, which words errors."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import numpy as np

from hetero_core.dtypes import numpy_dtype
from hetero_core.network.border import EMPTY_BORDER, Border
from hetero_core.network.types import HOST, TensorType, ValueSpec
from hetero_core.runtime.door import fits_shape

Declared = tuple[int | str | None, ...]
Plain = tuple[tuple[str, Declared, np.dtype[Any]], ...]
"""The inputs of a network of host tensors, in order: name, declared shape, NumPy type."""
Take = Callable[[Any], tuple[Any, ...] | None]
"""Returns the arrays of a mapping in order where each is exactly what is wanted; None else."""


def open_plain_door(specs: Sequence[ValueSpec], border: Border = EMPTY_BORDER) -> Take | None:
    """Returns what takes inputs as they are; None where some are no tensors of numbers on the host, or where sizes have bounds."""
    plain: list[tuple[str, Declared, np.dtype[Any]]] = []
    for spec in specs:
        value_type = spec.type
        if (
            spec.memory != HOST
            or not isinstance(value_type, TensorType)
            or value_type.dtype in (None, "string")
            or value_type.shape is None
        ):
            return None
        plain.append((spec.name, tuple(value_type.shape), numpy_dtype(str(value_type.dtype))))
    if all(isinstance(size, int) for _, shape, _ in plain for size in shape):
        return partial(_take_fixed, tuple(plain))
    return None if border.bounds else OpenDoor(plain).take


def _take_fixed(plain: Plain, inputs: Any) -> tuple[Any, ...] | None:
    """Returns the arrays in order where each is exactly what is wanted.

    0.4 us an input; `order_inputs`, which must word every error, takes 4.
    """
    if type(inputs) is not dict or len(inputs) != len(plain):
        return None
    ordered = []
    for name, shape, dtype in plain:
        array = inputs.get(name)
        if type(array) is not np.ndarray or array.dtype is not dtype or array.shape != shape or not array.flags.c_contiguous:
            return None
        ordered.append(array)
    return tuple(ordered)


class OpenDoor:
    """Takes the inputs of a network of which some have open sizes. A size with a name is the same wherever the name stands."""

    __slots__ = ("_declared", "_inputs")

    def __init__(self, plain: Sequence[tuple[str, Declared, np.dtype[Any]]]) -> None:
        # Inputs that are declared alike, as the caches of all layers are, have one shape in a run; a size without a name is each one's own.
        place: dict[Hashable, int] = {}
        keys = [name if None in shape else shape for name, shape, _ in plain]
        self._inputs = [(name, dtype, place.setdefault(key, len(place))) for (name, _, dtype), key in zip(plain, keys, strict=True)]
        self._declared = {place[key]: shape for (_, shape, _), key in zip(plain, keys, strict=True)}

    def take(self, inputs: Any) -> tuple[Any, ...] | None:
        """Returns the arrays in order where each is exactly what is wanted; None else."""
        if type(inputs) is not dict or len(inputs) != len(self._inputs):
            return None
        ordered = []
        shapes: dict[int, tuple[int, ...]] = {}
        sizes: dict[str, int] = {}
        for name, dtype, place in self._inputs:
            array = inputs.get(name)
            if type(array) is not np.ndarray or array.dtype is not dtype or not array.flags.c_contiguous:
                return None
            shape = array.shape
            known = shapes.get(place)
            if known is None:
                shapes[place] = shape
                if not _fits(shape, self._declared[place], sizes):
                    return None
            elif shape != known:
                return None
            ordered.append(array)
        return tuple(ordered)


def _fits(shape: tuple[int, ...], declared: Declared, sizes: dict[str, int]) -> bool:
    """Says whether a shape fits a declared one and gives each name the size that it has in `sizes`, to which new names are added."""
    if not fits_shape(shape, declared):
        return False
    return all(
        sizes.setdefault(dimension, size) == size
        for size, dimension in zip(shape, declared, strict=True)
        if isinstance(dimension, str)
    )
