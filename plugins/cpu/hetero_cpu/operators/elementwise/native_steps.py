"""Functions and arithmetic of elements, alone or in chains, by machine code: one pass over memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hetero_cpu.machine.native import Array, NativeCall, native_step
from hetero_cpu.machine.row_walk import call_rows
from hetero_cpu.machine.rows import cut_rows, find_kind
from hetero_cpu.open.arrays import broadcast_shapes, lay_empty
from hetero_cpu.open.choices import is_same_shape
from hetero_cpu.operators.elementwise.chains import ELEMENTWISE, ExpressionReader
from hetero_cpu.operators.elementwise.kernel import Expression, make_elementwise
from hetero_cpu.planning.recipe import Recipe, Site

_MOST_OPERANDS = 64


@native_step(*sorted(ELEMENTWISE))
def plan_native_expression(site: Site) -> Recipe | None:
    """Returns the recipe of a node or a chain of them: the result lies in memory as what is read in its shape does."""
    ranks = {
        value: len(site.types[value].shape or ()) for node in site.group.members for value in node.reads if value in site.types
    }
    reader = ExpressionReader(site.constants, site.weights, ranks)
    if not all(reader.read_node(node) for node in site.group.members):
        return None
    arrays = [site.prototypes[operand] if isinstance(operand, str) else operand for operand in reader.operands]
    shape = site.output_shape()
    # NumPy 2 broadcasts shapes of up to 32 dimensions. A Sum of thousands would be code of megabytes.
    if len(shape) > 32 or len(arrays) > _MOST_OPERANDS:
        return None
    if any(array.dtype != np.float32 for array in arrays) or 0 in shape or broadcast_shapes(*(a.shape for a in arrays)) != shape:
        return None
    full = [operand for operand in reader.operands if isinstance(operand, str) and is_same_shape(site.shape(operand), shape)]
    is_last = any(site.is_channels_last(operand) for operand in full)
    order = (0, 2, 3, 1) if is_last else tuple(range(len(shape)))
    prototype = lay_empty(shape, np.float32, order)
    operand_kinds = [find_kind(array, prototype) for array in arrays]
    kinds = "".join(kind for kind in operand_kinds if kind is not None)
    # Axes of an image that its halo holds apart are no more than those that there are.
    if None in operand_kinds or (len(shape) > 4 and cut_rows(prototype, arrays) is None):
        return None
    kernel = make_elementwise(Expression(kinds, tuple(reader.instructions)))
    values = tuple(operand for operand in reader.operands if isinstance(operand, str))

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        y, remaining = writes[0], iter(reads)
        operands = [next(remaining) if isinstance(operand, str) else operand for operand in reader.operands]
        rows = cut_rows(y, operands)
        assert rows is not None
        return [call_rows(kernel, rows, [y, *operands], workers=site.workers)]

    overwrites = tuple(
        index
        for index, value in enumerate(values)
        if value in full and site.is_channels_last(value) == is_last and not _is_shared(site, value, values)
    )
    return Recipe(values, bind, is_channels_last=is_last, overwrites=overwrites, kernels=(kernel,))


def _is_shared(site: Site, value: str, values: Sequence[str]) -> bool:
    # Another operand in the same memory would be read after it was written over.
    return any(np.may_share_memory(site.prototypes[value], site.prototypes[other]) for other in values if other != value)
