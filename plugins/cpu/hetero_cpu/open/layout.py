"""Places in an arena whose blocks have symbols for sizes: who lies below whom is the example's, where is a sum and a maximum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hetero_core.kernels.arena import Lifetime, place_blocks
from hetero_cpu.open.sizes import Scope, value_of
from hetero_cpu.planning.arena import ALIGNMENT, align


def place_open(scope: Scope, lifetimes: Sequence[Lifetime]) -> tuple[tuple[Any, ...], Any]:
    """Returns the offset of each block and the bytes of the arena, as `place_blocks` does.

    Two blocks that live at the same time lie above each other as in the example, the upper one behind the end of the lower one, so they
    are apart for all sizes.
    """
    plain = [Lifetime(value_of(block.nbytes), block.begin, block.end) for block in lifetimes]
    example, _ = place_blocks(plain, alignment=ALIGNMENT)
    offsets: list[Any] = [0] * len(lifetimes)
    ends: list[Any] = [0] * len(lifetimes)
    below: list[set[int]] = [set() for _ in lifetimes]
    placed: list[int] = []
    for index in sorted(range(len(lifetimes)), key=lambda position: (example[position], plain[position].nbytes, position)):
        block = lifetimes[index]
        rivals = [other for other in placed if lifetimes[other].begin <= block.end and lifetimes[other].end >= block.begin]
        covered = set().union(*(below[other] for other in rivals)) if rivals else set()
        nearest = [other for other in rivals if other not in covered]
        offsets[index] = scope.find_largest([ends[other] for other in nearest]) if nearest else 0
        ends[index] = offsets[index] + align(block.nbytes)
        below[index] = covered.union(nearest)
        placed.append(index)
    return tuple(offsets), scope.find_largest([0, *ends])
