"""From groups to a plan: a recipe for each, and a place in the arena for each value. Computes nothing, allocates nothing that is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any

import numpy as np

from hetero_core.dtypes import numpy_dtype
from hetero_core.kernels.execution import Program
from hetero_core.network.graph import Network, Node
from hetero_core.network.types import TensorType
from hetero_cpu.arena import Lifetime, align, place_blocks
from hetero_cpu.foreign import compile_node
from hetero_cpu.fusion import Group, form_groups
from hetero_cpu.providers import choose_step
from hetero_cpu.recipe import Array, Choice, Join, Recipe, Site, Views, is_channels_last
from hetero_cpu.signature import read_static_type
from hetero_cpu.weights import PackedWeights

# Plain images have few channels; what has more comes from another part of a network, and a convolution wants it channels last.
_FEWEST_CHANNELS = 8
_WANTS_CHANNELS_LAST = frozenset({"Conv", "MaxPool", "AveragePool", "GlobalAveragePool"})


@dataclass(frozen=True, slots=True)
class Block:
    """A value that has memory of its own. `order` are the axes from the slowest to the fastest."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    order: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """The bytes of the array."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def lay(self, memory: Array) -> Array:
        """Returns the array over the first bytes of `memory`."""
        flat = memory[: self.nbytes].view(self.dtype)
        laid: Array = flat.reshape([self.shape[axis] for axis in self.order]).transpose(np.argsort(self.order))
        return laid


@dataclass(frozen=True, slots=True)
class Derived:
    """A value in the memory of another one."""

    source: str
    make: Callable[[Array], Array]


@dataclass(frozen=True, slots=True)
class Foreign:
    """A node that the toolkit computes. What it returns is copied into its place, or kept as it is where it has none."""

    program: Program
    reads: tuple[str, ...]
    placed: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One step: a recipe or a foreign node, and the offset of the bytes that it works in."""

    node: Node
    work: Recipe | Foreign
    writes: tuple[str, ...]
    scratch_offset: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps, and where each value lies: a block at an offset, or derived from another value; what is nowhere is passed on by name."""

    steps: tuple[PlannedStep, ...]
    places: Mapping[str, Block | Derived]
    offsets: Mapping[str, int]
    constants: Mapping[str, Array]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    arena_bytes: int

    @property
    def foreign_count(self) -> int:
        """How many steps are calls of the toolkit."""
        return sum(isinstance(step.work, Foreign) for step in self.steps)


def build_plan(network: Network, weights: PackedWeights, extensions: Mapping[tuple[str, str], Any]) -> Plan:
    """Returns the plan of a network as `specialize_network` made it."""
    types = {value: found for value in network.types if (found := read_static_type(network, value)) is not None}
    constants = {name: initializer.array for name, initializer in network.initializers.items()}
    types.update({name: initializer.type for name, initializer in network.initializers.items() if initializer.dtype != "string"})
    builder = _Builder(network, types, constants, weights, extensions)
    for group in form_groups(network, types, constants):
        builder.add_group(group)
    return builder.finish()


