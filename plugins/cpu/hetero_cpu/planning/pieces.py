"""The copies of a concatenation: the values that do not lie in its result already, each into its piece of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from hetero_cpu.planning.plan import Piece
from hetero_cpu.planning.recipe import Array, Cut, Recipe, is_channels_last


def can_stand_for(piece: Array, array: Array) -> bool:
    """Says whether steps that were planned for an array may be bound to a piece of another one instead, of the same shape.

    Elements lie at the same distances, or the array is an image channels last, whose pixels lie farther apart and all at one distance.
    """
    if all(piece.strides[axis] == array.strides[axis] for axis, size in enumerate(array.shape) if size > 1):
        return True
    if not is_channels_last(array) or piece.strides[1] != array.strides[1]:
        return False
    return all(piece.strides[axis] * array.strides[3] == array.strides[axis] * piece.strides[3] for axis in (0, 2))


def copy_pieces(output: Array, pieces: Sequence[Piece], prototypes: Mapping[str, Array], *, workers: int) -> Recipe:
    """Returns the recipe that copies each source into its cut of `output`; by machine code if it takes them all, else by NumPy."""
    sources, cuts = [piece.source for piece in pieces], [piece.cut for piece in pieces]
    if len(set(sources)) == len(sources):
        from hetero_cpu.operators.layout.copies import plan_pieces  # LLVM

        recipe = plan_pieces(output, cuts, {source: prototypes[source] for source in sources}, workers=workers)
        if recipe is not None:
            return recipe
    return Recipe(tuple(sources), _bind_copies(cuts), parts=tuple(cuts))


def _bind_copies(cuts: Sequence[Cut]) -> Any:
    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[Any]:
        return [partial(np.copyto, writes[0][cut], array) for cut, array in zip(cuts, reads, strict=True)]

    return bind
