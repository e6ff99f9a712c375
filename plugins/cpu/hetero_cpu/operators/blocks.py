"""MatMulNBits: products with constant weights of 2, 4 or 8 bits, which have a scale and a zero point for each block of their depth.

```text
codes (outputs, blocks, bytes) ── packing ──> words of 32 bits: blocks of columns, in each (words of the depth, columns)
one row:   x ── prepare ──> x, x by powers of two, sums of blocks ── words, unpacked in registers ──> y
more rows: words ── unpacked ──> panel of float32 in the cache ── tiles of an ordinary product ──> y
```

A word has the codes of neighbours along the depth, the first in its lowest bits. Both ways read the same packed words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np

from hetero_cpu.machine.calls import Array, NativeCall, address_of
from hetero_cpu.machine.code import FLOAT_BYTES, Code, begin_kernel
from hetero_cpu.machine.compiler import Kernel, find_width
from hetero_cpu.machine.memory import align, cut_scratch, measure_scratch
from hetero_cpu.machine.terms import Floats, Number
from hetero_cpu.operators.product_kernel import Tile, call_tile
from hetero_cpu.operators.recipe import Recipe, Site
from hetero_cpu.operators.rows import choose_chunk_size, cut_products
from hetero_cpu.operators.tiling import Tiling, choose_tiling, pack_columns, pad_vector
from hetero_cpu.operators.weights import LazyArray
from hetero_cpu.symbols.sizes import is_open, largest, least

_WORD_BITS = 32
_BLOCK_UNIT, _LARGEST_BLOCK = 16, 1024
# Depth of a panel of float32, which stays in the second cache.
_PANEL_DEPTH = 1024
# Bytes of weights of a chunk for one row: about ten microseconds.
_SMALLEST_STREAM = 1 << 16
_STREAM_BYTES = 768


@dataclass(frozen=True, slots=True)
class BlockForm:
    """The form of weights (depth, outputs) in blocks of `block` along the depth, as `tiling` packs them."""

    bits: int
    block: int
    depth: int
    outputs: int
    has_zeros: bool
    """Whether zero points are stored: without them, all are the middle of the codes."""
    tiling: Tiling

    @property
    def blocks(self) -> int:
        """The number of blocks along the depth; the last may be filled up."""
        return -(-self.depth // self.block)

    @property
    def codes(self) -> int:
        """The codes of a word."""
        return _WORD_BITS // self.bits

    @property
    def name(self) -> str:
        """The part of a kernel's name that tells its instructions apart: a kernel does not depend on other fields."""
        own = self.tiling
        return f"{self.bits}b{own.vectors}v{own.last_vectors}{'m' * own.is_masked}{'z' * self.has_zeros}"


def _pack(constant: Array, form: BlockForm, *, is_codes: bool = False) -> Array:
    """Returns codes of each output, or else scales or zero points, in blocks of columns; zero points are floats or packed codes.

    They are float32; of codes, words with the same bits.
    """
    rows = constant.reshape(form.outputs, -1)
    if is_codes:
        return pack_columns(np.ascontiguousarray(rows).view(np.float32).T, form.tiling)
    if rows.dtype == np.uint8:
        codes = rows[..., None] >> np.arange(0, 8, form.bits, dtype=np.uint8) & np.uint8((1 << form.bits) - 1)
        rows = codes.reshape(len(rows), -1)[:, : form.blocks]
    return pack_columns(rows.astype(np.float32).T, form.tiling)


