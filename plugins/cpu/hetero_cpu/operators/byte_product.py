"""Convolutions and matrix products of whole numbers that fit into bytes, by the processor's own products of bytes.

```text
x (float32) ── + shift, as bytes ──> rows with a halo of `shift` ── int32 sums ── - shift * sums of weights ──> float32 ── epilogue ──> y
```

The pass `compute_integers` holds quantized tensors as whole float32. Those within 256 numbers of one another are bytes from 0 on if a
number, the shift, is added; the sums are exact, and so is the result below 2^24. Weights are bytes of -128 to 127, four of a column
side by side. What a row has behind its end, up to 64 bytes, meets weights of zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from hetero_cpu.machine.calls import Array, NativeCall, address_of, list_strides
from hetero_cpu.machine.code import FLOAT_BYTES, Code
from hetero_cpu.machine.compiler import Kernel, find_byte_products, find_width
from hetero_cpu.machine.memory import align
from hetero_cpu.machine.terms import Floats, Mask, Number
from hetero_cpu.operators.images import (
    STAGE_PARAMETERS,
    STAGED_ROWS,
    emit_stage,
    is_even,
    is_pixels,
    is_whole,
    lay_offsets,
    reach_of_windows,
    read_convolution,
)
from hetero_cpu.operators.product import NativeEpilogue, list_overwritten, read_gemm, read_native_epilogue
from hetero_cpu.operators.product_kernel import BYTE_FIELDS, PARAMETERS, TILE_BYTES, TILE_ROWS, ProductShape, list_cut, make_product
from hetero_cpu.operators.recipe import NO_HALO, NO_LIMITS, Recipe, Site
from hetero_cpu.operators.tiling import Tiling, choose_chunks, choose_tiling, pack_columns, pad_vector
from hetero_cpu.symbols.sizes import is_open

_FEWEST_OUTPUTS = 8
# A sum of so many products of bytes fits into int32.
_LONGEST_DEPTH = 1 << 16
# Rows from which on AMX's products of matrices are faster than those of vectors.
_FEWEST_ROWS = 5
# Tiles of AMX for the sums of a block: 32 pixels times 2 vectors, or 16 times 4.
_MOST_SUMS = 4

_STAGE_NAMES = (*STAGE_PARAMETERS, "shift")


@dataclass(frozen=True, slots=True)
class _Cut:
    """How a product of bytes is cut: `group` bytes of depth are multiplied at a time."""

    tiling: Tiling
    products: str

    @property
    def group(self) -> int:
        return TILE_BYTES if self.products == "amx" else FLOAT_BYTES

    def make_kernel(self, epilogue: NativeEpilogue) -> Kernel:
        tiling = self.tiling
        has_short_tiles = tiling.has_short_tiles and self.products != "amx"
        return make_product(
            ProductShape(
                tiling.pixels,
                has_short_tiles,
                tiling.vectors,
                tiling.last_vectors,
                tiling.is_masked,
                bool(epilogue.added),
                epilogue.activations,
                products=self.products,
            )
        )

    def lay_config(self) -> Array:
        """Returns the shapes of AMX's tiles: 64 bytes wide, with as many rows as there are pixels. Source: Intel SDM, LDTILECFG."""
        config = np.zeros(64, np.uint8)
        config[0], config[16:32:2], config[48:56] = 1, TILE_BYTES, TILE_ROWS
        # Sums and pixels of the second half, if there is one; the first half is full then.
        rest = self.tiling.pixels - TILE_ROWS
        if rest > 0:
            config[48 + self.tiling.vectors : 48 + 2 * self.tiling.vectors], config[53] = rest, rest
        else:
            config[48 : 48 + self.tiling.vectors], config[52] = self.tiling.pixels, self.tiling.pixels
        return config


