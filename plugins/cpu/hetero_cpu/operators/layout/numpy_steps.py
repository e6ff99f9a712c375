"""Steps that move or rename elements: views where NumPy has one, copies where it has not, Concat in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod

import numpy as np

from hetero_cpu.planning.recipe import Array, Call, Choice, Join, Recipe, Site, Views, step

_PRODUCTS = frozenset({"Attention", "MatMul", "Transpose"})


@step("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity")
def plan_reshape(site: Site) -> Choice | None:
    """Returns a view of the same elements in another shape, a copy in C order where they do not lie so."""
    value, shape = site.node.inputs[0], site.output_shape()
    prototype = site.prototypes[value]
    if prototype.size != prod(shape):
        return None
    if np.may_share_memory(prototype.reshape(shape), prototype):
        return Views(value, (lambda array: array.reshape(shape),))

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[Call]:
        return [partial(np.copyto, writes[0].reshape(reads[0].shape), reads[0])]

    return Recipe((value,), bind, calls_blas=False)


@step("Transpose")
def plan_transpose(site: Site) -> Choice | None:
    """Returns a view where only matrix products read it, which take any order; a copy elsewhere."""
    (value,) = site.node.inputs
    perm = site.node.attributes.get("perm") or tuple(reversed(range(len(site.shape(value)))))
    if sorted(perm) != list(range(len(site.shape(value)))):
        return None  # the kernel of the toolkit says what is wrong
    turn: Callable[[Array], Array] = lambda array: array.transpose(perm)  # noqa: E731 - one function for both branches
    if value in site.constants or (site.readers and all(reader in _PRODUCTS for reader in site.readers)):
        return Views(value, (turn,))

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[Call]:
        return [partial(np.copyto, writes[0], turn(reads[0]))]

    return Recipe((value,), bind, calls_blas=False)


@step("Split")
def plan_split(site: Site) -> Choice | None:
    """Returns a view for each part."""
    value = site.node.inputs[0]
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


@step("Slice")
def plan_slice(site: Site) -> Choice | None:
    """Returns a view. Source: ONNX Slice-13; before 10 the bounds were attributes, which are left to the toolkit."""
    node = site.node
    bounds = [site.constant(position) for position in range(1, len(node.inputs))]
    if node.since_version < 10 or any(bound is None and name for bound, name in zip(bounds, node.inputs[1:], strict=True)):
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


@step("Concat")
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


@step("Gather")
def plan_gather(site: Site) -> Choice | None:
    """Returns rows of a table, or one of them as a view. Source: ONNX Gather-13."""
    value, indices = site.node.inputs
    axis = int(site.node.attributes.get("axis", 0)) % max(len(site.shape(value)), 1)
    constant = site.constants.get(indices)
    size = site.shape(value)[axis]
    if constant is None or constant.size != 1 or constant.ndim > 1 or not -size <= constant.item() < size:
        return None
    index = int(constant.item()) % size
    picked = index if constant.ndim == 0 else slice(index, index + 1)
    # Without the dots a single element would be a number, not a view.
    return Views(value, (lambda array: array[(*(slice(None),) * axis, picked, ...)],))
