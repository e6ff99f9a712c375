"""The partition of a product: the size of its tiles, the layout of its weights, the chunks that threads take. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hetero_cpu.machine.calls import Array
from hetero_cpu.operators.rows import choose_chunk_size
from hetero_cpu.operators.weights import allocate_floats
from hetero_cpu.symbols.sizes import is_open, largest, least, pays

# Pixels and vectors of channels that fit into the registers: with AVX-512 pixels * vectors + vectors + 1 <= 32, with AVX2 <= 16.
_TILES = {16: ((14, 2), (9, 3), (6, 4), (5, 5), (4, 6), (3, 7), (2, 10), (1, 12)), 8: ((6, 2), (4, 3), (3, 3), (2, 5), (1, 8))}
# Of pairs of bytes, which need three registers beside sums and weights.
_PAIR_TILES = {16: ((12, 2), (8, 3), (6, 4), (4, 5), (3, 7), (2, 9), (1, 12)), 8: ((5, 2), (3, 3), (2, 4), (1, 8))}
# Of words, which need two.
_WORD_TILES = {16: _TILES[16], 8: ((6, 2), (3, 3), (2, 4), (1, 8))}
# Of weights that have the same form for all numbers of pixels.
_SHARED_TILES = {16: ((6, 4), (1, 4)), 8: ((3, 3), (1, 3))}
# Cycles that a product has to wait for its predecessor in the same sum, and products per cycle.
_LATENCY, _PRODUCTS_PER_CYCLE = 4, 2
# Bytes: half of the second cache of most processors, for weights or for pixels.
_NEAR_BYTES = 1 << 19
# Products of a sum from which on it is made in pieces, and of a piece.
_LONGEST_SUM, _PIECE = 2048, 1024
# A number of pixels that stands for many, and tiles that are left out of the classes, so that there are few of these.
_MANY, _UNFIT = 5040, frozenset({2, 4, 5, 9, 14})
# The share of the cycles by which tiles of an image may be slower; U-Nets and detectors are not, by the clock.
_ALMOST = 1.15
# The longest tile of an open number of pixels: decoders, encoders and U-Nets take as long as with tiles of 6, which need 20 pixels where
# these need 12. And a tile for few pixels, in blocks as wide, so that weights of both are packed once.
_LONG, _SHORT = 5, 3
# Tiles over which a block of weights is fetched, and the number that stands for all of such a class.
_MOST_FETCHING, _OPEN_FETCHING = 32, 16
# From how many blocks for each worker on ranges of them come out even enough.
_BLOCKS_OF_WORKER = 3
# Multiplications of a chunk below which handing it to a thread costs more than it saves: about 5 microseconds.
_SMALLEST_CHUNK = 1 << 19
# The same in bytes of weights, for which few rows only wait.
_SMALLEST_STREAM = 1 << 17


@dataclass(frozen=True, slots=True)
class Tiling:
    """`tiles` of a line of pixels, the first `long_tiles` of `pixels`, the rest a pixel less; blocks of `vectors` vectors of channels."""

    pixels: int
    tiles: int
    long_tiles: int
    vectors: int
    blocks: int
    last_vectors: int
    last: int
    """The channels in the last vector of the last block."""
    width: int
    is_few: bool = False
    """Whether the pixels are an open number of rows that is too small for the tile of many."""

    def count_prefetches(self, units: int) -> int:
        """Returns the cache lines that a tile fetches ahead for every four numbers of depth, if `units` tiles share a block of weights.

        Many tiles use a block for so long that waiting for the next block does not matter, and a single tile has no time to fetch. An open
        number of tiles fetches for all that, so that its classes share a kernel: a repeated prefetch costs little.
        """
        lines = 4 * self.vectors * self.width * 4 // 64
        if is_open(units):
            return -(-lines // _OPEN_FETCHING)
        return -(-lines // units) if 2 <= units <= _MOST_FETCHING else 0

    @property
    def has_short_tiles(self) -> bool:
        """Says whether some tiles are a pixel shorter, or may be."""
        if is_open(self.tiles):
            return self.pixels > 1
        return self.long_tiles < self.tiles

    @property
    def is_masked(self) -> bool:
        """Says whether the last vector is not full."""
        return self.last < self.width

    @property
    def packing(self) -> Tiling:
        """The key of packed weights: the same without the rows, which may be open."""
        return replace(self, pixels=0, tiles=0, long_tiles=0, is_few=False)

    @property
    def padded_outputs(self) -> int:
        """The channels with those that fill up the last vector."""
        return ((self.blocks - 1) * self.vectors + self.last_vectors) * self.width


@dataclass(frozen=True, slots=True)
class Chunks:
    """The units (a tile of a line) and the blocks of a chunk, and how many ranges of either there are."""

    units: int
    units_of_chunk: int
    unit_chunks: int
    blocks_of_chunk: int
    count: int


def choose_tiling(
    pixels: int, outputs: int, width: int, *, is_image: bool = False, is_shared: bool = False, products: str = ""
) -> Tiling:
    """Returns the tiling of lines of `pixels` pixels that needs the fewest cycles by its count of products and loads.

    `is_image`: whether the lines belong to an image and may be short. If the weights are to be shared, all numbers of
    pixels have blocks of as many outputs. `products`: as of a kernel.
    """
    tiles = {"pairs": _PAIR_TILES, "words": _WORD_TILES}.get(products, _SHARED_TILES if is_shared else _TILES)[width]
    if is_open(pixels):
        return _choose_open_tiling(pixels, outputs, width, tiles, is_image=is_image)
    candidates = [cut_pixels(pixels, outputs, width, most, vectors) for most, vectors in tiles]
    return min(candidates, key=_count_cycles)


def _choose_open_tiling(
    pixels: int, outputs: int, width: int, tiles_of_width: Sequence[tuple[int, int]], *, is_image: bool
) -> Tiling:
    """Returns the tiling of a number of pixels that is a symbol: the size of its tiles is that of a class of numbers.

    From (size - 1) (size - 2) on every number of pixels is a sum of tiles of `size` and `size` - 1. Lines of images have the shortest
    tiles that are almost as fast as the best, so that small and large images share a class. Too few rows of a sequence for the best tile
    have a short one: tiles of one row, which read all weights for each, take up to twice as long from two rows on.
    """

    def rate(tile: tuple[int, int]) -> float:
        return _count_cycles(cut_pixels(_MANY, outputs, width, *tile))

    best = sorted(((min(most, _LONG), vectors) for most, vectors in tiles_of_width if most not in _UNFIT), key=rate)
    short = _SHORT, best[0][1]
    if is_image:
        best = sorted([short, *best], key=rate)
        almost = [tile for tile in best if rate(tile) <= _ALMOST * rate(best[0])]
        best = [*sorted(almost), *best[len(almost) :]]
    else:
        best = [best[0], short, *sorted(best)]
    tile = next(tile for tile in best if pays(pixels, 2 * (tile[0] - 1) * (tile[0] - 2)))
    most, tiles = tile[0], -(-pixels // tile[0])
    like, is_few = cut_pixels(most, outputs, width, *tile), not is_image and tile != best[0]
    return replace(like, pixels=most, tiles=tiles, long_tiles=pixels - tiles * (most - 1), is_few=is_few)


def cut_pixels(pixels: int, outputs: int, width: int, most: int, vectors: int) -> Tiling:
    """Returns the tiling in the fewest tiles of at most `most` pixels, in blocks of at most so many vectors."""
    tiles = -(-pixels // most)
    size = -(-pixels // tiles)
    vectors = min(vectors, -(-outputs // width))
    blocks = -(-outputs // (vectors * width))
    rest = outputs - (blocks - 1) * vectors * width
    last_vectors = -(-rest // width)
    return Tiling(size, tiles, pixels - tiles * (size - 1), vectors, blocks, last_vectors, rest - (last_vectors - 1) * width, width)


def _count_cycles(tiling: Tiling) -> float:
    short = tiling.tiles - tiling.long_tiles
    total = 0.0
    for blocks, vectors in ((tiling.blocks - 1, tiling.vectors), (1, tiling.last_vectors)):
        for count, pixels in ((tiling.long_tiles, tiling.pixels), (short, tiling.pixels - 1)):
            loads = (pixels + vectors) / _PRODUCTS_PER_CYCLE
            total += blocks * count * (max(pixels * vectors / _PRODUCTS_PER_CYCLE, loads, _LATENCY) + vectors * 0.25)
    return total


def choose_chunks(tiling: Tiling, *, lines: int, depth: int, pixel_bytes: int, workers: int) -> Chunks:
    """Returns the chunks of a product over `lines` lines, of `depth` products for each result; a pixel adds `pixel_bytes` to what is read.

    If all weights are near, a chunk takes a range of units through all blocks, so that its pixels stay near; else a chunk is a range
    of blocks, so that its weights do. Several workers take ranges of blocks if there are more weights than pixels, so that not each of
    them has to bring all weights near.
    """
    units = lines * tiling.tiles
    products = units * tiling.pixels * tiling.padded_outputs * depth
    weight_bytes = tiling.padded_outputs * depth * 4
    most_chunks = largest(1, products // _SMALLEST_CHUNK, weight_bytes // _SMALLEST_STREAM)
    are_near = weight_bytes <= 2 * _NEAR_BYTES
    has_ranges = workers > 1 and tiling.blocks >= _BLOCKS_OF_WORKER * workers
    # A question about an open number would part its class, and for many rows both ways take as long, to a few hundredths.
    outweighs = has_ranges and not is_open(units) and units * tiling.pixels * pixel_bytes < weight_bytes
    takes_units = not tiling.is_few and ((are_near and not outweighs) or tiling.blocks < 2 * workers)
    if takes_units and units >= min(workers, tiling.blocks):
        near = max(1, _NEAR_BYTES // max(1, pixel_bytes * tiling.pixels))
        chunk_target = largest(-(-units // near), least(most_chunks, 8 * workers) if workers > 1 else 1)
        size = choose_chunk_size(units, chunk_target, workers)
        count = -(-units // size)
        return Chunks(units, size, count, tiling.blocks, count)
    chunk_target = least(tiling.blocks, most_chunks, 8 * workers) if workers > 1 else 1
    size = choose_chunk_size(tiling.blocks, chunk_target, workers)
    return Chunks(units, units, 1, size, -(-tiling.blocks // size))


def choose_pieces(depth: int) -> tuple[int, int]:
    """Returns the number of pieces of a sum, and the products of each but the last: the error grows with the longest piece."""
    if depth <= _LONGEST_SUM:
        return 1, depth
    pieces = -(-depth // _PIECE)
    size = -(-depth // (4 * pieces)) * 4
    return -(-depth // size), size


def pack_columns(weight: Array, tiling: Tiling) -> Array:
    """Returns a matrix (depth, outputs) as blocks of columns, each (depth, columns), the last block filled up with zeros."""
    columns = tiling.vectors * tiling.width
    full = (tiling.blocks - 1) * columns
    depth, outputs = weight.shape
    packed = allocate_floats(depth * tiling.padded_outputs)
    head = packed[: depth * full].reshape(tiling.blocks - 1, depth, columns)
    head[...] = weight[:, :full].reshape(depth, tiling.blocks - 1, columns).transpose(1, 0, 2)
    tail = packed[depth * full :].reshape(depth, tiling.padded_outputs - full)
    tail[:, outputs - full :] = 0
    tail[:, : outputs - full] = weight[:, full:]
    return packed


@dataclass(frozen=True, slots=True)
class ColumnPacking:
    """Packs a matrix (depth, outputs), turned if it `is_turned`, or filters (outputs, channels, [depth,] height, width) with taps and
    channels as the depth."""

    tiling: Tiling
    is_turned: bool = False

    def __call__(self, weight: Array) -> Array:
        """Returns the blocks of columns, in order."""
        if weight.ndim > 3:
            return pack_columns(np.moveaxis(weight, (1, 0), (-2, -1)).reshape(-1, len(weight)), self.tiling)
        return pack_columns(weight.T if self.is_turned else weight.reshape(len(weight), -1), self.tiling)


def pad_vector(vector: Array | None, outputs: int, size: int, group: int = 1) -> Array:
    """Returns `outputs` numbers of each group, zeros if there is no bias, each followed by zeros up to `size`."""
    padded = allocate_floats(group * size)
    padded[...] = 0
    if vector is not None:
        padded.reshape(group, size)[:, :outputs] = vector.reshape(group, outputs)
    return padded
