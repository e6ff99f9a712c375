"""The loaded network: plans of machine code for sets of input shapes, and the kernels toolkit for runs without one.

```text
load of fixed sizes, kernels at hand ──> plan ──> machine code
else ──> the toolkit answers; the plan is made and compiled in the background, then takes over
```
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hetero_core.contract import RunContext
from hetero_cpu import open_plans
from hetero_cpu.executed import MOST_PLANS, TellingExecutable
from hetero_cpu.kernel_choice import AUTO
from hetero_cpu.kernel_set import warn_of_slow_kernels, warn_where_toolkit_computes
from hetero_cpu.planning.instance import WrongTypeError, lay_inputs
from hetero_cpu.planning.later import build_plan, compile_toolkit, join, specialize
from hetero_cpu.planning.plan import ExecutionPlan
from hetero_cpu.planning.plans_in_use import OpenPlanInUse, PlanInUse, has_room, open_teams
from hetero_cpu.planning.signature import read_static_signature
from hetero_cpu.planning.weights import PackedWeights
from hetero_cpu.providers import NUMPY
from hetero_cpu.verification import Verifier

if TYPE_CHECKING:
    from hetero_core.kernels.execution import Program
    from hetero_core.network.graph import Network
    from hetero_cpu.open.plan import OpenPlan
    from hetero_cpu.open_plans import Planning
    from hetero_cpu.planning.signature import Signature
    from hetero_cpu.sources import NetworkSource

logger = logging.getLogger(__name__)

_LARGE_FILE = 1 << 28
"""Bytes of mapped constants from which packing and runs of the toolkit take turns: each of them reads all pages of the file."""
_LONGEST_WAIT = 30.0
"""Seconds. After them, weights are packed beside runs of the toolkit."""


class CpuExecutable(TellingExecutable):
    """Safe for threads. Results are the caller's own."""

    def __init__(
        self,
        source: NetworkSource,
        extensions: Mapping[tuple[str, str], Any],
        *,
        kernels: str = NUMPY,
        workers: int = 1,
        streams: int = 1,
        verifies: bool = False,
        is_once: bool = False,
    ) -> None:
        """`kernels`: NUMPY, JIT or AUTO. A run with machine code may have `workers` threads, and `streams` runs may be under way.

        With `verifies` the first run of each plan is computed twice. With `is_once` each weight is held in one form, for all sizes.
        """
        self._kernels, self.workers, self._verifies = kernels, workers, verifies
        self._teams = None if kernels == NUMPY or workers == 1 else open_teams(workers, streams)
        self.source, self.inputs, self.outputs = source, source.inputs, source.outputs
        self._extensions = dict(extensions)
        self._verifier = Verifier([spec.name for spec in self.outputs])
        signature = read_static_signature(self.inputs)
        self._is_static = signature is not None
        self.native_weights = PackedWeights(releases=self._is_static, is_once=is_once)
        self._lock, self._has_run = threading.Lock(), threading.Event()
        self._plans: OrderedDict[Signature, PlanInUse] = OrderedDict()
        self._is_closed, self._plan_count = False, 0
        self._is_ordered, self._has_failed = False, False
        self._turn, self._toolkit_runs, self._is_packing = threading.Condition(), 0, False
        self._open_plans = open_plans.OpenPlans(self.inputs, verifies=verifies)
        if signature is None and kernels != NUMPY and not is_once:
            self._open_plans.keep_on_disk(source, self.native_weights, workers)
            self._plan_count = len(self._open_plans.plans)
        self._last_open: Signature | None = None
        self._program: Program | None = None
        # The plan of a network whose inputs have one shape each: no run has to look for it.
        self._only_plan: PlanInUse | None = None
        if source.plan is not None:
            self._add_plan(source.plan, None)
        elif kernels == NUMPY:
            self._open_program()
        elif signature is not None:
            self._find_plan(signature)

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Returns the outputs; a cancelled run ends between two steps."""
        in_use = self._only_plan
        if in_use is None and self._kernels != NUMPY and not self._verifier.has_refuted:
            in_use = self._find_plan(tuple([getattr(array, "shape", None) for array in inputs]))
        try:
            return self._run_plan(in_use, inputs, context)
        finally:
            if not self._has_run.is_set():
                self._has_run.set()

    def _run_plan(self, in_use: PlanInUse | None, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Returns the outputs by a plan, or node by node where there is none for this run."""
        limits = context.limits
        if in_use is None or in_use.is_refuted or (limits is not None and not has_room(limits, in_use.measure(inputs))):
            return self._run_frugally(inputs, context)
        try:
            return self._run_twice(in_use, inputs, context) if in_use.needs_check else in_use.run(inputs, context, self._teams)
        except WrongTypeError as error:
            logger.info("network '%s': %s; it runs without a plan for these shapes", self.source.name, error)
            in_use.is_refuted = True
        return self._run_frugally(inputs, context)

    def _run_twice(self, in_use: PlanInUse, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Verifies a plan with a run; if the answers differ, the network goes on node by node."""
        program = self._open_program()
        try:
            outputs = self._verifier.run(
                self.source.name, inputs, context, lambda: in_use.run(inputs, context, self._teams), program
            )
        finally:
            if self._verifier.has_refuted:
                self._refute_all()
        in_use.needs_check = False
        if self._is_static and not self._verifier.has_refuted:
            self._program = None
            self._let_go(self.transformed)
        return outputs

    def _refute_all(self) -> None:
        """Keeps all plans from being used again, also later ones: if one is wrong, others may be."""
        with self._lock:
            for in_use in self._plans.values():
                in_use.is_refuted = True
                in_use.free.clear()
            self._open_plans.refute()

    def _run_frugally(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Runs node by node and frees a value after its last use; an error names the node for which there is no room."""
        program, inputs = self._open_program(), lay_inputs(inputs)
        with self._turn:
            self._toolkit_runs += 1
        try:
            return program.run(inputs, profile=context.profile, is_cancelled=context.cancelled, limits=context.limits)
        finally:
            with self._turn:
                self._toolkit_runs -= 1
                self._turn.notify_all()

    def _open_program(self) -> Program:
        """Returns the network as the toolkit runs it."""
        program = self._program
        if program is None:
            if self._kernels == NUMPY:
                warn_of_slow_kernels()
            program = self._program = compile_toolkit(self.transformed, self._extensions)
        return program

    def _let_go(self, special: Network) -> None:
        """Releases the constants if no other plan will be made: the plan and the toolkit's program hold their own."""
        if self._is_static:
            for constant in (*self.transformed.initializers.values(), *special.initializers.values()):
                constant.release()

    def find_native_plan(self) -> tuple[Signature, ExecutionPlan] | None:
        """Returns a plan of machine code alone, with its input shapes: of a class of sizes it is made for the last sizes."""
        with self._lock:
            for signature, in_use in reversed(self._plans.items()):
                if in_use.plan.kernels and not in_use.plan.foreign_count and not in_use.is_refuted:
                    return signature, in_use.plan
            last = self._last_open
        if last is None or self._verifier.has_refuted:
            return None
        from hetero_cpu.machine.compiler import COMPILER  # only exports need it
        from hetero_cpu.machine.interpreter import list_interpreters

        special = join(specialize(self.transformed, last))
        entry = self._plan_sizes(special)
        if entry.plan.foreign_count or not entry.plan.kernels:
            return None
        COMPILER.compile_all((*entry.plan.kernels, *list_interpreters(self.workers)))
        COMPILER.rest()
        self.native_weights.pack_all(self.workers)
        return last, entry.plan

    def _find_plan(self, signature: Signature) -> PlanInUse | None:
        """Returns the plan for input shapes; None while it is made and compiled in the background."""
        with self._lock:
            in_use = self._plans.get(signature)
            if in_use is not None:
                self._plans.move_to_end(signature)
                return in_use
            opened = self._open_plans.find(signature)
            if opened is not None:
                self._last_open = signature
                return opened
        stored = self._open_plans.find_stored(signature)
        return self._make_plan(signature) if stored is None else self._add_plan(stored, signature)

    def _make_plan(self, signature: Signature) -> PlanInUse | None:
        """Returns a new plan for input shapes; None as `_find_plan` does."""
        if self._is_ordered or self._has_failed:
            return self._await_plan(signature)
        # Planning open sizes takes as long as the toolkit takes to answer.
        if self._kernels == AUTO and not (self._is_static and open_plans.has_interpreters(self.workers)):
            self._order(signature)
            return None
        planning = self._plan(signature)
        plan = open_plans.load_plan(planning) if self._kernels == AUTO else open_plans.compile_plan(planning, self.workers)
        if plan is None:
            self._order(signature)
            return None
        if isinstance(plan, OpenPlanInUse):
            self._open_plans.keep_aside(plan, signature)
        return self._add_plan(plan, signature)

    def _plan(self, signature: Signature) -> Planning:
        """Yields the kernels of a plan, then packs its weights and returns it.

        It is of the class of sizes that input shapes belong to, or of these shapes alone. The background calls it with a proxy of the
        executable, which may be freed while its kernels are compiled.
        """
        special = specialize(self.transformed, signature)
        if self._open_plans.is_wanted(signature):
            from hetero_cpu.open.making import make_open_plan

            class_plan = yield from make_open_plan(
                self.transformed,
                signature,
                special,
                weights=self.native_weights,
                extensions=self._extensions,
                workers=self.workers,
                begin_packing=lambda: self._begin_packing(),  # a bound method would hold the executable
            )
            if class_plan is not None:
                return self._use_class(class_plan, signature)
            self._open_plans.note_failure()
        special = join(special)
        entry = self._plan_sizes(special)
        if self._is_ordered:
            # Constants are read again to be packed: compiling takes longer, and needs memory, too.
            self._let_go(special)
        yield from entry.plan.kernels
        self._begin_packing()
        self.native_weights.pack_all(self.workers)
        self._let_go(special)
        return entry

    def _plan_sizes(self, special: Network) -> PlanInUse:
        """Returns the plan of a network for one set of input shapes."""
        plan = build_plan(special, self.native_weights, self._extensions, workers=self.workers)
        warn_where_toolkit_computes(plan)
        return PlanInUse(plan, is_refuted=self._verifier.has_refuted, needs_check=self._verifies)

    def _use_class(self, class_plan: OpenPlan, signature: Signature) -> OpenPlanInUse:
        warn_where_toolkit_computes(class_plan.plan)
        return OpenPlanInUse(class_plan)

    def _begin_packing(self) -> None:
        """Waits for runs of the toolkit, and has new ones wait, if packing beside them would hold the weights of a large file twice."""
        if self._is_ordered and sum(own.nbytes for own in self.transformed.initializers.values() if own.is_mapped) >= _LARGE_FILE:
            with self._turn:
                self._is_packing = True
                self._turn.wait_for(lambda: self._toolkit_runs == 0, _LONGEST_WAIT)

    def _end_packing(self) -> None:
        with self._turn:
            self._is_packing = False
            self._turn.notify_all()

    def _await_plan(self, signature: Signature) -> PlanInUse | None:
        """Returns the plan that takes over when its weights are packed; None if it is not that far, or of other input shapes."""
        with self._turn:
            if not self._is_packing:
                return None
            self._turn.wait_for(lambda: not self._is_packing, _LONGEST_WAIT)
        with self._lock:
            return self._plans.get(signature) or self._open_plans.find(signature)

    def _add_plan(self, plan: PlanInUse, signature: Signature | None) -> PlanInUse:
        """Returns the plan that runs of input shapes use from now on: this one, or that of another run which was first."""
        with self._lock:
            plan.is_refuted |= self._verifier.has_refuted
            self._plan_count += 1
            if isinstance(plan, OpenPlanInUse):
                self._last_open = signature
                self._open_plans.add(plan)
            else:
                assert signature is not None, "only plans of classes come with blobs"
                plan = self._plans.setdefault(signature, plan)
                while len(self._plans) > MOST_PLANS:
                    self._plans.popitem(last=False)
            self._program = None
            if self._is_static:
                self._only_plan = plan
        return plan

    def _order(self, signature: Signature) -> None:
        """Has a plan made and its kernels compiled by the thread that does so for all; then it takes over.

        One plan at a time is ordered: the toolkit answers all other input shapes meanwhile.
        """
        with self._lock:
            if self._is_ordered:
                return
            self._is_ordered = True
        owner = weakref.ref(self)

        def finish(prepared: PlanInUse | None, error: BaseException | None) -> None:
            executable = owner()
            if executable is not None:
                open_plans.warn_of_error(error, executable.source.name)
                executable._take_over(prepared, signature, error)

        def is_wanted() -> bool:
            executable = owner()
            return executable is not None and not executable._is_closed

        planning = CpuExecutable._plan(weakref.proxy(self), signature)
        open_plans.order_plan(planning, finish, is_wanted=is_wanted, begin=self._has_run, workers=self.workers)

    def _take_over(self, plan: PlanInUse | None, signature: Signature, error: BaseException | None) -> None:
        if error is None and plan is not None:
            self._add_plan(plan, signature)
            self._let_go(self.transformed)
        with self._lock:
            self._is_ordered, self._has_failed = False, error is not None
        self._end_packing()
        if error is None and isinstance(plan, OpenPlanInUse):
            self._open_plans.keep(plan, signature)

    def close(self) -> None:
        """Ends the helping threads; nothing more is compiled for this network."""
        self._is_closed = True
        self._has_run.set()
        self._open_plans.wait()
        if self._teams is not None:
            self._teams.close()
