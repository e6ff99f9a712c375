"""Shared parts of drawn cases: shapes, quantized tensors with scales and zero points, choices. All from one generator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

Generator = np.random.Generator
Item = TypeVar("Item")


def choose(rng: Generator, items: Sequence[Item]) -> Item:
    """Returns one of the items."""
    return items[int(rng.integers(len(items)))]


def flip(rng: Generator) -> bool:
    """Returns True half of the time."""
    return bool(rng.integers(2))


def draw_sizes(rng: Generator, rank: int, largest: int = 6) -> tuple[int, ...]:
    """Returns sizes from 1 on."""
    return tuple(int(size) for size in rng.integers(1, largest + 1, rank))


def draw_floats(rng: Generator, *sizes: int, scale: float = 1.0, dtype: Any = np.float32) -> Any:
    """Returns normally distributed values."""
    return np.asarray(rng.standard_normal(sizes) * scale).astype(dtype)


def draw_integers(rng: Generator, dtype: Any, *sizes: int) -> Any:
    """Returns values from the whole range of an integer type."""
    limits = np.iinfo(dtype)
    return np.asarray(rng.integers(limits.min, limits.max + 1, sizes)).astype(dtype)


def draw_scale(rng: Generator, *sizes: int) -> Any:
    """Returns scales from 0.005 to 0.1; a scalar where there are no sizes."""
    return np.asarray(rng.uniform(0.005, 0.1, sizes)).astype(np.float32)


def draw_bytes_type(rng: Generator) -> Any:
    """Returns int8 or uint8."""
    return choose(rng, (np.int8, np.uint8))


def make_broadcastable(rng: Generator, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns a shape that broadcasts to this one."""
    trailing = shape[int(rng.integers(len(shape) + 1)) :]
    return tuple(1 if rng.integers(4) == 0 else size for size in trailing)
