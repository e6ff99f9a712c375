"""The kernel of convolutions and matrix products: it walks over tiles of pixels and blocks of output channels.

The pixels of a row are cut into tiles of `tile` or `tile` - 1 pixels, so that no tile is a small rest. A unit of work is a
tile of a row; a chunk is a range of units for a range of blocks. Inside a chunk each block of weights is read once for all units.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from hetero_cpu.machine.arithmetic import Activation, emit_activations
from hetero_cpu.machine.code import FLOAT_BYTES, Code
from hetero_cpu.machine.compiler import Kernel
from hetero_cpu.machine.terms import Number
from hetero_cpu.operators.tiling import Chunks, Tiling

# A pointer to pixel 0 or 9, plus 0, 1, 2, 4 or 8 times a register with a multiple of the stride: (pointer, multiple, factor).
_PIXELS_OF_POINTER = 9
_REACHES = {
    0: (0, 1, 0), 1: (0, 1, 1), 2: (0, 1, 2), 3: (0, 3, 1), 4: (0, 1, 4), 5: (0, 5, 1), 6: (0, 3, 2), 7: (0, 7, 1), 8: (0, 1, 8),
    9: (1, 1, 0), 10: (0, 5, 2), 11: (1, 1, 2), 12: (0, 3, 4), 13: (1, 1, 4), 14: (0, 7, 2),
}  # fmt: skip


class PixelPointers:
    """The addresses of a tile's pixels, at most 15 at the same stride; `begin` has to be called before the others."""

    def __init__(self, code: Code, stride: Number, pixels: int) -> None:
        self._code, self._stride, self._pixels = code, stride, pixels
        multiples = sorted({multiple for multiple, factor in (_REACHES[m][1:] for m in range(pixels)) if factor})
        # LLVM would derive pointers of its own from them, and add to each of them in every step.
        self._multiples = {multiple: code.hide(stride * multiple) for multiple in multiples}

    def begin(self, start: Number) -> None:
        """Sets the address of the first pixel."""
        firsts = range(0, self._pixels, _PIXELS_OF_POINTER)
        self._pointers = [self._code.variable(self._code.hide(start + self._stride * first)) for first in firsts]

    def read(self) -> list[Number]:
        """Returns the pointers as they are here."""
        return [pointer.get() for pointer in self._pointers]

    def find(self, bases: list[Number], pixel: int) -> Number:
        """Returns the address of a pixel, by pointers that were read."""
        pointer, multiple, factor = _REACHES[pixel]
        return bases[pointer] + self._multiples[multiple] * factor if factor else bases[pointer]

    def move(self, bases: list[Number], amount: int) -> None:
        """Sets all pointers to `amount` bytes behind the values that were read."""
        for pointer, base in zip(self._pointers, bases, strict=True):
            pointer.set(self._code.hide(base + amount))


_UNROLLED = 4
_CACHE_LINE = 64
# The prefetch distance of weights that are read once, in a stream; more pixels leave the processor's own fetching less to go by.
_STREAM_BYTES, _STREAM_BYTES_OF_ONE_PIXEL = 4096, 512


@dataclass(frozen=True, slots=True)
class Tile:
    """The part of a tile that is fixed when it is compiled. A masked tile writes only the existing elements of its last vector."""

    pixels: int
    vectors: int
    prefetches: int = 0
    """Cache lines that are fetched ahead in each step of the inner loop: of the weights that come next, a part with each tile."""
    is_masked: bool = False
    adds: bool = False
    activations: tuple[Activation, ...] = ()
    streams: bool = False
    """Whether it prefetches its own weights: if no other tile uses them, it waits for them."""

    @property
    def name(self) -> str:
        """The kernel's name, which no kernel of other parameters has."""
        activations = "".join(f"_{activation.name}" for activation in self.activations)
        flags = f"p{self.prefetches}" * (self.prefetches > 0) + "m" * self.is_masked + "a" * self.adds + "r" * self.streams
        return f"{self.pixels}x{self.vectors}{flags}{activations}"


TILE_PARAMETERS = ("x", "x_pixel", "offsets", "taps", "depth", "w", "bias", "y", "y_pixel", "added", "added_pixel", "last", "ahead")
"""Addresses, strides in bytes and counts; `last` is the number of elements of the last vector, `ahead` the address that is prefetched."""


