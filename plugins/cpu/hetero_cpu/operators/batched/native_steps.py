"""MatMul and Gemm of two computed operands, by machine code: stacks of matrices with any strides, as views of others have them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from hetero_cpu.machine.chunks import cut_products
from hetero_cpu.machine.compiler import find_width
from hetero_cpu.machine.native import Array, NativeCall, address_of, native_step
from hetero_cpu.machine.rows import merge_axes
from hetero_cpu.open.arrays import broadcast, lay_empty
from hetero_cpu.open.choices import pays
from hetero_cpu.open.sizes import is_open
from hetero_cpu.operators.batched.kernel import ARRAYS, PARAMETERS, BatchedShape, choose_batched_tile, make_batched
from hetero_cpu.operators.product.native_epilogue import read_native_epilogue
from hetero_cpu.operators.product.native_steps import read_gemm
from hetero_cpu.planning.arena import align
from hetero_cpu.planning.recipe import Recipe, Site

_FLOAT_BYTES = 4
_ROWS_WORTH_PACKING = 28


@native_step("Gemm", "MatMul")
def plan_native_batched_mat_mul(site: Site) -> Recipe | None:
    """Returns the recipe of a @ b for matrices and stacks of them that broadcast to each other.

    One constant matrix b is packed once, elsewhere, unless plans share it as it is. Source: ONNX MatMul-13, Gemm-13.
    """
    names = site.node.inputs[:2]
    weight = site.constant(1)
    if weight is not None and weight.ndim == 2 and not site.weights.is_shared:
        return None
    if not site.is_float32(*names) or min(len(site.shape(name)) for name in names) < 2:
        return None
    gemm = (None, False) if site.node.op_type == "MatMul" else read_gemm(site)
    if gemm is None:
        return None
    shape = site.output_shape()
    a, b = site.prototypes[names[0]], _turn(site.prototypes[names[1]], gemm[1])
    (rows, depth), columns = a.shape[-2:], b.shape[-1]
    epilogue = read_native_epilogue(site, gemm[0], columns, channel_axis=-1)
    if 0 in (*a.shape, *b.shape) or epilogue is None or (epilogue.bias is not None and epilogue.added):
        return None
    turns = (_find_turn(a, rows=depth > 1), _find_turn(b, rows=columns > 1))
    adds = (epilogue.added,) if epilogue.added else ()
    bias = None if epilogue.bias is None else np.ascontiguousarray(epilogue.bias.reshape(-1), np.float32)
    if None in turns or any(columns > 1 and site.prototypes[value].strides[-1] != _FLOAT_BYTES for value in adds):
        return None
    is_a_turned, is_b_turned = bool(turns[0]), bool(turns[1])
    width = find_width()
    tile, vectors, last_vectors, is_masked = choose_batched_tile(rows, columns, width)
    # Rows of b far apart fall into the same few lines of a cache.
    packs = pays(rows, _ROWS_WORTH_PACKING // 2) if is_open(rows) else rows >= _ROWS_WORTH_PACKING
    operands = is_a_turned, is_b_turned, packs, bool(adds) or bias is not None
    kernel = make_batched(BatchedShape(tile, vectors, last_vectors, is_masked, *operands, epilogue.activations))

    def spread(arrays: Sequence[Array], y: Array) -> list[Array]:
        """Returns a, b, the result and what is added, each as a stack of the result's shape."""
        extra = bias if bias is not None else arrays[2] if adds else y
        stacks = [broadcast(array, (*shape[:-2], *array.shape[-2:])) for array in arrays[:2]]
        return [*stacks, y, broadcast(extra, shape)]

    def walk(arrays: Sequence[Array]) -> tuple[list[int], list[tuple[int, ...]]]:
        return merge_axes([array[..., 0, 0] for array in (arrays[2], arrays[0], arrays[1], arrays[3])])

    like_y = lay_empty(shape, np.float32)
    if len(walk(spread([a, b, *(site.prototypes[value] for value in adds)], like_y))[0]) > 3:
        return None
    blocks = -(-columns // (vectors * width))
    units = blocks * prod(shape[:-2])
    panel_bytes = align(depth * vectors * width * _FLOAT_BYTES) + 128 if is_b_turned or packs else 0
    work = units * rows * depth * vectors * width
    units_of_chunk = cut_products(units, work, site.workers)

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        arrays = spread([reads[0], _turn(reads[1], gemm[1]), *reads[2:]], writes[0])
        sizes, strides = walk(arrays)
        assert len(sizes) <= 3
        missing = 3 - len(sizes)
        _, middle, inner = (1,) * missing + tuple(sizes)
        numbers = {
            "middle": middle, "inner": inner, "rows": rows, "depth": depth, "columns": columns, "blocks": blocks, "units": units,
            "units_of_chunk": units_of_chunk, "scratch": address_of(scratch), "scratch_worker": panel_bytes,
        }  # fmt: skip
        for key, array, position in zip(ARRAYS, arrays, (1, 2, 0, 3), strict=True):
            is_turned = (key == "a" and is_a_turned) or (key == "b" and is_b_turned)
            places = (*(0,) * missing, *(axis[position] for axis in strides), array.strides[-1 if is_turned else -2])
            numbers[key] = address_of(array)
            numbers.update(
                {f"{key}{end}": place for end, place in zip(("_outer", "_middle", "_inner", "_step"), places, strict=True)}
            )
        row = tuple(numbers[key] for key in PARAMETERS)
        keep = (*reads, writes[0], scratch, *(() if bias is None else (bias,)))
        return [NativeCall(kernel, row, -(-units // units_of_chunk), keep)]

    return Recipe((*names, *adds), bind, site.workers * panel_bytes, kernels=(kernel,))


def _turn(matrix: Array, is_turned: bool) -> Array:
    return matrix.T if is_turned else matrix


def _find_turn(matrix: Array, *, rows: bool) -> bool | None:
    """Says whether the columns of a matrix lie side by side rather than its rows; None if neither do. Rows of one element do."""
    if not rows or matrix.strides[-1] == _FLOAT_BYTES:
        return False
    return True if matrix.shape[-2] == 1 or matrix.strides[-2] == _FLOAT_BYTES else None
