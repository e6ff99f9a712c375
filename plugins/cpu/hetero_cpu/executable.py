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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hetero_core.contract import Executable, RunContext
from hetero_core.executed import ExecutedNode, list_nodes, name_layout
from hetero_core.kernels.products import multiply_with
from hetero_core.network.types import ValueType
from hetero_cpu.machine.availability import AUTO, NUMPY
from hetero_cpu.operators.weights import PackedWeights
from hetero_cpu.plan.passes import build_plan, compile_toolkit, join, name_nodes, specialize
from hetero_cpu.plan.plan import ExecutionPlan, Foreign, PlannedStep, count_constant_bytes
from hetero_cpu.run import plans as open_plans
from hetero_cpu.run.blas import limit_blas, warn_of_slow_kernels
from hetero_cpu.run.instance import WrongTypeError, lay_inputs
from hetero_cpu.run.plans import OpenPlanInUse, PlanInUse, has_room, open_teams
from hetero_cpu.run.verification import Verifier
from hetero_cpu.stored.payload import NetworkSource
from hetero_cpu.symbols.size_class import read_static_signature

if TYPE_CHECKING:
    from hetero_core.kernels.execution import Program
    from hetero_core.network.graph import Network
    from hetero_cpu.plan.open_plan import OpenPlan
    from hetero_cpu.run.blas import ProductTeam
    from hetero_cpu.run.plans import OpenPlans, Planning
    from hetero_cpu.symbols.size_class import Signature


MOST_PLANS = 16


class TellingExecutable(Executable):
    """An executable on CPU that tells its steps and its metrics."""

    source: NetworkSource
    _only_plan: PlanInUse | None
    _program: Program | None
    _plans: OrderedDict[Signature, PlanInUse]
    _open_plans: OpenPlans
    _plan_count: int
    _is_ordered: bool
    native_weights: PackedWeights
    _verifier: Verifier

    def metrics(self) -> Mapping[str, Any]:
        """Metrics of the plans: how many were made and may be kept, their memory, and their steps that call the toolkit."""
        from hetero_cpu.symbols.sizes import value_of  # an import of a blob needs no symbols

        return {
            "CPU_PLANS": lambda: (self._plan_count, MOST_PLANS),
            "CPU_ARENA_BYTES": lambda: max((value_of(plan.arena_bytes) for plan in self._list_plans()), default=0),
            "CPU_WEIGHT_BYTES": lambda: self.native_weights.nbytes + sum(memory.nbytes for memory in self.source.packed),
            "CPU_CONSTANT_BYTES": lambda: count_constant_bytes(
                self._list_plans(), (*self.source.constants, *self._list_toolkit_constants()), packed=self.source.packed
            ),
            "CPU_KERNELS_READY": lambda: not self._is_ordered,
            "CPU_NATIVE_STEPS": lambda: max((plan.native_count for plan in self._list_plans()), default=0),
            "CPU_FOREIGN_STEPS": lambda: max((plan.foreign_count for plan in self._list_plans()), default=0),
            "CPU_VERIFIED_PLANS": lambda: self._verifier.plans,
            "CPU_VERIFY_SECONDS": lambda: self._verifier.seconds,
            "CPU_REFUTED": lambda: self._verifier.has_refuted,
        }

    @property
    def transformed(self) -> Network:
        """The network after the passes that do not ask for sizes."""
        return self.source.open()

    @property
    def calls_blas(self) -> bool:
        """True if a run without limits may call NumPy's BLAS, and also where it depends on the shapes of the inputs."""
        in_use = self._only_plan
        return in_use is None or in_use.needs_check or in_use.is_refuted or in_use.plan.calls_blas

    def _list_toolkit_constants(self) -> list[Any]:
        program = self._program
        return [] if program is None else [value for value in program.values if hasattr(value, "__array_interface__")]

    def _list_plans(self) -> list[ExecutionPlan]:
        return [in_use.plan for in_use in (*self._plans.copy().values(), *self._open_plans.plans)]

    def keep_states(self, output_of_input: Mapping[str, str]) -> Mapping[str, Any]:
        """Notes which outputs only the next run reads: a cache among them grows where it lies."""
        self._open_plans.appended = frozenset(output_of_input.values())
        return {}

    def executed_nodes(self) -> tuple[ExecutedNode, ...]:
        """The steps of the plan that was used last; before the first run of a network with open sizes its nodes one by one."""
        network = self.source.open()
        used = self._only_plan or next(iter([*reversed(list(self._plans.values())), *reversed(self._open_plans.plans)]), None)
        if used is None or used.is_refuted:
            return list_nodes(name_nodes(network), network.types, kernel="toolkit")
        return list_steps(used.plan, network.types)


