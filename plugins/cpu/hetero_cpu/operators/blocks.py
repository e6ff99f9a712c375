"""MatMulNBits: products with constant weights of 2, 4 or 8 bits, which have a scale and a zero point for each block of their depth.

```text
codes (outputs, blocks, bytes) ── packing ──> words of 32 bits: blocks of columns, in each (words of the depth, columns)
one row:   x ── prepare ──> x, x by powers of two, sums of blocks ── words, unpacked in registers ──> y
more rows: words ── unpacked ──> panel of float32 in the cache ── tiles of an ordinary product ──> y
```

A word has the codes of neighbours along the depth, the first in its lowest bits. Both ways read the same packed words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np

from hetero_core.kernels.operators.quantization import unpack_bits
from hetero_cpu.machine.calls import Array, NativeCall, address_of
from hetero_cpu.machine.code import FLOAT_BYTES, Code, begin_kernel
from hetero_cpu.machine.compiler import Kernel, find_width
from hetero_cpu.machine.memory import align, cut_scratch, measure_scratch
from hetero_cpu.machine.terms import Floats, Number, Truth
from hetero_cpu.operators.product_kernel import Tile, call_tile
from hetero_cpu.operators.recipe import Recipe, Site
from hetero_cpu.operators.rows import choose_chunk_size
from hetero_cpu.operators.tiling import Tiling, choose_tiling, pack_columns, pad_vector
from hetero_cpu.symbols.sizes import is_open, largest, least

_WORD_BITS = 32
_BLOCK_UNIT, _LARGEST_BLOCK = 16, 1024
# Depth of a panel of float32, which stays in the second cache.
_PANEL_DEPTH = 1024
# Bytes of weights of a chunk for one row, and multiplications for several: about ten microseconds.
_SMALLEST_STREAM, _SMALLEST_CHUNK = 1 << 16, 1 << 20
_STREAM_BYTES = 768


@dataclass(frozen=True, slots=True)
class BlockForm:
    """The form of weights (depth, outputs) in blocks of `block` along the depth, as packed by `tiling`."""

    bits: int
    block: int
    depth: int
    outputs: int
    tiling: Tiling

    @property
    def blocks(self) -> int:
        """The number of blocks along the depth; the last may be filled up."""
        return -(-self.depth // self.block)

    @property
    def words(self) -> int:
        """The words of a block of one column."""
        return self.block * self.bits // _WORD_BITS

    @property
    def columns(self) -> int:
        """The columns of a block of columns."""
        return self.tiling.vectors * self.tiling.width


@dataclass(frozen=True, slots=True)
class CodePacking:
    """Packs codes (outputs, blocks, bytes) as words in blocks of columns."""

    tiling: Tiling

    def __call__(self, codes: Array) -> Array:
        """Returns the words, as float32 of the same bits."""
        words = np.ascontiguousarray(codes.reshape(len(codes), -1)).view(np.float32)
        return pack_columns(words.T, self.tiling)


@dataclass(frozen=True, slots=True)
class FactorPacking:
    """Packs scales, or zero points as floats or as codes of `bits`, of each column and block, in blocks of columns."""

    form: BlockForm

    def __call__(self, factors: Array) -> Array:
        """Returns them as float32."""
        rows = factors.reshape(self.form.outputs, -1)
        if rows.dtype == np.uint8:
            rows = unpack_bits(np, rows, self.form.bits)[:, : self.form.blocks]
        return pack_columns(rows.astype(np.float32).T, self.form.tiling)


@dataclass(frozen=True, slots=True)
class BlockWeights:
    """The packed weights; `zeros` is None if all zero points are the middle of the codes."""

    form: BlockForm
    words: Array
    scales: Array
    zeros: Array | None
    bias: Array

    def list_numbers(self) -> dict[str, int]:
        """Returns the numbers of a row that both kernels read."""
        form, zeros = self.form, self.zeros
        return {
            "w": address_of(self.words), "scales": address_of(self.scales), "zeros": 0 if zeros is None else address_of(zeros),
            "bias": address_of(self.bias), "words": form.words, "blocks": form.blocks,
            "column_blocks": form.tiling.blocks, "last": form.tiling.last,
        }  # fmt: skip

    @property
    def memories(self) -> tuple[object, ...]:
        """The arrays that calls point to."""
        return (self.words, self.scales, self.zeros, self.bias)


def plan_block_product(site: Site) -> Recipe | None:
    """Returns the recipe of x @ w + bias with constant w in blocks. Source: com.microsoft MatMulNBits-1."""
    source, node = site.node.inputs[0], site.node
    bits, block, depth, outputs = (int(node.attributes.get(name, 4)) for name in ("bits", "block_size", "K", "N"))
    codes, scales, zeros, bias = (site.constant(position) for position in (1, 2, 3, 5))
    absent = site.has_input(4) or (site.has_input(3) and zeros is None) or (site.has_input(5) and bias is None)
    if absent or codes is None or scales is None or not site.is_float32(source) or site.group.epilogue:
        return None
    if block % _BLOCK_UNIT or not 0 < block <= _LARGEST_BLOCK or bits not in (2, 4, 8) or scales.dtype != np.float32:
        return None
    if any(array is not None and array.dtype not in (np.uint8, np.float32) for array in (zeros, bias)):
        return None
    shape, x = site.shape(source), site.prototypes[source]
    rows = prod(shape[:-1])
    if shape[-1] != depth or 0 in (rows, depth, outputs) or not x.flags.c_contiguous:
        return None
    tiling = choose_tiling(rows, outputs, find_width(), is_shared=True)
    form = BlockForm(bits, block, depth, outputs, tiling.packing)
    if codes.size * 8 != outputs * form.blocks * block * bits or scales.size != outputs * form.blocks:
        return None
    purpose = (bits, block, depth, outputs, tiling.vectors, tiling.width)
    pack, packing = site.weights.pack_lazily, FactorPacking(form)
    weights = BlockWeights(
        form,
        pack((codes,), ("block codes", *purpose), CodePacking(form.tiling)),
        pack((scales,), ("block scales", *purpose), packing),
        None if zeros is None else pack((zeros,), ("block zeros", *purpose), packing),
        pad_vector(bias, outputs, tiling.padded_outputs),
    )
    if not is_open(rows) and rows == 1:
        return _plan_row(site, source, weights)
    return _plan_rows(site, source, rows, tiling, weights)


def _plan_row(site: Site, source: str, weights: BlockWeights) -> Recipe:
    """Returns the recipe for a single row, which reads each weight once."""
    form = weights.form
    padded = form.blocks * form.block
    shapes = [(padded,), (padded,), (form.blocks + 1,)]
    chunks = least(form.tiling.blocks, 8 * site.workers, form.outputs * padded * form.bits // 8 // _SMALLEST_STREAM)
    size = choose_chunk_size(form.tiling.blocks, largest(1, chunks) if site.workers > 1 else 1, site.workers)
    prepare = _make_preparation(form.bits)
    kernel = _make_row_kernel(RowShape.of_form(form, has_zeros=weights.zeros is not None))

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        plain, scaled, sums = map(address_of, cut_scratch(scratch, shapes))
        x, y = reads[0], writes[0]
        prepared = (address_of(x), plain, scaled, sums, form.depth, form.blocks, form.block)
        numbers = {
            "plain": plain, "scaled": scaled, "sums": sums, "y": address_of(y), "blocks_of_chunk": size, **weights.list_numbers(),
        }  # fmt: skip
        call = tuple(numbers[name] for name in _ROW_PARAMETERS)
        return [
            NativeCall(prepare, prepared, 1, (x, scratch)),
            NativeCall(kernel, call, -(-form.tiling.blocks // size), (scratch, y, *weights.memories)),
        ]

    return Recipe((source,), bind, measure_scratch(shapes), kernels=(prepare, kernel))


def _plan_rows(site: Site, source: str, rows: int, tiling: Tiling, weights: BlockWeights) -> Recipe:
    """Returns the recipe for several rows, whose number may be open."""
    form = weights.form
    depth, columns = form.depth, form.columns
    blocks_of_panel = max(1, _PANEL_DEPTH // form.block)
    panel_depth = form.block * blocks_of_panel
    pieces = -(-depth // panel_depth)
    # A line between workers, so that no worker waits for the writes of its neighbour.
    panel_bytes = align(min(panel_depth, form.blocks * form.block) * columns * FLOAT_BYTES) + 128
    chunks = least(tiling.blocks, 8 * site.workers, largest(1, rows * depth * form.outputs // _SMALLEST_CHUNK))
    size = choose_chunk_size(tiling.blocks, chunks if site.workers > 1 else 1, site.workers)
    count = -(-tiling.blocks // size)
    shape = RowShape.of_form(form, has_zeros=weights.zeros is not None)
    kernel = _make_rows_kernel(shape, tiling.pixels, has_short_tiles=tiling.has_short_tiles)
    offsets, zeros = np.zeros(1, np.int64), pad_vector(None, 0, columns)

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        x, y = reads[0], writes[0]
        numbers = {
            "x": address_of(x), "x_pixel": depth * FLOAT_BYTES, "offsets": address_of(offsets), "y": address_of(y),
            "y_pixel": form.outputs * FLOAT_BYTES, "panel": address_of(scratch), "panel_bytes": panel_bytes,
            "blocks_of_panel": blocks_of_panel, "panel_depth": panel_depth, "depth": depth, "pieces": pieces,
            "no_bias": address_of(zeros), "tiles": tiling.tiles, "long_tiles": tiling.long_tiles, "blocks_of_chunk": size,
            **weights.list_numbers(),
        }  # fmt: skip
        call = tuple(numbers[name] for name in _ROWS_PARAMETERS)
        return [NativeCall(kernel, call, count, (x, y, scratch, offsets, zeros, *weights.memories))]

    return Recipe((source,), bind, site.workers * panel_bytes, kernels=(kernel,))


@dataclass(frozen=True, slots=True)
class RowShape:
    """The compiled-in part of a product with blocks."""

    bits: int
    vectors: int
    last_vectors: int
    is_masked: bool
    has_zeros: bool

    @classmethod
    def of_form(cls, form: BlockForm, *, has_zeros: bool) -> RowShape:
        """Returns the shape of a product with weights of a form."""
        tiling = form.tiling
        return cls(form.bits, tiling.vectors, tiling.last_vectors, tiling.is_masked, has_zeros)

    @property
    def name(self) -> str:
        """The part of a kernel's name."""
        return f"{self.bits}b{self.vectors}v{self.last_vectors}{'m' * self.is_masked}{'z' * self.has_zeros}"

    @property
    def codes(self) -> int:
        """The codes of a word."""
        return _WORD_BITS // self.bits

    @property
    def middle(self) -> float:
        """The zero point if none is stored."""
        return float(1 << (self.bits - 1))


