"""Copies of long stretches of memory that comes from far away."""

from __future__ import annotations

from collections.abc import Callable

from hetero_cpu.machine.code import FLOAT_BYTES, Code
from hetero_cpu.machine.terms import Floats, Number

_VECTORS = 4
_AHEAD_BYTES = 1024
_CACHE_LINE = 64


def emit_stream(code: Code, target: Number, source: Number, nbytes: Number) -> None:
    """Copies so many bytes, a multiple of four; both lie apart. What is read is asked for ahead."""

    def store(position: Number, vector: Floats, offset: int = 0) -> None:
        code.store(target + position, vector, offset)

    even = _emit_vectors(code, source, nbytes, store)
    with code.when(even < nbytes):
        mask = code.mask_first((nbytes - even) // FLOAT_BYTES)
        code.store(target + even, code.load(source + even, mask=mask), mask=mask)


def emit_forked_stream(code: Code, near: Number, far: Number, source: Number, nbytes: Number) -> None:
    """Copies so many bytes, of whole vectors, to a place that is read next, and to one that nobody reads soon."""

    def store(position: Number, vector: Floats, offset: int = 0) -> None:
        code.store(near + position, vector, offset)
        code.store(far + position, vector, offset)

    def store_past_caches(position: Number, vector: Floats, offset: int = 0) -> None:
        code.store(near + position, vector, offset)
        code.store_far(far + position, vector, offset)

    is_aligned = (far % (code.width * FLOAT_BYTES)).equals(0)
    code.emit_either(is_aligned, lambda write: _emit_vectors(code, source, nbytes, write), store_past_caches, store)


def _emit_vectors(code: Code, source: Number, nbytes: Number, store: Callable[..., None]) -> Number:
    """Has `store(position, vector, offset)` write all whole vectors, and returns their bytes."""
    step = code.width * FLOAT_BYTES
    long, even = nbytes - nbytes % (_VECTORS * step), nbytes - nbytes % step
    with code.loop(0, long, _VECTORS * step) as position:
        for line in range(0, _VECTORS * step, _CACHE_LINE):
            code.prefetch(source + position, line + _AHEAD_BYTES)
        vectors = [code.load(source + position, number * step) for number in range(_VECTORS)]
        for number, vector in enumerate(vectors):
            store(position, vector, number * step)
    with code.loop(long, even, step) as position:
        store(position, code.load(source + position))
    return even
