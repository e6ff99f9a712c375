"""Bytes of arrays whose sizes are symbols, and claims about them: two are apart, one lies in another, they are the same.

A claim has *ways*: lists of sums that, at least zero, prove it. Where no way is proven it is computed with numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero_cpu.open.arrays import OpenArray
from hetero_cpu.open.prover import Prover, Values
from hetero_cpu.open.sizes import terms_of
from hetero_cpu.open.terms import Terms, add, evaluate, multiply
from hetero_cpu.planning.byte_runs import Runs, intersect, join_runs, list_runs, subtract

Way = tuple[Terms, ...]
_MOST_RUNS = 1 << 20


@dataclass(frozen=True, slots=True)
class Box:
    """Stretches of `nbytes` that lie in a grid: from `begin` on, each axis a size and a stride in bytes."""

    begin: Terms
    axes: tuple[tuple[Terms, Terms], ...]
    nbytes: Terms

    @property
    def end(self) -> Terms:
        """Where the last byte ends."""
        total = add(self.begin, self.nbytes)
        for size, stride in self.axes:
            total = add(total, multiply(add(size, {(): -1}), stride))
        return total


@dataclass(frozen=True, slots=True, eq=False)
class Claim:
    """A statement about a plan: at which step, on which value, what is wrong where it does not hold; `holds` computes it with numbers.

    `holds` returns None where there are too many bytes to look at.
    """

    step: str
    value: str
    problem: str
    ways: tuple[Way, ...]
    holds: Callable[[Values], bool | None]
    is_computed: bool = False
    """Whether a function decides about it, so that there is nothing to prove."""


def box_of(array: OpenArray, begin: Any = None) -> Box:
    """Returns the bytes of an array."""
    axes = tuple((terms_of(size), terms_of(stride)) for size, stride in zip(array.shape, array.strides, strict=True))
    return Box(terms_of(array.address if begin is None else begin), axes, {(): array.itemsize})


def make_box(begin: Any, axes: Sequence[tuple[Any, Any]], nbytes: Any) -> Box:
    """Returns a box of numbers or symbols."""
    return Box(terms_of(begin), tuple((terms_of(size), terms_of(stride)) for size, stride in axes), terms_of(nbytes))


def order_axes(prover: Prover, box: Box) -> Box:
    """Returns a box without axes of one element, from the largest stride of the example to the least."""
    example = prover.samples[0]
    axes = [(prover.simplify(size), prover.simplify(stride)) for size, stride in box.axes]
    axes = [axis for axis in axes if axis[0] != {(): 1} and axis[1]]
    axes.sort(key=lambda axis: -evaluate(axis[1], example))
    return Box(prover.simplify(box.begin), tuple(axes), prover.simplify(box.nbytes))


def merge_axes(prover: Prover, box: Box) -> Box:
    """Returns the same bytes with as few axes as there can be: what lies side by side is one stretch."""
    axes: list[tuple[Terms, Terms]] = []
    nbytes = box.nbytes
    for size, stride in reversed(box.axes):
        if not axes and prover.is_same(stride, nbytes):
            nbytes = prover.simplify(multiply(size, stride))
        elif axes and prover.is_same(stride, multiply(*axes[-1])):
            axes[-1] = prover.simplify(multiply(size, axes[-1][0])), axes[-1][1]
        else:
            axes.append((size, stride))
    return Box(box.begin, tuple(reversed(axes)), nbytes)


def find_runs(box: Box, values: Values) -> Runs | None:
    """Returns the bytes of a box for one set of sizes; None where they are too many runs."""
    sizes, strides = ([evaluate(axis[part], values) for axis in box.axes] for part in (0, 1))
    nbytes, begin = evaluate(box.nbytes, values), evaluate(box.begin, values)
    count, length = 1, nbytes
    for stride, size in sorted(zip(strides, sizes, strict=True)):
        if count == 1 and stride == length:
            # It lies side by side with what is counted.
            length *= size
        else:
            count *= size
    if count > _MOST_RUNS:
        return None
    if min(sizes, default=1) <= 0 or nbytes <= 0:
        return join_runs(np.zeros(0, np.int64), np.zeros(0, np.int64))
    return list_runs(begin, [*sizes, nbytes], [*strides, 1], 1)


def list_ways_apart(prover: Prover, first: Box, second: Box) -> Iterator[Way]:
    """Yields ways to show that two boxes share no byte: one ends before the other, or they lie side by side in each line of one grid."""
    example = prover.samples[0]
    ordered = order_axes(prover, first), order_axes(prover, second)
    if evaluate(first.begin, example) > evaluate(second.begin, example):
        ordered = ordered[1], ordered[0]
    merged = merge_axes(prover, ordered[0]), merge_axes(prover, ordered[1])
    yield (add(merged[1].begin, merged[0].end, -1),)
    yield (add(merged[0].begin, merged[1].end, -1),)
    for lower, upper in (merged, ordered):
        shift = add(upper.begin, lower.begin, -1)
        nested: list[Terms] = []
        for depth, (own, its) in enumerate(zip(lower.axes, upper.axes, strict=False)):
            if not prover.is_same(own[1], its[1]):
                break
            if depth:
                outer = lower.axes[depth - 1][1]
                nested += [add(outer, multiply(size, own[1]), -1) for size in (own[0], its[0])]
            inner = [Box({}, box.axes[depth + 1 :], box.nbytes).end for box in (lower, upper)]
            yield (*nested, add(shift, inner[0], -1), add(add(own[1], shift, -1), inner[1], -1))


def list_ways_inside(prover: Prover, inner: Box, outer: Box) -> Iterator[Way]:
    """Yields ways to show that one box lies in another one: in one stretch, or with the same strides and no longer axes."""
    pairs = [tuple(merge_axes(prover, order_axes(prover, box)) for box in (inner, outer))]
    pairs.append(tuple(order_axes(prover, box) for box in (inner, outer)))
    for own, around in pairs:
        if len(around.axes) > len(own.axes):
            continue
        same = list(zip(own.axes, around.axes, strict=False))
        if not all(prover.is_same(axis[1], other[1]) for axis, other in same):
            continue
        shift = add(own.begin, around.begin, -1)
        extent = Box({}, own.axes[len(around.axes) :], own.nbytes).end
        longer = [add(other[0], axis[0], -1) for axis, other in same]
        yield (*longer, shift, add(add(around.nbytes, shift, -1), extent, -1))


def list_ways_same(prover: Prover, first: Box, second: Box) -> Iterator[Way]:
    """Yields ways to show that two boxes are the same bytes."""
    ordered = [order_axes(prover, box) for box in (first, second)]
    for one, other in ([merge_axes(prover, box) for box in ordered], ordered):
        if len(one.axes) == len(other.axes):
            pairs = [(one.begin, other.begin), (one.nbytes, other.nbytes)]
            for axis, its in zip(one.axes, other.axes, strict=True):
                pairs += zip(axis, its, strict=True)
            yield tuple(terms for left, right in pairs for terms in (add(left, right, -1), add(right, left, -1)) if terms)


def claim_apart(prover: Prover, step: str, value: str, problem: str, first: Box, second: Box) -> Claim:
    """Returns the claim that two boxes share no byte."""

    def holds(values: Values) -> bool | None:
        runs = find_runs(first, values), find_runs(second, values)
        return None if runs[0] is None or runs[1] is None else not intersect(runs[0], runs[1]).count

    return Claim(step, value, problem, tuple(list_ways_apart(prover, first, second)), holds)


def claim_inside(prover: Prover, step: str, value: str, problem: str, inner: Box, outer: Box) -> Claim:
    """Returns the claim that a box lies in another one."""

    def holds(values: Values) -> bool | None:
        runs = find_runs(inner, values), find_runs(outer, values)
        return None if runs[0] is None or runs[1] is None else not subtract(runs[0], runs[1]).count

    return Claim(step, value, problem, tuple(list_ways_inside(prover, inner, outer)), holds)


def claim_same(prover: Prover, step: str, value: str, problem: str, first: Box, second: Box) -> Claim:
    """Returns the claim that two boxes are the same bytes."""

    def holds(values: Values) -> bool | None:
        runs = find_runs(first, values), find_runs(second, values)
        if runs[0] is None or runs[1] is None:
            return None
        return not subtract(runs[0], runs[1]).count and not subtract(runs[1], runs[0]).count

    return Claim(step, value, problem, tuple(list_ways_same(prover, first, second)), holds)


def claim_all(step: str, value: str, problem: str, sums: Sequence[Any]) -> Claim:
    """Returns the claim that numbers are at least zero."""
    terms = tuple(map(terms_of, sums))
    return Claim(step, value, problem, (terms,), lambda values: all(evaluate(own, values) >= 0 for own in terms))
