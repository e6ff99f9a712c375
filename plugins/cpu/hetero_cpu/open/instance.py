"""An open plan with memory, bound to the sizes of its last run. Used by one run at a time."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_core.contract import OwnOutputs, RunContext
from hetero_cpu.open.evaluation import Products
from hetero_cpu.open.plan import ArrayMark, Described, NumberMark, OpenPlan, OpenStep, list_leaves
from hetero_cpu.planning.calls import BoundStep, CurrentRun, StepCalls
from hetero_cpu.planning.instance import allocate_arena, bind_foreign, make_silence, own_value
from hetero_cpu.planning.output_memory import OutputMemory

if TYPE_CHECKING:
    from hetero_cpu.machine.program import NativeProgram
    from hetero_cpu.machine.team import Team
    from hetero_cpu.open.appending import AppendedCaches

Array = np.ndarray[Any, Any]


class Rebound:
    """A function of a step: the list of calls holds this, and binding to other sizes gives it other arrays and numbers."""

    __slots__ = ("action", "arrays", "call", "has_numbers")

    def __init__(self, action: Any) -> None:
        """`action`: as the plan has it, with marks for arrays and numbers."""
        self.action, self.call = action, action
        parts = list_leaves(action)
        self.arrays = frozenset([part.index for part in parts if type(part) is ArrayMark])
        self.has_numbers = any(type(part) is NumberMark for part in parts)

    def __call__(self) -> None:
        """Calls it for the sizes that it was bound to last."""
        self.call()


class OpenInstance:
    """Not safe for threads: one run uses it at a time."""

    def __init__(self, plan: OpenPlan, appended: Collection[str] = ()) -> None:
        """`appended`: outputs that nobody but the network reads in its next run, so that they need not be in C order."""
        self._plan = plan
        self._current = CurrentRun()
        self._memory = np.empty(0, np.uint8)
        self._begin = 0
        self._products: Products | None = None
        self._index_of_root = {root: index for index, root in enumerate(plan.roots)}
        self._program = _open_program(plan) if plan.calls else None
        # What the numbers of calls were made of last.
        self._begins: list[int] = []
        self._silence = None if plan.plan.foreign_count else make_silence()
        self._late: tuple[Array, ...] = ()
        self._tables: list[Array] = []
        self._table_begins: list[int] = []
        outside = plan.plan.outside
        self._inputs = [(value, self._index_of_root[value] if value in outside.inputs else None) for value in plan.inputs]
        self._outputs = [(value, value in outside.outputs) for value in plan.plan.outputs]
        index_of_output, arrays = plan.numbers.outputs, plan.numbers.laid
        self._lent = [
            (value, self._index_of_root[root], index := index_of_output[value], OutputMemory(arrays[index][0], room=1.125))
            for value, root in outside.outputs.items()
        ]
        lent = set(index_of_output.values())
        self._in_arena = [index for index in range(len(arrays)) if index not in lent]
        self._described: Described | None = None
        self._laid: dict[int, Array] = {}
        self._arrays = dict(plan.constants)
        self._rebound: list[Rebound] = []
        # What is not worth a look between them is not known for all sizes.
        steps = tuple(BoundStep(step.node, self._list_actions(step)) for step in plan.steps)
        self._calls = StepCalls(steps, self._current, self._program)
        self._appended = self._find_appended(appended)

    def _find_appended(self, outputs: Collection[str]) -> AppendedCaches | None:
        """Returns the caches among outputs that only the next run reads; None if there are no such caches."""
        if not outputs or self._program is None:
            return None
        from hetero_cpu.open.appending import AppendedCaches, list_appending  # machine code of attention

        appending = list_appending(self._plan, outputs)
        return AppendedCaches(appending, self._program.numbers, self._plan) if appending else None

    def _list_actions(self, step: OpenStep) -> tuple[Any, ...]:
        """Returns what a step calls, whatever the sizes."""
        if step.foreign is not None:
            return (bind_foreign(step.foreign, step.writes, self._arrays, self._current),)
        actions = [action if isinstance(action, range) else Rebound(action) for action in step.actions]
        self._rebound += [action for action in actions if isinstance(action, Rebound)]
        return tuple(actions)

    def run(self, products: Products, inputs: Sequence[Any], context: RunContext, team: Team | None = None) -> tuple[Any, ...]:
        """Returns the outputs in arrays of their own, or in those that the context brings, as `Instance.run` does."""
        if products is not self._products:
            self._bind(products)
        described = self._described
        assert described is not None, "it is bound"
        current = self._current
        current.token, current.limits, current.team = context.token, context.limits, team
        try:
            outside: dict[str, Array] = {}
            begins = [0] * len(self._index_of_root)
            for (value, root), array in zip(self._inputs, (*inputs, *self._late), strict=True):
                if root is not None:
                    flags = array.flags
                    is_laid = flags.c_contiguous or (self._appended is not None and root in self._appended.pasts)
                    whole = array if is_laid and flags.aligned else np.ascontiguousarray(array)
                    outside[value], begins[root] = whole, whole.__array_interface__["data"][0]
                elif value in self._arrays:
                    self._arrays[value][...] = array
                else:
                    current.passed[value] = array if array.flags.c_contiguous else np.ascontiguousarray(array)
            caches = {} if self._appended is None else self._open_caches(self._appended, described, outside, begins, context)
            for value, root, index, memory in self._lent:
                if value in caches:
                    outside[value], begins[root] = caches[value], caches[value].__array_interface__["data"][0]
                else:
                    outside[value], begins[root] = memory.take(described.laid[index][1])
            self._move(begins)
            if self._appended is not None:
                self._appended.write()
            if self._silence is not None and context.profile is None and context.limits is None:
                self._silence.run(self._calls.run_unwatched)
            else:
                with np.errstate(all="ignore"):
                    self._calls.run(context.profile, context.limits)
            return self._take_out(outside, context.outputs)
        finally:
            current.team = None
            current.passed.clear()

    def _open_caches(
        self, appended: AppendedCaches, described: Described, outside: dict[str, Array], begins: list[int], context: RunContext
    ) -> dict[str, Array]:
        """Returns the outputs that this run appends to, in memory that grows; `outside` and `begins` get inputs as the calls read them.

        With limits, which count bytes, and with arrays of the caller's, of which some may overlap, nothing grows.
        """
        pasts = {root: outside[value] for value, root in self._inputs if root in appended.pasts}
        is_bare = context.limits is None and context.outputs is None
        shapes = {value: described.laid[index][1] for value, _, index, _ in self._lent}
        caches = appended.open(pasts, shapes, can_grow=is_bare)
        for value, root in self._inputs:
            if root in appended.pasts:
                outside[value], begins[root] = pasts[root], pasts[root].__array_interface__["data"][0]
        return caches

    def _bind(self, products: Products) -> None:
        """Has all numbers and arrays those for other sizes."""
        # A binding that has failed is no longer known.
        before = None if self._products is None else self._described
        self._products = None
        plan = self._plan
        need = plan.measure_arena(products)
        if need > self._memory.nbytes:
            self._memory = allocate_arena(need if plan.sizes.is_single else need + need // 4)
            self._begin, before = int(self._memory.ctypes.data), None
        described = plan.describe(products)
        if self._program is not None:
            self._begins = []
            chunks = plan.bind_chunks(products)
            if chunks is not None:
                self._program.set_chunks(plan.chunk_rows, chunks)
            self._tables = plan.bind_tables(described.tables)
            self._table_begins = [int(table.ctypes.data) for table in self._tables]
            if self._appended is not None:
                self._appended.bind(products)
        self._lay(described, before)
        self._late = plan.compute_late(described.elements)
        self._described = described
        self._products = products

    def _lay(self, described: Described, before: Described | None) -> None:
        """Lays the arrays that are touched by name or function, but those that lie where they lay `before`."""
        plan, places, memory = self._plan, described.laid, self._memory.data
        moved = [index for index in self._in_arena if before is None or places[index] != before.laid[index]]
        for index in moved:
            address, shape, strides = places[index]
            self._laid[index] = np.ndarray(shape, plan.numbers.laid[index][0], memory, address, strides)
        for name, index in plan.numbers.inside.items():
            self._arrays[name] = self._laid[index]
        has_other_numbers = before is None or described.extra != before.extra
        for step in self._rebound:
            if (step.has_numbers and has_other_numbers) or before is None or not step.arrays.isdisjoint(moved):
                step.call = plan.bind_action(step.action, described.extra, self._laid)

    def _move(self, roots: Sequence[int]) -> None:
        """Has the program work where the memory of each root begins."""
        begins = [self._begin, *roots, *self._table_begins]
        if self._program is None or self._products is None or begins == self._begins:
            return
        self._program.numbers[self._plan.rows] = self._plan.bind_numbers(self._products, begins)
        self._begins = begins

    def _take_out(self, own_outputs: dict[str, Array], presets: Sequence[Array | None] | None) -> tuple[Any, ...]:
        outputs: list[Any] = []
        # The caller's own arrays may lie anywhere, and so may what was passed on by name.
        are_own = presets is None
        for index, (value, is_outside) in enumerate(self._outputs):
            preset = None if presets is None else presets[index]
            place = own_outputs[value] if is_outside else self._arrays.get(value)
            if place is None:
                outputs.append(own_value(self._current.passed[value], self._memory))
                are_own = False
            elif preset is not None and preset.shape == place.shape and preset.dtype == place.dtype:
                preset[...] = place
                outputs.append(preset)
            else:
                outputs.append(place if is_outside else place.copy())
        return OwnOutputs(outputs) if are_own else tuple(outputs)


def _open_program(plan: OpenPlan) -> NativeProgram:
    """Returns the program of a plan with the numbers that are the same for all sizes."""
    from hetero_cpu.machine.program import NativeProgram  # LLVM

    program = NativeProgram(plan.calls, is_open=True)
    calls, chunks = plan.numbers.counts[:2]
    constants = plan.numbers.table.constants
    program.numbers[:] = constants[:calls]
    program.set_chunks(np.arange(chunks), constants[calls : calls + chunks])
    return program