def list_steps(plan: ExecutionPlan, types: Mapping[str, ValueType]) -> tuple[ExecutedNode, ...]:
    """Returns the steps of a plan in order. Layouts are those in the arena, a layout of four axes in channels last is "acdb"."""
    return tuple(
        ExecutedNode(
            step.node.name,
            step.node.op_type,
            step.node.origins,
            step.work.reads,
            step.writes,
            _name_kernel(step),
            tuple(_find_layout(step.strides.get(value)) for value in step.writes),
            tuple(types.get(value) for value in step.writes),
        )
        for step in plan.steps
    )


def _name_kernel(step: PlannedStep) -> str:
    if isinstance(step.work, Foreign):
        return "toolkit"
    return "machine code" if step.work.kernels else "NumPy"


def _find_layout(strides: tuple[int, ...] | None) -> str:
    """Returns the axes from the largest stride to the smallest, those of equal strides in order; "" where they are not known."""
    return "" if strides is None else name_layout(sorted(range(len(strides)), key=lambda axis: -strides[axis]))


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
            from hetero_cpu.plan.tabulating import make_open_plan

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


def warn_where_toolkit_computes(plan: ExecutionPlan) -> None:
    """Warns of slow kernels if the toolkit computes steps of a plan."""
    if plan.foreign_count:
        warn_of_slow_kernels()


class LimitedExecutable(CpuExecutable):
    """A program for processes with several processors; a class of its own, so that a process with one pays nothing for it."""

    def __init__(
        self, source: NetworkSource, extensions: Mapping[tuple[str, str], Any], *, workers: int, streams: int = 1, **options: Any
    ) -> None:
        """`options`: those of `CpuExecutable`."""
        # A load is not limited: threadpoolctl would be imported, and most plans never call BLAS.
        self._team: ProductTeam | None = None
        self._is_loaded = False
        super().__init__(source, extensions, workers=workers, streams=streams, **options)
        self._streams, self._is_loaded = streams, True

    def _run_plan(self, in_use: PlanInUse | None, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Returns the outputs, with BLAS limited meanwhile, where it may be called."""
        is_bare = in_use is not None and not (in_use.calls_blas or in_use.needs_check or in_use.is_refuted)
        if is_bare and context.limits is None:
            return super()._run_plan(in_use, inputs, context)
        with self._share_products():
            return super()._run_plan(in_use, inputs, context)

    def _make_plan(self, signature: Signature) -> PlanInUse | None:
        """Returns a new plan; making one may call BLAS as well."""
        if not self._is_loaded:
            return super()._make_plan(signature)
        with self._share_products():
            return super()._make_plan(signature)

    @contextmanager
    def _share_products(self) -> Iterator[None]:
        if self._team is None:
            from hetero_cpu.run.blas import ProductTeam  # only NumPy's products need it

            with self._lock:
                self._team = self._team or ProductTeam(self.workers, self._streams)
        with limit_blas(), multiply_with(self._team.multiply):
            yield

    def close(self) -> None:
        """Ends the helping threads, too."""
        super().close()
        if self._team is not None:
            self._team.close()
