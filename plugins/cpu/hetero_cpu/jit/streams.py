"""Copies of long stretches of memory that comes from far away."""

from __future__ import annotations

from hetero_cpu.jit.code import FLOAT_BYTES, Code
from hetero_cpu.jit.terms import Number

_VECTORS = 4
_AHEAD_BYTES = 1024
_CACHE_LINE = 64


def emit_stream(code: Code, target: Number, source: Number, nbytes: Number) -> None:
    """Copies so many bytes, a multiple of four; both lie apart. What is read is asked for ahead."""
    step = code.width * FLOAT_BYTES
    long, even = nbytes - nbytes % (_VECTORS * step), nbytes - nbytes % step
    with code.loop(0, long, _VECTORS * step) as position:
        for line in range(0, _VECTORS * step, _CACHE_LINE):
            code.prefetch(source + position, line + _AHEAD_BYTES)
        vectors = [code.load(source + position, number * step) for number in range(_VECTORS)]
        for number, vector in enumerate(vectors):
            code.store(target + position, vector, number * step)
    with code.loop(long, even, step) as position:
        code.store(target + position, code.load(source + position))
    with code.when(even < nbytes):
        mask = code.mask_first((nbytes - even) // FLOAT_BYTES)
        code.store(target + even, code.load(source + even, mask=mask), mask=mask)
