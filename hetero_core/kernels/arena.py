"""Places in one block of memory: values that live at the same time lie apart, others may share. For devices that plan their memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A block of memory that is needed from step `begin` to step `end`, both included."""

    nbytes: int
    begin: int
    end: int


def place_blocks(lifetimes: Sequence[Lifetime], *, alignment: int) -> tuple[tuple[int, ...], int]:
    """Returns the offset of each block, a multiple of `alignment` bytes, and the bytes of the arena.

    Largest blocks first, each at the lowest place where it fits between those that live at the same time. Quadratic.
    Source: Pisarchyk & Lee 2020, Efficient memory management for deep neural net inference, greedy by size.
    """
    offsets = [0] * len(lifetimes)
    placed: list[int] = []
    total = 0
    for index in sorted(range(len(lifetimes)), key=lambda position: (-lifetimes[position].nbytes, position)):
        block = lifetimes[index]
        offset = 0
        for other in placed:
            held = lifetimes[other]
            if held.begin > block.end or held.end < block.begin:
                continue
            if offsets[other] >= offset + block.nbytes:
                break
            offset = max(offset, align_size(offsets[other] + held.nbytes, alignment))
        offsets[index] = offset
        total = max(total, align_size(offset + block.nbytes, alignment))
        placed.append(index)
        placed.sort(key=lambda position: offsets[position])
    return tuple(offsets), total


def align_size(nbytes: int, alignment: int) -> int:
    """Returns the next multiple of the alignment."""
    return -(-nbytes // alignment) * alignment
