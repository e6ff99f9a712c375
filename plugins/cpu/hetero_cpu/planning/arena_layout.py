"""Where in the arena each block lies: those that are alive at the same time lie apart."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from hetero_core.kernels.arena import Lifetime, place_blocks
from hetero_cpu.open.layout import place_open
from hetero_cpu.open.sizes import Scope
from hetero_cpu.planning.arena import ALIGNMENT, align
from hetero_cpu.planning.plan import Block


class ArenaLayout(NamedTuple):
    """Distances from the begin of the arena, in bytes."""

    offsets: dict[str, int]
    """Of each block, by the name of its first value."""
    scratch_offsets: dict[int, int]
    """Of working memory, by the index of its step."""
    arena_bytes: int


def lay_arena(
    blocks: Mapping[str, Block],
    spans: Mapping[str, tuple[int, int]],
    scratch_bytes: Sequence[int],
    outside: Collection[str],
    scope: Scope | None,
) -> ArenaLayout:
    """Lays out blocks that live for `spans`, first and last moment, and the working memory of each step.

    `outside`: blocks that lie in the caller's memory where they can; they get a place behind all others, shared with none.
    Step i is moment i + 1. `scope`: that of the symbols where sizes are some.
    """
    inner = [name for name in spans if name not in outside]
    working = [(index, scratch) for index, scratch in enumerate(scratch_bytes) if scratch]
    lifetimes = [Lifetime(blocks[name].nbytes, *spans[name]) for name in inner]
    lifetimes += [Lifetime(align(scratch), index + 1, index + 1) for index, scratch in working]
    placed, arena_bytes = place_blocks(lifetimes, alignment=ALIGNMENT) if scope is None else place_open(scope, lifetimes)
    offsets = dict(zip(inner, placed, strict=False))
    for name in outside:
        offsets[name] = arena_bytes
        arena_bytes += align(blocks[name].nbytes)
    return ArenaLayout(offsets, dict(zip((index for index, _ in working), placed[len(inner) :], strict=True)), arena_bytes)
