"""The kernel of convolutions and matrix products: it walks over tiles of pixels and blocks of output channels.

Elements are float32, or bytes or bfloat16 if the processor multiplies these: four or two of them take the place of one float32. Sums of
bytes are int32 until the end. With AMX a tile is a product of matrices, else it is the same walk as that of float32.

The pixels of a row are cut into tiles of `tile` or `tile` - 1 pixels, so that no tile is a small rest. A unit of work is a
tile of a row; a chunk is a range of units for a range of blocks. Inside a chunk each block of weights is read once for all units.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from hetero_cpu.machine.arithmetic import Activation
from hetero_cpu.machine.code import FLOAT_BYTES, Code, begin_kernel
from hetero_cpu.machine.compiler import Kernel
from hetero_cpu.machine.terms import Floats, Integers, Mask, Number
from hetero_cpu.operators.elementwise import PLAIN_EXPRESSION, Expression, store_product
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


BYTE_PRODUCTS = ("vnni", "amx", "pairs", "words")
"""The names of the products whose numbers are bytes; of words, two lie where else four bytes do."""
_UNROLLED = 4
_CACHE_LINE = 64


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
    products: str = ""
    """Those of narrow numbers that it is made of, as `find_byte_products` and `find_half_products` name them; empty for float32."""
    expression: Expression = PLAIN_EXPRESSION
    """Of narrow numbers: the result is this of the sum, of vectors, and of what is otherwise added."""

    @property
    def are_bytes(self) -> bool:
        """Whether elements are bytes."""
        return self.products in BYTE_PRODUCTS

    @property
    def name(self) -> str:
        """The kernel's name, which no kernel of other parameters has."""
        activations = "".join(f"_{activation.name}" for activation in self.activations)
        flags = f"p{self.prefetches}" * (self.prefetches > 0) + "m" * self.is_masked + "a" * self.adds
        activations += f"_{self.expression.name}" if self.expression.instructions else ""
        return f"{self.products}{self.pixels}x{self.vectors}{flags}{activations}"


TILE_PARAMETERS = ("x", "x_pixel", "offsets", "taps", "depth", "w", "bias", "y", "y_pixel", "added", "added_pixel", "last", "ahead")
"""Addresses, strides in bytes and counts; `last` is the number of elements of the last vector, `ahead` the address that is prefetched."""
NARROW_PARAMETERS = (*TILE_PARAMETERS, "shift", "count", "vectors", "vector_bytes")
"""Those of a tile of narrow numbers: `count` is the pixels that are there for AMX. `depth` counts groups of 64 bytes with AMX, else of 4.
Of bytes, `shift` is the address of the float32 that was added to every element, and the sums of the weights of each channel stand before
these. `vectors` of channels that an expression reads lie at distances of `vector_bytes`."""


