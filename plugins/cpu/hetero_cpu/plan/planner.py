"""From groups to a plan: a recipe for each. Computes nothing, allocates nothing that is kept.

```text
group ── choose ──> recipe, views or join ── placing.py ──> a place for each value ── lay_arena ──> its offset
```
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isfinite, isnan, prod
from typing import Any

import numpy as np

from hetero_core.dtypes import numpy_dtype, onnx_of_dtype
from hetero_core.kernels.program import compile_node
from hetero_core.network.graph import Network, Node
from hetero_core.network.initializers import Initializer
from hetero_core.network.types import TensorType
from hetero_cpu.machine.compiler import find_byte_products
from hetero_cpu.machine.memory import align
from hetero_cpu.operators.elementwise import ELEMENTWISE, join_chains, join_products
from hetero_cpu.operators.groups import PRODUCTS, Group, form_groups
from hetero_cpu.operators.recipe import LARGE, NO_HALO, NO_LIMITS, Array, Choice, Join, Limits, Recipe, Site, Views
from hetero_cpu.operators.steps import choose_step
from hetero_cpu.operators.weights import PackedWeights
from hetero_cpu.plan.passes import list_large_renewable, list_static_types
from hetero_cpu.plan.placing import FEWEST_BYTES, HaloTable, ValuePlacer, copy_pieces
from hetero_cpu.plan.plan import Block, Derived, ExecutionPlan, External, Foreign, PlannedStep
from hetero_cpu.symbols.sizes import Scope, is_open, is_same_shape, value_of


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A block of memory that is needed from step `begin` to step `end`, both included."""

    nbytes: int
    begin: int
    end: int


def place_blocks(lifetimes: Sequence[Lifetime]) -> tuple[tuple[int, ...], int]:
    """Returns the offset of each block, a multiple of the alignment, and the bytes of the arena.

    Largest blocks first, each at the lowest offset that is free during its lifetime: quadratic, and so up to
    4,096 blocks; more are placed in the order of their beginnings, each in the smallest piece that is free.
    Source: Pisarchyk & Lee 2020, Efficient memory management for deep neural net inference, greedy by size.
    """
    if len(lifetimes) > _MOST_COMPARED:
        return _place_in_order(lifetimes)
    offsets, ends = [0] * len(lifetimes), [0] * len(lifetimes)
    placed: list[int] = []
    total = 0
    for index in sorted(range(len(lifetimes)), key=lambda position: (-lifetimes[position].nbytes, position)):
        block = lifetimes[index]
        offset = 0
        for neighbour in placed:
            lifetime = lifetimes[neighbour]
            if lifetime.begin > block.end or lifetime.end < block.begin:
                continue
            if offsets[neighbour] >= offset + block.nbytes:
                break
            # No calls in here: this loop makes the cost quadratic.
            if ends[neighbour] > offset:
                offset = ends[neighbour]
        offsets[index], ends[index] = offset, align(offset + block.nbytes)
        total = max(total, ends[index])
        insort(placed, index, key=lambda position: offsets[position])
    return tuple(offsets), total


_MOST_COMPARED = 4096


def _place_in_order(lifetimes: Sequence[Lifetime]) -> tuple[tuple[int, ...], int]:
    """Returns offsets and bytes as `place_blocks`. Cost: n log n, and the moves within a sorted list."""
    offsets = [0] * len(lifetimes)
    living: list[tuple[int, int, int]] = []
    free: list[tuple[int, int]] = []
    total = 0
    for index in sorted(range(len(lifetimes)), key=lambda position: (lifetimes[position].begin, position)):
        block = lifetimes[index]
        while living and living[0][0] < block.begin:
            _, size, offset = heapq.heappop(living)
            insort(free, (size, offset))
        size = align(block.nbytes)
        place = bisect_left(free, (size, 0))
        if place < len(free):
            room, offset = free.pop(place)
            if room > size:
                insort(free, (room - size, offset + size))
        else:
            offset, total = total, total + size
        offsets[index] = offset
        heapq.heappush(living, (block.end, size, offset))
    return tuple(offsets), total


