"""Convolutions and matrix products of bytes and of bfloat16, by the processor's own products of them.

```text
x (float32) ── + shift, as bytes ──> rows with a halo of `shift` ── int32 sums ── - shift * sums of weights ──> float32 ── epilogue ──> y
x (float32) ── as bfloat16 ────────> rows with a halo of zeros ─── float32 sums ──────────────────────────────────────── epilogue ──> y
```

The pass `compute_integers` holds quantized tensors as whole float32. Those within 256 numbers of one another are bytes up to 255 if a
number, the shift, is added; the sums are exact, and so is the result below 2^24. Weights are bytes of -128 to 127. The pass
`narrow_products` rounds what a product reads to bfloat16. Four bytes or two bfloat16 of a column of weights lie side by side, filled up
with zeros to groups that are multiplied at a time. What a row of bytes has behind its end, up to 64 of them, meets these zeros; pixels of
bfloat16 are filled up themselves, since an infinite number times zero is NaN. Where the processor adds two products of bytes in 16 bits and
these may be too large, bytes lie as words of 16 bits, two side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import numpy as np

from hetero_core.kernels.windows import lay_windows
from hetero_cpu.machine.calls import Array, NativeCall, address_of, list_strides
from hetero_cpu.machine.code import FLOAT_BYTES, HALF_BYTES, Code
from hetero_cpu.machine.compiler import Kernel, find_byte_products, find_half_products, find_width
from hetero_cpu.machine.memory import align
from hetero_cpu.machine.terms import Floats, Mask, Number
from hetero_cpu.operators.convolution import read_adjacent
from hetero_cpu.operators.images import (
    Convolution,
    call_stage,
    emit_stage,
    find_overhang,
    is_even,
    is_whole,
    lay_offsets,
    read_convolution,
)
from hetero_cpu.operators.product import NativeEpilogue, list_overwritten, read_chained_epilogue, read_gemm
from hetero_cpu.operators.product_kernel import (
    BYTE_PRODUCTS,
    NARROW_FIELDS,
    PARAMETERS,
    TILE_BYTES,
    TILE_OF_PIXELS,
    TILE_OF_SECOND_SUMS,
    TILE_ROWS,
    ProductShape,
    list_cut,
    make_product,
)
from hetero_cpu.operators.recipe import NO_HALO, NO_LIMITS, Recipe, Site
from hetero_cpu.operators.tiling import Tiling, choose_chunks, choose_tiling, cut_pixels, pack_columns, pad_vector
from hetero_cpu.symbols.sizes import is_open

_FEWEST_OUTPUTS = 8
# A sum of so many products of bytes fits into int32.
_LONGEST_DEPTH = 1 << 16
# Rows from which on AMX's products of matrices are faster than those of vectors.
_FEWEST_ROWS = 5
# Tiles of AMX for the sums of a block: 32 pixels times 2 vectors, or 16 times 4.
_MOST_SUMS = 4


@dataclass(frozen=True, slots=True)
class _Kind:
    """The numbers that are multiplied: bytes, whose shift is a number or the name of a scalar; or bfloat16, without a shift."""

    products: str
    shift: str | float = 0.0
    largest: float = 255.0
    """The largest byte."""

    @property
    def are_bytes(self) -> bool:
        """Whether they are bytes, which lie as words if these are multiplied."""
        return self.products in BYTE_PRODUCTS

    @property
    def dtype(self) -> str:
        """The type of the weights, and of bytes as they lie in memory but for the sign."""
        return ("int16" if self.products == "words" else "int8") if self.are_bytes else "bfloat16"

    @property
    def nbytes(self) -> int:
        """The bytes of a number as it lies in memory."""
        return 1 if self.dtype == "int8" else HALF_BYTES

    @property
    def products_of_vectors(self) -> str:
        """Those of few rows."""
        return {"amx": "vnni", "amx_bf16": "bf16"}.get(self.products, self.products)

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.shift,) if isinstance(self.shift, str) else ()


@dataclass(frozen=True, slots=True)
class _Cut:
    """How a product is cut: `group` bytes of depth are multiplied at a time."""

    tiling: Tiling
    products: str

    @property
    def group(self) -> int:
        return TILE_BYTES if self.products.startswith("amx") else FLOAT_BYTES

    @property
    def has_sums(self) -> bool:
        return self.products in BYTE_PRODUCTS

    def measure_pixel(self, channels: int) -> int:
        """Returns the bytes of a staged pixel."""
        if self.has_sums:
            return channels * HALF_BYTES if self.products == "words" else channels
        return -(-channels * HALF_BYTES // self.group) * self.group

    def measure_block(self, taps: int, groups: int) -> int:
        """Returns the bytes of a block of packed weights, of so many groups of each tap."""
        return (self.has_sums + taps * groups * (self.group // FLOAT_BYTES)) * self.tiling.vectors * self.tiling.width * FLOAT_BYTES

    def make_kernel(self, epilogue: NativeEpilogue) -> Kernel:
        tiling, own = self.tiling, {"products": self.products, "expression": epilogue.expression}
        shape = ProductShape.of_tiling(tiling, epilogue.activations, adds=bool(epilogue.added), **own)
        return make_product(replace(shape, has_short_tiles=shape.has_short_tiles and not self.products.startswith("amx")))

    def lay_config(self) -> Array:
        """Returns the shapes of AMX's tiles: 64 bytes wide, those of pixels and sums as high as there are pixels. Source: Intel SDM."""
        config = np.zeros(64, np.uint8)
        config[0], config[16:32:2] = 1, TILE_BYTES
        rows = config[48:56]
        rows[:] = TILE_ROWS
        first = min(self.tiling.pixels, TILE_ROWS)
        second = self.tiling.pixels - first
        if second:
            rows[TILE_OF_SECOND_SUMS:TILE_OF_PIXELS] = rows[TILE_OF_PIXELS + 1] = second
        else:
            rows[: TILE_OF_PIXELS + 1] = first
        return config


