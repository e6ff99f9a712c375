"""The places of a plan's values while it is made: who lies in whose block, and how many readers each block still has.

A block knows the values that lie in it, and a value its block, so that planning a node asks nothing of all the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from hetero_core.dtypes import numpy_dtype
from hetero_core.network.types import TensorType
from hetero_cpu.planning.plan import Block, Derived, keep
from hetero_cpu.planning.recipe import NO_HALO, Halo

Array = Any

_MOST_MOVED = 256
"""Values of a block that may become a piece of another one: each is laid anew, once for every move."""


class Places:
    """Value -> place, with the block that each value lies in."""

    def __init__(self, readers_left: Mapping[str, int]) -> None:
        """`readers_left`: how many nodes still read each value; a change is announced with `note_reads`."""
        self.places: dict[str, Block | Derived] = {}
        self._readers_left = readers_left
        self._root_of_value: dict[str, str] = {}
        self._values_of_root: dict[str, list[str]] = {}
        self._readers_of_root: dict[str, int] = {}
        self._fixed_roots: set[str] = set()
        self._alike: dict[tuple[int, bool, Halo | None], tuple[TensorType, Block]] = {}

    def lay_block(self, value: str, value_type: TensorType, *, is_channels_last: bool = False, halo: Halo = NO_HALO) -> Block:
        """Gives a value a block of its own, and returns it."""
        # Most values share their types, each of which is held, as an id is only its own while it lives.
        key = id(value_type), is_channels_last, None if halo is NO_HALO else halo
        entry = self._alike.get(key)
        if entry is None:
            assert value_type.dtype is not None
            shape = tuple([size for size in value_type.shape or () if isinstance(size, int)])
            order = (0, 2, 3, 1) if is_channels_last and len(shape) == 4 else tuple(range(len(shape)))
            entry = self._alike[key] = value_type, Block(shape, np.dtype(numpy_dtype(value_type.dtype)), order, halo)
        block = self.places[value] = entry[1]
        self._root_of_value[value] = value
        self._values_of_root[value] = [value]
        self._readers_of_root[value] = self._readers_left.get(value, 0)
        return block

    def add_view(self, value: str, source: str, make: Callable[[Array], Array], *, is_computed: bool = False) -> None:
        """Puts a value into the memory of another one, where it is a view or `is_computed`."""
        place = self.places.get(source)
        if make is keep and isinstance(place, Derived) and place.make is keep:
            # A chain of values in one memory is as deep as one value.
            source = place.source
        self.places[value] = Derived(source, make, is_computed)
        root = self.find_root(source)
        if root is not None:
            self._root_of_value[value] = root
            self._values_of_root[root].append(value)
            self._readers_of_root[root] += self._readers_left.get(value, 0)

    def move(self, root: str, target: str, make: Callable[[Array], Array]) -> list[str]:
        """Makes a block a piece of the block `target`; returns the values in it, each after the one that it is derived from."""
        self.places[root] = Derived(target, make, is_computed=True)
        moved = self._values_of_root.pop(root)
        for value in moved:
            self._root_of_value[value] = target
        self._values_of_root[target] += moved
        self._readers_of_root[target] += self._readers_of_root.pop(root)
        if root in self._fixed_roots:
            self._fixed_roots.add(target)
        return moved

    def fix(self, values: Iterable[str]) -> None:
        """Says that what lies in the blocks of these values may be read at any time."""
        self._fixed_roots.update(root for value in values if (root := self.find_root(value)) is not None)

    def note_reads(self, value: str, count: int) -> None:
        """Says that `count` readers of a value are planned."""
        root = self.find_root(value)
        if root is not None:
            self._readers_of_root[root] -= count

    def find_root(self, value: str) -> str | None:
        """Returns the value whose block a value lies in; None for constants and for what is passed on by name."""
        return self._root_of_value.get(value)

    def list_sharing(self, root: str) -> list[str]:
        """Returns the values in a block, each after the one that it is derived from."""
        return self._values_of_root[root]

    def can_move(self, root: str) -> bool:
        """Says whether a block has few enough values to become a piece of another one."""
        return len(self._values_of_root[root]) <= _MOST_MOVED

    def is_read_later(self, root: str, read_here: Mapping[str, int]) -> bool:
        """Says whether anything in a block is read beside these readers, or may be at any time."""
        if root in self._fixed_roots:
            return True
        own = sum(count for value, count in read_here.items() if self._root_of_value.get(value) == root)
        return self._readers_of_root[root] != own
