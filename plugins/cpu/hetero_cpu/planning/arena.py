"""Alignment of an arena's blocks on a CPU; `hetero_core.kernels.arena` chooses the place of each."""

from __future__ import annotations

from hetero_core.kernels.arena import align_size

ALIGNMENT = 64
"""Bytes; a cache line, and the widest vector."""


def align(nbytes: int) -> int:
    """Returns the next multiple of the alignment."""
    return align_size(nbytes, ALIGNMENT)
