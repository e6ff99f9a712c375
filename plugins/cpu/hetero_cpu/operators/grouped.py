"""Products of several groups of channels by one kernel, and their packed weights."""

from __future__ import annotations

import numpy as np

from hetero_cpu.machine.calls import Array
from hetero_cpu.machine.code import Code
from hetero_cpu.machine.compiler import Kernel
from hetero_cpu.operators.product_kernel import PARAMETERS, ProductShape, emit_product, make_product
from hetero_cpu.operators.tiling import Tiling, pack_columns
from hetero_cpu.operators.weights import allocate_floats

GROUP_PARAMETERS = ("chunks_of_group", "x_group", "w_group", "bias_group", "y_group", "added_group")
"""Numbers of a row after those of a product, which are the first group's: the chunks of each, and bytes from group to group."""

_MOVED = ("x", "w", "bias", "y", "added")


def make_grouped_product(shape: ProductShape) -> Kernel:
    """Returns the kernel of products of the same shape, side by side."""
    return Kernel(f"grouped_{make_product(shape).name}", lambda name, width: _emit(name, width, shape))


def _emit(name: str, width: int, shape: ProductShape) -> Code:
    code = Code(name, 3, width)
    row, chunk, worker = code.parameters
    product = code.inner(f"{name}_group", 3)
    emit_product(product, shape)
    p = code.load_row(row, (*PARAMETERS, *GROUP_PARAMETERS))
    group = chunk // p["chunks_of_group"]
    own = code.reserve(len(PARAMETERS))
    for position, key in enumerate(PARAMETERS):
        number = p[key] + group * p[f"{key}_group"] if key in _MOVED else p[key]
        code.store_number(own, number, 8 * position)
    code.call(product, own, chunk % p["chunks_of_group"], worker)
    return code.finish()


def pack_groups(weight: Array, group: int, tiling: Tiling) -> Array:
    """Returns the packed columns of each group, in order. weight: (outputs, channels of a group, [depth,] height, width)."""
    split = np.moveaxis(weight.reshape(group, weight.shape[0] // group, *weight.shape[1:]), (2, 1), (-2, -1))
    columns = [pack_columns(part.reshape(-1, part.shape[-1]), tiling) for part in split]
    packed = allocate_floats(sum(part.size for part in columns))
    np.concatenate(columns, out=packed)
    return packed