def _choose_cut(kind: _Kind, pixels: int, channels: int, outputs: int, *, is_image: bool) -> _Cut:
    products, width = kind.products, find_width()
    # Pixels of few bfloat16 would be mostly zeros.
    is_short = not kind.are_bytes and channels * kind.nbytes < TILE_BYTES // 2
    if products.startswith("amx") and not is_short and (is_open(pixels) or pixels >= _FEWEST_ROWS):
        most = TILE_ROWS if not is_open(pixels) and pixels <= TILE_ROWS else 2 * TILE_ROWS
        vectors = _MOST_SUMS * TILE_ROWS // most
        if not is_open(pixels):
            return _Cut(cut_pixels(pixels, outputs, width, most, vectors), products)
        return _Cut(replace(cut_pixels(most, outputs, width, most, vectors), tiles=-(-pixels // most)), products)
    own = kind.products_of_vectors
    return _Cut(choose_tiling(pixels, outputs, width, is_image=is_image, products=own), own)


@dataclass(frozen=True, slots=True)
class NarrowPacking:
    """Packs a matrix (depth, outputs), turned if it `is_turned`, or filters (outputs, channels, height, width), each of `taps` parts of the
    depth filled up to a multiple of `group` bytes: of bytes a row with the sums of the columns, then rows of four bytes for each column.
    Of filters of volumes (outputs, channels, depth, height, width) the planes are further taps."""

    tiling: Tiling
    taps: int
    group: int
    dtype: str
    is_turned: bool = False
    is_spread: bool = False
    """Whether the weights are (channels, outputs, height, width): a matrix for each place of the kernel, one after the other."""

    def __call__(self, weight: Array) -> Array:
        """Returns the blocks of columns, in order, as float32 with the bits of the narrow numbers."""
        if self.is_spread:
            pack = replace(self, is_spread=False)
            return np.concatenate([pack(weight[:, :, i, j]) for i, j in np.ndindex(weight.shape[2:])])
        are_bytes = self.dtype != "bfloat16"
        narrow = weight.astype(self.dtype) if are_bytes else np.ascontiguousarray(weight).view(np.uint16)[..., 1::2]
        if narrow.ndim > 3:
            matrix = np.moveaxis(narrow, (1, 0), (-2, -1)).reshape(self.taps, -1, len(narrow))
        else:
            matrix = (narrow.T if self.is_turned else narrow)[np.newaxis]
        taps, depth, outputs = matrix.shape
        of_group, of_word = (nbytes // narrow.itemsize for nbytes in (self.group, FLOAT_BYTES))
        padded = np.zeros((taps, -(-depth // of_group) * of_group, outputs), narrow.dtype)
        padded[:, :depth] = matrix
        words = np.ascontiguousarray(padded.reshape(-1, of_word, outputs).transpose(0, 2, 1)).view(np.int32)[..., 0]
        if are_bytes:
            words = np.concatenate([matrix.sum((0, 1), dtype=np.int32)[np.newaxis], words])
        return pack_columns(words.view(np.float32), self.tiling)


def _find_kind(site: Site) -> _Kind | None:
    """Returns the numbers that the source can be multiplied as; None if they are float32."""
    limits = site.ranges.get(site.node.inputs[0], NO_LIMITS)
    if site.weights.is_once:
        return None
    if limits.is_bfloat16 and find_half_products():
        return _Kind(find_half_products())
    if not limits.is_whole or not find_byte_products():
        return None
    products = find_byte_products()
    if limits.shift:
        is_there = site.is_float32(limits.shift) and site.prototypes[limits.shift].size == 1
        return _Kind(products, limits.shift) if is_there else None
    return _Kind(products, limits.find_shift(), limits.high + limits.find_shift()) if limits.is_fit else None


def _fit(kind: _Kind, weight: Array | None, depth: int, outputs: int) -> _Kind | None:
    """Returns the kind of the narrow product for these weights; None if no kind holds them, or if float32 is faster."""
    if weight is None or weight.dtype != np.float32 or outputs < _FEWEST_OUTPUTS or depth == 0:
        return None
    if not kind.are_bytes:
        return None if np.ascontiguousarray(weight).view(np.uint16)[..., ::2].any() else kind
    low, high = float(weight.min()), float(weight.max())
    if depth > _LONGEST_DEPTH or low < -128 or high > 127 or not is_whole(weight):
        return None
    # Two products of a pair have to fit into 16 bits.
    is_small = kind.products != "pairs" or 2 * kind.largest * max(-low, high) < 1 << 15
    return kind if is_small else replace(kind, products="words")


def _make_stage(kind: _Kind, *, of_planes: bool, of_bytes: bool) -> Kernel:
    """Returns the kernel that copies rows as narrow numbers; `of_bytes`: they are these already, with the same shift."""
    title = f"stage_{kind.dtype}{'_of_planes' * of_planes}{'_of_bytes' * of_bytes}"
    store = partial(_store_numbers, dtype=kind.dtype)
    copy_values = partial(store, shifts=not of_bytes)
    x_bytes = 1 if of_bytes else FLOAT_BYTES

    def copy_row(code: Code, p: dict[str, Number], x: Number, y: Number, count: Number) -> None:
        def copy(element: Number, mask: Mask | None) -> None:
            source = x + element * x_bytes
            values = code.load_bytes(source, code.width, mask=mask) if of_bytes else code.load(source, mask=mask)
            copy_values(code, p, y + element * kind.nbytes, values, mask)

        quick = code.number(0)
        if of_bytes and kind.nbytes == 1:
            # Bytes are copied four to a float32.
            quick = count - count % (FLOAT_BYTES * code.width)
            with code.loop(0, quick, FLOAT_BYTES * code.width) as place:
                code.store(y + place, code.load(x + place))
        x, y = x + quick * x_bytes, y + quick * kind.nbytes
        code.visit_vectors(count - quick, copy)

    def copy_pixels(code: Code, p: dict[str, Number], x: Number, y: Number) -> None:
        is_dense = p["x_pixel"].equals(p["channels"] * x_bytes) & p["y_pixel"].equals(p["channels"] * kind.nbytes)
        with code.either(is_dense) as (dense, sparse):
            with dense:
                copy_row(code, p, x, y, p["width"] * p["channels"])
            with sparse, code.loop(0, p["width"]) as pixel:
                target = y + pixel * p["y_pixel"]
                copy_row(code, p, x + pixel * p["x_pixel"], target, p["channels"])
                fill_up(code, p, target)

    def copy_planes(code: Code, p: dict[str, Number], x: Number, y: Number) -> None:
        with code.loop(0, p["width"]) as pixel:
            source, target = x + pixel * p["x_pixel"], y + pixel * p["y_pixel"]
            with code.loop(0, p["channels"]) as channel:
                place = source + channel * p["x_channel"]
                values = code.load_bytes(place, 1) if of_bytes else code.load_scalar(place)
                copy_values(code, p, target + channel * kind.nbytes, values, None)
            fill_up(code, p, target)

    def fill_up(code: Code, p: dict[str, Number], pixel: Number) -> None:
        if not kind.are_bytes:
            end = p["channels"] * kind.nbytes
            clear(code, p, pixel + end, p["y_pixel"] - end)

    def clear(code: Code, p: dict[str, Number], y: Number, nbytes: Number) -> None:
        zeros = code.constant(0.0)
        code.visit_vectors(nbytes // kind.nbytes, lambda place, mask: store(code, p, y + place * kind.nbytes, zeros, mask))

    copy = copy_planes if of_planes else copy_pixels
    return Kernel(title, partial(emit_stage, copy=copy, clear=clear))


def _store_numbers(
    code: Code, p: dict[str, Number], y: Number, values: Floats, mask: Mask | None, *, dtype: str, shifts: bool = True
) -> None:
    if dtype == "bfloat16":
        code.store_half(y, values, "bfloat16", mask=mask)
        return
    if shifts:
        shift = code.load_scalar(p["shift"])
        values = values + (shift if values.width == 1 else code.spread(shift))
    code.store_whole(y, values, "bytes" if dtype == "int8" else "words", mask=mask)


def plan_narrow_convolution(site: Site) -> Recipe | None:
    """Returns the recipe of a convolution of one group; None if its numbers are not narrow."""
    found = _find_kind(site)
    convolution = found and read_convolution(site, of_bytes=True)
    if not found or not convolution or convolution.group > 1:
        return None
    windows, outputs = convolution.windows, convolution.outputs
    epilogue = read_chained_epilogue(site, site.constant(2), outputs, channel_axis=1)
    depth = convolution.channels * len(convolution.depth_taps) * prod(windows.kernel)
    kind = _fit(found, convolution.weight, depth, outputs)
    if epilogue is None or kind is None or not epilogue.has_channel_vectors(site):
        return None
    is_flat = windows.is_pointwise and site.output_halo == find_overhang(windows) == NO_HALO
    is_flat = is_flat and (not epilogue.added or is_even(site.prototypes[epilogue.added]))
    return _plan(kind, epilogue, convolution, is_flat=is_flat)


def plan_narrow_transposed_convolution(site: Site) -> Recipe | None:
    """Returns the recipe of a ConvTranspose with adjacent windows: each position of the kernel is a product of its own."""
    found = _find_kind(site)
    convolution = found and read_adjacent(site)
    if not found or not convolution or convolution.depths or not site.holds_numbers(convolution.source):
        return None
    epilogue = read_chained_epilogue(site, site.constant(2), convolution.outputs, channel_axis=1)
    kind = _fit(found, convolution.weight, convolution.channels, convolution.outputs)
    if epilogue is None or epilogue.added or kind is None:
        return None
    return _plan(kind, epilogue, convolution, is_flat=False, spread=convolution.weight.shape[2:])


def plan_narrow_product(site: Site) -> Recipe | None:
    """Returns the recipe of a matrix product with a constant: a convolution of an image with a single column by 1x1 filters."""
    source, found, weight, product = site.node.inputs[0], _find_kind(site), site.constant(1), read_gemm(site)
    if found is None or product is None or weight is None or weight.ndim != 2 or not site.holds_numbers(source):
        return None
    bias, is_turned = product
    depth, outputs = weight.shape[::-1] if is_turned else weight.shape
    epilogue = read_chained_epilogue(site, bias, outputs, channel_axis=-1)
    shape, kind = site.shape(source), _fit(found, weight, depth, outputs)
    if epilogue is None or kind is None or len(shape) < 2 or shape[-1] != depth or 0 in shape:
        return None
    if not all(site.prototypes[value].flags.c_contiguous for value in (source, epilogue.added) if value):
        return None
    rows = prod(shape[:-1])
    convolution = Convolution(site, lay_windows((rows, 1), (1, 1)), depth, outputs, 1, 1)
    return _plan(kind, epilogue, convolution, is_flat=True, is_matrix=True, is_turned=is_turned)


def _plan(
    kind: _Kind,
    epilogue: NativeEpilogue,
    convolution: Convolution,
    *,
    is_flat: bool,
    is_matrix: bool = False,
    is_turned: bool = False,
    spread: tuple[int, ...] = (),
) -> Recipe:
    """Returns the recipe of a product over the windows of images.

    `is_flat`: all pixels of a plane are a line, and those of all planes if each is convolved by itself. `spread`: the rows and columns of
    results that a pixel has, each by a matrix of its own; by default it has one.
    """
    site, source, windows, weight = convolution.site, convolution.source, convolution.windows, convolution.weight
    channels, outputs, depth_taps = convolution.channels, convolution.outputs, convolution.depth_taps
    planes, images = convolution.planes
    (height, width), (front, back) = windows.sizes, convolution.depth_halo
    down, right = spread or (1, 1)
    halo = find_overhang(windows)
    values = (source, epilogue.added) if epilogue.added else (source,)
    rows, columns = windows.outputs
    is_single = is_flat and convolution.has_planes_alone
    pixels = images * rows * columns if is_single else rows * columns if is_flat else columns
    cut = _choose_cut(kind, pixels, channels, outputs, is_image=not is_matrix)
    tiling, pixel_bytes = cut.tiling, cut.measure_pixel(channels)
    shape = (front + planes + back, halo.top + height + halo.bottom, halo.left + width + halo.right, pixel_bytes)
    # Pixels lie side by side, so a row of the kernel is a single tap.
    steps = 1 if windows.dilations[1] == 1 else windows.kernel[1]
    taps = len(depth_taps) * windows.kernel[0] * steps
    groups = -(-(windows.kernel[1] // steps * pixel_bytes) // cut.group)
    lines, depth = 1 if is_single else images if is_flat else images * rows, len(depth_taps) * prod(windows.kernel) * pixel_bytes
    read_bytes = pixel_bytes * prod(windows.strides)
    chunks = choose_chunks(tiling, lines=lines, depth=-(-depth // FLOAT_BYTES), pixel_bytes=read_bytes, workers=site.workers)
    parts = taps if cut.has_sums else len(depth_taps) * prod(windows.kernel)
    packing = NarrowPacking(tiling.packing, parts, cut.group, kind.dtype, is_turned, is_spread=bool(spread))
    purpose = ("narrow", kind.dtype, taps, is_turned, cut.group, tiling.vectors, bool(spread))
    packed = site.weights.pack_lazily((weight,), purpose, packing)
    bias = pad_vector(epilogue.bias, outputs, tiling.padded_outputs)
    vectors = epilogue.lay_vectors(tiling.padded_outputs)
    x = site.prototypes[source]
    of_planes = not is_matrix and x.strides[1] != x.itemsize and x.shape[1] != 1
    stage = _make_stage(kind, of_planes=of_planes, of_bytes=source in site.shifts)
    kernel = cut.make_kernel(epilogue)
    config, own_shift = cut.lay_config(), np.array([0 if kind.reads else kind.shift], np.float32)
    x_pixel, nbytes = pixel_bytes * windows.strides[1], prod(shape)

    def view(array: Array, sizes: tuple[int, ...]) -> Array:
        return array.reshape(sizes).transpose(0, 3, 1, 2) if is_matrix else array

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        x, shift_memory = view(reads[0], (1, height, 1, channels)), reads[-1] if kind.reads else own_shift
        others = (view(each, (1, 1, rows, outputs)) for each in (writes[0], *reads[1 : len(values)]))
        image = scratch[:nbytes].reshape(shape)
        calls = []
        for laid, *results in zip(*map(convolution.list_planes, (x, *others)), strict=True):
            calls.append(call_stage(stage, laid, image, halo, front, shift=shift_memory))
            for index, (i, j) in enumerate(np.ndindex(down, right)):
                places = [each[:, :, i::down, j::right] for each in results]
                call = bind_product(index, image, shift_memory, *places)
                calls.append(replace(call, keep=(*call.keep, *reads)))
        return calls

    def bind_product(matrix: int, image: Array, shift_memory: Array, y: Array, addend: Array | None = None) -> NativeCall:
        plane, row, pixel, _ = image.strides
        begin = convolution.pick_planes(image)
        dilation = 0 if convolution.depths is None else convolution.depths.dilations[0]
        offsets = lay_offsets(windows, row, pixel, steps, [tap * dilation * plane for tap in depth_taps])
        # A window begins at the begin of the pads, which the halo covers.
        top, left = (halo.top - max(windows.pads[0][0], 0), halo.left - max(windows.pads[1][0], 0))
        numbers = {
            "x": address_of(begin) + (top * row + left * pixel), "x_image": begin.strides[0], "x_row": row * windows.strides[0],
            "x_pixel": x_pixel, "offsets": address_of(offsets), "taps": taps, "depth": groups,
            "w": address_of(packed) + matrix * (packed.nbytes // (down * right)),
            "block_bytes": cut.measure_block(taps, groups), "bias": address_of(bias),
            "rows": 1 if is_flat else rows, "shift": address_of(shift_memory), "line": pixels, "config": address_of(config),
            "vectors": address_of(vectors), "vector_bytes": bias.nbytes,
            **list_cut(tiling, chunks), **list_strides("y", y), **list_strides("added", addend),
        }  # fmt: skip
        keep = (offsets, packed, bias, vectors, image, y, config, shift_memory, addend)
        return NativeCall(kernel, tuple(numbers.get(key, 0) for key in (*PARAMETERS, *NARROW_FIELDS)), chunks.count, keep)

    # The last rows of a tile of AMX may lie behind the image.
    scratch_bytes, overwrites = align(nbytes + 2 * TILE_ROWS * x_pixel + TILE_BYTES), list_overwritten(site, source, epilogue.added)
    reads, kernels = (*values, *kind.reads), (stage, kernel)
    return Recipe(reads, bind, scratch_bytes, is_channels_last=not is_matrix, overwrites=overwrites, kernels=kernels)