@dataclass(frozen=True, slots=True)
class BlockWeights:
    """The packed weights; `zeros` is None if all zero points are the middle of the codes."""

    form: BlockForm
    words: LazyArray
    scales: LazyArray
    zeros: LazyArray | None
    bias: Array

    def call(
        self, kernel: Kernel, names: Sequence[str], blocks_of_chunk: int, keep: tuple[object, ...], **numbers: int
    ) -> NativeCall:
        """Returns the call of a kernel with these `numbers` and those of the weights, a chunk for so many blocks of columns."""
        form, zeros = self.form, self.zeros
        numbers |= {
            "w": address_of(self.words), "scales": address_of(self.scales), "zeros": 0 if zeros is None else address_of(zeros),
            "bias": address_of(self.bias), "words": form.block // form.codes, "blocks": form.blocks,
            "column_blocks": form.tiling.blocks, "last": form.tiling.last, "blocks_of_chunk": blocks_of_chunk,
        }  # fmt: skip
        keep = (*keep, self.words, self.scales, zeros, self.bias)
        return NativeCall(kernel, tuple(numbers[name] for name in names), -(-form.tiling.blocks // blocks_of_chunk), keep)


def plan_block_product(site: Site) -> Recipe | None:
    """Returns the recipe of x @ w + bias with constant w in blocks. Source: com.microsoft MatMulNBits-1."""
    source, node = site.node.inputs[0], site.node
    bits, block, depth, outputs = (int(node.attributes.get(name, 4)) for name in ("bits", "block_size", "K", "N"))
    codes, scales, zeros, bias = (site.constant(position) for position in (1, 2, 3, 5))
    absent = site.has_input(4) or (site.has_input(3) and zeros is None) or (site.has_input(5) and bias is None)
    if absent or codes is None or scales is None or not site.is_float32(source):
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
    form = BlockForm(bits, block, depth, outputs, zeros is not None, tiling.packing)
    if codes.size * 8 != outputs * form.blocks * block * bits or scales.size != outputs * form.blocks:
        return None
    purpose = (bits, block, depth, outputs, tiling.vectors, tiling.width)
    pack, packing = site.weights.pack_lazily, partial(_pack, form=form)
    words = pack((codes,), ("block codes", *purpose), partial(packing, is_codes=True))
    packed_scales = pack((scales,), ("block scales", *purpose), packing)
    packed_zeros = None if zeros is None else pack((zeros,), ("block zeros", *purpose), packing)
    weights = BlockWeights(form, words, packed_scales, packed_zeros, pad_vector(bias, outputs, tiling.padded_outputs))
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
    prepare = Kernel(f"prepare_block_row_{form.bits}", partial(_emit_preparation, bits=form.bits))
    kernel = Kernel(f"block_row_{form.name}", partial(_emit_row, form=form))

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        plain, scaled, sums = map(address_of, cut_scratch(scratch, shapes))
        x, y = reads[0], writes[0]
        prepared = (address_of(x), plain, scaled, sums, form.depth, form.blocks, form.block)
        call = weights.call(kernel, _ROW_PARAMETERS, size, (scratch, y), plain=plain, scaled=scaled, sums=sums, y=address_of(y))
        return [NativeCall(prepare, prepared, 1, (x, scratch)), call]

    return Recipe((source,), bind, measure_scratch(shapes), kernels=(prepare, kernel))


def _plan_rows(site: Site, source: str, rows: int, tiling: Tiling, weights: BlockWeights) -> Recipe:
    """Returns the recipe for several rows, whose number may be open."""
    form = weights.form
    depth, columns = form.depth, form.tiling.vectors * form.tiling.width
    blocks_of_panel = max(1, _PANEL_DEPTH // form.block)
    panel_depth = form.block * blocks_of_panel
    pieces = -(-depth // panel_depth)
    # A line between workers, so that no worker waits for the writes of its neighbour.
    panel_bytes = align(min(panel_depth, form.blocks * form.block) * columns * FLOAT_BYTES) + 128
    size = cut_products(tiling.blocks, rows * depth * form.outputs, site.workers)
    title = f"block_rows_{form.name}_{tiling.pixels}{'s' * tiling.has_short_tiles}"
    kernel = Kernel(title, partial(_emit_rows, form=form, pixels=tiling.pixels, has_short_tiles=tiling.has_short_tiles))
    offsets, zeros = np.zeros(1, np.int64), pad_vector(None, 0, columns)

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        x, y = reads[0], writes[0]
        numbers = {
            "x": address_of(x), "x_pixel": depth * FLOAT_BYTES, "offsets": address_of(offsets), "y": address_of(y),
            "y_pixel": form.outputs * FLOAT_BYTES, "panel": address_of(scratch), "panel_bytes": panel_bytes,
            "blocks_of_panel": blocks_of_panel, "panel_depth": panel_depth, "depth": depth, "pieces": pieces,
            "no_bias": address_of(zeros), "tiles": tiling.tiles, "long_tiles": tiling.long_tiles,
        }  # fmt: skip
        return [weights.call(kernel, _ROWS_PARAMETERS, size, (x, y, scratch, offsets, zeros), **numbers)]

    return Recipe((source,), bind, site.workers * panel_bytes, kernels=(kernel,))


_PREPARE_PARAMETERS = ("x", "plain", "scaled", "sums", "depth", "blocks", "block")
"""`plain`: x, filled up with zeros to whole blocks; `scaled`: the same by the powers of two of the codes' places in a word; `sums`: of the
elements of each block, and behind them a number that is finite if no product can overflow."""


def _emit_preparation(name: str, width: int, bits: int) -> Code:
    code, p, _, _ = begin_kernel(name, width, _PREPARE_PARAMETERS)
    codes = _WORD_BITS // bits
    places = max(codes, width)
    powers = code.reserve(places // 2)
    for lane in range(places):
        # The codes in the highest bits are shifted down.
        shift = 0 if lane % codes == codes - 1 else bits * (lane % codes)
        code.store(powers, code.constant(2.0**-shift, 1), lane * FLOAT_BYTES)
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


def _emit_row(name: str, width: int, form: BlockForm) -> Code:
    code, p, chunk, _ = begin_kernel(name, width, _ROW_PARAMETERS)
    # If sums of codes alone are infinite or NaN, weights are restored before they are multiplied.
    limit = code.load_scalar(p["sums"] + p["blocks"] * FLOAT_BYTES)
    needs_exact = (limit - limit).is_nan()

    def walk(is_exact: bool) -> None:
        _visit_column_blocks(code, p, chunk, form, partial(_emit_row_block, code, p, form, is_exact))

    code.emit_either(needs_exact, walk, True, False)
    return code.finish()


def _visit_column_blocks(
    code: Code, p: dict[str, Number], chunk: Number, form: BlockForm, emit: Callable[[Number, bool], None]
) -> None:
    """Emits `emit(block, is_last)` for the blocks of columns of a chunk."""
    first, count = chunk * p["blocks_of_chunk"], p["column_blocks"]
    has_other_last = form.tiling.last_vectors != form.tiling.vectors or form.tiling.is_masked
    code.visit_blocks(first, (first + p["blocks_of_chunk"]).at_most(count), count, emit, has_other_last=has_other_last)


def _emit_row_block(code: Code, p: dict[str, Number], form: BlockForm, is_exact: bool, block: Number, is_last: bool) -> None:
    """Emits the products of one row and a block of columns.

    A sum over a block is that of the codes, less the zero point times the sum of the row, times the scale. Codes of 8 bits would lose
    too many digits, so that zero points are subtracted from them first; if it `is_exact`, weights are restored.
    """
    subtracts = is_exact or form.bits == 8
    vectors, vector_bytes = form.tiling.last_vectors if is_last else form.tiling.vectors, code.width * FLOAT_BYTES
    step, full_step = vectors * vector_bytes, form.tiling.vectors * vector_bytes
    factors_at = block * p["blocks"] * full_step
    words = code.variable(p["w"] + factors_at * p["words"])
    row = code.variable(p["plain"] if subtracts else p["scaled"])
    columns_at = block * full_step
    totals = [code.variable(code.load(p["bias"] + columns_at, j * vector_bytes)) for j in range(vectors)]
    sums = [[code.variable(code.constant(0)) for _ in range(2)] for _ in range(vectors)]
    with code.loop(0, p["blocks"]) as number:
        here = factors_at + number * step
        for pair in sums:
            for total in pair:
                total.set(code.constant(0))
        zeros = _load_zeros(code, p, form, here, vectors)
        scales = [code.load(p["scales"] + here, j * vector_bytes) for j in range(vectors)] if is_exact else []
        with code.loop(0, p["words"]):
            place, x = words.get(), row.get()
            loaded = [code.load(place, j * vector_bytes) for j in range(vectors)]
            for j in range(vectors):
                code.prefetch(place, j * vector_bytes + _STREAM_BYTES)
            for position in range(form.codes):
                scalar = code.spread(code.load_scalar(x, position * FLOAT_BYTES))
                for j in range(vectors):
                    value = code.read_bits(loaded[j], position * form.bits, form.bits, is_scaled=not subtracts)
                    value = value - zeros[j] if subtracts else value
                    value = value * scales[j] if is_exact else value
                    total = sums[j][position % 2]
                    total.set(code.multiply_add(scalar, value, total.get()))
            words.set(code.hide(place + step))
            row.set(code.hide(x + form.codes * FLOAT_BYTES))
        share = None if subtracts else code.spread(code.load_scalar(p["sums"] + number * FLOAT_BYTES))
        for j in range(vectors):
            total = sums[j][0].get() + sums[j][1].get()
            total = total if share is None else total - zeros[j] * share
            scale = code.constant(1) if is_exact else code.load(p["scales"] + here, j * vector_bytes)
            totals[j].set(code.multiply_add(scale, total, totals[j].get()))
    for j in range(vectors):
        mask = code.mask_first(p["last"]) if form.tiling.is_masked and is_last and j == vectors - 1 else None
        code.store(p["y"] + columns_at, totals[j].get(), j * vector_bytes, mask=mask)


def _load_zeros(code: Code, p: dict[str, Number], form: BlockForm, place: Number, vectors: int) -> list[Floats]:
    """Returns the zero points of a block, a vector for each vector of columns."""
    if not form.has_zeros:
        return [code.constant(1 << (form.bits - 1))] * vectors
    return [code.load(p["zeros"] + place, j * code.width * FLOAT_BYTES) for j in range(vectors)]


_ROWS_PARAMETERS = (
    "x", "x_pixel", "offsets", "y_pixel", "panel", "panel_bytes", "blocks_of_panel", "panel_depth", "depth", "pieces", "no_bias",
    "tiles", "long_tiles", *_WEIGHT_PARAMETERS,
)  # fmt: skip
"""`panel`: memory of float32 of each worker, of `panel_depth` rows; the sums are made in so many `pieces`."""


def _emit_rows(name: str, width: int, form: BlockForm, pixels: int, has_short_tiles: bool) -> Code:
    code, p, chunk, worker = begin_kernel(name, width, _ROWS_PARAMETERS)
    panel = p["panel"] + worker * p["panel_bytes"]

    def emit_block(block: Number, is_last: bool) -> None:
        vectors = form.tiling.last_vectors if is_last else form.tiling.vectors
        columns_at = block * (form.tiling.vectors * width * FLOAT_BYTES)
        with code.loop(0, p["pieces"]) as piece:
            first = piece * p["blocks_of_panel"]
            _emit_panel(code, p, form, panel, columns_at, (first, (first + p["blocks_of_panel"]).at_most(p["blocks"])), vectors)
            begin, is_first = piece * p["panel_depth"], piece.equals(0)
            with code.loop(0, p["tiles"]) as tile:
                pixel = tile * pixels
                if has_short_tiles:
                    pixel = pixel - (tile - p["long_tiles"]).at_least(0)
                y = p["y"] + pixel * p["y_pixel"] + columns_at
                # The first piece adds zeros to each row.
                emit = partial(
                    call_tile, code, x=p["x"] + pixel * p["x_pixel"] + begin * FLOAT_BYTES, x_pixel=p["x_pixel"], offsets=p["offsets"],
                    taps=1, depth=(p["depth"] - begin).at_most(p["panel_depth"]), w=panel, y=y, y_pixel=p["y_pixel"], last=p["last"],
                    bias=is_first.choose(p["bias"] + columns_at, p["no_bias"]), added=is_first.choose(p["no_bias"], y),
                    added_pixel=is_first.choose(code.number(0), p["y_pixel"]),
                )  # fmt: skip

                def call(count: int) -> None:
                    emit(Tile(count, vectors, is_masked=form.tiling.is_masked and is_last, adds=True))  # called inside the loop

                if has_short_tiles and pixels > 1:
                    code.emit_either(tile < p["long_tiles"], call, pixels, pixels - 1)
                else:
                    call(pixels)

    _visit_column_blocks(code, p, chunk, form, emit_block)
    return code.finish()


def _emit_panel(
    code: Code,
    p: dict[str, Number],
    form: BlockForm,
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
        zeros = _load_zeros(code, p, form, here, vectors)
        scales = [code.load(p["scales"] + here, j * vector_bytes) for j in range(vectors)]
        with code.loop(0, p["words"]):
            place, row = words.get(), target.get()
            for j in range(vectors):
                loaded = code.load(place, j * vector_bytes)
                for position in range(form.codes):
                    value = (code.read_bits(loaded, position * form.bits, form.bits) - zeros[j]) * scales[j]
                    code.store(row, value, position * step + j * vector_bytes)
            words.set(code.hide(place + step))
            target.set(code.hide(row + form.codes * step))