def _choose_cut(pixels: int, outputs: int, *, is_image: bool) -> _Cut:
    products, width = find_byte_products(), find_width()
    if products == "amx" and (is_open(pixels) or pixels >= _FEWEST_ROWS):
        most = TILE_ROWS if not is_open(pixels) and pixels <= TILE_ROWS else 2 * TILE_ROWS
        tiles = -(-pixels // most)
        size = most if is_open(pixels) else -(-pixels // tiles)
        vectors = min(_MOST_SUMS * TILE_ROWS // most, -(-outputs // width))
        blocks = -(-outputs // (vectors * width))
        rest = outputs - (blocks - 1) * vectors * width
        last_vectors = -(-rest // width)
        return _Cut(Tiling(size, tiles, tiles, vectors, blocks, last_vectors, rest - (last_vectors - 1) * width, width), products)
    return _Cut(choose_tiling(pixels, outputs, width, is_image=is_image), "vnni")


@dataclass(frozen=True, slots=True)
class BytePacking:
    """Packs a matrix (depth, outputs), turned if it `is_turned`, or filters (outputs, channels, height, width), each of `taps` parts of the
    depth filled up to a multiple of `group`: a row with the sums of the columns, then rows of four bytes for each column."""

    tiling: Tiling
    taps: int
    group: int
    is_turned: bool = False

    def __call__(self, weight: Array) -> Array:
        """Returns the blocks of columns, in order, as float32 with the bits of the integers."""
        whole = weight.astype(np.int8)
        if whole.ndim == 4:
            matrix = whole.transpose(2, 3, 1, 0).reshape(self.taps, -1, len(whole))
        else:
            matrix = (whole.T if self.is_turned else whole)[np.newaxis]
        taps, depth, outputs = matrix.shape
        padded = np.zeros((taps, -(-depth // self.group) * self.group, outputs), np.int8)
        padded[:, :depth] = matrix
        words = np.ascontiguousarray(padded.reshape(-1, 4, outputs).transpose(0, 2, 1)).view(np.int32)[..., 0]
        sums = matrix.sum((0, 1), dtype=np.int32)
        return pack_columns(np.concatenate([sums[np.newaxis], words]).view(np.float32), self.tiling)


def _find_shift(site: Site) -> str | float | None:
    """Returns the number that makes bytes of the source, or its name; None if it cannot be multiplied as bytes."""
    limits = site.ranges.get(site.node.inputs[0], NO_LIMITS)
    if not limits.is_whole or not find_byte_products() or site.weights.is_once:
        return None
    if limits.shift:
        return limits.shift if site.is_float32(limits.shift) and site.prototypes[limits.shift].size == 1 else None
    return -limits.low if limits.high - limits.low <= 255 else None


def _are_bytes(weight: Array | None, depth: int, outputs: int) -> bool:
    """Says whether weights can be multiplied as bytes, and whether it pays."""
    if weight is None or weight.dtype != np.float32 or outputs < _FEWEST_OUTPUTS or not 0 < depth <= _LONGEST_DEPTH:
        return False
    return is_whole(weight) and bool(weight.min() >= -128 and weight.max() <= 127)


def _make_stage(is_plane: bool) -> Kernel:
    copy = _copy_planes if is_plane else _copy_pixels
    title = "stage_bytes_of_planes" if is_plane else "stage_bytes"
    return Kernel(title, lambda name, width: emit_stage(name, width, copy, _clear, _STAGE_NAMES))


def _read_shift(code: Code, p: dict[str, Number]) -> Floats:
    return code.load_scalar(p["shift"])


def _copy_row(code: Code, p: dict[str, Number], x: Number, y: Number, count: Number) -> None:
    shift = code.spread(_read_shift(code, p))

    def copy(element: Number, mask: Mask | None) -> None:
        code.store_bytes(y + element, code.load(x + element * FLOAT_BYTES, mask=mask) + shift, mask=mask)

    code.visit_vectors(count, copy)


def _copy_pixels(code: Code, p: dict[str, Number], x: Number, y: Number) -> None:
    with code.either(p["x_pixel"].equals(p["channels"] * FLOAT_BYTES)) as (dense, sparse):
        with dense:
            _copy_row(code, p, x, y, p["width"] * p["channels"])
        with sparse, code.loop(0, p["width"]) as pixel:
            _copy_row(code, p, x + pixel * p["x_pixel"], y + pixel * p["y_pixel"], p["channels"])


def _copy_planes(code: Code, p: dict[str, Number], x: Number, y: Number) -> None:
    shift = _read_shift(code, p)
    with code.loop(0, p["width"]) as pixel:
        source, target = x + pixel * p["x_pixel"], y + pixel * p["y_pixel"]
        with code.loop(0, p["channels"]) as channel:
            code.store_bytes(target + channel, code.load_scalar(source + channel * p["x_channel"]) + shift)


def _clear(code: Code, p: dict[str, Number], y: Number, nbytes: Number) -> None:
    zero = code.spread(_read_shift(code, p))
    code.visit_vectors(nbytes, lambda element, mask: code.store_bytes(y + element, zero, mask=mask))


def plan_byte_convolution(site: Site) -> Recipe | None:
    """Returns the recipe of a convolution of one group; None if it cannot be made of products of bytes."""
    shift = _find_shift(site)
    convolution = None if shift is None else read_convolution(site)
    if convolution is None or shift is None or convolution.group > 1:
        return None
    windows, channels, outputs, source = convolution.windows, convolution.channels, convolution.outputs, convolution.source
    depth = channels * prod(windows.kernel)
    epilogue = read_native_epilogue(site, site.constant(2), outputs, channel_axis=1)
    if epilogue is None or not is_pixels(site, epilogue.added) or not _are_bytes(convolution.weight, depth, outputs):
        return None
    batch, _, height, width = site.shape(source)
    halo = reach_of_windows(windows, (height, width))
    shape = (batch, halo.top + height + halo.bottom, halo.left + width + halo.right, channels)
    values = (source, epilogue.added) if epilogue.added else (source,)
    is_flat = (
        windows.is_pointwise
        and site.output_halo == NO_HALO
        and halo == NO_HALO
        and all(is_even(site.prototypes[value]) for value in values[1:])
    )
    rows, columns = windows.outputs
    pixels, lines = (batch * rows * columns, 1) if is_flat else (columns, batch * rows)
    cut = _choose_cut(pixels, outputs, is_image=True)
    tiling = cut.tiling
    # Pixels lie side by side, so a row of the kernel is a single tap.
    steps = 1 if windows.dilations[1] == 1 else windows.kernel[1]
    taps = windows.kernel[0] * steps
    groups = -(-(depth // taps) // cut.group)
    chunks = choose_chunks(
        tiling, lines=lines, depth=-(-depth // 4), pixel_bytes=channels * prod(windows.strides), workers=site.workers
    )
    packing = BytePacking(tiling.packing, taps, cut.group)
    weight = convolution.pack_lazily(("bytes", taps, cut.group, tiling.vectors), packing)
    bias = pad_vector(epilogue.bias, outputs, tiling.padded_outputs)
    x = site.prototypes[source]
    stage = _make_stage(x.strides[1] != FLOAT_BYTES and x.shape[1] != 1)
    kernel = cut.make_kernel(epilogue)
    config, own_shift = cut.lay_config(), np.array([0 if isinstance(shift, str) else shift], np.float32)
    x_pixel = channels * windows.strides[1]
    nbytes = prod(shape)

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        x, y, shift_memory = reads[0], writes[0], reads[-1] if isinstance(shift, str) else own_shift
        image = scratch[:nbytes].reshape(shape)
        staged_rows = batch * shape[1]
        numbers = {
            **list_strides("x", x), "x_channel": x.strides[1],
            "y": address_of(image), "y_image": image.strides[0], "y_row": image.strides[1], "y_pixel": channels,
            "rows": shape[1], "height": height, "top": halo.top, "width": width, "left": halo.left, "right": halo.right,
            "channels": channels, "rows_of_chunk": STAGED_ROWS, "all_rows": staged_rows, "shift": address_of(shift_memory),
        }  # fmt: skip
        staged = NativeCall(
            stage, tuple(numbers[key] for key in _STAGE_NAMES), -(-staged_rows // STAGED_ROWS), (x, image, shift_memory)
        )
        image_bytes, row, pixel, _ = image.strides
        offsets = lay_offsets(windows, row, pixel, steps)
        # A window begins at the begin of the pads, which the halo covers.
        top, left = (halo.top - max(windows.pads[0][0], 0), halo.left - max(windows.pads[1][0], 0))
        numbers = {
            "x": address_of(image) + (top * row + left * pixel), "x_image": image_bytes, "x_row": row * windows.strides[0],
            "x_pixel": x_pixel, "offsets": address_of(offsets), "taps": taps, "depth": groups, "w": address_of(weight),
            "block_bytes": (1 + taps * groups * (cut.group // 4)) * tiling.vectors * tiling.width * 4, "bias": address_of(bias),
            "rows": 1 if is_flat else rows, "shift": address_of(shift_memory), "line": pixels, "config": address_of(config),
            **list_cut(tiling, chunks), **list_strides("y", y), **list_strides("added", reads[1] if epilogue.added else None),
        }  # fmt: skip
        keep = (offsets, weight, bias, image, y, config, shift_memory, *reads)
        return [staged, NativeCall(kernel, tuple(numbers.get(key, 0) for key in (*PARAMETERS, *BYTE_FIELDS)), chunks.count, keep)]

    reads = (*values, shift) if isinstance(shift, str) else values
    # The last rows of a tile of AMX may lie behind the image.
    scratch = align(nbytes + 2 * TILE_ROWS * x_pixel + TILE_BYTES)
    return Recipe(
        reads,
        bind,
        scratch,
        is_channels_last=True,
        overwrites=list_overwritten(site, source, epilogue.added),
        kernels=(stage, kernel),
    )


def plan_byte_mat_mul(site: Site) -> Recipe | None:
    """Returns the recipe of x @ w with a constant matrix w; None if it cannot be made of products of bytes."""
    return _plan_product(site, None, is_turned=False)


def plan_byte_gemm(site: Site) -> Recipe | None:
    """Returns the recipe of a Gemm that kernels take; None if it cannot be made of products of bytes."""
    gemm = None if _find_shift(site) is None else read_gemm(site)
    return None if gemm is None else _plan_product(site, gemm[0], is_turned=gemm[1])


def _plan_product(site: Site, bias: Array | None, *, is_turned: bool) -> Recipe | None:
    source, shift, weight = site.node.inputs[0], _find_shift(site), site.constant(1)
    if shift is None or weight is None or weight.ndim != 2 or not site.is_float32(source):
        return None
    depth, outputs = weight.shape[::-1] if is_turned else weight.shape
    epilogue = read_native_epilogue(site, bias, outputs, channel_axis=-1)
    shape = site.shape(source)
    if epilogue is None or len(shape) < 2 or shape[-1] != depth or 0 in shape or not _are_bytes(weight, depth, outputs):
        return None
    values = (source, epilogue.added) if epilogue.added else (source,)
    if not all(site.prototypes[value].flags.c_contiguous for value in values):
        return None
    rows = prod(site.shape(source)[:-1])
    cut = _choose_cut(rows, outputs, is_image=False)
    tiling = cut.tiling
    groups = -(-depth // cut.group)
    chunks = choose_chunks(tiling, lines=1, depth=-(-depth // 4), pixel_bytes=depth, workers=site.workers)
    packing = BytePacking(tiling.packing, 1, cut.group, is_turned)
    packed = site.weights.pack_lazily((weight,), ("bytes", is_turned, cut.group, tiling.vectors), packing)
    bias = pad_vector(epilogue.bias, outputs, tiling.padded_outputs)
    stage, kernel = _make_stage(is_plane=False), cut.make_kernel(epilogue)
    config, own_shift = cut.lay_config(), np.array([0 if isinstance(shift, str) else shift], np.float32)
    offsets = np.zeros(1, np.int64)

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        x, y, shift_memory = reads[0], writes[0], reads[-1] if isinstance(shift, str) else own_shift
        numbers = {
            "x": address_of(x), "x_row": depth * FLOAT_BYTES, "x_pixel": depth * FLOAT_BYTES, "y": address_of(scratch), "y_row": depth,
            "y_pixel": depth, "rows": rows, "height": rows, "width": 1, "channels": depth, "rows_of_chunk": STAGED_ROWS,
            "all_rows": rows, "shift": address_of(shift_memory),
        }  # fmt: skip
        staged = NativeCall(
            stage, tuple(numbers.get(key, 0) for key in _STAGE_NAMES), -(-rows // STAGED_ROWS), (x, scratch, shift_memory)
        )
        numbers = {
            "x": address_of(scratch), "x_pixel": depth, "offsets": address_of(offsets), "taps": 1, "depth": groups,
            "w": address_of(packed), "block_bytes": (1 + groups * (cut.group // 4)) * tiling.vectors * tiling.width * 4,
            "bias": address_of(bias), "y": address_of(y), "y_pixel": outputs * 4,
            "added": address_of(reads[1]) if epilogue.added else 0, "added_pixel": outputs * 4, "rows": 1,
            "shift": address_of(shift_memory), "line": rows, "config": address_of(config), **list_cut(tiling, chunks),
        }  # fmt: skip
        keep = (offsets, packed, bias, scratch, y, config, shift_memory, *reads)
        return [staged, NativeCall(kernel, tuple(numbers.get(key, 0) for key in (*PARAMETERS, *BYTE_FIELDS)), chunks.count, keep)]

    reads = (*values, shift) if isinstance(shift, str) else values
    scratch = align(rows * depth + 2 * TILE_ROWS * depth + TILE_BYTES)
    return Recipe(reads, bind, scratch, overwrites=list_overwritten(site, source, epilogue.added), kernels=(stage, kernel))
