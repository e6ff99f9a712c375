"""The recipe of a 3x3 convolution with Winograd's transforms."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod

import numpy as np

from hetero_cpu.machine.compiler import Kernel, find_width
from hetero_cpu.machine.native import Array, NativeCall, address_of, list_strides
from hetero_cpu.open.sizes import is_open
from hetero_cpu.operators.convolution.geometry import Convolution
from hetero_cpu.operators.convolution.staging import Staging, bind_staging
from hetero_cpu.operators.product.native_epilogue import NativeEpilogue, list_overwritten
from hetero_cpu.operators.product.tiling import Tiling, choose_tiling, pad_vector
from hetero_cpu.operators.winograd.kernel import PARAMETERS, WinogradShape, make_input, make_output, make_whole
from hetero_cpu.operators.winograd.transforms import transform_kernels
from hetero_cpu.planning.recipe import Recipe
from hetero_cpu.planning.weights import allocate_floats

# Tiles of one chunk: enough for a block of weights to be used often, few enough for their transforms to stay in the second cache.
# Of an open number of tiles there are 28 in each: on U-Nets 56 for large images are as fast, and ask for a class of their own.
_TILES_OF_CHUNK, _TILES_OF_OPEN_CHUNK = 56, 28
_LARGE_CHANNELS = 512
_INPUT_TILES = 8
_LINE = 16
"""Numbers between arrays whose rows would else fall onto the same lines of the caches."""


def plan_winograd(convolution: Convolution, epilogue: NativeEpilogue, staging: Staging | None, size: int) -> Recipe:
    """Returns the recipe with tiles of `size` x `size` results. The image has a halo that reaches to the end of the last tile."""
    site, channels, outputs = convolution.site, convolution.channels, convolution.outputs
    height, width = convolution.windows.outputs
    down, right = -(-height // size), -(-width // size)
    tiles, positions, workers = convolution.batch * down * right, (size + 2) ** 2, site.workers
    most = _TILES_OF_CHUNK * (2 if channels >= _LARGE_CHANNELS else 1)
    rows, count, is_whole = _cut_tiles(tiles, most, workers)
    tiling = choose_tiling(rows, outputs, find_width())
    block = tiling.vectors * tiling.width
    shape = WinogradShape(
        size,
        tiling.pixels,
        tiling.has_short_tiles,
        tiling.vectors,
        tiling.last_vectors,
        tiling.count_prefetches(tiling.tiles),
        bool(epilogue.added),
        epilogue.activations,
    )
    weight = convolution.pack_later(
        ("winograd", size, tiling.vectors, tiling.width), partial(_pack, size=size, tiling=tiling.packing)
    )
    bias = pad_vector(epilogue.bias, outputs, tiling.padded_outputs)
    zeros, offsets = pad_vector(None, 0, block), np.zeros(1, np.int64)
    moved_position = (rows * channels + _LINE) * 4
    products_position = (rows * block + _LINE) * 4
    moved_bytes = positions * moved_position
    products_bytes = positions * products_position
    staged_bytes = 0 if staging is None else -(-prod(staging.shape) * 4 // 64) * 64
    added = (epilogue.added,) if epilogue.added else ()
    kernels = (make_whole(shape),) if is_whole else (make_input(size), make_output(shape))

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        calls, x = bind_staging(staging, reads[0], scratch)
        y = writes[0]
        top, left = (max(pads[0], 0) for pads in convolution.windows.pads)
        base = address_of(scratch) + staged_bytes if scratch.size else 0
        numbers = {
            **list_strides("x", x), "x": address_of(x) - top * x.strides[2] - left * x.strides[3],
            **list_strides("y", y), **list_strides("added", reads[1] if added else None),
            "w": address_of(weight), "bias": address_of(bias), "zeros": address_of(zeros), "offsets": address_of(offsets),
            "moved": base, "moved_worker": moved_bytes, "moved_position": moved_position,
            "products": base + moved_bytes * (workers if is_whole else 1), "products_worker": products_bytes,
            "products_position": products_position, "channels": channels, "blocks": tiling.blocks, "blocks_of_chunk": 1, "outputs": outputs,
            "tiles": tiles, "tiles_of_chunk": rows if is_whole else _INPUT_TILES, "down": down, "right": right,
            "height": height, "width": width, "row_tiles": tiling.tiles, "long_tiles": tiling.long_tiles,
        }  # fmt: skip
        row = tuple(numbers.get(key, 0) for key in PARAMETERS)
        keep = (weight, bias, zeros, offsets, x, y, scratch, *reads)
        chunks = (count,) if is_whole else (-(-tiles // _INPUT_TILES), tiling.blocks)
        return calls + [NativeCall(kernel, row, number, keep) for kernel, number in zip(kernels, chunks, strict=True)]

    staging_kernels: tuple[Kernel, ...] = () if staging is None else (staging.kernel,)
    nbytes = staged_bytes + moved_bytes * (workers if is_whole else 1) + products_bytes * workers
    return Recipe(
        (convolution.source, *added),
        bind,
        nbytes,
        is_channels_last=True,
        overwrites=list_overwritten(convolution.site, convolution.source, epilogue.added),
        kernels=(*staging_kernels, *kernels),
    )


def _cut_tiles(tiles: int, most: int, workers: int) -> tuple[int, int, bool]:
    """Returns the tiles of a chunk, how many chunks there are, and whether one computes all blocks of its tiles."""
    if is_open(tiles):
        return _TILES_OF_OPEN_CHUNK, -(-tiles // _TILES_OF_OPEN_CHUNK), True
    if tiles <= most or (workers > 1 and tiles < workers * most):
        return tiles, 1, False
    count = -(-tiles // most)
    count = -(-count // workers) * workers
    return -(-tiles // count), count, True


def _pack(w: Array, size: int, tiling: Tiling) -> Array:
    """Returns G g G^T of all kernels, computed in float64, as (block, position, channel, column)."""
    outputs, channels = w.shape[:2]
    positions = (size + 2) ** 2
    columns = tiling.vectors * tiling.width
    packed = allocate_floats(positions * channels * tiling.padded_outputs)
    for begin in range(0, tiling.padded_outputs, columns):
        held = min(columns, tiling.padded_outputs - begin)
        block = packed[positions * channels * begin :][: positions * channels * held].reshape(positions, channels, held)
        block_outputs = min(held, outputs - begin)
        block[:, :, block_outputs:] = 0
        transform_kernels(w[begin : begin + block_outputs], size, block[:, :, :block_outputs])
    return packed
