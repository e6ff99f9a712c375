"""A plan with memory: the arena, the arrays in it, and the calls of a run. Used by one run at a time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from math import prod
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_core.contract import CancelToken, OwnOutputs, RunContext
from hetero_core.devices.processors import LARGE_BYTES, read_spare_memory
from hetero_core.errors import RequestCancelledError
from hetero_core.limits import RunLimits
from hetero_core.profile import Profile
from hetero_core.runtime.outputs import holds_maps
from hetero_cpu.machine.memory import SMALL_BYTES, OutputMemory, allocate_arena, find_address
from hetero_cpu.operators.recipe import Array, Call
from hetero_cpu.plan.open_plan import OpenPlan, OpenStep
from hetero_cpu.plan.plan import Foreign
from hetero_cpu.run.plans import ArenaTooLargeError, WrongTypeError, lay_input
from hetero_cpu.symbols.evaluation import Products

if TYPE_CHECKING:
    from hetero_cpu.machine.program import NativeProgram, Team
    from hetero_cpu.run.caches import AppendedCaches


_MOST_JOINED = 32
"""Steps of machine code between which a run does not check for cancellation."""
MOST_SIZES = 64
"""Sets of sizes that an instance keeps bound."""
MOST_SIZES_BYTES = 1 << 22
"""Of all sets of sizes that an instance keeps bound; the last one is kept even if it needs more."""
_NO_NUMBERS = np.empty(0, np.int64)
_LAID_BYTES = 512
"""Of the objects of an array, without its elements."""


@dataclass(slots=True, eq=False)
class CurrentRun:
    """The state of the current run, shared by calls: cancellation, limits, helper threads, the values without a place in the arena."""

    token: CancelToken = field(default_factory=CancelToken)
    limits: RunLimits | None = None
    team: Any = None
    passed: dict[str, Any] = field(default_factory=dict)


def bind_steps(steps: Sequence[OpenStep], current: CurrentRun, program: Any) -> Callable[..., None]:
    """Returns a function of a profile and limits that runs all steps: those that are joined together, each by itself for a profile.

    It raises RequestCancelledError, and errors of limits and of steps, with the node as a note.
    """
    single, joined = (
        [(step.node, [bind_action(action, current, program) for action in step.actions]) for step in own]
        for own in (steps, join_steps(steps))
    )

    def run(profile: Profile | None = None, limits: RunLimits | None = None) -> None:
        token = current.token
        for node, calls in joined if profile is None else single:
            if token.is_set:
                raise RequestCancelledError(f"cancelled before node {node.label}")
            if limits is not None:
                limits.enter(node.label)
            began = 0.0 if profile is None else perf_counter()
            try:
                for call in calls:
                    call()
            except Exception as error:
                if not isinstance(error, RequestCancelledError) and not getattr(error, "__notes__", ()):
                    error.add_note(f"while running node {node.label}")
                raise
            if profile is not None:
                profile.add(node, perf_counter() - began)

    return run


def bind_action(action: Call | range, current: CurrentRun, program: Any) -> Call:
    """Returns a call; of a range of the program, with the team of the run that is under way."""
    if not isinstance(action, range):
        return action
    begin, end = action.start, action.stop
    run_alone = program.bind(begin, end)
    return lambda: run_alone() if current.team is None else program.run(begin, end, current.team)


def join_steps(steps: Sequence[OpenStep]) -> tuple[OpenStep, ...]:
    """Returns the steps with consecutive steps of machine code joined, under the name of the first; cancelling waits for a joined step."""
    joined: list[OpenStep] = []
    for step in steps:
        before = joined[-1].actions[-1] if joined and joined[-1].actions else None
        after = step.actions[0] if len(step.actions) == 1 else None
        if (
            isinstance(before, range)
            and isinstance(after, range)
            and before.stop == after.start
            and after.stop - before.start <= _MOST_JOINED
        ):
            last = joined[-1]
            joined[-1] = OpenStep(last.node, (*last.actions[:-1], range(before.start, after.stop)))
        else:
            joined.append(step)
    return tuple(joined)


def _fits(array: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Says whether machine code may write an output into an array of the caller."""
    flags = array.flags
    return array.shape == shape and array.dtype == dtype and flags.c_contiguous and flags.aligned and flags.writeable


