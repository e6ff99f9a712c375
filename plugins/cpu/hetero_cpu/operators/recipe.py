"""Recipes: how a group of nodes is computed, before there is memory; and the view of a group that step functions get.

A step function gets a `Site` and returns a recipe, or None when it does not take the group. It sees types, constants and prototypes:
arrays with the shape and the strides that the run will have, in memory that is never touched. `bind` then gets the real arrays and
returns calls. It must not look at their elements, since several instances share a recipe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_core.network.graph import Node
from hetero_core.network.types import TensorType

if TYPE_CHECKING:
    from hetero_cpu.machine.calls import NativeCall
    from hetero_cpu.machine.compiler import Kernel
    from hetero_cpu.operators.groups import Group
    from hetero_cpu.operators.weights import PackedWeights


Array = np.ndarray[Any, Any]
Cut = tuple[slice, ...]
"""An index that picks a part of an array."""
Call = Callable[[], object]
Bind = Callable[[Sequence[Array], Sequence[Array], Array], "Sequence[Call | NativeCall]"]
"""Takes the arrays that are read, the arrays that are written, and bytes to work in; returns the calls of a run, in order."""


@dataclass(frozen=True, slots=True)
class Halo:
    """Rows and columns of zeros around each channel of an image of (batch, channels, height, width)."""

    top: int = 0
    left: int = 0
    bottom: int = 0
    right: int = 0

    def covers(self, other: Halo) -> bool:
        """Says whether there are at least as many zeros on every side."""
        return self.top >= other.top and self.left >= other.left and self.bottom >= other.bottom and self.right >= other.right

    def widen(self, other: Halo) -> Halo:
        """Returns the halo that covers both."""
        return Halo(
            max(self.top, other.top), max(self.left, other.left), max(self.bottom, other.bottom), max(self.right, other.right)
        )


NO_HALO = Halo()


LARGE = 1e18
"""What numbers are less than whose products of two are finite in float32."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What is known of the elements of a value: the least and the largest; whether all are whole numbers, infinite or NaN; whether none
    is NaN; the name of the computed scalar with which they are 0 to 255, if there is one; and whether all are bfloat16."""

    low: float = -inf
    high: float = inf
    is_whole: bool = False
    has_no_nan: bool = False
    shift: str = ""
    is_bfloat16: bool = False

    @property
    def is_fit(self) -> bool:
        """Says whether all are whole numbers that with `find_shift` added are bytes.

        With a larger number its product with the sums of weights would not fit into int32.
        """
        is_bounded = self.is_whole and self.has_no_nan and self.high - min(self.low, 0.0) <= 255 and self.high >= 0
        return is_bounded and not self.shift

    @property
    def is_moderate(self) -> bool:
        """Says whether there is no NaN, and products of two such numbers are finite in float32."""
        return self.has_no_nan and max(-self.low, self.high) < LARGE

    def find_shift(self) -> float:
        """Returns the number that makes bytes of numbers that fit: the least become zeros, so that products of them are small."""
        return -min(self.low, 0.0)


NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Recipe:
    """Arrays in, arrays out. `reads` are values, `scratch` bytes; the group's output may take the place of `reads[i]` for i in
    `overwrites`, if shape, type and order are the same and nothing else that the step reads is in that memory.

    A recipe states its reads and writes, which the verifier of plans relies on: all of `reads`, `reaches` around them, all of the output
    or its `parts`. `overwrites` states that each element is read before it is written, by the same chunk, and not again.
    """

    reads: tuple[str, ...]
    bind: Bind
    scratch: int = 0
    is_channels_last: bool = False
    overwrites: tuple[int, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    """The machine code that `bind` returns calls of; a step that has some writes into any strides, also beside a halo."""
    function_reads: tuple[str, ...] = ()
    """The values whose elements are read by functions that `bind` returns beside calls of machine code. They keep the arrays that they
    were bound to, so these values stay in the arena. Of other arrays a function may use the shape alone."""
    reaches: tuple[Halo, ...] = ()
    """Number of zeros around each image of `reads` that the step reads; empty if it reads no zeros."""
    parts: tuple[Cut, ...] = ()
    """The parts of the output that the step writes; empty if it writes all of it."""


@dataclass(frozen=True, slots=True)
class Views:
    """The outputs are views of a value: nothing is computed. A function for each output of the node, in order."""

    source: str
    make: tuple[Callable[[Array], Array], ...]


@dataclass(frozen=True, slots=True)
class Join:
    """The output is made of its inputs side by side along an axis; the plan lets them be computed in their places if possible."""

    sources: tuple[str, ...]
    axis: int
    is_channels_last: bool


Choice = Recipe | Views | Join


@dataclass(frozen=True, slots=True)
class Site:
    """The view of a group that a step function gets."""

    group: Group
    types: Mapping[str, TensorType]
    constants: Mapping[str, Array]
    prototypes: Mapping[str, Array]
    weights: PackedWeights
    readers: tuple[str, ...] = ()
    """The operators of the nodes that read the outputs; empty if an output leaves the network."""
    halos: Mapping[str, Halo] = field(default_factory=dict)
    """The zeros around values that have some."""
    output_halo: Halo = NO_HALO
    """The zeros around the output if a recipe with kernels makes it channels last."""
    workers: int = 1
    """The threads that machine code may be run by."""
    ranges: Mapping[str, Limits] = field(default_factory=dict)
    """Those of values that have limits."""
    shifts: Mapping[str, float] = field(default_factory=dict)
    """Of whole float32 that are held as bytes: what these are larger by."""

    @property
    def node(self) -> Node:
        """The node that gives the group its operator."""
        return self.group.node

    def shape(self, value: str) -> tuple[int, ...]:
        """Returns the shape of a value of the plan."""
        shape: tuple[int, ...] = self.prototypes[value].shape
        return shape

    def output_shape(self, position: int = 0) -> tuple[int, ...]:
        """Returns the sizes of an output of the group by its type, whose sizes are all known when a step is planned."""
        return tuple(size for size in self.types[self.group.outputs[position]].shape or () if isinstance(size, int))

    def is_float32(self, *values: str) -> bool:
        """Says whether these values are in the plan and float32."""
        return all(value in self.prototypes and self.prototypes[value].dtype == np.float32 for value in values)

    def holds_numbers(self, value: str) -> bool:
        """Says whether a value is in the plan and float32, or held as bytes."""
        return value in self.shifts or self.is_float32(value)

    def constant(self, position: int) -> Array | None:
        """Returns the constant that the node reads at a position; None if the input is absent or computed."""
        inputs = self.node.inputs
        return self.constants.get(inputs[position]) if position < len(inputs) and inputs[position] else None

    def has_input(self, position: int) -> bool:
        """Says whether the node has an input there."""
        return position < len(self.node.inputs) and bool(self.node.inputs[position])

    def is_channels_last(self, value: str) -> bool:
        """Says whether a value lies in memory with the channels of each pixel side by side."""
        return is_channels_last(self.prototypes[value])

    def prepare_model(self) -> Any:
        """Returns the model of the node as the toolkit's kernel prepares it. Raises: ValueError for attributes that make no model."""
        from hetero_core.kernels.registry import TOOLKIT, prepare_node  # the toolkit, which only these models need

        record = TOOLKIT.find(self.node)
        assert record is not None
        return prepare_node(self.node, record, (self.types.get(self.node.inputs[0]),))


def order_axes(rank: int, *, is_channels_last: bool) -> tuple[int, ...]:
    """Returns axes from the slowest to the fastest: channels last for lines, images and volumes if asked for, else C order."""
    return (0, *range(2, rank), 1) if is_channels_last and rank in (3, 4, 5) else tuple(range(rank))


def is_channels_last(array: Array) -> bool:
    """Says whether an array of rank 4 or 5 lies in memory with its channels side by side, and not in C order as well."""
    return array.ndim != 3 and lies_channels_last(array)


def lies_channels_last(array: Array) -> bool:
    """Says what `is_channels_last` says, of a line of rank 3, too."""
    if array.ndim not in (3, 4, 5) or array.size == 0:
        return False
    *outer, channel = (array.strides[axis] for axis in order_axes(array.ndim, is_channels_last=True))
    is_dense = channel == array.itemsize or array.shape[1] == 1
    return is_dense and outer == sorted(outer, reverse=True) and not array.flags.c_contiguous
