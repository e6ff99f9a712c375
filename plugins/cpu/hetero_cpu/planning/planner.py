"""From groups to a plan: a recipe for each. Computes nothing, allocates nothing that is kept.

```text
group ── choose ──> recipe, views or join ── placing.py ──> a place for each value ── arena_layout.py ──> its offset
```
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hetero_core.kernels.program import compile_node
from hetero_core.network.graph import Network, Node
from hetero_core.network.types import TensorType
from hetero_cpu.open.sizes import Scope
from hetero_cpu.operators.elementwise.chains import join_chains
from hetero_cpu.planning.alike import AlikeGroups
from hetero_cpu.planning.arena_layout import lay_arena
from hetero_cpu.planning.fusion import Group, form_groups
from hetero_cpu.planning.halos import make_halo_table
from hetero_cpu.planning.outside import find_outside
from hetero_cpu.planning.pieces import copy_pieces
from hetero_cpu.planning.placing import ValuePlacer
from hetero_cpu.planning.plan import Block, Derived, ExecutionPlan, Foreign, Outside, PlannedStep
from hetero_cpu.planning.recipe import NO_HALO, Array, Choice, Join, Recipe, Site, Views
from hetero_cpu.planning.specialization import list_static_types
from hetero_cpu.planning.weights import PackedWeights
from hetero_cpu.providers import choose_step

# Bytes; smaller ones stay, also for functions that look into them when they are bound.
_LARGE_CONSTANT = 1 << 16


def build_plan(
    network: Network,
    weights: PackedWeights,
    extensions: Mapping[tuple[str, str], Any],
    *,
    workers: int = 1,
    scope: Scope | None = None,
) -> ExecutionPlan:
    """Returns the plan of a network as `specialize_network` made it; `workers` is the most threads that machine code may have.

    `scope`: that of the symbols, if some sizes are symbols.
    """
    types = list_static_types(network)
    constants = {name: initializer.array for name, initializer in network.initializers.items()}
    weights = weights.serve(network.initializers)
    types.update({name: initializer.type for name, initializer in network.initializers.items() if initializer.dtype != "string"})
    groups = join_chains(form_groups(network, types, constants), network, types, constants)
    placer = ValuePlacer(network, types, constants, make_halo_table(network, types, groups), scope)
    builder = _Builder(network, types, constants, weights, extensions, workers, scope, placer)
    for group in groups:
        builder.add_group(group)
    return builder.finish()


@dataclass(slots=True, eq=False)
class _Builder:
    """The plan as far as it is made."""

    network: Network
    types: Mapping[str, TensorType]
    constants: dict[str, Array]
    weights: PackedWeights
    extensions: Mapping[tuple[str, str], Any]
    workers: int
    scope: Scope | None
    placer: ValuePlacer
    steps: list[PlannedStep] = field(default_factory=list)
    alike: AlikeGroups = field(init=False)
    last_read: dict[str, int] = field(default_factory=dict)
    fixed: set[str] = field(default_factory=set)
    kept: set[str] = field(default_factory=set)  # the constants that steps read as they are

    def __post_init__(self) -> None:
        self.alike = AlikeGroups(self.placer.memory.find_root)

    def add_group(self, group: Group) -> None:
        """Plans a group: by a step function, or node by node."""
        choice = self._choose(group)
        if group.epilogue and choice is None:
            for node in group.members:
                self.add_group(Group(node))
            return
        self.last_read.update(dict.fromkeys(group.reads, self.placer.moment))
        if choice is None:
            self._add_foreign(group.node)
        elif isinstance(choice, Views):
            self.placer.add_views(group, choice)
        elif isinstance(choice, Join):
            self._add_join(group, choice)
        else:
            self._add_step(group.name_profile(), choice, self.placer.place_outputs(group, choice))
        self.placer.note_readers(group)
        for value in group.reads:
            if self.placer.readers_left[value] == 0 and value in self.constants:
                self._drop_constant(value)

    def _drop_constant(self, value: str) -> None:
        """Takes a large constant out of the plan when no node is left to read it and no step reads it as it is."""
        if self.constants[value].nbytes < _LARGE_CONSTANT or value in self.kept:
            return
        # Sites share these mappings, so no recipe keeps what was packed.
        del self.constants[value]
        self.placer.prototypes.pop(value, None)

    def _choose(self, group: Group) -> Choice | None:
        if group.node.bodies or not self._has_places(group):
            return None
        site = Site(
            group,
            self.types,
            self.constants,
            self.placer.prototypes,
            self.weights,
            self._list_readers(group),
            self.placer.halos,
            self.placer.find_halo(group.outputs[0]),
            self.workers,
        )
        # Of symbols each choice may set conditions on the sizes.
        if self.scope is None:
            return self.alike.choose(site)
        return choose_step(site)

    def _has_places(self, group: Group) -> bool:
        """Says whether all that a group reads is in the plan and has elements, and what it makes has a place there."""
        for value in group.reads:
            if value not in self.placer.prototypes or self.placer.prototypes[value].size == 0:
                return False
        return all(value in self.types for value in group.outputs if value)

    def _list_readers(self, group: Group) -> tuple[str, ...]:
        if not self.network.names_of_outputs.isdisjoint(group.outputs):
            return ()
        consumers = self.network.index_of_consumers
        nodes = self.network.nodes
        return tuple([nodes[index].op_type for value in group.outputs for index in consumers.get(value, ())])

    def _add_foreign(self, node: Node) -> None:
        program = compile_node(node, self.network.types, self.network.initializers, self.extensions)
        placed: list[str | None] = []
        for value in node.writes:
            if value in self.types:
                self.placer.place(value, is_channels_last=False)
                placed.append(value)
            else:
                placed.append(None)
        reads = tuple(spec.name for spec in program.inputs)
        if None in placed:
            # The kernel may return a view of what it reads.
            self.fixed.update(reads)
            self.placer.memory.fix(reads)
        self._add_step(node, Foreign(program, reads, tuple(placed)), node.writes)

    def _add_step(self, node: Node, work: Recipe | Foreign, writes: tuple[str, ...]) -> None:
        self.kept.update(work.reads)
        # What has no place has no strides.
        strides = {value: self.placer.prototypes[value].strides for value in (*work.reads, *writes) if value in self.placer.places}
        self.steps.append(PlannedStep(node, work, writes, strides=strides))
        self.placer.moment += 1

    def _add_join(self, group: Group, join: Join) -> None:
        (output,) = group.outputs
        copied = self.placer.place_join(output, join)
        if copied:
            prototypes = self.placer.prototypes
            recipe = copy_pieces(prototypes[output], copied, prototypes, workers=self.workers)
            self._add_step(group.name_profile(), recipe, (output,))

    def finish(self) -> ExecutionPlan:
        """Returns the plan with every block placed."""
        end = len(self.steps) + 1
        for value in (*self.network.names_of_outputs, *self.fixed):
            self.last_read[value] = end
        used = self._drop_unused_inputs()
        spans = self.placer.find_spans(used, self.last_read, end)
        outside = self._find_outside(used)
        blocks = {root: block for root in spans if isinstance(block := self.placer.places[root], Block)}
        layout = lay_arena(blocks, spans, [step.scratch for step in self.steps], outside.roots, self.scope)
        clears: dict[int, tuple[str, ...]] = {}
        for root, (first, _) in spans.items():
            if root not in outside.roots and self.placer.halos.get(root, NO_HALO) != NO_HALO:
                clears[first - 1] = (*clears.get(first - 1, ()), root)
        for index in sorted({*layout.scratch_offsets, *clears}):
            offset = layout.scratch_offsets.get(index, 0)
            self.steps[index] = replace(self.steps[index], scratch_offset=offset, clears=clears.get(index, ()))
        return ExecutionPlan(
            tuple(self.steps),
            {value: place for value, place in self.placer.places.items() if value in used},
            layout.offsets,
            {
                name: array
                for name, array in self.constants.items()
                if name in self.placer.prototypes or name in self.network.initializers
            },
            tuple(spec.name for spec in self.network.inputs),
            tuple(spec.name for spec in self.network.outputs),
            layout.arena_bytes,
            outside,
            self.placer.joins,
        )

    def _find_outside(self, used: set[str]) -> Outside:
        return find_outside(
            [spec.name for spec in self.network.inputs if spec.name in used],
            [spec.name for spec in self.network.outputs],
            [(step.work, step.writes) for step in self.steps],
            self.placer.places,
            self.placer.prototypes,
            self.placer.memory.find_root,
        )

    def _drop_unused_inputs(self) -> set[str]:
        """Returns the values that need a place: an input that only foreign steps read is handed to them as it came."""
        needed = {value for step in self.steps if isinstance(step.work, Recipe) for value in (*step.work.reads, *step.writes)}
        needed |= {place.source for place in self.placer.places.values() if isinstance(place, Derived)}
        inputs = self.network.index_of_input
        return {
            value
            for value, place in self.placer.places.items()
            if value not in inputs or value in needed or isinstance(place, Derived)
        }
