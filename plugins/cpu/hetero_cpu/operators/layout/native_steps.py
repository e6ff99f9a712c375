"""Steps that move elements by machine code: Transpose, Reshape of what lies otherwise, Expand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from hetero_cpu.machine.native import Array, NativeCall, native_step
from hetero_cpu.open.arrays import broadcast_shapes, lay_empty
from hetero_cpu.operators.layout.copies import plan_copy
from hetero_cpu.planning.recipe import Recipe, Site, Views, is_channels_last

_PRODUCTS = frozenset({"MatMul", "Transpose"})


@native_step("Transpose")
def plan_native_transpose(site: Site) -> Recipe | Views | None:
    """Returns a view where the turned array lies in C order or channels last, a copy elsewhere; NumPy's step makes views for products."""
    (value,) = site.node.inputs
    if value in site.constants or site.group.epilogue or (site.readers and all(reader in _PRODUCTS for reader in site.readers)):
        return None
    perm = site.node.attributes.get("perm") or tuple(reversed(range(len(site.shape(value)))))
    if sorted(perm) != list(range(len(site.shape(value)))):
        return None  # the kernel of the toolkit says what is wrong
    turned = site.prototypes[value].transpose(perm)
    if turned.flags.c_contiguous or (is_channels_last(turned) and turned.transpose(0, 2, 3, 1).flags.c_contiguous):
        return Views(value, (lambda array: array.transpose(perm),))
    return _plan_copy(site, value, lambda array: array.transpose(perm), turned.shape)


@native_step("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def plan_native_reshape(site: Site) -> Recipe | None:
    """Returns the copy into C order of what has no view in the new shape; None where there is a view."""
    if site.group.epilogue:
        return None
    value, shape = site.node.inputs[0], site.output_shape()
    prototype = site.prototypes[value]
    if prototype.size != prod(shape) or np.may_share_memory(prototype.reshape(shape), prototype):
        return None
    return _plan_copy(site, value, lambda array: array, prototype.shape)


@native_step("Expand")
def plan_native_expand(site: Site) -> Recipe | None:
    """Returns the copy of an array into every place that it is broadcast to."""
    value, shape = site.node.inputs[0], site.output_shape()
    # NumPy 2 broadcasts shapes of up to 32 dimensions.
    if site.group.epilogue or len(shape) > 32 or broadcast_shapes(site.shape(value), shape) != shape:
        return None
    return _plan_copy(site, value, lambda array: array, shape)


def _plan_copy(site: Site, value: str, turn: Callable[[Array], Array], shape: tuple[int, ...]) -> Recipe | None:
    """Returns the copy of a turned value into a result in C order, seen in the shape that it is copied in."""
    prototype = site.prototypes[value]
    copy = plan_copy(lay_empty(shape, prototype.dtype), turn(prototype), workers=site.workers)
    if copy is None:
        return None

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        return [copy.bind(writes[0].reshape(shape), turn(reads[0]))]

    return Recipe((value,), bind, kernels=(copy.kernel,))