def _emit_tile(code: Code, *, tile: Tile) -> None:
    """Emits a function of TILE_PARAMETERS."""
    x, x_pixel, offsets, taps, depth, w, bias, y, y_pixel, added, added_pixel, last, ahead = code.parameters
    vector_bytes = code.width * FLOAT_BYTES
    step = tile.vectors * vector_bytes
    sums = [[code.variable(code.load(bias, j * vector_bytes)) for j in range(tile.vectors)] for _ in range(tile.pixels)]
    weights = code.variable(w)
    even = depth - depth % _UNROLLED
    fetched = code.variable(ahead)
    stream_bytes = _STREAM_BYTES_OF_ONE_PIXEL if tile.pixels == 1 else _STREAM_BYTES
    pixels = PixelPointers(code, x_pixel, tile.pixels)
    with code.loop(0, taps) as tap:
        start = x + code.load_number(offsets + tap * 8)
        pixels.begin(start)

        def advance(count: int) -> None:
            here = weights.get()
            bases = pixels.read()
            for k in range(count):
                rows = []
                for j in range(tile.vectors):
                    if tile.streams:
                        code.prefetch(here, k * step + j * vector_bytes + stream_bytes)
                    rows.append(code.load(here, k * step + j * vector_bytes))
                for m in range(tile.pixels):
                    scalar = code.spread(code.load_scalar(pixels.find(bases, m), k * FLOAT_BYTES))
                    for j in range(tile.vectors):
                        sums[m][j].set(code.multiply_add(scalar, rows[j], sums[m][j].get()))
            weights.set(here + count * step)
            pixels.move(bases, count * FLOAT_BYTES)

        with code.loop(0, even, _UNROLLED):
            if tile.prefetches:
                line = fetched.get()
                for number in range(tile.prefetches):
                    code.prefetch(line, number * _CACHE_LINE)
                fetched.set(line + tile.prefetches * _CACHE_LINE)
            advance(_UNROLLED)
        with code.loop(even, depth):
            advance(1)
    mask = code.mask_first(last) if tile.is_masked else None
    for m in range(tile.pixels):
        for j in range(tile.vectors):
            guard = mask if j == tile.vectors - 1 else None
            result = sums[m][j].get()
            if tile.adds:
                result = result + code.load(added + added_pixel * m, j * vector_bytes, mask=guard)
            result = emit_activations(code, tile.activations, result)
            code.store(y + y_pixel * m, result, j * vector_bytes, mask=guard)
    code.finish()


def call_tile(code: Code, tile: Tile, **arguments: Number | int) -> None:
    """Calls a tile, which is emitted when it is first called, with its TILE_PARAMETERS by name; the default is 0."""
    function = code.find_inner(f"tile_{tile.name}", len(TILE_PARAMETERS), partial(_emit_tile, tile=tile))
    code.call(function, *(arguments.get(name, 0) for name in TILE_PARAMETERS))


PARAMETERS = (
    "x", "x_image", "x_row", "x_pixel", "offsets", "taps", "depth", "w", "block_bytes", "bias",
    "y", "y_image", "y_row", "y_pixel", "added", "added_image", "added_row", "added_pixel",
    "rows", "tiles", "long_tiles", "units", "units_of_chunk", "unit_chunks", "blocks", "blocks_of_chunk", "last",
)  # fmt: skip
"""Numbers of a row, in order: addresses; strides in bytes from image to image, row to row, pixel to pixel; counts.
`rows` of an image; `tiles` of a row, the first `long_tiles` of them of full size; `last`: elements of the last vector."""
PIECE_PARAMETERS = ("pieces", "last_depth", "zeros")
"""Further fields if sums are made in pieces: the number of pieces, `depth` of each and `last_depth` of the last; zeros for a block."""


@dataclass(frozen=True, slots=True)
class ProductShape:
    """The compiled-in part of a product: pixels of a tile, whether some have a pixel less, vectors of a block and of the last block."""

    pixels: int
    has_short_tiles: bool
    vectors: int
    last_vectors: int
    is_masked: bool
    adds: bool
    activations: tuple[Activation, ...]
    prefetches: int = 0
    splits: bool = False
    """Whether sums are made in pieces, in order for all pixels of a chunk: the data of a piece stays near, errors stay small."""
    streams: bool = False
    """Whether a block of weights is used by a single tile."""

    @classmethod
    def of_tiling(cls, tiling: Tiling, activations: tuple[Activation, ...], *, adds: bool, **more: Any) -> ProductShape:
        """Returns the shape of a product that is cut so; `more` are its last three fields."""
        cut = (tiling.pixels, tiling.has_short_tiles, tiling.vectors, tiling.last_vectors, tiling.is_masked)
        return cls(*cut, adds, activations, **more)


def make_product(shape: ProductShape) -> Kernel:
    """Returns the kernel of a shape."""
    name = (
        Tile(shape.pixels, shape.vectors, shape.prefetches, shape.is_masked, shape.adds, shape.activations, shape.streams).name
        + "_in_pieces" * shape.splits
    )
    title = f"product_{name}_{shape.last_vectors}{'s' * shape.has_short_tiles}"
    return Kernel(title, lambda name, width: emit_product(Code(name, 3, width), shape))


def list_cut(tiling: Tiling, chunks: Chunks) -> dict[str, int]:
    """Returns the numbers of a row that say how the work is cut."""
    return {
        "tiles": tiling.tiles, "long_tiles": tiling.long_tiles, "units": chunks.units, "units_of_chunk": chunks.units_of_chunk,
        "unit_chunks": chunks.unit_chunks, "blocks": tiling.blocks, "blocks_of_chunk": chunks.blocks_of_chunk, "last": tiling.last,
    }  # fmt: skip


