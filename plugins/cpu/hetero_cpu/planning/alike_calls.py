"""Calls of steps that share a recipe, made once: what differs from one step to the next are addresses, which know their arrays.

```text
first step:   bind ──> calls ──> for each address: one of the step's arrays and a distance from its begin, or a constant
later steps:  arrays of the same shapes and strides ──> the same numbers, with the addresses of these arrays
```
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.lib.array_utils import byte_bounds

from hetero_cpu.machine.native import Array, NativeCall
from hetero_cpu.planning.addresses import Address
from hetero_cpu.planning.recipe import Call, Recipe


@dataclass(frozen=True, slots=True)
class _Pattern:
    """A call whose number at `place` is the begin of array `index` and a `distance`, for each of `addresses`."""

    call: NativeCall
    addresses: tuple[tuple[int, int, int], ...]


class AlikeCalls:
    """The calls of the recipes of one instance, whose steps run in order."""

    __slots__ = ("_bound", "_patterns")

    def __init__(self) -> None:
        self._bound: dict[tuple[Any, ...], tuple[Sequence[Call | NativeCall], list[Array]]] = {}
        self._patterns: dict[tuple[Any, ...], tuple[_Pattern, ...] | None] = {}

    def bind(self, recipe: Recipe, reads: list[Array], writes: list[Array], scratch: Array) -> Sequence[Call | NativeCall]:
        """Returns `recipe.bind(reads, writes, scratch)`, or calls that are equal to these."""
        if recipe.calls_functions:
            return recipe.bind(reads, writes, scratch)
        arrays = [*reads, *writes, scratch]
        begins = [array.__array_interface__["data"][0] for array in arrays]
        layout = tuple([(array.shape, array.strides) for array in arrays])
        # Arrays with one begin may be told from each other by nobody.
        key = (recipe.bind, layout, tuple([begins.index(begin) for begin in begins]))
        earlier = self._bound.get(key)
        if earlier is None:
            calls = recipe.bind(reads, writes, scratch)
            self._bound[key] = calls, arrays
            return calls
        if key not in self._patterns:
            self._patterns[key] = _find_patterns(*earlier)
        patterns = self._patterns[key]
        if patterns is None:
            return recipe.bind(reads, writes, scratch)
        return [_repeat(pattern, arrays, begins) for pattern in patterns]


def _repeat(pattern: _Pattern, arrays: list[Array], begins: list[int]) -> NativeCall:
    call = pattern.call
    numbers = list(call.numbers)
    for place, index, distance in pattern.addresses:
        numbers[place] = address = int.__new__(Address, begins[index] + distance)
        address.array = arrays[index]
    return NativeCall(call.kernel, tuple(numbers), call.chunks, (*call.keep, *arrays))


def _find_patterns(calls: Sequence[Call | NativeCall], arrays: list[Array]) -> tuple[_Pattern, ...] | None:
    """Returns the calls as patterns; None if one is a function, or an address is in two of the arrays, which begin apart."""
    bounds = [byte_bounds(array) for array in arrays]
    begins = [array.__array_interface__["data"][0] for array in arrays]
    patterns: list[_Pattern] = []
    for call in calls:
        if not isinstance(call, NativeCall):
            return None
        addresses: list[tuple[int, int, int]] = []
        for place, number in enumerate(call.numbers):
            if not isinstance(number, Address):
                continue
            begin = number.array.__array_interface__["data"][0]
            owners = [index for index, (low, high) in enumerate(bounds) if low <= begin < high]
            if len({begins[index] for index in owners}) > 1:
                return None
            if owners:
                addresses.append((place, owners[0], int(number) - begins[owners[0]]))
        patterns.append(_Pattern(call, tuple(addresses)))
    return tuple(patterns)