def lay_arena(
    blocks: Mapping[str, Block],
    spans: Mapping[str, tuple[int, int]],
    scratch_bytes: Sequence[int],
    external: Collection[str],
    scope: Scope | None,
) -> tuple[dict[str, int], dict[int, int], int]:
    """Lays out blocks that live for `spans`, first and last moment, and the working memory of each step.

    Returns the offset of each block by its first value, that of working memory by the index of its step, and the bytes of the arena.

    `external`: blocks that lie in the caller's memory if possible; they get places of their own behind all inner blocks.
    Step i is moment i + 1. `scope`: of the symbols; None if all sizes are plain numbers.
    """
    inner = [name for name in spans if name not in external]
    working = [(index, scratch) for index, scratch in enumerate(scratch_bytes) if scratch]
    lifetimes = [Lifetime(blocks[name].nbytes, *spans[name]) for name in inner]
    lifetimes += [Lifetime(align(scratch), index + 1, index + 1) for index, scratch in working]
    placed, arena_bytes = place_blocks(lifetimes) if scope is None else place_open(scope, lifetimes)
    offsets = dict(zip(inner, placed, strict=False))
    for name in external:
        offsets[name] = arena_bytes
        arena_bytes += align(blocks[name].nbytes)
    return offsets, dict(zip((index for index, _ in working), placed[len(inner) :], strict=True)), arena_bytes


def place_open(scope: Scope, lifetimes: Sequence[Lifetime]) -> tuple[tuple[Any, ...], Any]:
    """Returns the offset of each block and the bytes of the arena, as `place_blocks` does.

    Two blocks that live at the same time lie above each other as in the example, the upper block behind the end of the lower, so they
    are apart for all sizes.
    """
    plain = [Lifetime(value_of(block.nbytes), block.begin, block.end) for block in lifetimes]
    example, _ = place_blocks(plain)
    offsets: list[Any] = [0] * len(lifetimes)
    ends: list[Any] = [0] * len(lifetimes)
    below: list[set[int]] = [set() for _ in lifetimes]
    placed: list[int] = []
    for index in sorted(range(len(lifetimes)), key=lambda position: (example[position], plain[position].nbytes, position)):
        block = lifetimes[index]
        rivals = [other for other in placed if lifetimes[other].begin <= block.end and lifetimes[other].end >= block.begin]
        covered = set().union(*(below[other] for other in rivals)) if rivals else set()
        nearest = [other for other in rivals if other not in covered]
        offsets[index] = scope.find_largest([ends[other] for other in nearest]) if nearest else 0
        ends[index] = offsets[index] + align(block.nbytes)
        below[index] = covered.union(nearest)
        placed.append(index)
    highest = set(placed).difference(*below)
    return tuple(offsets), scope.find_largest([0, *(ends[index] for index in placed if index in highest)])


# Bytes; smaller constants stay, also for functions that read them when they are bound.
_LARGE_CONSTANT = 1 << 16


