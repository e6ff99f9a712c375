"""Arithmetic and activations element by element; the result keeps the order in memory of what is read, and may lie over it."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from hetero_cpu.operators.elementwise.activations import BINDERS, NEEDS_SPARE
from hetero_cpu.operators.elementwise.bare_calls import bind_elements, flatten_memory, unite
from hetero_cpu.planning.recipe import Array, Call, Choice, Recipe, Site, step

_BINARY: dict[str, Any] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Max": np.maximum,
    "Min": np.minimum,
}
_UNARY: dict[str, Any] = {
    "Abs": np.abs,
    "Exp": np.exp,
    "Log": np.log,
    "Neg": np.negative,
    "Sqrt": np.sqrt,
    "Reciprocal": np.reciprocal,
}
# Elements that an activation of several calls works on at a time, so that they stay in the nearest cache.
_STRIP = 1 << 14
# Bytes of a result up to which a constant is written out in its shape: that broadcasting takes longer than reading this is sure.
_MOST_WIDENED = 1 << 14


def _order_of(site: Site, values: Sequence[str]) -> bool | None:
    """Says whether the result is to lie channels last; None where it has another shape than all that is read."""
    shape = site.types[site.node.outputs[0]].shape
    full = [value for value in values if site.shape(value) == shape and value not in site.constants]
    return any(site.is_channels_last(value) for value in full) if full else None


@step(*_BINARY, "Sum")
def plan_binary(site: Site) -> Choice | None:
    """Returns the recipe of arithmetic on two or more inputs."""
    node, values = site.node, site.node.inputs
    is_old = node.since_version < (8 if node.op_type in ("Sum", "Max", "Min") else 7)
    if is_old or len(values) < 2 or not site.is_float32(*values) or node.attributes:
        return None
    is_last = _order_of(site, values)
    shape = site.output_shape()
    function = _BINARY.get(node.op_type, np.add)
    widened = {value: _widen(site, value, shape) for value in values if _is_worth_widening(site, value, shape)}

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[Call]:
        (y,) = writes
        first, *others = (widened.get(value, array) for value, array in zip(values, reads, strict=True))
        calls: list[Call] = []
        for other in others:
            calls.append(bind_elements(function, first, other, out=y))
            first = y
        return calls

    # Of more than two, the third is read when the first sum is there: only the first two may be written over.
    overwrites = tuple(position for position, value in enumerate(values[:2]) if site.shape(value) == shape)
    return Recipe(tuple(values), bind, is_channels_last=bool(is_last), overwrites=overwrites, calls_blas=False)


@step(*_UNARY)
def plan_unary(site: Site) -> Choice | None:
    """Returns the recipe of one function of NumPy."""
    (value,) = site.node.inputs
    if not site.is_float32(value) or site.node.attributes:
        return None
    function = _UNARY[site.node.op_type]

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[Call]:
        return [bind_elements(function, reads[0], out=writes[0])]

    return Recipe((value,), bind, is_channels_last=site.is_channels_last(value), overwrites=(0,), calls_blas=False)


@step(*BINDERS)
def plan_activation(site: Site) -> Choice | None:
    """Returns the recipe of an activation, in strips where it is made of several calls."""
    node = site.node
    value = node.inputs[0]
    if not site.is_float32(value) or any(name and name not in site.constants for name in node.inputs[1:]):
        return None
    needs_spare = node.op_type in NEEDS_SPARE
    size = site.prototypes[value].size

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[Call]:
        x, y = (flatten_memory(array) for array in (reads[0], writes[0]))
        spare = scratch.view(np.float32) if needs_spare else y
        if x.ndim != 1 or y.ndim != 1 or reads[0].strides != writes[0].strides:
            x, y = unite(reads[0], writes[0]), writes[0]
            return BINDERS[node.op_type](node, site.constants, x, y, spare[:size].reshape(x.shape) if needs_spare else y)
        strip = _STRIP if node.op_type not in ("Relu", "Clip") else size
        calls: list[Call] = []
        for begin in range(0, size, strip):
            result = y[begin : begin + strip]
            part = unite(x[begin : begin + strip], result)
            calls += BINDERS[node.op_type](node, site.constants, part, result, spare[: part.size] if needs_spare else result)
        return calls

    scratch = size * 4 if needs_spare else 0
    return Recipe((value,), bind, scratch, is_channels_last=site.is_channels_last(value), overwrites=(0,), calls_blas=False)


def _is_worth_widening(site: Site, value: str, shape: tuple[int, ...]) -> bool:
    if value not in site.constants or not 1 < site.constants[value].size < prod(shape) <= _MOST_WIDENED // 4:
        return False
    own = site.constants[value].shape
    # Sizes that do not fit are the operator's to refuse, when it runs.
    return len(own) <= len(shape) and all(size in (1, whole) for size, whole in zip(own[::-1], shape[::-1], strict=False))


def _widen(site: Site, value: str, shape: tuple[int, ...]) -> Array:
    def write_out(array: Array) -> Array:
        return np.ascontiguousarray(np.broadcast_to(array, shape))

    return site.weights.pack((site.constants[value],), ("widened", shape), write_out)
