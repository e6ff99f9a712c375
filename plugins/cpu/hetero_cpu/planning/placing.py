"""Placing: each value of a plan gets a block of its own, a view of another value, a piece of a concatenation, or the memory of an operand.

What is placed has a prototype, an array of the same strides without memory, for the steps that read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from hetero_core.network.graph import Network
from hetero_core.network.types import TensorType
from hetero_cpu.open.arrays import lay_empty
from hetero_cpu.open.sizes import Scope, value_of
from hetero_cpu.planning.fusion import Group
from hetero_cpu.planning.halos import HaloTable
from hetero_cpu.planning.input_order import wants_channels_last
from hetero_cpu.planning.outside import FEWEST_BYTES
from hetero_cpu.planning.pieces import can_stand_for
from hetero_cpu.planning.places import Places
from hetero_cpu.planning.plan import Block, Derived, Joined, Piece, keep, take_cut
from hetero_cpu.planning.recipe import NO_HALO, Array, Cut, Halo, Join, Recipe, Views, is_channels_last


@dataclass(slots=True, eq=False)
class ValuePlacer:
    """The values that are placed so far."""

    network: Network
    types: Mapping[str, TensorType]
    constants: dict[str, Array]
    wanted_halos: HaloTable
    scope: Scope | None
    """That of the symbols where sizes are some."""
    moment: int = 1
    """When the next step writes; inputs are copied in at 0."""
    halos: dict[str, Halo] = field(default_factory=dict)
    memory: Places = field(init=False)
    prototypes: dict[str, Array] = field(default_factory=dict)
    first_write: dict[str, int] = field(default_factory=dict)
    readers_left: dict[str, int] = field(default_factory=dict)
    """How many nodes still read each value, and one more for an output, which is never dead."""
    joins: dict[str, Joined] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.memory = Places(self.readers_left)
        for node in self.network.nodes:
            for value in node.reads:
                self.readers_left[value] = self.readers_left.get(value, 0) + 1
        for value in self.network.names_of_outputs:
            self.readers_left[value] = self.readers_left.get(value, 0) + 1
        for name, array in self.constants.items():
            if name in self.types:
                self.prototypes[name] = array
        for spec in self.network.inputs:
            if spec.name in self.types:
                self.place(spec.name, is_channels_last=wants_channels_last(self.network, spec.name, self.types[spec.name]))

    @property
    def places(self) -> dict[str, Block | Derived]:
        """Value -> place."""
        return self.memory.places

    def note_readers(self, group: Group) -> None:
        """Says that a group is planned."""
        for value in group.reads:
            count = group.count_readers(value)
            self.readers_left[value] -= count
            self.memory.note_reads(value, count)

    def find_halo(self, value: str) -> Halo:
        """Returns the zeros around the images of a value that its readers want."""
        return self.wanted_halos.find(value)

    def place(self, value: str, *, is_channels_last: bool, halo: Halo = NO_HALO) -> None:
        """Gives a value a block of its own."""
        has_halo = halo is not NO_HALO and halo != NO_HALO
        block = self.memory.lay_block(
            value, self.types[value], is_channels_last=is_channels_last, halo=halo if has_halo else NO_HALO
        )
        shape = block.shape
        if has_halo:
            self.halos[value] = halo
        # NumPy gives an array without elements strides of 0; a block has those of its sizes, which the array in the arena has, too.
        is_plain = not has_halo and not is_channels_last and 0 not in shape
        lay: Any = np.empty if self.scope is None else lay_empty  # where no size is a symbol, none is looked at
        self.prototypes[value] = lay(shape, block.dtype) if is_plain else block.lay(lay((block.nbytes,), np.uint8))
        self.first_write[value] = 0 if value in self.network.index_of_input else self.moment

    def add_views(self, group: Group, choice: Views) -> None:
        """Makes the outputs of a group views of what it reads."""
        for value, make in zip(group.outputs, choice.make, strict=False):
            if not value:
                continue
            view = make(self.prototypes[choice.source])
            self.prototypes[value] = view
            if choice.source in self.constants:
                self.constants[value] = view
            else:
                self.memory.add_view(value, choice.source, make)

    def place_outputs(self, group: Group, recipe: Recipe) -> tuple[str, ...]:
        """Places what a recipe writes, over an operand where nobody reads it later; returns the values."""
        outputs = tuple(filter(None, group.outputs))
        target = self._find_overwritten(group, recipe)
        if target is None:
            for value in outputs:
                halo = self.find_halo(value) if recipe.kernels and recipe.is_channels_last else NO_HALO
                self.place(value, is_channels_last=recipe.is_channels_last, halo=halo)
        else:
            self.memory.add_view(outputs[0], target, keep, is_computed=True)
            self.prototypes[outputs[0]] = self.prototypes[target]
            if target in self.halos:
                self.halos[outputs[0]] = self.halos[target]
        return outputs

    def place_join(self, output: str, join: Join) -> list[Piece]:
        """Places a concatenation, and its sources in it where they can lie there; returns the pieces that have to be copied."""
        halo = self.find_halo(output) if join.is_channels_last and join.axis == 1 else NO_HALO
        self.place(output, is_channels_last=join.is_channels_last, halo=halo)
        begin, pieces = 0, []
        for source in join.sources:
            size = self.prototypes[source].shape[join.axis]
            cut = (slice(None),) * join.axis + (slice(begin, begin + size),)
            begin += size
            root = self._find_movable(source, output, cut)
            pieces.append(Piece(source, cut, is_moved=root is not None))
            if root is not None:
                self._move(root, output, cut)
        self.joins[output] = Joined(tuple(pieces))
        return [piece for piece in pieces if not piece.is_moved]

    def find_spans(self, values: set[str], last_read: Mapping[str, int], end: int) -> dict[str, tuple[int, int]]:
        """Returns the first and the last moment of each block, of the values that need one."""
        spans: dict[str, tuple[int, int]] = {}
        for value in self.places:
            root = self.memory.find_root(value)
            if root is None or value not in values:
                continue
            begin, last = spans.get(root, (end, 0))
            written = self.first_write.get(value, end)
            spans[root] = (min(begin, written), max(last, last_read.get(value, 0), written if written < end else 0))
        return spans

    def _find_overwritten(self, group: Group, recipe: Recipe) -> str | None:
        """Returns the value whose memory the output takes, None if the output gets its own."""
        (output,) = group.outputs[:1]
        output_type = self.types[output]
        for position in recipe.overwrites:
            value = recipe.reads[position]
            own_type = self.types.get(value)
            if value in self.constants or not (own_type is output_type or own_type == output_type) or self._is_read_in_place(value):
                continue
            if is_channels_last(self.prototypes[value]) != recipe.is_channels_last and self.prototypes[value].ndim == 4:
                continue
            halo = self.find_halo(output) if recipe.kernels else NO_HALO
            if self.halos.get(value, NO_HALO) == halo and self._is_read_once(value, recipe) and self._is_dead(value, group):
                return value
        return None

    def _is_read_once(self, value: str, recipe: Recipe) -> bool:
        """Says whether a step reads the memory of a value as one operand alone: another one would be read after it was written over."""
        root = self.memory.find_root(value)
        return len(recipe.reads) == 1 or sum([self.memory.find_root(read) == root for read in recipe.reads]) == 1

    def _is_read_in_place(self, value: str) -> bool:
        """Says whether a value is in the memory of an input that machine code may read where the caller has it."""
        root = self.memory.find_root(value)
        if root is None or root not in self.network.index_of_input:
            return False
        return value_of(self.prototypes[root].nbytes) >= FEWEST_BYTES

    def _is_dead(self, value: str, group: Group) -> bool:
        """Says whether nothing that shares memory with a value is read after this group, and all of that memory is the value."""
        root = self.memory.find_root(value)
        if root is None or self.places[root].inner_bytes != self.prototypes[value].nbytes:  # type: ignore[union-attr]  # roots are blocks
            return False
        # Of what a foreign step has read, a view may have been passed on by name.
        read_here = {name: group.count_readers(name) for name in group.reads if self.memory.find_root(name) == root}
        return not self.memory.is_read_later(root, read_here)

    def _find_movable(self, source: str, output: str, cut: Cut) -> str | None:
        """Returns the value whose block becomes a piece of a result, where all steps that are planned already can do with that."""
        root = self.memory.find_root(source)
        if root is None or root == output or not self.memory.can_move(root) or self._is_read_in_place(source):
            return None
        blocks = [place for place in (self.places[root], self.places[output]) if isinstance(place, Block)]
        # Whoever shares the block must see it as it is: a reshaped or turned view could not follow.
        prototype = self.prototypes[root]
        followers = [self.prototypes[name] for name in self.memory.list_sharing(root)]
        same = all((follower.shape, follower.strides) == (prototype.shape, prototype.strides) for follower in followers)
        is_alike = len({(block.order, block.dtype, block.halo) for block in blocks}) == 1
        return root if same and is_alike and can_stand_for(self.prototypes[output][cut], prototype) else None

    def _move(self, root: str, output: str, cut: Cut) -> None:
        """Puts a block into a piece of another one, with all values that lie in it."""
        for name in self.memory.move(root, output, partial(take_cut, cut=cut)):
            place = self.places[name]
            assert isinstance(place, Derived)
            self.prototypes[name] = place.make(self.prototypes[place.source])