def emit_product(code: Code, shape: ProductShape) -> Code:
    """Emits the body of a function of a kernel's three parameters, ends it, and returns it."""
    width = code.width
    row, chunk, _ = code.parameters
    p = code.load_row(row, (*PARAMETERS, *PIECE_PARAMETERS) if shape.splits else PARAMETERS)
    has_other_last = shape.last_vectors != shape.vectors or shape.is_masked
    first_unit = (chunk % p["unit_chunks"]) * p["units_of_chunk"]
    last_unit = (first_unit + p["units_of_chunk"]).at_most(p["units"])
    first_block = (chunk // p["unit_chunks"]) * p["blocks_of_chunk"]
    last_block = (first_block + p["blocks_of_chunk"]).at_most(p["blocks"])

    def walk(block: Number, piece: Number, *, is_last: bool) -> None:
        block_channels = block * (shape.vectors * width * FLOAT_BYTES)
        vectors = shape.last_vectors if is_last else shape.vectors
        fetched_bytes = p["depth"] * (shape.vectors * width * FLOAT_BYTES) if shape.splits else p["block_bytes"]
        with code.loop(first_unit, last_unit) as unit:
            line, place = unit // p["tiles"], unit % p["tiles"]
            image, y_row = line // p["rows"], line % p["rows"]
            pixel = place * shape.pixels
            if shape.has_short_tiles:
                pixel = pixel - (place - p["long_tiles"]).at_least(0)
            x = p["x"] + image * p["x_image"] + y_row * p["x_row"] + pixel * p["x_pixel"]
            y = p["y"] + image * p["y_image"] + y_row * p["y_row"] + pixel * p["y_pixel"] + block_channels
            added = p["added"] + image * p["added_image"] + y_row * p["added_row"] + pixel * p["added_pixel"] + block_channels
            arguments = {
                "x": x, "x_pixel": p["x_pixel"], "offsets": p["offsets"], "taps": p["taps"], "depth": p["depth"],
                "w": p["w"] + block * p["block_bytes"], "bias": p["bias"] + block_channels, "y": y, "y_pixel": p["y_pixel"],
                "ahead": p["w"] + (block + 1) * p["block_bytes"] + unit * (fetched_bytes // p["units"]),
                "added": added, "added_pixel": p["added_pixel"], "last": p["last"],
            }  # fmt: skip

            if shape.splits:
                arguments = _pick_piece(code, p, arguments, piece, vectors, adds=shape.adds)

            def call_with(activations: tuple[Activation, ...], pixels: int) -> None:
                adds = shape.adds or shape.splits
                tile = Tile(pixels, vectors, shape.prefetches, shape.is_masked and is_last, adds, activations, shape.streams)
                call_tile(code, tile, **arguments)  # called inside the loop

            def call(pixels: int) -> None:
                if not (shape.splits and shape.activations):
                    call_with(shape.activations, pixels)
                    return
                code.emit_either(piece.equals(p["pieces"] - 1), partial(call_with, pixels=pixels), shape.activations, ())

            if shape.has_short_tiles:
                code.emit_either(place < p["long_tiles"], call, shape.pixels, shape.pixels - 1)
            else:
                call(shape.pixels)

    def walk_blocks(piece: Number) -> None:
        full = last_block.at_most(p["blocks"] - 1) if has_other_last else last_block
        with code.loop(first_block, full) as block:
            walk(block, piece, is_last=False)
        if has_other_last:
            with code.loop(full.at_least(first_block), last_block) as block:
                walk(block, piece, is_last=True)

    if shape.splits:
        with code.loop(0, p["pieces"]) as piece:
            walk_blocks(piece)
    else:
        walk_blocks(code.number(0))
    return code.finish()


def _pick_piece(
    code: Code, p: dict[str, Number], whole: dict[str, Number], piece: Number, vectors: int, *, adds: bool
) -> dict[str, Number]:
    """Returns the arguments of a tile for a piece of its sums: the first piece begins with the bias, later pieces add to the result."""
    begin = piece * p["depth"] * FLOAT_BYTES
    weights = begin * (vectors * code.width)
    is_first, zeros, nothing = piece.equals(0), p["zeros"], code.number(0)
    changed = {
        "x": whole["x"] + begin,
        "w": whole["w"] + weights,
        "ahead": whole["ahead"] + weights,
        "depth": piece.equals(p["pieces"] - 1).choose(p["last_depth"], p["depth"]),
        "bias": is_first.choose(whole["bias"], zeros),
        "added": is_first.choose(whole["added"] if adds else zeros, whole["y"]),
        "added_pixel": is_first.choose(whole["added_pixel"] if adds else nothing, whole["y_pixel"]),
    }
    return {**whole, **changed}
