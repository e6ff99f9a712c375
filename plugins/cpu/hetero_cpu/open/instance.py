"""An open plan with memory, bound to the sizes of its last run. Used by one run at a time."""

from __future__ import annotations

import math
import weakref
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_core.contract import OwnOutputs, RunContext
from hetero_cpu.open.plan import OpenPlan, OpenStep
from hetero_cpu.open.size_class import Products
from hetero_cpu.planning.arena import ALIGNMENT
from hetero_cpu.planning.calls import BoundStep, CurrentRun, StepCalls
from hetero_cpu.planning.instance import allocate_arena, bind_foreign, make_silence, own_value
from hetero_cpu.planning.signature import Signature

if TYPE_CHECKING:
    from hetero_cpu.machine.team import Team
    from hetero_cpu.open.appending import AppendedCaches

Array = np.ndarray[Any, Any]

_MOST_KEPT = 2


class Rebound:
    """A function of a step: the list of calls holds this, and binding to other sizes gives it other arrays and numbers."""

    __slots__ = ("action", "call")

    def __init__(self, action: Any) -> None:
        """`action`: as the plan has it, with symbols."""
        self.action, self.call = action, action

    def __call__(self) -> None:
        """Calls it for the sizes that it was bound to last."""
        self.call()


class OpenInstance:
    """Not safe for threads: one run uses it at a time."""

    def __init__(self, plan: OpenPlan, appended: Collection[str] = ()) -> None:
        """`appended`: outputs that nobody but the network reads in its next run, so that they need not be in C order."""
        from hetero_cpu.machine.program import NativeProgram  # LLVM

        self._plan = plan
        self._current = CurrentRun()
        self._memory = np.empty(0, np.uint8)
        self._begin = int(self._memory.ctypes.data)
        self._products: Products | None = None
        self._index_of_root = {root: index for index, root in enumerate(plan.roots)}
        # Where the memory of each root begins, among the numbers of calls.
        self._begins = np.zeros(len(plan.roots), np.int64)
        self._program = NativeProgram(plan.calls, is_open=True) if plan.calls else None
        self._silence = None if plan.plan.foreign_count else make_silence()
        self._outputs_kept: dict[str, list[tuple[Array, int, weakref.ref[Any]]]] = {}
        self._late: tuple[Array, ...] = ()
        self._tables: list[Array] = []
        outside = plan.plan.outside
        self._inputs = [(value, self._index_of_root[value] if value in outside.inputs else None) for value in plan.inputs]
        dtypes = {value: plan.numbers.laid[index][0] for value, index in plan.numbers.outputs.items()}
        self._lent = [(value, self._index_of_root[root], dtypes[value]) for value, root in outside.outputs.items()]
        self._inside, self._arrays = plan.numbers.inside, dict(plan.constants)
        self._rebound: list[Rebound] = []
        # What is not worth a look between them is not known for all sizes.
        steps = tuple(BoundStep(step.node, self._list_actions(step)) for step in plan.steps)
        self._calls = StepCalls(steps, self._current, self._program)
        self._appended = self._find_appended(appended)

    def _find_appended(self, outputs: Collection[str]) -> AppendedCaches | None:
        """Returns the caches among outputs that only the next run reads; None where there are none."""
        if not outputs or self._program is None:
            return None
        from hetero_cpu.open.appending import AppendedCaches, list_appending  # machine code of attention

        appending = list_appending(self._plan, outputs)
        return AppendedCaches(appending, self._program.numbers) if appending else None

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
            self._bind(products, tuple([array.shape for array in inputs]))
        current = self._current
        current.token, current.limits, current.team = context.token, context.limits, team
        try:
            outside: dict[str, Array] = {}
            begins = [0] * len(self._begins)
            for (value, root), array in zip(self._inputs, (*inputs, *self._late), strict=True):
                if root is not None:
                    is_laid = array.flags.c_contiguous or (self._appended is not None and root in self._appended.pasts)
                    whole = array if is_laid and array.flags.aligned else np.ascontiguousarray(array)
                    outside[value], begins[root] = whole, whole.__array_interface__["data"][0]
                elif value in self._arrays:
                    self._arrays[value][...] = array
                else:
                    current.passed[value] = array if array.flags.c_contiguous else np.ascontiguousarray(array)
            caches = {} if self._appended is None else self._open_caches(self._appended, outside, begins, context)
            for value, root, dtype in self._lent:
                if value in caches:
                    outside[value], begins[root] = caches[value], caches[value].__array_interface__["data"][0]
                else:
                    outside[value], begins[root] = self._take(value, dtype)
            self._move(begins)
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
        self, appended: AppendedCaches, outside: dict[str, Array], begins: list[int], context: RunContext
    ) -> dict[str, Array]:
        """Returns the outputs that this run appends to, in memory that grows; `outside` and `begins` get inputs as the calls read them.

        With limits, which count bytes, and with arrays of the caller's, of which some may overlap, nothing grows.
        """
        pasts = {root: outside[value] for value, root in self._inputs if root in appended.pasts}
        is_bare = context.limits is None and context.outputs is None
        caches = appended.open(pasts, {value: shape for value, (shape, _) in self._shapes.items()}, can_grow=is_bare)
        for value, root in self._inputs:
            if root in appended.pasts:
                outside[value], begins[root] = pasts[root], pasts[root].__array_interface__["data"][0]
        return caches

    def _bind(self, products: Products, signature: Signature) -> None:
        """Has all numbers and arrays those for other sizes."""
        self._products = None
        plan = self._plan
        need = plan.measure_arena(products)
        if need > self._memory.nbytes:
            self._memory = allocate_arena(need if plan.sizes.is_single else need + need // 4)
            self._begin = int(self._memory.ctypes.data)
        begin = self._begin
        numbers = plan.bind_numbers(products)
        if self._program is not None:
            self._program.bind(numbers.calls, numbers.chunks)
            self._program.numbers[plan.rows_in_arena] += begin
            self._tables = plan.bind_tables(numbers, self._program.numbers)
            if self._appended is not None:
                self._appended.bind()
        self._begins = np.zeros(len(self._begins), np.int64)
        laid = plan.read_laid(numbers)
        array_of_index: dict[int, Array] = {}

        def find(index: int) -> Array:
            if index not in array_of_index:
                address, shape, strides = laid[index]
                array_of_index[index] = np.ndarray(shape, plan.numbers.laid[index][0], self._memory.data, address, strides)
            return array_of_index[index]

        for name, index in self._inside.items():
            self._arrays[name] = find(index)
        self._late = plan.compute_late(numbers)
        actions = plan.bind_actions(numbers, [step.action for step in self._rebound], find)
        for step, action in zip(self._rebound, actions, strict=True):
            step.call = action
        self._shapes = {value: (laid[index][1], math.prod(laid[index][1])) for value, index in plan.numbers.outputs.items()}
        self._products = products

    def _move(self, begins: Sequence[int]) -> None:
        """Has the program work where the memory of each root begins."""
        if self._program is None or not begins:
            return
        new = np.array(begins, np.int64)
        self._program.numbers[self._plan.rows_outside] += (new - self._begins)[self._plan.roots_of_rows]
        self._begins = new

    def _take(self, value: str, dtype: np.dtype[Any]) -> tuple[Array, int]:
        """Returns an array for an output, in memory that nobody holds any more where there is some, and its address."""
        shape, count = self._shapes[value]
        memories = self._outputs_kept.setdefault(value, [])
        need = count * dtype.itemsize
        for index, (memory, _, lent) in enumerate(memories):
            if lent() is None and need <= memory.nbytes:
                memory, address, _ = memories.pop(index)
                break
        else:
            memory = allocate_arena(need + need // 8 + ALIGNMENT)
            address = int(memory.ctypes.data)
        # Every view of it holds this very array.
        array: Array = np.frombuffer(memory.data, dtype, count)
        memories.append((memory, address, weakref.ref(array)))
        del memories[:-_MOST_KEPT]
        return array.reshape(shape), address

    def _take_out(self, own_outputs: dict[str, Array], presets: Sequence[Array | None] | None) -> tuple[Any, ...]:
        outputs: list[Any] = []
        # The caller's own arrays may lie anywhere, and so may what was passed on by name.
        are_own = presets is None
        for index, value in enumerate(self._plan.plan.outputs):
            preset = None if presets is None else presets[index]
            place = own_outputs.get(value) if value in self._plan.plan.outside.outputs else self._arrays.get(value)
            if place is None:
                outputs.append(own_value(self._current.passed[value], self._memory))
                are_own = False
            elif preset is not None and preset.shape == place.shape and preset.dtype == place.dtype:
                preset[...] = place
                outputs.append(preset)
            else:
                outputs.append(place if value in self._plan.plan.outside.outputs else place.copy())
        return OwnOutputs(outputs) if are_own else tuple(outputs)
