"""The kernel of products in groups: each group of channels is a product of its own, and a chunk is a chunk of one of them."""

from __future__ import annotations

from hetero_cpu.machine.code import Code
from hetero_cpu.machine.compiler import Kernel
from hetero_cpu.operators.product.kernel import PARAMETERS, ProductShape, emit_product, make_product

GROUP_PARAMETERS = ("chunks_of_group", "x_group", "w_group", "bias_group", "y_group", "added_group")
"""Numbers of a row after those of a product, which are the first group's: the chunks of each, and bytes from group to group."""

_MOVED = ("x", "w", "bias", "y", "added")


def make_grouped_product(shape: ProductShape) -> Kernel:
    """Returns the kernel of products of one shape, side by side."""
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