def bind_foreign(work: Foreign, writes: Sequence[str], arrays: dict[str, Array], current: CurrentRun) -> Call:
    """Returns the call of a node of the toolkit on arrays or passed values, by name."""
    passed, program = current.passed, work.program
    step = program.steps[0]
    is_bare = len(program.steps) == 1 and not step.bodies and not step.value and step.targets == program.output_slots
    names = dict(zip(program.input_slots, work.reads, strict=True))
    sources = [(names.get(slot, ""), program.values[slot]) for slot in step.sources]

    def call() -> None:
        # The loop over the steps of a program takes longer than a node on a single row; and comprehensions are calls.
        inputs, is_direct = [], is_bare and current.limits is None
        for name, constant in sources:
            value = constant if not name else arrays[name] if name in arrays else passed[name]
            inputs.append(value)
            is_direct = is_direct and getattr(value, "nbytes", 0) <= LARGE_BYTES
        if is_direct:
            results = step.function(*inputs)
            if not isinstance(results, tuple):
                results = (results,)
        else:
            reads = [arrays[value] if value in arrays else passed[value] for value in work.reads]
            results = program.run(reads, is_cancelled=lambda: current.token.is_set, limits=current.limits)
        for value, place, result in zip(writes, work.placed, results):  # noqa: B905  # of one length; strict takes 0.13 us
            if place is None:
                passed[value] = np.asarray(result) if isinstance(result, np.generic) else result
                continue
            target = arrays[place]
            if result.shape != target.shape or result.dtype != target.dtype:
                raise WrongTypeError(
                    f"value '{value}' is {result.dtype}{list(result.shape)}, not {target.dtype}{list(target.shape)}"
                )
            target[...] = result  # 0.3 us less than np.copyto

    return call


def own_value(value: Any, memory: Array) -> Any:
    """Returns a value that was passed on by name, copied if it is a view of the arena, which the next run writes."""
    if isinstance(value, list):
        return value.copy() if holds_maps(value) else [own_value(element, memory) for element in value]
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype.kind == "O" or np.may_share_memory(value, memory):
        return np.array(value, order="C")
    return np.ascontiguousarray(value) if value.ndim else value


class Rebound:
    """A function of a step: the list of calls holds this, and other sizes give it a call on other arrays."""

    __slots__ = ("action", "call", "places")

    def __init__(self, action: partial[Any], place_of_array: Mapping[int, int]) -> None:
        """`action`: as the plan has it, with open arrays; `place_of_array`: among the plan's arrays, by id."""
        self.action, self.call = action, action
        self.places = [place_of_array.get(id(part)) for part in action.args]

    def bind(self, arrays: Mapping[int, Array]) -> partial[Any]:
        """Returns its call on arrays, by their place in the plan."""
        parts = zip(self.places, self.action.args, strict=True)
        return partial(self.action.func, *[part if place is None else arrays[place] for place, part in parts])

    def __call__(self) -> None:
        """Calls it for the sizes in use."""
        self.call()


@dataclass(slots=True, eq=False)  # a frozen one takes 2 us to make
class BoundSizes:
    """All that a run reads for a set of sizes, never changed; valid until the arena grows.

    `shapes`: of the outputs outside the arena. `numbers`: of calls and chunks, with addresses of external memory counted from its begin.
    `named`: arrays by value. `calls`: of the functions. `nbytes`: that are kept beside the arena.
    """

    products: Products
    shapes: tuple[tuple[int, ...], ...]
    shape_constants: tuple[Array, ...]
    tables: tuple[Array, ...]
    numbers: Array
    named: dict[str, Array]
    calls: tuple[partial[Any], ...]
    nbytes: int


