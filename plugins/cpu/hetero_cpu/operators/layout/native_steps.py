"""Steps that move or rename elements: views where the result is one, Concat in place, copies by machine code elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from hetero_cpu.machine.native import Array, NativeCall, native_step
from hetero_cpu.open.arrays import broadcast_shapes, lay_empty
from hetero_cpu.operators.layout.copies import plan_copy
from hetero_cpu.planning.recipe import Choice, Join, Recipe, Site, Views, is_channels_last

_PRODUCTS = frozenset({"MatMul", "Transpose"})


@native_step("Transpose")
def plan_transpose(site: Site) -> Choice | None:
    """Returns a view of a constant, for products, and of what lies in C order or channels last when it is turned; else a copy."""
    (value,) = site.node.inputs
    if site.group.epilogue:
        return None
    perm = site.node.attributes.get("perm") or tuple(reversed(range(len(site.shape(value)))))
    if sorted(perm) != list(range(len(site.shape(value)))):
        return None  # the kernel of the toolkit says what is wrong
    turned = site.prototypes[value].transpose(perm)
    is_for_products = bool(site.readers) and _PRODUCTS.issuperset(site.readers) and value not in site.halos
    is_in_order = turned.flags.c_contiguous or (is_channels_last(turned) and turned.transpose(0, 2, 3, 1).flags.c_contiguous)
    if value in site.constants or is_for_products or is_in_order:
        return Views(value, (lambda array: array.transpose(perm),))
    return _plan_copy(site, value, lambda array: array.transpose(perm), turned.shape)


@native_step("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity")
def plan_reshape(site: Site) -> Choice | None:
    """Returns a view of the same elements in another shape, or a copy into C order of elements that do not lie so."""
    value, shape = site.node.inputs[0], site.output_shape()
    prototype = site.prototypes[value]
    if site.group.epilogue or prototype.size != prod(shape):
        return None
    if np.may_share_memory(prototype.reshape(shape), prototype):
        return None if value in site.halos else Views(value, (lambda array: array.reshape(shape),))
    return _plan_copy(site, value, lambda array: array, prototype.shape)


@native_step("Expand")
def plan_expand(site: Site) -> Recipe | None:
    """Returns the copy of an array into every place that it is broadcast to."""
    value, shape = site.node.inputs[0], site.output_shape()
    # NumPy 2 broadcasts shapes of up to 32 dimensions.
    if site.group.epilogue or len(shape) > 32 or broadcast_shapes(site.shape(value), shape) != shape:
        return None
    return _plan_copy(site, value, lambda array: array, shape)


@native_step("Split")
def plan_split(site: Site) -> Choice | None:
    """Returns a view for each part."""
    value = site.node.inputs[0]
    if value in site.halos:
        return None
    axis = int(site.node.attributes.get("axis", 0)) % len(site.shape(value))
    makes: list[Callable[[Array], Array]] = []
    begin = 0
    for position, name in enumerate(site.node.outputs):
        if not name:
            return None
        size = site.output_shape(position)[axis]
        cut = (slice(None),) * axis + (slice(begin, begin + size),)
        makes.append(lambda array, cut=cut: array[cut])  # type: ignore[misc]  # a default binds the loop's value
        begin += size
    return Views(value, tuple(makes)) if begin == site.shape(value)[axis] else None


@native_step("Slice")
def plan_slice(site: Site) -> Choice | None:
    """Returns a view. Source: ONNX Slice-13; before 10 the bounds were attributes, which are left to the toolkit."""
    node = site.node
    bounds = [site.constant(position) for position in range(1, len(node.inputs))]
    if (
        node.inputs[0] in site.halos
        or node.since_version < 10
        or any(bound is None and name for bound, name in zip(bounds, node.inputs[1:], strict=True))
    ):
        return None
    shape = site.shape(node.inputs[0])
    numbers = [None if bound is None else [int(number) for number in bound.reshape(-1)] for bound in bounds]
    starts, ends, axes, steps = (*numbers, None, None)[:4]
    if starts is None or ends is None:
        return None
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    cut = [slice(None)] * len(shape)
    for start, end, axis, stride in zip(starts, ends, axes, steps, strict=True):
        if stride < 1:
            return None
        cut[axis % len(shape)] = slice(start, end, stride)
    picked = tuple(cut)
    if site.prototypes[node.inputs[0]][picked].shape != site.output_shape():
        return None
    return Views(node.inputs[0], (lambda array: array[picked],))


@native_step("Concat")
def plan_concat(site: Site) -> Choice | None:
    """Returns a join of all inputs."""
    node = site.node
    if "axis" not in node.attributes or len({site.prototypes[value].dtype for value in node.inputs}) != 1:
        return None
    sizes = site.output_shape()
    axis = int(node.attributes["axis"]) % len(sizes)
    shapes = [site.shape(value) for value in node.inputs]
    if any(shape[:axis] + shape[axis + 1 :] != sizes[:axis] + sizes[axis + 1 :] for shape in shapes):
        return None
    if any(len(shape) != len(sizes) for shape in shapes) or sum(shape[axis] for shape in shapes) != sizes[axis]:
        return None
    is_last = all(site.is_channels_last(value) or all(size == 1 for size in site.shape(value)[2:]) for value in node.inputs)
    is_last = is_last and any(site.is_channels_last(value) for value in node.inputs)
    return Join(tuple(node.inputs), axis, is_last)


@native_step("Gather")
def plan_gather(site: Site) -> Choice | None:
    """Returns the view of one row of a table, whose number is constant. Source: ONNX Gather-13."""
    value, indices = site.node.inputs
    axis = int(site.node.attributes.get("axis", 0)) % max(len(site.shape(value)), 1)
    constant = site.constants.get(indices)
    size = site.shape(value)[axis]
    if value in site.halos or constant is None or constant.size != 1 or constant.ndim > 1 or not -size <= constant.item() < size:
        return None
    index = int(constant.item()) % size
    picked = index if constant.ndim == 0 else slice(index, index + 1)
    # Without the dots a single element would be a number, not a view.
    return Views(value, (lambda array: array[(*(slice(None),) * axis, picked, ...)],))


def _plan_copy(site: Site, value: str, turn: Callable[[Array], Array], shape: tuple[int, ...]) -> Recipe | None:
    """Returns the copy of a turned value into a result in C order, seen in the shape that it is copied in."""
    prototype = site.prototypes[value]
    copy = plan_copy(lay_empty(shape, prototype.dtype), turn(prototype), workers=site.workers)
    if copy is None:
        return None

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        return [copy.bind(writes[0].reshape(shape), turn(reads[0]))]

    return Recipe((value,), bind, kernels=(copy.kernel,))