_PREPARE_PARAMETERS = ("x", "plain", "scaled", "sums", "depth", "blocks", "block")
"""`plain`: x, filled up with zeros to whole blocks; `scaled`: the same by the powers of two of the codes' places in a word; `sums`: of the
elements of each block, and behind them a number that is finite if no product can overflow."""


def _make_preparation(bits: int) -> Kernel:
    return Kernel(f"prepare_block_row_{bits}", partial(_emit_preparation, bits=bits))


def _emit_preparation(name: str, width: int, bits: int) -> Code:
    code, p, _, _ = begin_kernel(name, width, _PREPARE_PARAMETERS)
    codes = _WORD_BITS // bits
    places = max(codes, width)
    powers = code.reserve(places // 2)
    for place in range(places):
        position = place % codes
        # The codes in the highest bits are shifted down.
        code.store(powers, code.constant(1.0 if position == codes - 1 else 2.0 ** -(bits * position), 1), place * FLOAT_BYTES)
    bound = code.variable(code.constant(0))
    with code.loop(0, p["blocks"]) as block:
        total = code.variable(code.constant(0))
        begin = block * p["block"]
        with code.loop(begin, begin + p["block"], width) as element:
            place = element * FLOAT_BYTES
            x = code.load(p["x"] + place, mask=code.mask_first(p["depth"] - element))
            code.store(p["plain"] + place, x)
            code.store(p["scaled"] + place, x * code.load(powers + element % places * FLOAT_BYTES))
            total.set(total.get() + x)
            bound.set(bound.get() + code.call_intrinsic("fabs", x))
        code.store(p["sums"] + block * FLOAT_BYTES, total.get().fold(lambda left, right: left + right))
    # A product is at most this times as large as x.
    limit = bound.get().fold(lambda left, right: left + right) * 512.0
    code.store(p["sums"] + p["blocks"] * FLOAT_BYTES, limit)
    return code.finish()


_WEIGHT_PARAMETERS = ("w", "scales", "zeros", "bias", "words", "blocks", "column_blocks", "last", "y", "blocks_of_chunk")
_ROW_PARAMETERS = ("plain", "scaled", "sums", *_WEIGHT_PARAMETERS)
"""`words` of a block of one column; `blocks` of the depth; `column_blocks` of columns; `last`: elements of the last vector."""


def _make_row_kernel(shape: RowShape) -> Kernel:
    return Kernel(f"block_row_{shape.name}", partial(_emit_row, shape=shape))


def _emit_row(name: str, width: int, shape: RowShape) -> Code:
    code, p, chunk, _ = begin_kernel(name, width, _ROW_PARAMETERS)
    # Codes of 8 bits are always made whole: without their zero points they would lose too many digits.
    limit = code.load_scalar(p["sums"] + p["blocks"] * FLOAT_BYTES)
    needs_exact = Truth(code, (limit - limit).is_nan().value)

    def walk(is_exact: bool) -> None:
        _visit_column_blocks(code, p, chunk, shape, partial(_emit_row_block, code, p, shape, is_exact=is_exact))

    if shape.bits == 8:
        walk(True)
    else:
        # With infinities and NaN, sums of codes less the zero points are not sums of differences.
        code.emit_either(needs_exact, walk, True, False)
    return code.finish()


def _visit_column_blocks(code: Code, p: dict[str, Number], chunk: Number, shape: RowShape, emit: partial[None]) -> None:
    """Emits `emit(block, is_last)` for the blocks of columns of a chunk."""
    first = chunk * p["blocks_of_chunk"]
    last = (first + p["blocks_of_chunk"]).at_most(p["column_blocks"])
    has_other_last = shape.last_vectors != shape.vectors or shape.is_masked
    full = last.at_most(p["column_blocks"] - 1) if has_other_last else last
    with code.loop(first, full) as block:
        emit(block, is_last=False)
    if has_other_last:
        with code.loop(full.at_least(first), last) as block:
            emit(block, is_last=True)


def _emit_row_block(code: Code, p: dict[str, Number], shape: RowShape, block: Number, *, is_last: bool, is_exact: bool) -> None:
    """Emits the products of one row and a block of columns, either of codes less zero points, or of codes, less the sums' share."""
    vectors, vector_bytes = shape.last_vectors if is_last else shape.vectors, code.width * FLOAT_BYTES
    step, full_step = vectors * vector_bytes, shape.vectors * vector_bytes
    factors_at = block * p["blocks"] * full_step
    words = code.variable(p["w"] + factors_at * p["words"])
    row = code.variable(p["plain"] if is_exact else p["scaled"])
    columns_at = block * full_step
    totals = [code.variable(code.load(p["bias"] + columns_at, j * vector_bytes)) for j in range(vectors)]
    sums = [[code.variable(code.constant(0)) for _ in range(2)] for _ in range(vectors)]
    with code.loop(0, p["blocks"]) as number:
        here = factors_at + number * step
        for pair in sums:
            for total in pair:
                total.set(code.constant(0))
        zeros = _load_zeros(code, p, shape, here, vectors)
        with code.loop(0, p["words"]):
            place, x = words.get(), row.get()
            loaded = [code.load(place, j * vector_bytes) for j in range(vectors)]
            for j in range(vectors):
                code.prefetch(place, j * vector_bytes + _STREAM_BYTES)
            for position in range(shape.codes):
                scalar = code.spread(code.load_scalar(x, position * FLOAT_BYTES))
                for j in range(vectors):
                    number_of_code = code.read_bits(loaded[j], position * shape.bits, shape.bits, is_scaled=not is_exact)
                    value = number_of_code - zeros[j] if is_exact else number_of_code
                    total = sums[j][position % 2]
                    total.set(code.multiply_add(scalar, value, total.get()))
            words.set(code.hide(place + step))
            row.set(code.hide(x + shape.codes * FLOAT_BYTES))
        share = None if is_exact else code.spread(code.load_scalar(p["sums"] + number * FLOAT_BYTES))
        for j in range(vectors):
            total = sums[j][0].get() + sums[j][1].get()
            if share is not None:
                total = total - zeros[j] * share
            totals[j].set(code.multiply_add(code.load(p["scales"] + here, j * vector_bytes), total, totals[j].get()))
    for j in range(vectors):
        mask = code.mask_first(p["last"]) if shape.is_masked and is_last and j == vectors - 1 else None
        code.store(p["y"] + columns_at, totals[j].get(), j * vector_bytes, mask=mask)


def _load_zeros(code: Code, p: dict[str, Number], shape: RowShape, place: Number, vectors: int) -> list[Floats]:
    """Returns the zero points of a block, a vector for each vector of columns."""
    if not shape.has_zeros:
        return [code.constant(shape.middle)] * vectors
    return [code.load(p["zeros"] + place, j * code.width * FLOAT_BYTES) for j in range(vectors)]


_ROWS_PARAMETERS = (
    *("x", "x_pixel", "offsets", "y_pixel", "panel", "panel_bytes", "blocks_of_panel", "panel_depth", "depth", "pieces", "no_bias"),
    *("tiles", "long_tiles", *_WEIGHT_PARAMETERS),
)
"""`panel`: memory of float32 of each worker, of `panel_depth` rows; the sums are made in so many `pieces`."""


def _make_rows_kernel(shape: RowShape, pixels: int, *, has_short_tiles: bool) -> Kernel:
    title = f"block_rows_{shape.name}_{pixels}{'s' * has_short_tiles}"
    return Kernel(title, partial(_emit_rows, shape=shape, pixels=pixels, has_short_tiles=has_short_tiles))


def _emit_rows(name: str, width: int, shape: RowShape, pixels: int, has_short_tiles: bool) -> Code:
    code, p, chunk, worker = begin_kernel(name, width, _ROWS_PARAMETERS)
    panel = p["panel"] + worker * p["panel_bytes"]

    def emit_block(block: Number, *, is_last: bool) -> None:
        vectors = shape.last_vectors if is_last else shape.vectors
        columns_at = block * (shape.vectors * width * FLOAT_BYTES)
        with code.loop(0, p["pieces"]) as piece:
            first = piece * p["blocks_of_panel"]
            _emit_panel(code, p, shape, panel, columns_at, (first, (first + p["blocks_of_panel"]).at_most(p["blocks"])), vectors)
            begin, is_first = piece * p["panel_depth"], piece.equals(0)
            with code.loop(0, p["tiles"]) as tile:
                pixel = tile * pixels
                if has_short_tiles:
                    pixel = pixel - (tile - p["long_tiles"]).at_least(0)
                y = p["y"] + pixel * p["y_pixel"] + columns_at
                arguments = {
                    "x": p["x"] + pixel * p["x_pixel"] + begin * FLOAT_BYTES, "x_pixel": p["x_pixel"], "offsets": p["offsets"], "taps": 1,
                    "depth": (p["depth"] - begin).at_most(p["panel_depth"]), "w": panel, "y": y, "y_pixel": p["y_pixel"],
                    "bias": is_first.choose(p["bias"] + columns_at, p["no_bias"]),
                    # The first piece adds zeros to each row.
                    "added": is_first.choose(p["no_bias"], y), "added_pixel": is_first.choose(code.number(0), p["y_pixel"]),
                    "last": p["last"],
                }  # fmt: skip

                def call(count: int) -> None:
                    own = Tile(count, vectors, is_masked=shape.is_masked and is_last, adds=True)
                    call_tile(code, own, **arguments)  # called inside the loop

                if has_short_tiles and pixels > 1:
                    code.emit_either(tile < p["long_tiles"], call, pixels, pixels - 1)
                else:
                    call(pixels)

    _visit_column_blocks(code, p, chunk, shape, emit_block)
    return code.finish()


def _emit_panel(
    code: Code,
    p: dict[str, Number],
    shape: RowShape,
    panel: Number,
    columns_at: Number,
    blocks: tuple[Number, Number],
    vectors: int,
) -> None:
    """Emits the unpacking of a range of blocks of the depth for a block of columns: (code - zero point) * scale."""
    vector_bytes = code.width * FLOAT_BYTES
    step = vectors * vector_bytes
    factors_at = columns_at * p["blocks"]
    words_at = p["w"] + factors_at * p["words"]
    target = code.variable(panel)
    words = code.variable(words_at + blocks[0] * p["words"] * step)
    with code.loop(*blocks) as number:
        here = factors_at + number * step
        zeros = _load_zeros(code, p, shape, here, vectors)
        scales = [code.load(p["scales"] + here, j * vector_bytes) for j in range(vectors)]
        with code.loop(0, p["words"]):
            place, row = words.get(), target.get()
            for j in range(vectors):
                loaded = code.load(place, j * vector_bytes)
                for position in range(shape.codes):
                    value = (code.read_bits(loaded, position * shape.bits, shape.bits) - zeros[j]) * scales[j]
                    code.store(row, value, position * step + j * vector_bytes)
            words.set(code.hide(place + step))
            target.set(code.hide(row + shape.codes * step))
