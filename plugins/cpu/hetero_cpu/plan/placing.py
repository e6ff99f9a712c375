"""Placing: each value of a plan gets a block of its own, a view of another value, a piece of a concatenation, or the memory of an operand.

A placed value has a prototype, an array of the same strides without memory, for the steps that read it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from hetero_core.dtypes import numpy_dtype
from hetero_core.kernels.windows import AUTO_PADS, lay_windows
from hetero_core.network.graph import Network, Node
from hetero_core.network.types import TensorType, sizes_of
from hetero_cpu.machine.compiler import find_width
from hetero_cpu.operators.groups import Group
from hetero_cpu.operators.images import find_overhang
from hetero_cpu.operators.recipe import NO_HALO, Cut, Halo, Join, Recipe, Views, is_channels_last, order_axes
from hetero_cpu.operators.winograd import choose_winograd
from hetero_cpu.plan.plan import Block, Derived, keep, take_cut
from hetero_cpu.symbols.arrays import lay_empty
from hetero_cpu.symbols.sizes import Scope, value_of

Array = Any

_MOST_MOVED = 256
"""Values of a block that may become a piece of another block: each is laid anew, once for every move."""


# Plain images have few channels; an input with more comes from another part of a network, and a convolution wants it channels last.
_FEWEST_CHANNELS = 8
_READERS = frozenset({"Conv", "MaxPool", "AveragePool", "GlobalAveragePool"})


def wants_channels_last(network: Network, value: str, value_type: TensorType) -> bool:
    """Says whether an input is an image of many channels that a convolution or a pooling reads."""
    shape = value_type.shape or ()
    if len(shape) != 4 or not isinstance(shape[1], int) or shape[1] < _FEWEST_CHANNELS:
        return False
    readers = [network.nodes[index] for index in network.index_of_consumers.get(value, ())]
    return any(reader.op_type in _READERS for reader in readers)


def can_stand_for(piece: Array, array: Array) -> bool:
    """Says whether steps that were planned for an array may be bound to a piece of the same shape instead.

    Elements lie at the same distances, or the array is an image channels last, with pixels farther apart, all at the same distance.
    """
    if all(piece.strides[axis] == array.strides[axis] for axis, size in enumerate(array.shape) if size > 1):
        return True
    if not is_channels_last(array) or piece.strides[1] != array.strides[1]:
        return False
    outer = (0, *range(2, array.ndim - 1))
    return all(piece.strides[axis] * array.strides[-1] == array.strides[axis] * piece.strides[-1] for axis in outer)


def copy_pieces(output: Array, pieces: Sequence[tuple[str, Cut]], prototypes: Mapping[str, Array], *, workers: int) -> Recipe:
    """Returns the recipe that copies each source into its cut of `output`; by machine code if it takes them all, else by NumPy."""
    sources, cuts = zip(*pieces, strict=True)
    if len(set(sources)) == len(sources):
        from hetero_cpu.operators.layout import plan_pieces  # LLVM

        recipe = plan_pieces(output, cuts, {source: prototypes[source] for source in sources}, workers=workers)
        if recipe is not None:
            return recipe

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[Any]:
        return [partial(np.copyto, writes[0][cut], array) for cut, array in zip(cuts, reads, strict=True)]

    return Recipe(sources, bind, parts=cuts)


_POOLS = frozenset({"AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool"})


class HaloTable:
    """The halo of each value, found when it is asked for."""

    def __init__(self, network: Network, types: Mapping[str, TensorType], groups: Sequence[Group]) -> None:
        self._network, self._types, self._width = network, types, find_width()
        self._group_of_node = {node.name: group for group in groups for node in group.members}
        self._halos: dict[str, Halo | None] = {}

    def find(self, value: str) -> Halo | None:
        """Returns the zeros that the readers of a value want around it; None if a reader could not read the value then."""
        if value not in self._halos:
            self._halos[value] = self._widen(value)
        return self._halos[value]

    def _widen(self, value: str) -> Halo | None:
        network, value_type = self._network, self._types.get(value)
        is_image = value_type is not None and value_type.dtype == "float32" and len(value_type.shape or ()) == 4
        if not is_image or value in network.names_of_outputs:
            return None
        halo = NO_HALO
        for index in network.index_of_consumers.get(value, ()):
            read_halo = self._ask(network.nodes[index], value)
            if read_halo is None:
                return None
            halo = halo.widen(read_halo)
        return halo

    def _ask(self, node: Node, value: str) -> Halo | None:
        group = self._group_of_node[node.name]
        anchor = group.node
        if anchor.domain:
            return None
        if anchor.op_type == "Conv":
            if value in anchor.inputs[1:]:
                return None
            return self._read_convolution(anchor) if value == anchor.inputs[0] else NO_HALO
        if anchor.op_type in _POOLS and not group.epilogue and len(anchor.writes) == 1:
            return NO_HALO
        if anchor.op_type == "Concat" and anchor.attributes.get("axis") in (1, -3):
            return self.find(anchor.outputs[0])
        return None

    def _read_convolution(self, node: Node) -> Halo | None:
        x, w = (sizes_of(self._types.get(name)) or () for name in node.inputs[:2])
        auto_pad = node.attributes.get("auto_pad", "NOTSET")
        if len(x) != 4 or len(w) != 4 or auto_pad not in AUTO_PADS:
            return None
        pads, strides, dilations = (node.attributes.get(name) for name in ("pads", "strides", "dilations"))
        try:
            windows = lay_windows(x[2:], w[2:], auto_pad=auto_pad, pads=pads, strides=strides, dilations=dilations)
        except (ValueError, TypeError):  # the step functions refuse it as well
            return None
        group = int(node.attributes.get("group", 1))
        return find_overhang(windows, choose_winograd(windows, channels=x[1], outputs=w[0], group=group, width=self._width))


FEWEST_BYTES = 1 << 16
"""Of a value that may lie outside: from there on a copy costs more than to change addresses, some microseconds."""


@dataclass(slots=True, eq=False)
class ValuePlacer:
    """The values that are placed so far."""

    network: Network
    types: Mapping[str, TensorType]
    constants: dict[str, Array]
    wanted_halos: HaloTable
    scope: Scope | None
    """The scope of symbols; None if all sizes are plain numbers."""
    moment: int = 1
    """When the next step writes; inputs are copied in at 0."""
    halos: dict[str, Halo] = field(default_factory=dict)
    places: dict[str, Block | Derived] = field(default_factory=dict)
    prototypes: dict[str, Array] = field(default_factory=dict)
    first_write: dict[str, int] = field(default_factory=dict)
    readers_left: dict[str, int] = field(default_factory=dict)
    """How many nodes still read each value, plus 1 for an output, which is never dead."""
    fixed: set[str] = field(default_factory=set)
    """The blocks that may be read at any time, by their first values."""
    _root_of_value: dict[str, str] = field(default_factory=dict)
    _values_of_root: dict[str, list[str]] = field(default_factory=dict)
    """The values in each block, each after the value that it is derived from."""
    _readers_of_root: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        reads = (value for node in self.network.nodes for value in node.reads)
        self.readers_left = Counter(chain(reads, self.network.names_of_outputs))
        self.prototypes.update({name: array for name, array in self.constants.items() if name in self.types})
        for spec in self.network.inputs:
            if spec.name in self.types:
                self.place(spec.name, is_channels_last=wants_channels_last(self.network, spec.name, self.types[spec.name]))

    def note_readers(self, group: Group) -> None:
        """Says that a group is planned."""
        for value in group.reads:
            count = group.count_readers(value)
            self.readers_left[value] -= count
            if (root := self.find_root(value)) is not None:
                self._readers_of_root[root] -= count

    def find_root(self, value: str) -> str | None:
        """Returns the first value of the block that holds a value; None for constants and for values that are passed on by name."""
        return self._root_of_value.get(value)

    def fix(self, values: Collection[str]) -> None:
        """Notes that the blocks of these values may be read at any time."""
        self.fixed.update(root for value in values if (root := self.find_root(value)) is not None)

    def find_halo(self, value: str) -> Halo:
        """Returns the zeros around the images of a value that its readers want."""
        return self.wanted_halos.find(value) or NO_HALO

    def place(self, value: str, *, is_channels_last: bool, halo: Halo = NO_HALO) -> None:
        """Gives a value a block of its own."""
        has_halo = halo is not NO_HALO and halo != NO_HALO
        value_type = self.types[value]
        assert value_type.dtype is not None
        shape = tuple([size for size in value_type.shape or () if isinstance(size, int)])
        order = order_axes(len(shape), is_channels_last=is_channels_last)
        block = Block(shape, np.dtype(numpy_dtype(value_type.dtype)), order, halo if has_halo else NO_HALO)
        self.places[value] = block
        self._root_of_value[value] = value
        self._values_of_root[value] = [value]
        self._readers_of_root[value] = self.readers_left.get(value, 0)
        if has_halo:
            self.halos[value] = halo
        # NumPy gives an array without elements strides of 0; a block has the strides of its sizes, as the array in the arena.
        is_plain = not has_halo and not is_channels_last and 0 not in shape
        lay: Any = np.empty if self.scope is None else lay_empty  # without symbols no size is looked at
        self.prototypes[value] = lay(shape, block.dtype) if is_plain else block.lay(lay((block.nbytes,), np.uint8))
        self.first_write[value] = 0 if value in self.network.index_of_input else self.moment

    def add_views(self, group: Group, choice: Views) -> None:
        """Makes the outputs of a group views of its source."""
        for value, make in zip(group.outputs, choice.make, strict=False):
            if not value:
                continue
            view = make(self.prototypes[choice.source])
            self.prototypes[value] = view
            if choice.source in self.constants:
                self.constants[value] = view
            else:
                self._add_view(value, choice.source, make)

    def _add_view(self, value: str, source: str, make: Callable[[Array], Array]) -> None:
        """Puts a value into the memory of its source."""
        place = self.places.get(source)
        if make is keep and isinstance(place, Derived) and place.make is keep:
            # A chain of values in the same memory is as deep as a single value.
            source = place.source
        self.places[value] = Derived(source, make)
        root = self.find_root(source)
        if root is not None:
            self._root_of_value[value] = root
            self._values_of_root[root].append(value)
            self._readers_of_root[root] += self.readers_left.get(value, 0)

    def place_outputs(self, group: Group, recipe: Recipe) -> tuple[str, ...]:
        """Places the outputs of a recipe, over an operand that is not read later if possible; returns the values."""
        outputs = tuple(filter(None, group.outputs))
        target = self._find_overwritten(group, recipe)
        if target is None:
            for value in outputs:
                halo = self.find_halo(value) if recipe.kernels and recipe.is_channels_last else NO_HALO
                self.place(value, is_channels_last=recipe.is_channels_last, halo=halo)
        else:
            self._add_view(outputs[0], target, keep)
            self.prototypes[outputs[0]] = self.prototypes[target]
            if target in self.halos:
                self.halos[outputs[0]] = self.halos[target]
        return outputs

    def place_join(self, output: str, join: Join) -> list[tuple[str, Cut]]:
        """Places a concatenation, and its sources inside it if possible; returns the sources to copy, each with its target."""
        halo = self.find_halo(output) if join.is_channels_last and join.axis == 1 else NO_HALO
        self.place(output, is_channels_last=join.is_channels_last, halo=halo)
        begin, copied = 0, []
        for source in join.sources:
            size = self.prototypes[source].shape[join.axis]
            cut = (slice(None),) * join.axis + (slice(begin, begin + size),)
            begin += size
            root = self._find_movable(source, output, cut)
            if root is None:
                copied.append((source, cut))
            else:
                self._move(root, output, cut)
        return copied

    def find_spans(self, values: set[str], last_read: Mapping[str, int], end: int) -> dict[str, tuple[int, int]]:
        """Returns the first and the last moment of each block, of the values that need one."""
        spans: dict[str, tuple[int, int]] = {}
        for value in self.places:
            root = self.find_root(value)
            if root is None or value not in values:
                continue
            begin, last = spans.get(root, (end, 0))
            written = self.first_write.get(value, end)
            spans[root] = (min(begin, written), max(last, last_read.get(value, 0), written if written < end else 0))
        return spans

    def _find_overwritten(self, group: Group, recipe: Recipe) -> str | None:
        """Returns the value that the output overwrites; None if the output gets memory of its own."""
        if not recipe.overwrites:
            return None
        (output,) = group.outputs[:1]
        output_type = self.types[output]
        for position in recipe.overwrites:
            value = recipe.reads[position]
            own_type = self.types.get(value)
            if value in self.constants or not (own_type is output_type or own_type == output_type) or self._is_read_in_place(value):
                continue
            if is_channels_last(self.prototypes[value]) != recipe.is_channels_last and self.prototypes[value].ndim in (4, 5):
                continue
            halo = self.find_halo(output) if recipe.kernels else NO_HALO
            # A second operand in the same memory would be read after it was overwritten.
            is_read_once = [self.find_root(read) for read in recipe.reads].count(self.find_root(value)) == 1
            if self.halos.get(value, NO_HALO) == halo and is_read_once and self._is_dead(value, group):
                return value
        return None

    def _is_read_in_place(self, value: str) -> bool:
        """Says whether a value is in the memory of an input that machine code may read in the caller's memory."""
        root = self.find_root(value)
        if root is None or root not in self.network.index_of_input:
            return False
        return value_of(self.prototypes[root].nbytes) >= FEWEST_BYTES

    def _is_dead(self, value: str, group: Group) -> bool:
        """Says whether nothing that shares memory with a value is read after this group, and all of that memory is the value."""
        root = self.find_root(value)
        if root is None or self.prototypes[root].nbytes != self.prototypes[value].nbytes:
            return False
        # A foreign step may have passed on a view of its input by name.
        read_here = {name: group.count_readers(name) for name in group.reads if self.find_root(name) == root}
        return root not in self.fixed and self._readers_of_root[root] == sum(read_here.values())

    def _find_movable(self, source: str, output: str, cut: Cut) -> str | None:
        """Returns the root of a block that may become a piece of a result: all planned steps can be bound to it there."""
        root = self.find_root(source)
        if root is None or root == output or len(self._values_of_root[root]) > _MOST_MOVED or self._is_read_in_place(source):
            return None
        blocks = [place for place in (self.places[root], self.places[output]) if isinstance(place, Block)]
        # All values in the block must have its shape and strides: a reshaped or turned view could not follow.
        prototype = self.prototypes[root]
        followers = [self.prototypes[name] for name in self._values_of_root[root]]
        same = all((follower.shape, follower.strides) == (prototype.shape, prototype.strides) for follower in followers)
        is_alike = len({(block.order, block.dtype, block.halo) for block in blocks}) == 1
        return root if same and is_alike and can_stand_for(self.prototypes[output][cut], prototype) else None

    def _move(self, root: str, output: str, cut: Cut) -> None:
        """Puts a block, with all its values, into a piece of the output's block."""
        self.places[root] = Derived(output, partial(take_cut, cut=cut))
        moved = self._values_of_root.pop(root)
        self._values_of_root[output] += moved
        self._readers_of_root[output] += self._readers_of_root.pop(root)
        if root in self.fixed:
            self.fixed.add(output)
        for name in moved:
            self._root_of_value[name] = output
            place = self.places[name]
            assert isinstance(place, Derived)
            self.prototypes[name] = place.make(self.prototypes[place.source])
