"""Which bytes each chunk of a call writes, told from the call's numbers alone: how kernels cut their output, as a verifier counts it.

Each function belongs to one kernel, stands beside its code there as `Kernel.writes`, and says in NumPy what the kernel's loops do. Working
memory of single workers is left out: a worker has one chunk at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Numbers = Mapping[str, int]
"""The numbers of a call by the names that its kernel has for them, and its `chunks`."""
_FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """Stretches of memory: `nbytes[i]` from address `begins[i]` on are written by chunk `chunks[i]`."""

    begins: Array
    nbytes: Array
    chunks: Array


def list_row_writes(p: Numbers, width: int) -> Spans:
    """Walks over rows: a chunk is a range of rows."""
    row = np.arange(p["rows"])
    first, second, third = _split_axes(row, p)
    begins = p["y"] + first * p["y_outer"] + second * p["y_middle"] + third * p["y_inner"]
    return _cut(begins, np.where(row == p["rows"] - 1, p["last"], p["length"]) * _FLOAT_BYTES, row // p["rows_of_chunk"])


def list_turn_writes(p: Numbers, width: int) -> Spans:
    """Turned copies: a chunk is a range of units, which are blocks of rows of one matrix."""
    matrix, row = _list_places(p["units"] // p["blocks"], p["rows"])
    least_rows = -(-p["rows"] // p["blocks"])
    rows_of_block = -(-least_rows // width) * width
    first, second, third = _split_axes(matrix, p)
    begins = p["y"] + first * p["y_outer"] + second * p["y_middle"] + third * p["y_inner"] + row * p["y_row"]
    unit = matrix * p["blocks"] + row // rows_of_block
    return _cut(begins, p["columns"] * _FLOAT_BYTES, unit // p["units_of_chunk"])


def list_gather_writes(p: Numbers, width: int) -> Spans:
    """Rows of a table: a chunk is a range of rows of the result."""
    row, nbytes = np.arange(p["rows"]), p["length"] * _FLOAT_BYTES
    return _cut(p["y"] + row * nbytes, nbytes, row // p["rows_of_chunk"])


def list_stage_writes(p: Numbers, width: int) -> Spans:
    """Images with zeros around them: a chunk is a range of rows of all images."""
    line = np.arange(p["all_rows"])
    begins = p["y"] + line // p["rows"] * p["y_image"] + line % p["rows"] * p["y_row"]
    return _cut(begins, (p["left"] + p["width"] + p["right"]) * p["y_pixel"], line // p["rows_of_chunk"])


def list_clear_writes(p: Numbers, width: int) -> Spans:
    """The zeros around images: a chunk is an image."""
    gaps = p["gap"] + np.arange(p["gaps"]) * p["gap_stride"]
    offsets = np.concatenate([[0], gaps, [p["last"]]])
    nbytes = np.array([p["first_bytes"], *[p["gap_bytes"]] * p["gaps"], p["last_bytes"]])
    image, position = _list_places(p["images"], len(offsets))
    return _cut(p["y"] + image * p["y_image"] + offsets[position], nbytes[position], image)


def list_product_writes(
    p: Numbers, width: int, *, pixels: int, has_short_tiles: bool, vectors: int, last_vectors: int, is_masked: bool
) -> Spans:
    """Products: a chunk is a range of units, which are tiles of pixels of one line, for a range of blocks of channels."""
    counts = np.full(p["tiles"], pixels)
    counts[p["long_tiles"] if has_short_tiles else p["tiles"] :] -= 1
    tile_of_pixel = np.repeat(np.arange(p["tiles"]), counts)
    blocks, begins, ends = _cut_blocks(p, width, vectors, last_vectors, p["last"] if is_masked else width)
    part, line, pixel = _list_places(len(blocks), p["units"] // p["tiles"], len(tile_of_pixel))
    y = p["y"] + line // p["rows"] * p["y_image"] + line % p["rows"] * p["y_row"] + pixel * p["y_pixel"] + begins[part]
    unit = line * p["tiles"] + tile_of_pixel[pixel]
    return _cut(y, (ends - begins)[part], blocks[part] * p["unit_chunks"] + unit // p["units_of_chunk"])


def list_grouped_writes(p: Numbers, width: int, **shape: Any) -> Spans:
    """Products in groups: a chunk is one of those of one group."""
    own = list_product_writes(p, width, **shape)
    group, place = _list_places(p["chunks"] // p["chunks_of_group"], len(own.begins))
    return _cut(own.begins[place] + group * p["y_group"], own.nbytes[place], own.chunks[place] + group * p["chunks_of_group"])


def list_winograd_writes(p: Numbers, width: int, *, size: int, vectors: int, last_vectors: int, is_whole: bool) -> Spans:
    """Winograd's results: a chunk is a range of tiles for all blocks, or a range of blocks for all tiles."""
    blocks, begins, ends = _cut_blocks(
        p if not is_whole else {**p, "blocks_of_chunk": p["blocks"]}, width, vectors, last_vectors, width
    )
    part, tile, i, j = _list_places(len(blocks), p["tiles"], size, size)
    image, inside = tile // (p["down"] * p["right"]), tile % (p["down"] * p["right"])
    row, column = inside // p["right"] * size + i, inside % p["right"] * size + j
    y = p["y"] + image * p["y_image"] + row * p["y_row"] + column * p["y_pixel"] + begins[part]
    is_there = (row < p["height"]) & (column < p["width"])
    chunks = tile // p["tiles_of_chunk"] if is_whole else blocks[part]
    return _cut(y[is_there], (ends - begins)[part][is_there], chunks[is_there])


