"""How blocks of an arena lie on a CPU; which place each has is `hetero_core.kernels.arena`'s to say."""

from __future__ import annotations

from hetero_core.kernels.arena import align_size

ALIGNMENT = 64
"""Bytes; a cache line, and the widest vector."""


def align(nbytes: int) -> int:
    """Returns the next multiple of the alignment."""
    return align_size(nbytes, ALIGNMENT)