@dataclass
class _Builder:
    """What is planned so far. Step 0 copies the inputs in."""

    network: Network
    types: Mapping[str, TensorType]
    constants: Mapping[str, Array]
    weights: PackedWeights
    extensions: Mapping[tuple[str, str], Any]
    steps: list[tuple[Node, Recipe | Foreign, tuple[str, ...]]] = field(default_factory=list)
    places: dict[str, Block | Derived] = field(default_factory=dict)
    prototypes: dict[str, Array] = field(default_factory=dict)
    first_write: dict[str, int] = field(default_factory=dict)
    last_read: dict[str, int] = field(default_factory=dict)
    readers_left: dict[str, int] = field(default_factory=dict)
    fixed: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
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
                self._place(spec.name, is_channels_last=self._wants_channels_last(spec.name))

    def _wants_channels_last(self, value: str) -> bool:
        shape = self.types[value].shape or ()
        if len(shape) != 4 or not isinstance(shape[1], int) or shape[1] < _FEWEST_CHANNELS:
            return False
        readers = [self.network.nodes[index] for index in self.network.index_of_consumers.get(value, ())]
        return any(reader.op_type in _WANTS_CHANNELS_LAST for reader in readers)

    @property
    def now(self) -> int:
        return len(self.steps) + 1

    def add_group(self, group: Group) -> None:
        """Plans a group: by a step function, or node by node."""
        choice = self._choose(group)
        if choice is None and group.epilogue:
            for node in group.members:
                self.add_group(Group(node))
            return
        self._mark_reads(group)
        if choice is None:
            self._add_foreign(group.node)
        elif isinstance(choice, Views):
            self._add_views(group, choice)
        elif isinstance(choice, Join):
            self._add_join(group, choice)
        else:
            self._add_recipe(group, choice)
        for value in group.reads:
            self.readers_left[value] -= sum(value in node.reads for node in group.members)

    def _choose(self, group: Group) -> Choice | None:
        is_known = all(value in self.prototypes for value in group.reads) and all(
            value in self.types for value in group.outputs if value
        )
        if not is_known or any(self.prototypes[value].size == 0 for value in group.reads) or group.node.bodies:
            return None
        return choose_step(Site(group, self.types, self.constants, self.prototypes, self.weights, self._list_readers(group)))

    def _list_readers(self, group: Group) -> tuple[str, ...]:
        if not self.network.names_of_outputs.isdisjoint(group.outputs):
            return ()
        consumers = self.network.index_of_consumers
        return tuple(self.network.nodes[index].op_type for value in group.outputs for index in consumers.get(value, ()))

    def _mark_reads(self, group: Group) -> None:
        for value in group.reads:
            self.last_read[value] = self.now

    def _place(self, value: str, *, is_channels_last: bool) -> None:
        value_type = self.types[value]
        assert value_type.dtype is not None
        shape = tuple(size for size in value_type.shape or () if isinstance(size, int))
        order = (0, 2, 3, 1) if is_channels_last and len(shape) == 4 else tuple(range(len(shape)))
        block = Block(shape, np.dtype(numpy_dtype(value_type.dtype)), order)
        self.places[value] = block
        self.prototypes[value] = block.lay(np.empty(block.nbytes, np.uint8))
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
        self.steps.append((node, Foreign(program, reads, tuple(placed)), node.writes))

    def _add_views(self, group: Group, choice: Views) -> None:
        for value, make in zip(group.outputs, choice.make, strict=False):
            if not value:
                continue
            view = make(self.prototypes[choice.source])
            self.prototypes[value] = view
            if choice.source in self.constants:
                self.constants = {**self.constants, value: view}
            else:
                self.places[value] = Derived(choice.source, make)

    def _add_recipe(self, group: Group, recipe: Recipe) -> None:
        outputs = tuple(value for value in group.outputs if value)
        target = self._find_overwritten(group, recipe)
        if target is None:
            for value in outputs:
                self._place(value, is_channels_last=recipe.is_channels_last)
        else:
            self.places[outputs[0]] = Derived(target, _keep)
            self.prototypes[outputs[0]] = self.prototypes[target]
        self.steps.append((group.name_profile(), recipe, outputs))

    def _find_overwritten(self, group: Group, recipe: Recipe) -> str | None:
        """Returns the value whose memory the output takes, None where the output gets its own."""
        (output,) = group.outputs[:1]
        wanted = self.types[output]
        for position in recipe.overwrites:
            value = recipe.reads[position]
            if value in self.constants or self.types.get(value) != wanted:
                continue
            if is_channels_last(self.prototypes[value]) != recipe.is_channels_last and self.prototypes[value].ndim == 4:
                continue
            if self._is_dead(value, group):
                return value
        return None

    def _is_dead(self, value: str, group: Group) -> bool:
        """Says whether nothing that shares memory with a value is read after this group, and all of that memory is the value."""
        root = self._find_root(value)
        if root is None or self.places[root].nbytes != self.prototypes[value].nbytes:  # type: ignore[union-attr]  # roots are blocks
            return False
        read_here = {name: sum(name in node.reads for node in group.members) for name in group.reads}
        sharing = [name for name in self.places if self._find_root(name) == root]
        return all(self.readers_left.get(name, 0) == read_here.get(name, 0) for name in sharing)

    def _find_root(self, value: str) -> str | None:
        """Returns the value whose block a value lies in; None for constants and for what is passed on by name."""
        place = self.places.get(value)
        while isinstance(place, Derived):
            value = place.source
            place = self.places.get(value)
        return None if place is None else value

    def _add_join(self, group: Group, join: Join) -> None:
        (output,) = group.outputs
        self._place(output, is_channels_last=join.is_channels_last)
        begin, copied, slices = 0, [], []
        for source in join.sources:
            size = self.prototypes[source].shape[join.axis]
            cut = (slice(None),) * join.axis + (slice(begin, begin + size),)
            begin += size
            if self._can_move(source, output, join):
                root = self._find_root(source)
                assert root is not None
                self.places[root] = Derived(output, lambda array, cut=cut: array[cut])  # type: ignore[misc]  # a default binds the loop's value
            else:
                copied.append(source)
                slices.append(cut)
        if copied:
            self.steps.append((group.name_profile(), Recipe(tuple(copied), _bind_copies(slices)), (output,)))

    def _can_move(self, source: str, output: str, join: Join) -> bool:
        root = self._find_root(source)
        if root is None or root == output:
            return False
        place = self.places[root]
        assert isinstance(place, Block)
        # Whoever shares the block must see it as it is: a reshaped or turned view could not follow.
        followers = [name for name in self.places if self._find_root(name) == root]
        laid = self.prototypes[root]
        same = all((self.prototypes[name].shape, self.prototypes[name].strides) == (laid.shape, laid.strides) for name in followers)
        target = self.places[output]
        # In C order only what stays one piece may move: steps see such arrays as rows of any length.
        is_whole = join.is_channels_last or prod(place.shape[: join.axis]) == 1
        return is_whole and same and isinstance(target, Block) and target.order == place.order and target.dtype == place.dtype

    def finish(self) -> Plan:
        """Returns the plan with every block placed."""
        end = len(self.steps) + 1
        for value in (*self.network.names_of_outputs, *self.fixed):
            self.last_read[value] = end
        used = self._drop_unused_inputs()
        spans: dict[str, tuple[int, int]] = {}
        for value in self.places:
            root = self._find_root(value)
            if root is None or value not in used:
                continue
            begin, last = spans.get(root, (end, 0))
            written = self.first_write.get(value, end)
            spans[root] = (min(begin, written), max(last, self.last_read.get(value, 0), written if written < end else 0))
        roots = list(spans)
        lifetimes = [Lifetime(self.places[root].nbytes, *spans[root]) for root in roots]  # type: ignore[union-attr]  # roots are blocks
        working = [
            (index, work.scratch) for index, (_, work, _) in enumerate(self.steps) if isinstance(work, Recipe) and work.scratch
        ]
        lifetimes += [Lifetime(align(scratch), index + 1, index + 1) for index, scratch in working]
        offsets, arena_bytes = place_blocks(lifetimes)
        scratch_of_step = dict(zip((index for index, _ in working), offsets[len(roots) :], strict=True))
        return Plan(
            tuple(PlannedStep(*step, scratch_of_step.get(index, 0)) for index, step in enumerate(self.steps)),
            {value: place for value, place in self.places.items() if value in used},
            dict(zip(roots, offsets, strict=False)),
            {name: array for name, array in self.constants.items() if name in self.prototypes or name in self.network.initializers},
            tuple(spec.name for spec in self.network.inputs),
            tuple(spec.name for spec in self.network.outputs),
            arena_bytes,
        )

    def _drop_unused_inputs(self) -> set[str]:
        """Returns the values that need a place: an input that only foreign steps read is handed to them as it came."""
        needed = {value for _, work, writes in self.steps if isinstance(work, Recipe) for value in (*work.reads, *writes)}
        needed |= {place.source for place in self.places.values() if isinstance(place, Derived)}
        inputs = self.network.index_of_input
        return {
            value for value, place in self.places.items() if value not in inputs or value in needed or isinstance(place, Derived)
        }


def _keep(array: Array) -> Array:
    return array


def _bind_copies(slices: Sequence[tuple[slice, ...]]) -> Any:
    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[Any]:
        return [partial(np.copyto, writes[0][cut], array) for cut, array in zip(slices, reads, strict=True)]

    return bind