class Instance:
    """Not safe for threads: one run uses it at a time."""

    def __init__(self, plan: OpenPlan, appended: Collection[str] = ()) -> None:
        """`appended`: outputs that only the network reads, in its next run, so that they need not be in C order."""
        self._plan = plan
        self._current = CurrentRun()
        self._memory = np.empty(0, np.uint8)
        self._begin = 0
        # The sizes in use, and all that are kept, the one used last at the end.
        self._bound: BoundSizes | None = None
        self._kept: OrderedDict[Products, BoundSizes] = OrderedDict()
        self._kept_bytes = 0
        self._program: NativeProgram | None = None
        if plan.calls:
            from hetero_cpu.machine.program import NativeProgram  # LLVM

            # The numbers that are the same for all sizes.
            fixed = np.split(plan.table.constants[: plan.number_count + plan.call_count], [plan.number_count])
            self._program = NativeProgram(plan.calls, fixed[0].copy(), fixed[1])
        self._rows_of_roots = [rows.tolist() for rows in plan.rows_of_roots]
        # The begins of external memories that the numbers of calls hold.
        self._begins = self._no_begins = [0] * len(plan.roots)
        # A context in which NumPy lets infinities and NaN arise; 0.05 us to enter, `np.errstate` takes 0.8.
        self._silence = None if plan.plan.has_products else Context()
        if self._silence is not None:
            self._silence.run(np.seterr, all="ignore")
        external = plan.plan.external
        self._inputs = [(value, plan.roots.index(value) if value in external.inputs else None) for value in plan.inputs]
        self._outputs = [(value, value in external.outputs) for value in plan.plan.outputs]
        room = 1.0 if plan.sizes.is_single else 1.125
        self._lent = [
            (value, plan.roots.index(root), index := plan.outputs[value], OutputMemory(plan.laid[index].dtype, room=room))
            for value, root in external.outputs.items()
        ]
        lent = set(plan.outputs.values())
        self._in_arena = [index for index in range(len(plan.laid)) if index not in lent]
        self._arrays = dict(plan.constants)
        known = self._arrays.keys() | plan.inside.keys()
        self._passes_outputs = any(not is_outside and value not in known for value, is_outside in self._outputs)
        self._rebound: list[Rebound] = []
        steps = tuple(OpenStep(step.node, self._list_actions(step)) for step in plan.steps)
        self._run_steps = bind_steps(steps, self._current, self._program)
        self._appended: AppendedCaches | None = None
        if appended and self._program is not None and not plan.sizes.is_single:
            from hetero_cpu.run.caches import AppendedCaches, list_appending  # machine code of attention

            if appending := list_appending(plan, appended):
                self._appended = AppendedCaches(appending, self._program.numbers, plan)

    def _list_actions(self, step: OpenStep) -> tuple[Any, ...]:
        """Returns the calls of a step for all sizes."""
        if step.foreign is not None:
            return (bind_foreign(step.foreign, step.writes, self._arrays, self._current),)
        places = self._plan.place_of_array
        actions = [action if isinstance(action, range) else Rebound(action, places) for action in step.actions]
        self._rebound += [action for action in actions if isinstance(action, Rebound)]
        return tuple(actions)

    def run(self, products: Products, inputs: Sequence[Any], context: RunContext, team: Team | None = None) -> tuple[Any, ...]:
        """Returns the outputs in arrays of their own, or in those that the context brings; a team helps with machine code.

        Raises: RequestCancelledError when the context is cancelled between two steps; WrongTypeError. Errors carry the node as a note.
        """
        bound = self._bound
        if bound is None or bound.products is not products:
            bound = self._bind(products, context.limits)
        current = self._current
        current.token, current.limits, current.team = context.token, context.limits, team
        try:
            external: dict[str, Array] = {}
            begins = self._no_begins.copy()
            for (value, root), array in zip(self._inputs, (*inputs, *bound.shape_constants)):  # noqa: B905  # of one length; strict takes 0.13 us
                if root is not None:
                    flags = array.flags
                    is_laid = flags.c_contiguous or (self._appended is not None and root in self._appended.pasts)
                    whole = array if is_laid and flags.aligned else np.ascontiguousarray(array)
                    external[value], begins[root] = whole, find_address(whole)
                elif value in self._arrays:
                    self._arrays[value][...] = array
                else:
                    current.passed[value] = lay_input(array)
            if self._lent:
                caches = {} if self._appended is None else self._open_caches(self._appended, bound, external, begins, context)
                presets = context.outputs if context.owns_outputs else None
                for (value, root, _, memory), shape in zip(self._lent, bound.shapes):  # noqa: B905  # as above
                    preset = None if presets is None else presets[self._plan.plan.outputs.index(value)]
                    own = caches.get(value, preset)
                    if own is not None and (value in caches or _fits(own, shape, memory.dtype)):
                        external[value], begins[root] = own, find_address(own)
                    else:
                        external[value], begins[root] = memory.take(shape)
            if begins != self._begins:
                self._move(begins)
            if self._silence is not None and context.profile is None and context.limits is None:
                self._silence.run(self._run_steps)
            else:
                with np.errstate(all="ignore"):
                    self._run_steps(context.profile, context.limits)
            return self._take_out(external, context.outputs)
        finally:
            current.team = None
            if current.passed:
                current.passed.clear()

    def open_trip(self, products: Products) -> Trip | None:
        """Returns the call of a run without a context, for sizes that never change; None unless machine code in the arena is all."""
        self._bind(products)
        is_outside = bool(self._lent) or any(root is not None for _, root in self._inputs)
        is_passed = not all(value in self._arrays for value, _ in self._outputs)
        if is_outside or is_passed or self._silence is None or self._program is None:
            return None
        inputs = tuple([self._arrays.get(value) for value, _ in self._inputs])
        outputs = tuple([self._arrays[value] for value, _ in self._outputs])
        return Trip(inputs, outputs, partial(self._silence.run, self._run_steps))

    def _open_caches(
        self, appended: AppendedCaches, bound: BoundSizes, external: dict[str, Array], begins: list[int], context: RunContext
    ) -> dict[str, Array]:
        """Returns the outputs that this run appends to, in memory that grows; `external` and `begins` get inputs as the calls read them.

        With limits, which count bytes, and with arrays of the caller's, of which some may overlap, nothing grows.
        """
        pasts = {root: external[value] for value, root in self._inputs if root in appended.pasts}
        is_bare = context.limits is None and context.outputs is None
        shapes = {value: shape for (value, *_), shape in zip(self._lent, bound.shapes, strict=True)}
        caches = appended.open(pasts, shapes, can_grow=is_bare)
        for value, root in self._inputs:
            if root in appended.pasts:
                external[value], begins[root] = pasts[root], find_address(pasts[root])
        return caches

    def _bind(self, products: Products, limits: RunLimits | None = None) -> BoundSizes:
        """Returns sizes, which the calls use from now on. Raises: ArenaTooLargeError."""
        # Without sizes in use, a failure leaves no mixture of two.
        self._bound = None
        bound = self._kept.get(products)
        if bound is None:
            bound = self._kept[products] = self._make_bound(products, limits)
            self._kept_bytes += bound.nbytes
            # Those that were not used for the longest time go if there are too many.
            while len(self._kept) > MOST_SIZES or (self._kept_bytes > MOST_SIZES_BYTES and len(self._kept) > 1):
                self._kept_bytes -= self._kept.popitem(last=False)[1].nbytes
        else:
            self._kept.move_to_end(products)
        plan, program = self._plan, self._program
        if program is not None:
            calls = len(plan.rows)
            program.numbers[plan.rows] = bound.numbers[:calls]
            self._begins = self._no_begins
            if len(plan.chunk_rows):
                program.set_chunks(plan.chunk_rows, bound.numbers[calls:])
            if self._appended is not None:
                self._appended.bind(products)
        self._arrays.update(bound.named)
        for step, call in zip(self._rebound, bound.calls, strict=True):
            step.call = call
        self._bound = bound
        return bound

    def _make_bound(self, products: Products, limits: RunLimits | None) -> BoundSizes:
        """Returns new sizes. Raises: ArenaTooLargeError."""
        plan = self._plan
        need, (places, elements, arguments) = plan.measure_arena(*products), plan.describe(*products)
        shapes = tuple([places[index][1] for _, _, index, _ in self._lent])
        if limits is None or limits.memory_limit is None:
            lent = sum([prod(shape) * own[3].dtype.itemsize for own, shape in zip(self._lent, shapes, strict=True)])
            made = max(need - self._memory.nbytes, 0) + lent
            spare = read_spare_memory() if made > LARGE_BYTES else None
            if spare is not None and made > spare:
                raise ArenaTooLargeError(f"its arena and outputs need {made} bytes, and this machine has {spare}")
        if need > self._memory.nbytes:
            self._memory = allocate_arena(need if plan.sizes.is_single else need + need // 4)
            self._begin = int(self._memory.ctypes.data)
            self._kept.clear()
            self._kept_bytes = 0
        tables: tuple[Array, ...] = ()
        numbers = _NO_NUMBERS
        if self._program is not None:
            tables = plan.bind_tables(arguments)
            numbers = plan.evaluate_numbers((*products, self._begin, *self._no_begins, *map(find_address, tables)))
        shape_constants = plan.compute_shape_constants(elements)
        laid: dict[int, Array] = {}
        for index in self._in_arena:
            address, shape, strides = places[index]
            # A view without elements may begin behind the memory.
            laid[index] = np.ndarray(shape, plan.laid[index].dtype, self._memory.data, 0 if 0 in shape else address, strides)
        named = {name: laid[index] for name, index in plan.inside.items()}
        calls = tuple([step.bind(laid) for step in self._rebound])
        nbytes = numbers.nbytes + sum([array.nbytes for array in (*tables, *shape_constants)]) + _LAID_BYTES * len(laid)
        return BoundSizes(products, shapes, shape_constants, tables, numbers, named, calls, nbytes)

    def _move(self, begins: list[int]) -> None:
        """Has the program use the external memory of each root."""
        if self._program is None:
            return
        numbers = self._program.view
        for rows, begin, before in zip(self._rows_of_roots, begins, self._begins):  # noqa: B905  # of one length; strict takes 0.13 us
            if begin != before:
                for row in rows:
                    numbers[row] += begin - before
        self._begins = begins

    def _take_out(self, own_outputs: dict[str, Array], presets: Sequence[Array | None] | None) -> tuple[Any, ...]:
        outputs: list[Any] = []
        if presets is None and not self._passes_outputs:
            for value, is_outside in self._outputs:
                outputs.append(own_outputs[value] if is_outside else self._arrays[value].copy())  # a comprehension is a call
            return OwnOutputs(outputs)
        # The caller's own arrays, and passed values, may lie anywhere.
        are_own = presets is None
        for (value, is_outside), preset in zip(self._outputs, repeat(None) if presets is None else presets):  # noqa: B905  # as above
            place = own_outputs[value] if is_outside else self._arrays.get(value)
            if place is None:
                passed = self._current.passed[value]
                # Few bytes, and texts, are copied in less time than it takes to compare them with all other memory.
                is_copied = isinstance(passed, np.ndarray) and (passed.nbytes <= SMALL_BYTES or passed.dtype.kind == "O")
                are_own = are_own and (is_copied or (isinstance(passed, list) and holds_maps(passed)))
                outputs.append(passed.copy() if is_copied else own_value(passed, self._memory))
            elif preset is not None and preset.shape == place.shape and preset.dtype == place.dtype:
                if preset is not place:
                    preset[...] = place
                outputs.append(preset)
            else:
                outputs.append(place if is_outside else place.copy())
        return OwnOutputs(outputs) if are_own else tuple(outputs)


@dataclass(frozen=True, slots=True)
class Trip:
    """A run of a small plan of fixed sizes without a context, in 1 us. Used by one thread at a time.

    `call` reads `inputs`, the places of the inputs (None if no step reads it), which it may overwrite, and writes `outputs`.
    """

    inputs: tuple[Array | None, ...]
    outputs: tuple[Array, ...]
    call: Callable[[], None]
