"""The loaded network: a plan for each set of input shapes, and instances of it for runs at the same time."""

from __future__ import annotations

import logging
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hetero_core.contract import RunContext
from hetero_cpu import open_plans
from hetero_cpu.executed import MOST_PLANS, TellingExecutable
from hetero_cpu.kernel_set import warn_where_numpy_computes
from hetero_cpu.planning.instance import WrongTypeError, lay_inputs
from hetero_cpu.planning.later import build_plan, compile_toolkit, join, specialize
from hetero_cpu.planning.plan import ExecutionPlan
from hetero_cpu.planning.plan_check import is_faulty
from hetero_cpu.planning.plans_in_use import OpenPlanInUse, PlanInUse, has_room, open_teams
from hetero_cpu.planning.signature import read_static_signature
from hetero_cpu.planning.weights import PackedWeights
from hetero_cpu.providers import JIT, NUMPY
from hetero_cpu.verification import Verifier

if TYPE_CHECKING:
    from hetero_core.kernels.execution import Program
    from hetero_core.network.graph import Network
    from hetero_cpu.machine.compiler import Kernel
    from hetero_cpu.planning.signature import Signature
    from hetero_cpu.sources import NetworkSource

logger = logging.getLogger(__name__)


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
        checks_plans: bool = False,
        is_once: bool = False,
    ) -> None:
        """`kernels`: NUMPY, JIT or AUTO; a run with machine code may have `workers` threads, and `streams` runs may be under way.

        With `verifies` the first run of each plan is computed twice. With `checks_plans` a plan is checked as a whole before it runs,
        and a network with a wrong one goes node by node. With `is_once` each weight is held in one form, for all sizes.
        """
        self._kernels, self.workers, self._verifies, self._checks_plans = kernels, workers, verifies, checks_plans
        self._teams = None if kernels == NUMPY or workers == 1 else open_teams(workers, streams)
        self.source, self.inputs, self.outputs = source, source.inputs, source.outputs
        self._extensions = dict(extensions)
        self._verifier = Verifier([spec.name for spec in self.outputs])
        # Apart, so that what only NumPy's plans read goes when machine code takes over.
        signature = read_static_signature(self.inputs)
        self._weights = PackedWeights(releases=signature is not None, is_once=is_once)
        self.native_weights = self._weights.renew()
        self._lock, self._has_run = threading.Lock(), threading.Event()
        self._plans: OrderedDict[Signature, PlanInUse] = OrderedDict()
        self._is_closed, self._plan_count, self._orders = False, 0, 0
        self._open_plans = open_plans.OpenPlans(self.inputs, verifies=verifies)
        if signature is None and kernels != NUMPY and not (checks_plans or is_once):
            self._open_plans.keep_on_disk(source, self.native_weights, workers)
            self._plan_count = len(self._open_plans.plans)
        self._last_open: Signature | None = None
        self._program: Program | None = None
        # The plan of a network whose inputs have one shape each: no run has to look for it.
        self._only_plan: PlanInUse | None = None
        if source.plan is not None:
            self._add_class(source.plan, None)
            self._only_plan = None if signature is None else source.plan
        elif signature is not None:
            self._find_plan(signature)
            with self._lock:
                # Not what was found: machine code may have taken over already.
                self._only_plan = self._plans[signature]

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Returns the outputs; a cancelled run ends between two steps."""
        in_use = self._only_plan
        if in_use is None and not self._verifier.has_refuted:
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
        if self._weights.releases and not self._verifier.has_refuted:
            # The plan holds what it needs of the constants.
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
        return program.run(inputs, profile=context.profile, is_cancelled=context.cancelled, limits=context.limits)

    def _open_program(self) -> Program:
        """Returns the network as the toolkit runs it."""
        program = self._program
        if program is None:
            program = self._program = compile_toolkit(self.transformed, self._extensions)
        return program

    def _let_go(self, special: Network) -> None:
        """Releases the constants if no other plan will be made: the plan holds its own."""
        if self._weights.releases:
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
        special = join(specialize(self.transformed, last))
        entry = self._enter(self._build_native_plan(special))
        if entry.plan.foreign_count or not entry.plan.kernels:
            return None
        open_plans.load_kernels(entry, JIT)
        self.native_weights.pack_all(self.workers)
        return last, entry.plan

    def _find_plan(self, signature: Signature) -> PlanInUse | None:
        """Returns the plan for input shapes; None where they pass while kernels are compiled, and are run without one."""
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
        return self._make_plan(signature) if stored is None else self._add_class(stored, signature)

    def _make_plan(self, signature: Signature) -> PlanInUse | None:
        """Returns a new plan for input shapes; None as `_find_plan` does."""
        with self._lock:
            if self._open_plans.is_passing(signature):
                return None
        special = specialize(self.transformed, signature)
        if (entry := self._make_open_plan(special, signature)) is not None:
            return entry
        if self._open_plans.is_passing(signature):
            return None
        special = join(special)
        is_interim = self._open_plans.is_ordered
        plan, is_awaited = self._build_plan(special, is_interim=is_interim)
        entry = self._enter(plan)
        self._let_go(special)
        if not is_awaited and not is_interim:
            warn_where_numpy_computes(plan)
        entry.is_refuted |= self._checks_plans and is_faulty(plan, self.source.name)
        with self._lock:
            self._plan_count += 1
            if is_interim and not self._open_plans.is_ordered:
                # The class took over meanwhile: what is kept for one set of sizes would hide it from the next run.
                return entry
            in_use = self._plans.setdefault(signature, entry)
            while len(self._plans) > MOST_PLANS:
                self._plans.popitem(last=False)
        if is_awaited and in_use.plan is plan:
            self._order(special, signature)
        return in_use

    def _make_open_plan(self, special: Network, signature: Signature) -> PlanInUse | None:
        """Returns a new plan of a class of sizes; None if no class can be made, or while kernels of one are compiled."""
        if self._kernels == NUMPY or not self._open_plans.is_wanted(signature):
            return None
        missing: list[Kernel] | None = None
        opened, is_ready = None, False
        if self._kernels == JIT or open_plans.has_interpreters(self.workers):
            # The call that waits plans once: if kernels are missing, the whole plan is made by the compiling thread.
            missing = []
            opened = self._plan_class(special, signature, None if self._kernels == JIT else missing)
            if opened is None and not missing:
                self._open_plans.note_failure()
                return None
            is_ready = opened is not None and open_plans.load_kernels(opened, self._kernels)
        if opened is not None and is_ready and not missing:
            self._open_plans.keep_aside(opened, special)
            return self._add_class(opened, signature)
        if not self._open_plans.claim_order():
            return None
        whole = None if missing else opened
        self._order_plan(
            lambda executable: executable._plan_class(special, signature) if whole is None else whole,
            lambda executable, plan, error: executable._take_over_class(plan, special, signature, error),
        )
        return self._add_class(opened, signature) if opened is not None and is_ready else None

    def _add_class(self, opened: OpenPlanInUse, signature: Signature | None) -> OpenPlanInUse:
        with self._lock:
            opened.is_refuted |= self._verifier.has_refuted
            self._plan_count, self._last_open = self._plan_count + 1, signature
            self._open_plans.add(opened)
        return opened

    def _plan_class(self, special: Network, signature: Signature, missing: list[Kernel] | None = None) -> OpenPlanInUse | None:
        """Returns the plan of a class of sizes, nothing of it compiled; None if there is none.

        With `missing`, which gets the kernels that are not at hand, the plan does without them.
        """
        from hetero_cpu.open.making import make_open_plan

        def is_at_hand(kernels: Sequence[Kernel]) -> bool:
            assert missing is not None
            is_there = open_plans.are_at_hand(kernels)
            missing.extend(() if is_there else kernels)
            return is_there

        class_plan = make_open_plan(
            self.transformed,
            signature,
            special,
            weights=self.native_weights,
            extensions=self._extensions,
            workers=self.workers,
            is_at_hand=None if missing is None else is_at_hand,
        )
        if class_plan is None:
            return None
        if not missing:
            warn_where_numpy_computes(class_plan.plan)
        return open_plans.make_plan_in_use(
            self.source.name, class_plan, signature, checks_plan=self._checks_plans, is_interim=bool(missing)
        )

    def _take_over_class(
        self, opened: OpenPlanInUse | None, special: Network, signature: Signature, error: BaseException | None
    ) -> None:
        with self._lock:
            self._orders -= 1
            self._plan_count += self._open_plans.end_with(opened, error, is_refuted=self._verifier.has_refuted)
            if error is None:
                # NumPy's plans were to answer meanwhile.
                for own in [own for own, plan in self._plans.items() if not plan.plan.kernels]:
                    if opened is not None or own != signature:
                        del self._plans[own]
                if self._orders == 0:
                    self._weights = self._weights.renew()
        if error is None and opened is None:
            self._order(special, signature)
        elif error is None and opened is not None:
            self._open_plans.keep(opened, special)

    def _order_plan(
        self,
        make: Callable[[CpuExecutable], PlanInUse | None],
        take_over: Callable[[CpuExecutable, Any, BaseException | None], None],
    ) -> None:
        """Has a plan made and its kernels compiled by the thread that does so for all; `take_over` gets the plan or the error."""
        owner = weakref.ref(self)

        def prepare() -> PlanInUse | None:
            executable = owner()
            return None if executable is None else make(executable)

        def finish(plan: PlanInUse | None, error: BaseException | None) -> None:
            executable = owner()
            if executable is not None:
                open_plans.warn_of_error(error, executable.source.name)
                take_over(executable, plan, error)

        def is_wanted() -> bool:
            executable = owner()
            return executable is not None and not executable._is_closed

        with self._lock:
            self._orders += 1
        open_plans.order_kernels(prepare, finish, is_wanted=is_wanted, begin=self._has_run, workers=self.workers)

    def _enter(self, plan: ExecutionPlan) -> PlanInUse:
        return PlanInUse(plan, is_refuted=self._verifier.has_refuted, needs_check=self._verifies)

    def _build_plan(self, special: Network, *, is_interim: bool) -> tuple[ExecutionPlan, bool]:
        """Returns the plan to run, NumPy's until a class takes over where `is_interim`, and whether one of machine code takes its place."""
        if self._kernels == NUMPY:
            return build_plan(special, self._weights, self._extensions), False
        if is_interim:
            return build_plan(special, self._weights, self._extensions, is_interim=True), False
        from hetero_cpu.machine.compiler import COMPILER
        from hetero_cpu.machine.interpreter import list_interpreters

        # All plans of machine code need the interpreters: where they are not stored, none is made before NumPy's has answered.
        if self._kernels == JIT or COMPILER.load_stored(list_interpreters(self.workers)):
            native = self._build_native_plan(special)
            if self._kernels == JIT:
                try:
                    COMPILER.compile_all((*native.kernels, *list_interpreters(self.workers)))
                finally:
                    COMPILER.rest()
            if self._kernels == JIT or COMPILER.load_stored(native.kernels):
                self.native_weights.pack_all(self.workers)
                return native, False
        return build_plan(special, self._weights, self._extensions, is_interim=True), True

    def _build_native_plan(self, special: Network) -> ExecutionPlan:
        """Returns the plan of machine code, nothing of it compiled or packed."""
        return build_plan(special, self.native_weights, self._extensions, provider=JIT, workers=self.workers)

    def _order(self, special: Network, signature: Signature) -> None:
        """Has the plan of machine code made and its kernels compiled; it takes over when they are."""

        def make(executable: CpuExecutable) -> PlanInUse:
            entry = executable._enter(executable._build_native_plan(special))
            # They are made again to be packed: compiling takes longer, and needs memory, too.
            executable._let_go(special)
            return entry

        self._order_plan(make, lambda executable, plan, error: executable._take_over(plan, signature, error))

    def _take_over(self, native: PlanInUse | None, signature: Signature, error: BaseException | None) -> None:
        try:
            if error is None:
                if native is not None:
                    native.is_refuted |= self._checks_plans and is_faulty(native.plan, self.source.name)
                    warn_where_numpy_computes(native.plan)
                self.native_weights.pack_all(1)
        finally:
            with self._lock:
                self._orders -= 1
                if error is None and native is not None and signature in self._plans:
                    native.is_refuted |= self._plans[signature].is_refuted
                    self._plans[signature] = native
                    self._only_plan = None if self._only_plan is None else native
                if error is None and self._orders == 0:
                    # What NumPy's plans read is freed with the last of them.
                    self._weights = self._weights.renew()

    def close(self) -> None:
        """Ends the helping threads; nothing more is compiled for this network."""
        self._is_closed = True
        self._has_run.set()
        self._open_plans.wait()
        if self._teams is not None:
            self._teams.close()
