"""Places values in a block of memory: values that live at the same time do not overlap; the rest may share memory."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

from hetero_cpu.machine.memory import align


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A block of memory that is needed from step `begin` to step `end`, both included."""

    nbytes: int
    begin: int
    end: int


def place_blocks(lifetimes: Sequence[Lifetime]) -> tuple[tuple[int, ...], int]:
    """Returns the offset of each block, a multiple of the alignment, and the bytes of the arena.

    Largest blocks first, each at the lowest offset that is free during its lifetime: quadratic, and so up to
    4,096 blocks; more are placed in the order of their beginnings, each in the smallest piece that is free.
    Source: Pisarchyk & Lee 2020, Efficient memory management for deep neural net inference, greedy by size.
    """
    if len(lifetimes) > _MOST_COMPARED:
        return _place_in_order(lifetimes)
    offsets, ends = [0] * len(lifetimes), [0] * len(lifetimes)
    placed: list[int] = []
    total = 0
    for index in sorted(range(len(lifetimes)), key=lambda position: (-lifetimes[position].nbytes, position)):
        block = lifetimes[index]
        offset = 0
        for neighbour in placed:
            lifetime = lifetimes[neighbour]
            if lifetime.begin > block.end or lifetime.end < block.begin:
                continue
            if offsets[neighbour] >= offset + block.nbytes:
                break
            # No calls in here: this loop makes the cost quadratic.
            if ends[neighbour] > offset:
                offset = ends[neighbour]
        offsets[index], ends[index] = offset, align(offset + block.nbytes)
        total = max(total, ends[index])
        insort(placed, index, key=lambda position: offsets[position])
    return tuple(offsets), total


_MOST_COMPARED = 4096


def _place_in_order(lifetimes: Sequence[Lifetime]) -> tuple[tuple[int, ...], int]:
    """Returns offsets and bytes as `place_blocks`. Cost: n log n, and the moves within a sorted list."""
    offsets = [0] * len(lifetimes)
    living: list[tuple[int, int, int]] = []
    free: list[tuple[int, int]] = []
    total = 0
    for index in sorted(range(len(lifetimes)), key=lambda position: (lifetimes[position].begin, position)):
        block = lifetimes[index]
        while living and living[0][0] < block.begin:
            _, size, offset = heapq.heappop(living)
            insort(free, (size, offset))
        size = align(block.nbytes)
        place = bisect_left(free, (size, 0))
        if place < len(free):
            room, offset = free.pop(place)
            if room > size:
                insort(free, (room - size, offset + size))
        else:
            offset, total = total, total + size
        offsets[index] = offset
        heapq.heappush(living, (block.end, size, offset))
    return tuple(offsets), total
