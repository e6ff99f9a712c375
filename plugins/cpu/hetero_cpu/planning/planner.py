"""From groups to a plan: a recipe for each, and a place in the arena for each value. Computes nothing, allocates nothing that is kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from functools import partial
from typing import Any

import numpy as np

from hetero_core.network.graph import Network, Node
from hetero_core.network.types import TensorType
from hetero_core.records import record
from hetero_cpu.open.arrays import lay_empty
from hetero_cpu.open.sizes import Scope, value_of
from hetero_cpu.planning.alike import AlikeGroups
from hetero_cpu.planning.arena_layout import lay_arena
from hetero_cpu.planning.foreign import compile_node
from hetero_cpu.planning.fusion import Group, form_groups
from hetero_cpu.planning.halos import HaloTable, make_halo_table
from hetero_cpu.planning.input_order import wants_channels_last
from hetero_cpu.planning.outside import FEWEST_BYTES, find_outside
from hetero_cpu.planning.pieces import can_stand_for, copy_pieces
from hetero_cpu.planning.places import Places
from hetero_cpu.planning.plan import (
    NOTHING_OUTSIDE,
    Block,
    Derived,
    Foreign,
    Joined,
    Outside,
    Piece,
    Plan,
    PlannedStep,
    keep,
    take_cut,
)
from hetero_cpu.planning.recipe import NO_HALO, Array, Choice, Cut, Halo, Join, Recipe, Site, Views, is_channels_last
from hetero_cpu.planning.signature import list_static_types
from hetero_cpu.planning.weights import PackedWeights
from hetero_cpu.providers import NUMPY, choose_step

# Bytes; smaller ones stay, also for functions that look into them when they are bound.
_LARGE_CONSTANT = 1 << 16


def build_plan(
    network: Network,
    weights: PackedWeights,
    extensions: Mapping[tuple[str, str], Any],
    *,
    provider: str = NUMPY,
    workers: int = 1,
    is_interim: bool = False,
    scope: Scope | None = None,
) -> Plan:
    """Returns the plan of a network as `specialize_network` made it; `workers` is the most threads that machine code may have.

    `is_interim`: machine code takes over soon. `scope`: that of the symbols where sizes are some.
    """
    types = list_static_types(network)
    constants = {name: initializer.array for name, initializer in network.initializers.items()}
    weights = weights.serve(network.initializers)
    types.update({name: initializer.type for name, initializer in network.initializers.items() if initializer.dtype != "string"})
    groups = form_groups(network, types, constants)
    if provider != NUMPY:
        from hetero_cpu.operators.elementwise.chains import join_chains  # LLVM

        groups = join_chains(groups, network, types, constants)
    halos = None if provider == NUMPY else make_halo_table(network, types, groups)
    builder = _Builder(network, types, constants, weights, extensions, provider, workers, halos, is_interim, scope)
    for group in groups:
        builder.add_group(group)
    return builder.finish()


@record(frozen=False, slots=True, eq=False)
class _Builder:
    """The plan as far as it is made. Step 0 copies the inputs in."""

    network: Network
    types: Mapping[str, TensorType]
    constants: dict[str, Array]
    weights: PackedWeights
    extensions: Mapping[tuple[str, str], Any]
    provider: str
    workers: int
    wanted_halos: HaloTable | None
    is_interim: bool
    scope: Scope | None = None
    halos: dict[str, Halo] = field(default_factory=dict)
    steps: list[PlannedStep] = field(default_factory=list)
    memory: Places = field(init=False)
    alike: AlikeGroups = field(init=False)
    prototypes: dict[str, Array] = field(default_factory=dict)
    first_write: dict[str, int] = field(default_factory=dict)
    last_read: dict[str, int] = field(default_factory=dict)
    readers_left: dict[str, int] = field(default_factory=dict)
    fixed: set[str] = field(default_factory=set)
    joins: dict[str, Joined] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)  # the constants that steps read as they are

    def __post_init__(self) -> None:
        self.memory = Places(self.readers_left)
        self.alike = AlikeGroups(self.memory.find_root)
        for node in self.network.nodes:
            for value in node.reads:
                self.readers_left[value] = self.readers_left.get(value, 0) + 1
        for value in self.network.names_of_outputs:
            # One reader more than there are nodes: an output is never dead.
            self.readers_left[value] = self.readers_left.get(value, 0) + 1
        for name, array in self.constants.items():
            if name in self.types:
                self.prototypes[name] = array
        for spec in self.network.inputs:
            if spec.name in self.types:
                self._place(spec.name, is_channels_last=wants_channels_last(self.network, spec.name, self.types[spec.name]))

    @property
    def places(self) -> dict[str, Block | Derived]:
        """Value -> place."""
        return self.memory.places

    @property
    def now(self) -> int:
        return len(self.steps) + 1

    def add_group(self, group: Group) -> None:
        """Plans a group: by a step function, or node by node."""
        choice = self._choose(group)
        if group.epilogue and (choice is None or self._is_better_alone(group, choice)):
            for node in group.members:
                self.add_group(Group(node))
            return
        self.last_read.update(dict.fromkeys(group.reads, self.now))
        if choice is None:
            self._add_foreign(group.node)
        elif isinstance(choice, Views):
            self._add_views(group, choice)
        elif isinstance(choice, Join):
            self._add_join(group, choice)
        else:
            self._add_recipe(group, choice)
        for value in group.reads:
            count = group.count_readers(value)
            self.readers_left[value] -= count
            self.memory.note_reads(value, count)
            if self.readers_left[value] == 0 and value in self.constants:
                self._drop_constant(value)

    def _drop_constant(self, value: str) -> None:
        """Takes a large constant out of the plan when no node is left to read it and no step reads it as it is."""
        if self.constants[value].nbytes < _LARGE_CONSTANT or value in self.kept:
            return
        # Sites share these mappings, so no recipe keeps what was packed.
        del self.constants[value]
        self.prototypes.pop(value, None)
        constant = self.network.initializers.get(value)
        # What machine code packs later is let go then.
        if constant is not None and self.weights.releases and self.provider == NUMPY:
            constant.release()

    def _is_better_alone(self, group: Group, choice: Choice) -> bool:
        """Says whether the group is NumPy's, and its first node alone would be machine code."""
        if self.provider == NUMPY or (isinstance(choice, Recipe) and choice.kernels):
            return False
        alone = self._choose(Group(group.node))
        return isinstance(alone, Recipe) and bool(alone.kernels)

    def _choose(self, group: Group) -> Choice | None:
        if group.node.bodies or not self._has_places(group):
            return None
        site = Site(
            group,
            self.types,
            self.constants,
            self.prototypes,
            self.weights,
            self._list_readers(group),
            self.halos,
            self._find_halo(group.outputs[0]),
            self.workers,
            self.is_interim,
        )
        # Of symbols each choice may set conditions on the sizes.
        return self.alike.choose(site, self.provider) if self.scope is None else choose_step(site, self.provider)

    def _has_places(self, group: Group) -> bool:
        """Says whether all that a group reads is in the plan and has elements, and what it makes has a place there."""
        for value in group.reads:
            if value not in self.prototypes or self.prototypes[value].size == 0:
                return False
        return all(value in self.types for value in group.outputs if value)

    def _find_halo(self, value: str) -> Halo:
        return NO_HALO if self.wanted_halos is None else self.wanted_halos.find(value)

    def _list_readers(self, group: Group) -> tuple[str, ...]:
        if not self.network.names_of_outputs.isdisjoint(group.outputs):
            return ()
        consumers = self.network.index_of_consumers
        nodes = self.network.nodes
        return tuple([nodes[index].op_type for value in group.outputs for index in consumers.get(value, ())])

    def _place(self, value: str, *, is_channels_last: bool, halo: Halo = NO_HALO) -> None:
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
        self.first_write[value] = 0 if value in self.network.index_of_input else self.now

    def _add_foreign(self, node: Node) -> None:
        program = compile_node(node, self.network.types, self.network.initializers, self.extensions)
        placed: list[str | None] = []
        for value in node.writes:
            if value in self.types:
                self._place(value, is_channels_last=False)
                placed.append(value)
            else:
                placed.append(None)
        reads = tuple(spec.name for spec in program.inputs)
        if None in placed:
            # The kernel may return a view of what it reads.
            self.fixed.update(reads)
            self.memory.fix(reads)
        self._add_step(node, Foreign(program, reads, tuple(placed)), node.writes)

    def _add_views(self, group: Group, choice: Views) -> None:
        for value, make in zip(group.outputs, choice.make, strict=False):
            if not value:
                continue
            view = make(self.prototypes[choice.source])
            self.prototypes[value] = view
            if choice.source in self.constants:
                self.constants[value] = view
            else:
                self.memory.add_view(value, choice.source, make)

    def _add_recipe(self, group: Group, recipe: Recipe) -> None:
        outputs = tuple(filter(None, group.outputs))
        target = self._find_overwritten(group, recipe)
        if target is None:
            for value in outputs:
                halo = self._find_halo(value) if recipe.kernels and recipe.is_channels_last else NO_HALO
                self._place(value, is_channels_last=recipe.is_channels_last, halo=halo)
        else:
            self.memory.add_view(outputs[0], target, keep, is_computed=True)
            self.prototypes[outputs[0]] = self.prototypes[target]
            if target in self.halos:
                self.halos[outputs[0]] = self.halos[target]
        self._add_step(group.name_profile(), recipe, outputs)

    def _add_step(self, node: Node, work: Recipe | Foreign, writes: tuple[str, ...]) -> None:
        self.kept.update(work.reads)
        # What has no place has no strides.
        strides = {value: self.prototypes[value].strides for value in (*work.reads, *writes) if value in self.places}
        self.steps.append(PlannedStep(node, work, writes, strides=strides))

    def _find_overwritten(self, group: Group, recipe: Recipe) -> str | None:
        """Returns the value whose memory the output takes, None where the output gets its own."""
        (output,) = group.outputs[:1]
        output_type = self.types[output]
        for position in recipe.overwrites:
            value = recipe.reads[position]
            own_type = self.types.get(value)
            if value in self.constants or not (own_type is output_type or own_type == output_type) or self._is_read_in_place(value):
                continue
            if is_channels_last(self.prototypes[value]) != recipe.is_channels_last and self.prototypes[value].ndim == 4:
                continue
            halo = self._find_halo(output) if recipe.kernels else NO_HALO
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
        if self.provider == NUMPY or root is None or root not in self.network.index_of_input:
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

    def _add_join(self, group: Group, join: Join) -> None:
        (output,) = group.outputs
        halo = self._find_halo(output) if join.is_channels_last and join.axis == 1 else NO_HALO
        self._place(output, is_channels_last=join.is_channels_last, halo=halo)
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
        copied = [piece for piece in pieces if not piece.is_moved]
        if copied:
            recipe = copy_pieces(self.prototypes[output], copied, self.prototypes, provider=self.provider, workers=self.workers)
            self._add_step(group.name_profile(), recipe, (output,))

    def _find_movable(self, source: str, output: str, cut: Cut) -> str | None:
        """Returns the value whose block becomes a piece of a result, where all steps that are planned already can do with that."""
        root = self.memory.find_root(source)
        if root is None or root == output or not self.memory.can_move(root) or self._is_read_in_place(source):
            return None
        blocks = [place for place in (self.places[root], self.places[output]) if isinstance(place, Block)]
        # Whoever shares the block must see it as it is: a reshaped or turned view could not follow.
        laid = self.prototypes[root]
        followers = [self.prototypes[name] for name in self.memory.list_sharing(root)]
        same = all((follower.shape, follower.strides) == (laid.shape, laid.strides) for follower in followers)
        is_alike = len({(block.order, block.dtype, block.halo) for block in blocks}) == 1
        return root if same and is_alike and can_stand_for(self.prototypes[output][cut], laid) else None

    def _move(self, root: str, output: str, cut: Cut) -> None:
        """Puts a block into a piece of another one, with all values that lie in it."""
        for name in self.memory.move(root, output, partial(take_cut, cut=cut)):
            place = self.places[name]
            assert isinstance(place, Derived)
            self.prototypes[name] = place.make(self.prototypes[place.source])

    def finish(self) -> Plan:
        """Returns the plan with every block placed."""
        end = len(self.steps) + 1
        for value in (*self.network.names_of_outputs, *self.fixed):
            self.last_read[value] = end
        used = self._drop_unused_inputs()
        spans: dict[str, tuple[int, int]] = {}
        for value in self.places:
            root = self.memory.find_root(value)
            if root is None or value not in used:
                continue
            begin, last = spans.get(root, (end, 0))
            written = self.first_write.get(value, end)
            spans[root] = (min(begin, written), max(last, self.last_read.get(value, 0), written if written < end else 0))
        outside = self._find_outside(used)
        blocks = {root: block for root in spans if isinstance(block := self.places[root], Block)}
        layout = lay_arena(blocks, spans, [step.scratch for step in self.steps], outside.roots, self.scope)
        clears: dict[int, tuple[str, ...]] = {}
        for root, (first, _) in spans.items():
            if root not in outside.roots and self.halos.get(root, NO_HALO) != NO_HALO:
                clears[first - 1] = (*clears.get(first - 1, ()), root)
        for index in sorted({*layout.scratch_offsets, *clears}):
            offset = layout.scratch_offsets.get(index, 0)
            self.steps[index] = replace(self.steps[index], scratch_offset=offset, clears=clears.get(index, ()))
        return Plan(
            tuple(self.steps),
            {value: place for value, place in self.places.items() if value in used},
            layout.offsets,
            {name: array for name, array in self.constants.items() if name in self.prototypes or name in self.network.initializers},
            tuple(spec.name for spec in self.network.inputs),
            tuple(spec.name for spec in self.network.outputs),
            layout.arena_bytes,
            outside,
            self.joins,
        )

    def _find_outside(self, used: set[str]) -> Outside:
        if self.provider == NUMPY:
            return NOTHING_OUTSIDE
        return find_outside(
            [spec.name for spec in self.network.inputs if spec.name in used],
            [spec.name for spec in self.network.outputs],
            [(step.work, step.writes) for step in self.steps],
            self.places,
            self.prototypes,
            self.memory.find_root,
        )

    def _drop_unused_inputs(self) -> set[str]:
        """Returns the values that need a place: an input that only foreign steps read is handed to them as it came."""
        needed = {value for step in self.steps if isinstance(step.work, Recipe) for value in (*step.work.reads, *step.writes)}
        needed |= {place.source for place in self.places.values() if isinstance(place, Derived)}
        inputs = self.network.index_of_input
        return {
            value for value, place in self.places.items() if value not in inputs or value in needed or isinstance(place, Derived)
        }
