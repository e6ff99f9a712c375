"""Shared parts of drawn cases: shapes, quantized tensors with scales and zero points, choices; all drawn from one generator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

Item = TypeVar("Item")


class Generator(np.random.Generator):
    """NumPy's generator with further methods that draw the parts of cases."""

    def choose(self, items: Sequence[Item]) -> Item:
        """Returns a random item."""
        return items[int(self.integers(len(items)))]

    def flip(self) -> bool:
        """Returns True half of the time."""
        return bool(self.integers(2))

    def integer(self, low: int, high: int | None = None) -> int:
        """Returns an integer in [low, high), or in [0, low) without `high`."""
        return int(self.integers(low, high))

    def sizes(self, rank: int, largest: int = 6) -> tuple[int, ...]:
        """Returns sizes from 1 on."""
        return tuple(int(size) for size in self.integers(1, largest + 1, rank))

    def floats(self, *sizes: int, scale: float = 1.0, dtype: Any = np.float32) -> Any:
        """Returns normally distributed values."""
        return np.asarray(self.standard_normal(sizes) * scale).astype(dtype)

    def numbers(self, dtype: Any, *sizes: int) -> Any:
        """Returns values from the whole range of an integer type."""
        limits = np.iinfo(dtype)
        return np.asarray(self.integers(limits.min, limits.max + 1, sizes)).astype(dtype)

    def scales(self, *sizes: int) -> Any:
        """Returns scales from 0.005 to 0.1; a scalar if no sizes are given."""
        return np.asarray(self.uniform(0.005, 0.1, sizes)).astype(np.float32)

    def quantized(self, dtype: Any, *sizes: int) -> tuple[Any, Any, Any]:
        """Returns a quantized tensor, its scale and its zero point."""
        return self.numbers(dtype, *sizes), self.scales(), self.numbers(dtype)

    def constants(self, *inputs: int) -> frozenset[int]:
        """Returns these inputs, to become constants of the model, half of the time; else an empty set."""
        return frozenset(inputs) if self.flip() else frozenset()

    def byte_type(self) -> Any:
        """Returns int8 or uint8."""
        return self.choose((np.int8, np.uint8))

    def broadcastable(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Returns a shape that broadcasts to this one."""
        trailing = shape[int(self.integers(len(shape) + 1)) :]
        return tuple(1 if self.integers(4) == 0 else size for size in trailing)