def list_winograd_inputs(p: Numbers, width: int, *, size: int) -> Spans:
    """Winograd's transformed tiles: a chunk is a range of tiles."""
    position, tile = _list_places((size + 2) ** 2, p["tiles"])
    nbytes = p["channels"] * _FLOAT_BYTES
    return _cut(p["moved"] + position * p["moved_position"] + tile * nbytes, nbytes, tile // p["tiles_of_chunk"])


def list_window_writes(p: Numbers, width: int, *, rows: int, short_rows: int, pixels: int, has_short_tiles: bool) -> Spans:
    """Windows over images: a chunk is a range of lines, which are groups of rows of the result."""
    short = p["groups"] - p["long_groups"] if short_rows else 0
    height = (p["groups"] - short) * rows + short * short_rows
    line_pixels = p["tiles"] * pixels - (p["tiles"] - p["long_tiles"] if has_short_tiles else 0)
    image, row, pixel = _list_places(p["lines"] // p["groups"], height, line_pixels)
    y = p["y"] + image * p["y_image"] + row * p["y_row"] + pixel * p["y_pixel"]
    return _cut(y, p["channel_bytes"] + p["last"] * _FLOAT_BYTES, (image * p["groups"] + row // rows) // p["lines_of_chunk"])


def list_global_writes(p: Numbers, width: int, *, block: int) -> Spans:
    """Poolings of whole images: a chunk is a range of units, which are blocks of channels of one image."""
    image, number = _list_places(p["units"] // p["blocks"], p["blocks"])
    begin, all_bytes = number * block * width * _FLOAT_BYTES, (p["vectors"] * width + p["last"]) * _FLOAT_BYTES
    nbytes = np.minimum(block * width * _FLOAT_BYTES, all_bytes - begin)
    return _cut(p["y"] + image * p["y_image"] + begin, nbytes, np.arange(len(image)) // p["units_of_chunk"])


def list_batched_writes(p: Numbers, width: int, *, vectors: int) -> Spans:
    """Products of computed matrices: a chunk is a range of units, which are blocks of columns of one matrix."""
    matrix, block, row = _list_places(p["units"] // p["blocks"], p["blocks"], p["rows"])
    first, second, third = _split_axes(matrix, p)
    column = block * vectors * width
    y = p["y"] + first * p["y_outer"] + second * p["y_middle"] + third * p["y_inner"] + row * p["y_step"] + column * _FLOAT_BYTES
    nbytes = np.minimum(vectors * width, p["columns"] - column) * _FLOAT_BYTES
    return _cut(y, nbytes, (matrix * p["blocks"] + block) // p["units_of_chunk"])


def list_attention_writes(p: Numbers, width: int, *, vectors: int, last_rows: int, appends: bool) -> Spans:
    """Attention: a chunk is a range of units, which are blocks of queries of one head; one that appends writes keys and values, too."""
    rows = vectors * width
    line, query = _list_places(p["units"] // p["blocks"], (p["blocks"] - 1) * rows + (last_rows or p["last_rows"]))
    y = p["y"] + line // p["heads"] * p["y_batch"] + line % p["heads"] * p["y_head"] + query * p["y_step"]
    own = _cut(y, p["value_size"] * _FLOAT_BYTES, (line * p["blocks"] + query // rows) // p["units_of_chunk"])
    if not appends:
        return own
    head = np.arange(p["units"])
    caches = []
    for key in "kv":
        copied, added = (p[f"{source}_{key}_rows"] * p[f"{source}_{key}_row_bytes"] for source in ("past", "new"))
        # What is in its place already is not written.
        begin = p[key] + p[f"past_{key}_bytes"] - copied
        place = begin + head // p["heads"] * p[f"{key}_batch"] + head % p["heads"] * p[f"{key}_head"]
        caches.append(_cut(place, copied + added, head // p["units_of_chunk"]))
    joined = [np.concatenate([getattr(spans, name) for spans in (own, *caches)]) for name in ("begins", "nbytes", "chunks")]
    return Spans(*joined)


def list_interleave_writes(p: Numbers, width: int, *, groups: int) -> Spans:
    """Shuffled channels: a chunk is a range of rows of all images."""
    line, pixel = _list_places(p["lines"], p["pixels"])
    y = p["y"] + line // p["rows"] * p["y_image"] + line % p["rows"] * p["y_row"] + pixel * p["y_pixel"]
    return _cut(y, p["own"] * groups * _FLOAT_BYTES, line // p["lines_of_chunk"])


def list_resampled_writes(p: Numbers, width: int, *, taps: int) -> Spans:
    """Images of another size: a chunk is a range of rows of all images. `taps` of a pixel are read, whatever is written."""
    line, pixel = _list_places(p["lines"], p["pixels"])
    y = p["y"] + line // p["rows"] * p["y_image"] + line % p["rows"] * p["y_row"] + pixel * p["y_pixel"]
    return _cut(y, p["channels"] * _FLOAT_BYTES, line // p["lines_of_chunk"])


def _list_places(*sizes: int) -> tuple[Array, ...]:
    """Returns the indices of all places of a grid, an array for each axis."""
    return np.unravel_index(np.arange(prod(sizes)), sizes)


def _split_axes(position: Array, p: Numbers) -> tuple[Array, Array, Array]:
    """Returns the place of a position along the three axes that a kernel walks over."""
    line, third = position // p["inner"], position % p["inner"]
    return line // p["middle"], line % p["middle"], third


def _cut_blocks(p: Numbers, width: int, vectors: int, last_vectors: int, last: int) -> tuple[Array, Array, Array]:
    """Returns the ranges of blocks of channels that chunks take, and where the channels of each begin and end, in bytes."""
    number = np.arange(-(-p["blocks"] // p["blocks_of_chunk"]))
    block_bytes = vectors * width * _FLOAT_BYTES
    all_bytes = (p["blocks"] - 1) * block_bytes + ((last_vectors - 1) * width + last) * _FLOAT_BYTES
    ends = np.minimum((number + 1) * p["blocks_of_chunk"] * block_bytes, all_bytes)
    return number, number * p["blocks_of_chunk"] * block_bytes, ends


def _cut(begins: Array, nbytes: Array | int, chunks: Array) -> Spans:
    return Spans(begins, np.broadcast_to(np.asarray(nbytes, np.int64), begins.shape), chunks)
