"""Into which chunks work is cut so that all workers end at about the same time."""

from __future__ import annotations

from hetero_cpu.open.sizes import is_open, largest, least

# Multiplications of a chunk below which handing it to a thread costs more than it saves: about 10 microseconds.
_SMALLEST_CHUNK = 1 << 20
_CHUNKS_OF_WORKER = 8


def choose_chunk_size(units: int, chunks: int, workers: int) -> int:
    """Returns how many of `units` equal units a chunk has, where about `chunks` chunks are wanted: half as many to twice as many.

    Seven chunks keep two workers as long as eight would.
    """
    size: int = -(-units // largest(1, chunks))
    if workers == 1 or is_open(units) or is_open(size) or size >= units:
        return size

    def count_rounds(candidate: int) -> int:
        return -(-units // (candidate * workers)) * candidate

    candidates = range(-(-size // 2), min(2 * size, units) + 1)
    return min(candidates, key=lambda candidate: (count_rounds(candidate), abs(candidate - size)))


def cut_products(units: int, products: int, workers: int) -> int:
    """Returns how many of `units` units, of so many multiplications in all, a chunk has."""
    chunks = largest(1, least(units, products // _SMALLEST_CHUNK, _CHUNKS_OF_WORKER * workers)) if workers > 1 else 1
    return choose_chunk_size(units, chunks, workers)