_MOST_LIMITS = 1 << 14
_KEEPING = frozenset({"Flatten", "Identity", "MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})
_OF_TYPES = {
    "bfloat16": Limits(is_bfloat16=True),
    "int8": Limits(-128, 127, is_whole=True, has_no_nan=True),
    "uint8": Limits(0, 255, is_whole=True, has_no_nan=True),
}


def find_ranges(network: Network) -> Mapping[str, Limits]:
    """Returns the limits of values that a Clip or a narrow type limits, in the arithmetic around it: those of quantized networks."""
    ranges: dict[str, Limits] = {}
    for node in network.nodes if {"Cast", "Clip"} & network.op_types else ():
        limits = _limit(node, network, ranges) if node.inputs and not node.domain else NO_LIMITS
        if limits != NO_LIMITS:
            ranges[node.writes[0]] = limits
    return ranges


def _limit(node: Node, network: Network, ranges: Mapping[str, Limits]) -> Limits:
    x, *others = (_read_limits(value, network, ranges) for value in node.inputs)
    y, z = (*others, NO_LIMITS, NO_LIMITS)[:2]
    match node.op_type:
        case "Cast" if node.attributes.get("to") == onnx_of_dtype("float32"):
            source = network.types.get(node.inputs[0])
            return _OF_TYPES.get(source.dtype or "", NO_LIMITS) if isinstance(source, TensorType) else NO_LIMITS
        case "Relu":
            return replace(x, low=max(x.low, 0.0), high=max(x.high, 0.0), shift="")
        case "ThresholdedRelu" if (alpha := node.attributes.get("alpha", 1.0)) >= 0:
            # Of a NaN it makes zero.
            low = max(x.low, 0.0) if alpha == 0 and x.has_no_nan else 0.0
            return Limits(low, max(x.high, 0.0), x.is_whole, has_no_nan=True)
        case "Clip":
            low, high = x.low, x.high
            bounds = [other for value, other in zip(node.inputs[1:], others, strict=True) if value]
            if any(node.inputs[1:2]):
                low, high = max(low, y.low), max(high, y.high)
            if any(node.inputs[2:3]):
                low, high = min(low, z.low), min(high, z.high)
            is_whole, has_no_nan = (all(getattr(each, name) for each in (x, *bounds)) for name in ("is_whole", "has_no_nan"))
            return Limits(low, high, is_whole, has_no_nan)
        case "Round":
            return Limits(float(np.floor(x.low)), float(np.ceil(x.high)), is_whole=True, has_no_nan=x.has_no_nan)
        case "Add" | "Sub":
            is_sum = node.op_type == "Add"
            low, high = (x.low + y.low, x.high + y.high) if is_sum else (x.low - y.high, x.high - y.low)
            return Limits(
                low,
                high,
                x.is_whole and y.is_whole,
                x.has_no_nan and y.has_no_nan and isfinite(low) and isfinite(high),
                "" if is_sum else _find_zero_point(node.inputs[1], x, y, network),
            )
        case "Concat" | "Sum":
            parts, is_sum = (x, *others), node.op_type == "Sum"
            lows, highs = [part.low for part in parts], [part.high for part in parts]
            low, high = (sum(lows), sum(highs)) if is_sum else (min(lows), max(highs))
            has_no_nan = all(part.is_moderate if is_sum else part.has_no_nan for part in parts)
            return Limits(low, high, all(part.is_whole for part in parts), has_no_nan)
        case "Conv" | "Gemm" | "MatMul" if x.is_whole and x.has_no_nan and find_byte_products() == "pairs":
            return _limit_product(node, max(-x.low, x.high), z if node.inputs[2:] else Limits(0.0, 0.0, has_no_nan=True), network)
        case "Div" | "Mul" | "MultiplyAdd" if x.is_moderate and y.is_moderate and (node.op_type != "Div" or y.low > 1 / LARGE):
            factors = (1 / y.low, 1 / y.high) if node.op_type == "Div" else (y.low, y.high)
            ends = [end * factor for end in (x.low, x.high) for factor in factors]
            more = z if len(others) > 1 else Limits(0.0, 0.0, has_no_nan=True)
            return Limits(min(ends) + more.low, max(ends) + more.high, has_no_nan=more.is_moderate)
        case "Div" | "Mul" | "MultiplyAdd" if x.low >= 0 and y.low > 0 and (len(others) == 1 or z.low >= 0):
            return Limits(0.0)
        case "MaxPool" if node.attributes.get("ceil_mode", 0) or set(node.attributes.get("dilations") or ()) - {1}:
            # A window that lies in the pads alone has no largest element.
            return Limits(x.low, x.high)
        case name if name in _KEEPING:
            return x
    return NO_LIMITS


def _limit_product(node: Node, largest: float, bias: Limits, network: Network) -> Limits:
    """Returns wide limits of products of constant weights, which say that there is no NaN behind them."""
    weight = network.initializers.get(node.inputs[1])
    if type(weight) is not Initializer or weight.dtype != "float32":
        return NO_LIMITS
    numbers, (alpha, beta) = weight.array.reshape(-1), (abs(node.attributes.get(key, 1.0)) for key in ("alpha", "beta"))
    bound = alpha * largest * float(np.dot(numbers, numbers)) ** 0.5 * numbers.size + beta * max(-bias.low, bias.high)
    return Limits(-bound, bound, has_no_nan=bias.has_no_nan and bound < LARGE)


def _find_zero_point(value: str, x: Limits, y: Limits, network: Network) -> str:
    """Returns the name of a computed scalar if it is what bytes are less of. If it is NaN, so is the scale of all that is made of them."""
    kind = network.types.get(value)
    are_bytes = x.is_whole and x.has_no_nan and y.is_whole and min(x.low, y.low) >= 0 and max(x.high, y.high) <= 255
    is_scalar = isinstance(kind, TensorType) and kind.shape in ((), (1,)) and value not in network.initializers
    return value if are_bytes and is_scalar and not x.shift else ""


def _read_limits(value: str, network: Network, ranges: Mapping[str, Limits]) -> Limits:
    """Returns the limits of a value, or those of a small constant of floats. A constant that follows from sizes is not read."""
    constant = network.initializers.get(value)
    if constant is None:
        return ranges.get(value, NO_LIMITS)
    if type(constant) is not Initializer or constant.dtype != "float32" or not 0 < prod(constant.shape) <= _MOST_LIMITS:
        return NO_LIMITS
    low, high = float(constant.array.min()), float(constant.array.max())
    is_whole = isfinite(low) and isfinite(high) and bool((constant.array == np.rint(constant.array)).all())
    return Limits(low, high, is_whole, not isnan(low))


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
    refused = frozenset[str]()
    while True:
        builder = _Builder(network, weights, extensions, workers, scope, refused)
        if not builder.refused:
            return builder.finish()
        # A step reads or writes as float32 what was to be bytes.
        refused |= builder.refused


def _find_shifts(
    groups: Sequence[Group],
    network: Network,
    types: Mapping[str, TensorType],
    constants: Mapping[str, Array],
    ranges: Mapping[str, Limits],
    refused: Collection[str],
) -> dict[str, float]:
    """Returns the values that are held as bytes, and what these are larger by.

    An expression makes them, a product of bytes reads them, and besides only such products and expressions.
    """
    made, sources = dict[str, float](), set[str]()
    others = {*network.names_of_outputs, *refused}
    for group in groups:
        node, output, reads = group.node, group.outputs[0], set(group.reads)
        is_product = node.op_type in PRODUCTS and _multiplies_bytes(node, constants, ranges)
        if group.chained or node.op_type in ELEMENTWISE:
            same = {value for value in reads if value in types and output in types and _is_same_type(types[value], types[output])}
            limits = ranges.get(output, NO_LIMITS)
            if limits.is_fit and output in types and types[output].dtype == "float32":
                made[output] = limits.find_shift()
        else:
            same = set()
        if is_product:
            sources.add(node.inputs[0])
            same = (same | {node.inputs[0]}).difference(node.inputs[1:], group.product.reads[1:])
        others |= reads - same
    return {value: shift for value, shift in made.items() if value in sources and value not in others}


def _is_same_type(first: TensorType, second: TensorType) -> bool:
    """Says whether two tensors have the same elements and sizes in the whole class."""
    return first.dtype == second.dtype and is_same_shape(first.shape or (), second.shape or ())


def _multiplies_bytes(node: Node, constants: Mapping[str, Array], ranges: Mapping[str, Limits]) -> bool:
    """Says whether a node may become a product of bytes, or of floats that are read as bytes if it is depthwise."""
    group, weight = node.attributes.get("group", 1), constants.get(node.inputs[1])
    if weight is None or not ranges.get(node.inputs[0], NO_LIMITS).is_whole or not find_byte_products():
        return False
    return bool(group == 1 or (node.op_type == "Conv" and weight.shape[:2] == (group, 1)))


class _Builder:
    """The plan as far as it is made."""

    def __init__(
        self,
        network: Network,
        weights: PackedWeights,
        extensions: Mapping[tuple[str, str], Any],
        workers: int,
        scope: Scope | None,
        refused: Collection[str],
    ) -> None:
        """Plans all groups. `refused`: values that are not held as bytes."""
        self.network, self.extensions, self.workers, self.scope = network, extensions, workers, scope
        # The large constants that have not been dropped; each is made for the groups that read it, and an array without memory stands
        # for it until then.
        self.late = list_large_renewable(network)
        self.weights = weights.serve({name: own for name, own in network.initializers.items() if name not in self.late})
        self.constants: dict[str, Array] = {
            name: np.broadcast_to(np.zeros((), numpy_dtype(own.dtype)), own.shape) if name in self.late else own.array
            for name, own in network.initializers.items()
        }
        types = list_static_types(network)
        types.update({name: own.type for name, own in network.initializers.items() if own.dtype != "string"})
        self.ranges = find_ranges(network)
        groups = join_chains(form_groups(network, types, self.constants), network, types, self.constants)
        groups = join_products(groups, network, partial(_multiplies_bytes, constants=self.constants, ranges=self.ranges))
        self.shifts = _find_shifts(groups, network, types, self.constants, self.ranges, refused)
        self.types = {**types, **{value: replace(types[value], dtype="uint8") for value in self.shifts}}
        self.placer = ValuePlacer(network, self.types, self.constants, HaloTable(network, self.types, groups), scope)
        self.refused: set[str] = set()  # the values held as bytes that a step does not read or write so
        self.steps: list[PlannedStep] = []
        self.last_read: dict[str, int] = {}
        self.kept: set[str] = set()  # the constants that steps read as they are
        for group in groups:
            self.add_group(group)

    def add_group(self, group: Group) -> None:
        """Plans a group: by a step function, or node by node."""
        for value in filter(self.late.__contains__, group.reads):
            self.constants[value] = self.late[value].array
            if value in self.placer.prototypes:
                self.placer.prototypes[value] = self.constants[value]
            self.weights.own(self.late[value])
        choice = self._choose(group)
        if group.epilogue and choice is None:
            for part in group.split():
                self.add_group(part)
            return
        if choice is None:
            self.refused.update({*group.reads, *group.outputs} & self.shifts.keys())
        self.last_read.update(dict.fromkeys(group.reads, self.placer.moment))
        if choice is None:
            self._add_foreign(group.node)
        elif isinstance(choice, Views):
            self.placer.add_views(group, choice)
        elif isinstance(choice, Join):
            self._add_join(group, choice)
        else:
            # A zero point is read by products behind the node that subtracts it.
            behind = set(choice.reads).difference(group.reads)
            self.placer.fix(behind)
            self._add_step(group.name_profile(), choice, self.placer.place_outputs(group, choice))
        self.placer.note_readers(group)
        for value in group.reads:
            if self.placer.readers_left[value] == 0 and value in self.constants:
                self._drop_constant(value)

    def _drop_constant(self, value: str) -> None:
        """Takes a large constant out of the plan when no node is left to read it and no step reads it as it is."""
        if self.constants[value].nbytes < _LARGE_CONSTANT or value in self.kept:
            return
        # Sites share these mappings, so no recipe keeps packed constants.
        del self.constants[value]
        self.placer.prototypes.pop(value, None)
        if value in self.late:
            self.late.pop(value).release()

    def _choose(self, group: Group) -> Choice | None:
        prototypes, halos = self.placer.prototypes, self.placer.halos
        have_elements = all(value in prototypes and prototypes[value].size != 0 for value in group.reads)
        if group.node.bodies or not have_elements or any(value not in self.types for value in group.outputs if value):
            return None
        readers, halo, known = self._list_readers(group), self.placer.find_halo(group.outputs[0]), (self.ranges, self.shifts)
        site = Site(group, self.types, self.constants, prototypes, self.weights, readers, halos, halo, self.workers, *known)
        return choose_step(site)

    def _list_readers(self, group: Group) -> tuple[str, ...]:
        if not self.network.names_of_outputs.isdisjoint(group.outputs):
            return ()
        consumers, nodes = self.network.index_of_consumers, self.network.nodes
        return tuple([nodes[index].op_type for value in group.outputs for index in consumers.get(value, ())])

    def _add_foreign(self, node: Node) -> None:
        program = compile_node(node, self.network.types, self.network.initializers, self.extensions)
        placed = tuple(value if value in self.types else None for value in node.writes)
        for value in filter(None, placed):
            self.placer.place(value, is_channels_last=False)
        reads = tuple(spec.name for spec in program.inputs)
        if None in placed:
            # The kernel may return a view of its input.
            self.placer.fix(reads)
        self._add_step(node, Foreign(program, reads, placed), node.writes)

    def _add_step(self, node: Node, work: Recipe | Foreign, writes: tuple[str, ...]) -> None:
        self.kept.update(work.reads)
        # A value without a place has no strides.
        strides = {value: self.placer.prototypes[value].strides for value in (*work.reads, *writes) if value in self.placer.places}
        self.steps.append(PlannedStep(node, work, writes, strides=strides))
        self.placer.moment += 1

    def _add_join(self, group: Group, join: Join) -> None:
        (output,), prototypes = group.outputs, self.placer.prototypes
        if copied := self.placer.place_join(output, join):
            recipe = copy_pieces(prototypes[output], copied, prototypes, workers=self.workers)
            self._add_step(group.name_profile(), recipe, (output,))

    def finish(self) -> ExecutionPlan:
        """Returns the plan with every block placed."""
        end = len(self.steps) + 1
        for value in (*self.network.names_of_outputs, *self.placer.fixed):
            self.last_read[value] = end
        used = self._drop_unused_inputs()
        spans = self.placer.find_spans(used, self.last_read, end)
        external = self._find_outside(used)
        blocks = {root: block for root in spans if isinstance(block := self.placer.places[root], Block)}
        offsets, scratch_offsets, arena_bytes = lay_arena(
            blocks, spans, [step.scratch for step in self.steps], external.roots, self.scope
        )
        clears: dict[int, tuple[str, ...]] = {}
        for root, (first, _) in spans.items():
            if root not in external.roots and self.placer.halos.get(root, NO_HALO) != NO_HALO:
                clears[first - 1] = (*clears.get(first - 1, ()), root)
        for index in sorted({*scratch_offsets, *clears}):
            offset = scratch_offsets.get(index, 0)
            self.steps[index] = replace(self.steps[index], scratch_offset=offset, clears=clears.get(index, ()))
        places = {value: place for value, place in self.placer.places.items() if value in used}
        known = self.placer.prototypes.keys() | self.network.initializers.keys()
        constants = {name: array for name, array in self.constants.items() if name in known}
        inputs, outputs = (tuple([spec.name for spec in specs]) for specs in (self.network.inputs, self.network.outputs))
        return ExecutionPlan(tuple(self.steps), places, offsets, constants, inputs, outputs, arena_bytes, external)

    def _find_outside(self, used: set[str]) -> External:
        """Returns the values that may lie in external memory: large, contiguous in C order, and used only by machine code.

        An input must not be written, and nothing of it be an output; an output must be all of its block, and no other output share that.
        """
        find_root, places, prototypes = self.placer.find_root, self.placer.places, self.placer.prototypes
        inputs = [spec.name for spec in self.network.inputs if spec.name in used]
        outputs = [spec.name for spec in self.network.outputs]
        fixed, written = set[str | None](), set[str | None]()
        for step in self.steps:
            roots = {find_root(value) for value in step.writes}
            written |= roots
            if isinstance(step.work, Foreign) or not step.work.kernels:
                fixed |= roots | {find_root(value) for value in step.work.reads}
            elif step.work.function_reads:
                # Most results are small, and copied in less time than it takes to change addresses.
                fixed |= roots | {find_root(value) for value in step.work.function_reads}
        # An input that lies in another block is copied into it.
        fixed |= {root for value in inputs if (root := find_root(value)) != value}
        roots_of_outputs = [find_root(value) for value in outputs]

        def may_move(root: str) -> bool:
            block = places[root]
            if not isinstance(block, Block) or block.halo != NO_HALO:
                return False
            # A size that is open grows: a class that was made for few keys serves many.
            is_large = is_open(block.nbytes) or value_of(block.nbytes) >= FEWEST_BYTES
            return is_large and root not in fixed and prototypes[root].flags.c_contiguous

        def is_whole(value: str, root: str) -> bool:
            return prototypes[value].nbytes == prototypes[root].nbytes and bool(prototypes[value].flags.c_contiguous)

        read = [value for value in inputs if find_root(value) == value and value not in written and value not in roots_of_outputs]
        own = [
            (value, root)
            for value, root in zip(outputs, roots_of_outputs, strict=True)
            if root is not None and root in written and root not in inputs and roots_of_outputs.count(root) == 1
        ]
        return External(
            tuple(value for value in read if may_move(value)),
            {value: root for value, root in own if may_move(root) and is_whole(value, root)},
        )

    def _drop_unused_inputs(self) -> set[str]:
        """Returns the values that need a place: an input that only foreign steps read is handed to them as it came."""
        needed = {value for step in self.steps if isinstance(step.work, Recipe) for value in (*step.work.reads, *step.writes)}
        needed |= {place.source for place in self.placer.places.values() if isinstance(place, Derived)}
        needed |= {value for value, place in self.placer.places.items() if isinstance(place, Derived)}
        return needed | (self.placer.places.keys() - self.network.index_of_input.keys())