def _emit_tile(code: Code, *, tile: Tile) -> None:
    """Emits a function of TILE_PARAMETERS, or of NARROW_PARAMETERS."""
    if tile.products.startswith("amx"):
        _emit_matrix_tile(code, tile)
        return
    x, x_pixel, offsets, taps, depth, w, bias, y, y_pixel, added, added_pixel, last, ahead, *_ = code.parameters
    vector_bytes = code.width * FLOAT_BYTES
    step = tile.vectors * vector_bytes
    multiply: Any = {
        "": code.multiply_add, "bf16": code.multiply_halves, "pairs": code.multiply_byte_pairs, "words": code.multiply_words,
        "vnni": code.multiply_bytes,
    }[tile.products]  # fmt: skip
    load: Any = code.load_integers if tile.are_bytes else code.load
    load_scalar: Any = partial(code.load_integers, lanes=1) if tile.are_bytes else code.load_scalar
    first: list[Any] = [code.zero_integers()] * tile.vectors
    if tile.are_bytes:
        w = w + step
    else:
        first = [code.load(bias, j * vector_bytes) for j in range(tile.vectors)]
    sums = [[code.variable(first[j]) for j in range(tile.vectors)] for _ in range(tile.pixels)]
    weights = code.variable(w)
    even = depth - depth % _UNROLLED
    fetched = code.variable(ahead)
    pixels = PixelPointers(code, x_pixel, tile.pixels)
    with code.loop(0, taps) as tap:
        start = x + code.load_number(offsets + tap * 8)
        pixels.begin(start)

        def advance(count: int) -> None:
            here = weights.get()
            bases = pixels.read()
            for k in range(count):
                rows = [load(here, k * step + j * vector_bytes) for j in range(tile.vectors)]
                for m in range(tile.pixels):
                    element = code.spread(load_scalar(pixels.find(bases, m), k * FLOAT_BYTES))
                    for j in range(tile.vectors):
                        sums[m][j].set(multiply(element, rows[j], sums[m][j].get()))
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
    finish = _emit_float_conversion(code, tile) if tile.are_bytes else None
    mask = code.mask_first(last) if tile.is_masked else None
    memory = code.reserve(tile.pixels * step // 8) if tile.expression.instructions else None
    for m in range(tile.pixels):
        for j in range(tile.vectors):
            total = sums[m][j].get()
            result = total if finish is None else finish(total, j)
            if memory is None:
                _emit_result(code, tile, result, j, mask, y + y_pixel * m, added + added_pixel * m)
            else:
                code.store(memory, result, m * step + j * vector_bytes)
    if memory is not None:
        # A loop: an expression for each pixel would be long to compile.
        vectors = _load_vectors(code, tile)
        with code.loop(0, tile.pixels) as pixel:
            for j in range(tile.vectors):
                result = code.load(memory + pixel * step, j * vector_bytes)
                _emit_result(code, tile, result, j, mask, y + y_pixel * pixel, added + added_pixel * pixel, vectors)
    code.finish()


_Vectors = Sequence[Sequence[Floats]]


def _emit_result(
    code: Code, tile: Tile, result: Floats, j: int, mask: Mask | None, y: Number, added: Number, vectors: _Vectors = ()
) -> None:
    """Writes vector j of a pixel."""
    constants, guard = [own[j % len(own)] for own in vectors], mask if j == tile.vectors - 1 else None
    addend = added if tile.adds else None
    store_product(code, tile.expression, tile.activations, constants, result, y=y, added=addend, element=j * code.width, mask=guard)


def _load_vectors(code: Code, tile: Tile) -> _Vectors:
    """Returns the constants of the tile's expression: "c" is a vector of channels, "s" a number, which fills a vector, too."""
    p = dict(zip(NARROW_PARAMETERS, code.parameters, strict=True))
    vectors: list[list[Floats]] = []
    for kind in tile.expression.kinds:
        if kind in "cs":
            begin = p["vectors"] + p["vector_bytes"] * len(vectors)
            places = [j * code.width * FLOAT_BYTES for j in range(tile.vectors if kind == "c" else 1)]
            vectors.append([code.load(begin, place) for place in places])
    return vectors


def _emit_float_conversion(code: Code, tile: Tile) -> Callable[[Integers, int], Floats]:
    """Returns the function that makes float32 of sums of bytes: less what the shift added, plus the bias."""
    p = dict(zip(NARROW_PARAMETERS, code.parameters, strict=True))
    vectors = [j * code.width * FLOAT_BYTES for j in range(tile.vectors)]
    shift = code.spread(code.whole(code.load_scalar(p["shift"])))
    shifted = [code.load_integers(p["w"], place) * shift for place in vectors]
    biases = [code.load(p["bias"], place) for place in vectors]
    return lambda total, j: (total - shifted[j]).to_floats() + biases[j]


TILE_ROWS, TILE_BYTES = 16, 64
"""The most rows of a tile of AMX, and the bytes of each."""
TILE_OF_SECOND_SUMS, TILE_OF_PIXELS = 2, 4
"""The numbers of AMX's tiles: sums of the first 16 pixels, from here on sums of the others, from here on pixels of either half."""
_TILE_OF_WEIGHTS = 6


def _emit_matrix_tile(code: Code, tile: Tile) -> None:
    """Emits a tile for AMX: up to 32 pixels and, of up to 16 pixels, up to four vectors, else two."""
    p = dict(zip(NARROW_PARAMETERS, code.parameters, strict=True))
    step, parts = tile.vectors * TILE_BYTES, range(-(-tile.pixels // TILE_ROWS))
    sums = {(part, j): part * TILE_OF_SECOND_SUMS + j for part in parts for j in range(tile.vectors)}
    for number in sums.values():
        code.call_tiles("tilezero", number)
    weights = code.variable(p["w"] + step if tile.are_bytes else p["w"])
    with code.loop(0, p["taps"]) as tap:
        start = p["x"] + code.load_number(p["offsets"] + tap * 8)
        with code.loop(0, p["depth"]) as group:
            here, pixels = weights.get(), start + group * TILE_BYTES
            for part in parts:
                rows = pixels + p["x_pixel"] * (TILE_ROWS * part)
                code.call_tiles("tileloadd64", TILE_OF_PIXELS + part, address=rows, stride=p["x_pixel"])
            for j in range(tile.vectors):
                code.call_tiles("tileloadd64", _TILE_OF_WEIGHTS + j % 2, address=here + j * TILE_BYTES, stride=step)
                for part in parts:
                    multiply = "tdpbusd" if tile.are_bytes else "tdpbf16ps"
                    code.call_tiles(multiply, sums[part, j], TILE_OF_PIXELS + part, _TILE_OF_WEIGHTS + j % 2)
            weights.set(here + TILE_ROWS * step)
    memory = code.reserve(len(parts) * TILE_ROWS * step // 8)
    for (part, j), number in sums.items():
        code.call_tiles("tilestored64", number, address=memory + (part * TILE_ROWS * step + j * TILE_BYTES), stride=step)
    if tile.are_bytes:
        convert = _emit_float_conversion(code, tile)
    else:
        biases = [code.load(p["bias"], j * TILE_BYTES) for j in range(tile.vectors)]
    mask, vectors = code.mask_first(p["last"]) if tile.is_masked else None, _load_vectors(code, tile)
    with code.loop(0, p["count"]) as m:
        row = memory + m * step
        for j in range(tile.vectors):
            place = j * TILE_BYTES
            result = convert(code.load_integers(row, place), j) if tile.are_bytes else code.load(row, place) + biases[j]
            _emit_result(code, tile, result, j, mask, p["y"] + p["y_pixel"] * m, p["added"] + p["added_pixel"] * m, vectors)
    code.finish()


def call_tile(code: Code, tile: Tile, **arguments: Number | int) -> None:
    """Calls a tile, which is emitted when it is first called, with its parameters by name; the default is 0."""
    names = NARROW_PARAMETERS if tile.products else TILE_PARAMETERS
    function = code.find_inner(f"tile_{tile.name}", len(names), partial(_emit_tile, tile=tile))
    code.call(function, *(arguments.get(name, 0) for name in names))


PARAMETERS = (
    "x", "x_image", "x_row", "x_pixel", "offsets", "taps", "depth", "w", "block_bytes", "bias",
    "y", "y_image", "y_row", "y_pixel", "added", "added_image", "added_row", "added_pixel",
    "rows", "tiles", "long_tiles", "units", "units_of_chunk", "unit_chunks", "blocks", "blocks_of_chunk", "last",
)  # fmt: skip
"""Numbers of a row, in order: addresses; strides in bytes from image to image, row to row, pixel to pixel; counts.
`rows` of an image; `tiles` of a row, the first `long_tiles` of them of full size; `last`: elements of the last vector."""
PIECE_PARAMETERS = ("pieces", "last_depth", "zeros")
"""Further fields if sums are made in pieces: the number of pieces, `depth` of each and `last_depth` of the last; zeros for a block."""
NARROW_FIELDS = ("shift", "line", "config", "vectors", "vector_bytes")
"""Further fields of narrow numbers: see NARROW_PARAMETERS; the pixels of a line; the address of the shapes of AMX's tiles."""


def make_product(tiling: Tiling, activations: tuple[Activation, ...], *, splits: bool = False, **more: Any) -> Kernel:
    """Returns the kernel of a product that is cut so; `more` are fields of its tiles.

    If it `splits`, sums are made in pieces, in order for all pixels of a chunk: the data of a piece stays near, errors stay small.
    """
    tile = Tile(tiling.pixels, tiling.vectors, is_masked=tiling.is_masked, activations=activations, **more)
    has_short_tiles = tiling.has_short_tiles and not tile.products.startswith("amx")
    title = f"product_{tile.name}{'_in_pieces' * splits}_{tiling.last_vectors}{'s' * has_short_tiles}"
    emit = partial(_emit_product, tile=tile, has_short_tiles=has_short_tiles, last_vectors=tiling.last_vectors, splits=splits)
    return Kernel(title, emit)


def list_cut(tiling: Tiling, chunks: Chunks) -> dict[str, int]:
    """Returns the numbers of a row that say how the work is cut."""
    return {
        "tiles": tiling.tiles, "long_tiles": tiling.long_tiles, "units": chunks.units, "units_of_chunk": chunks.units_of_chunk,
        "unit_chunks": chunks.unit_chunks, "blocks": tiling.blocks, "blocks_of_chunk": chunks.blocks_of_chunk, "last": tiling.last,
    }  # fmt: skip


def _emit_product(name: str, width: int, *, tile: Tile, has_short_tiles: bool, last_vectors: int, splits: bool) -> Code:
    names = (*PARAMETERS, *PIECE_PARAMETERS * splits, *NARROW_FIELDS * bool(tile.products))
    code, p, chunk, _ = begin_kernel(name, width, names)
    if tile.products.startswith("amx"):
        code.call_tiles("ldtilecfg", address=p["config"])
    has_other_last = last_vectors != tile.vectors or tile.is_masked
    first_unit = (chunk % p["unit_chunks"]) * p["units_of_chunk"]
    last_unit = (first_unit + p["units_of_chunk"]).at_most(p["units"])
    first_block = (chunk // p["unit_chunks"]) * p["blocks_of_chunk"]
    last_block = (first_block + p["blocks_of_chunk"]).at_most(p["blocks"])
    are_bytes = tile.expression.is_narrow, tile.expression.kind_of_other == "b"
    bytes_of_y, bytes_of_added = (1 if is_byte else FLOAT_BYTES for is_byte in are_bytes)

    def walk(piece: Number, block: Number, is_last: bool) -> None:
        columns = tile.vectors * width
        block_channels = block * (columns * FLOAT_BYTES)
        block_of_y, block_of_added = block * (columns * bytes_of_y), block * (columns * bytes_of_added)
        own = replace(tile, is_masked=tile.is_masked and is_last, adds=tile.adds or splits)
        own = replace(own, vectors=last_vectors) if is_last else own
        fetched_bytes = p["depth"] * (columns * FLOAT_BYTES) if splits else p["block_bytes"]
        with code.loop(first_unit, last_unit) as unit:
            line, place = unit // p["tiles"], unit % p["tiles"]
            image, y_row = line // p["rows"], line % p["rows"]
            pixel = place * tile.pixels
            if has_short_tiles:
                pixel = pixel - (place - p["long_tiles"]).at_least(0)
            x = p["x"] + image * p["x_image"] + y_row * p["x_row"] + pixel * p["x_pixel"]
            y = p["y"] + image * p["y_image"] + y_row * p["y_row"] + pixel * p["y_pixel"] + block_of_y
            added = p["added"] + image * p["added_image"] + y_row * p["added_row"] + pixel * p["added_pixel"] + block_of_added
            arguments = {
                "x": x, "x_pixel": p["x_pixel"], "offsets": p["offsets"], "taps": p["taps"], "depth": p["depth"],
                "w": p["w"] + block * p["block_bytes"], "bias": p["bias"] + block_channels, "y": y, "y_pixel": p["y_pixel"],
                "ahead": p["w"] + (block + 1) * p["block_bytes"] + unit * (fetched_bytes // p["units"]),
                "added": added, "added_pixel": p["added_pixel"], "last": p["last"],
            }  # fmt: skip
            if tile.products:
                arguments |= {"shift": p["shift"], "count": (p["line"] - pixel).at_most(tile.pixels)}
                arguments |= {"vectors": p["vectors"] + block_channels, "vector_bytes": p["vector_bytes"]}
            if splits:
                arguments |= _pick_piece(code, p, arguments, piece, own.vectors, adds=tile.adds)

            def call_with(activations: tuple[Activation, ...], pixels: int) -> None:
                call_tile(code, replace(own, pixels=pixels, activations=activations), **arguments)  # called inside the loop

            def call(pixels: int) -> None:
                if splits and tile.activations:
                    code.emit_either(piece.equals(p["pieces"] - 1), partial(call_with, pixels=pixels), tile.activations, ())
                else:
                    call_with(tile.activations, pixels)

            if has_short_tiles:
                code.emit_either(place < p["long_tiles"], call, tile.pixels, tile.pixels - 1)
            else:
                call(tile.pixels)

    with code.loop(0, p["pieces"]) if splits else nullcontext(code.number(0)) as piece:
        code.visit_blocks(first_block, last_block, p["blocks"], partial(walk, piece), has_other_last=has_other_last)
    if tile.products.startswith("amx"):
        code.call_tiles("tilerelease")
    return code.finish()


def _pick_piece(
    code: Code, p: dict[str, Number], whole: dict[str, Number], piece: Number, vectors: int, *, adds: bool
) -> dict[str, Number]:
    """Returns the arguments of a tile that a piece of its sums changes: the first begins with the bias, later ones add to the result."""
    begin = piece * p["depth"] * FLOAT_BYTES
    weights = begin * (vectors * code.width)
    is_first, (added, step) = piece.equals(0), (whole["added"], whole["added_pixel"]) if adds else (p["zeros"], code.number(0))
    return {
        "x": whole["x"] + begin, "w": whole["w"] + weights, "ahead": whole["ahead"] + weights,
        "depth": piece.equals(p["pieces"] - 1).choose(p["last_depth"], p["depth"]), "bias": is_first.choose(whole["bias"], p["zeros"]),
        "added": is_first.choose(added, whole["y"]), "added_pixel": is_first.choose(step, whole["y_pixel"]),
    }  # fmt: skip
