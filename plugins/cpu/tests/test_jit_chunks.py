"""How work is cut into chunks for several workers: complete, about the target size, and balanced so that no worker waits long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("llvmlite", reason="machine code is made by llvmlite")

from hetero_cpu.operators.rows import choose_chunk_size
from hetero_cpu.operators.tiling import choose_chunks, choose_tiling
from hetero_cpu.symbols.sizes import Scope


@given(units=st.integers(1, 500), chunks=st.integers(1, 600), workers=st.integers(1, 9))
def test_chunks_have_about_the_target_size_and_balance_workers(units: int, chunks: int, workers: int) -> None:
    size, target = choose_chunk_size(units, chunks, workers), -(-units // chunks)
    assert target / 2 <= size <= 2 * target

    def count_rounds(candidate: int) -> int:
        """Returns the number of units of the busiest worker if workers take chunks in turns."""
        numbers = [min(candidate, units - begin) for begin in range(0, units, candidate)]
        return max(len(numbers[worker::workers]) for worker in range(workers)) * candidate

    assert count_rounds(size) <= count_rounds(target)


@pytest.mark.parametrize(("units", "chunks", "size"), [(14, 10, 1), (14, 7, 1), (14, 3, 7), (8, 3, 2), (7, 7, 1), (1, 1, 1)])
def test_two_workers_get_equal_numbers_of_units_if_possible(units: int, chunks: int, size: int) -> None:
    assert choose_chunk_size(units, chunks, 2) == size


def test_one_worker_gets_chunks_of_the_target_size() -> None:
    assert choose_chunk_size(14, 5, 1) == 3


@pytest.mark.parametrize(
    ("pixels", "outputs", "depth", "shares_weights"),
    [
        # 49 pixels of 160 channels with 600 KB of weights: each of two workers reads half of the weights.
        (49, 960, 160, True),
        # 3136 pixels of 24 channels with 14 KB of weights.
        (3136, 144, 24, False),
    ],
)
def test_several_workers_share_the_larger_of_weights_and_pixels(
    pixels: int, outputs: int, depth: int, shares_weights: bool
) -> None:
    tiling = choose_tiling(pixels, outputs, 16)
    chunks = choose_chunks(tiling, lines=1, depth=depth, pixel_bytes=depth * 4, workers=2)
    assert (chunks.unit_chunks == 1) is shares_weights
    assert chunks.count % 2 == 0
    assert choose_chunks(tiling, lines=1, depth=depth, pixel_bytes=depth * 4, workers=1).unit_chunks == 1


@pytest.mark.parametrize("rows", [3, 12, 400])
@pytest.mark.parametrize("workers", [1, 8, 16])
def test_how_far_weights_are_cut_asks_no_open_number_of_rows(rows: int, workers: int) -> None:
    scope = Scope()
    tiling = choose_tiling(scope.open_size("rows", rows), 4096, 16)
    guards = dict(scope.guards[">= 0"])
    chunks = choose_chunks(tiling, lines=1, depth=512, pixel_bytes=2048, workers=workers)
    assert (chunks.unit_chunks, int(chunks.count) >= workers) == (1, True)
    assert scope.guards[">= 0"] == guards
    assert not scope.guards["== 0"]


@pytest.mark.parametrize("workers", [2, 4, 16])
def test_weights_that_one_row_waits_for_are_shared(workers: int) -> None:
    tiling = choose_tiling(1, 768, 16)
    chunks = choose_chunks(tiling, lines=1, depth=768, pixel_bytes=768 * 4, workers=workers)
    assert chunks.count == tiling.blocks == 4
    assert choose_chunks(tiling, lines=1, depth=768, pixel_bytes=768 * 4, workers=1).count == 1
