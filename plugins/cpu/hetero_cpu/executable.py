"""The loaded network: a plan for each set of input shapes, and instances of it for runs at the same time."""

from __future__ import annotations

import logging
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from hetero_core.contract import RunContext
from hetero_core.kernels.execution import Program
from hetero_core.kernels.program import compile_program
from hetero_core.limits import RunLimits
from hetero_core.network.graph import Network
from hetero_cpu.executed import TellingExecutable
from hetero_cpu.foreign import evaluate_node
from hetero_cpu.instance import WrongTypeError
from hetero_cpu.jit.orders import OrderDroppedError
from hetero_cpu.kernel_choice import NO, YES
from hetero_cpu.kernel_set import warn_where_numpy_computes
from hetero_cpu.mapped_weights import drop_read_pages
from hetero_cpu.open_plans import OpenPlans, load_kernels, make_plan_in_use
from hetero_cpu.passes import join_network, transform_network
from hetero_cpu.plan import Plan, count_constant_bytes
from hetero_cpu.planner import build_plan
from hetero_cpu.plans_in_use import OpenPlanInUse, PlanInUse
from hetero_cpu.providers import JIT, NUMPY
from hetero_cpu.signature import Signature, read_static_signature, specialize_network
from hetero_cpu.verification import Verifier
from hetero_cpu.weights import PackedWeights

if TYPE_CHECKING:
    from hetero_cpu.jit.compiler import Kernel
    from hetero_cpu.jit.team import TeamPool

logger = logging.getLogger(__name__)

MOST_PLANS = 16


class CpuExecutable(TellingExecutable):
    """Safe for threads. Results are the caller's own."""

    def __init__(
        self,
        network: Network,
        extensions: Mapping[tuple[str, str], Any],
        *,
        kernels: str = NUMPY,
        workers: int = 1,
        streams: int = 1,
        verifies: str = NO,
        checks_plans: bool = False,
    ) -> None:
        """`kernels`: NUMPY, JIT or AUTO; a run with machine code may have `workers` threads, and `streams` runs may be under way.

        `verifies` says which plans are verified in their first run: AUTO those with machine code, YES all, NO none. With
        `checks_plans` a plan is also checked as a whole before it runs, and where it is wrong the network goes node by node.
        """
        self._kernels, self._workers, self._verifies, self._checks_plans = kernels, workers, verifies, checks_plans
        self._teams = None if kernels == NUMPY or workers == 1 else _open_teams(workers, streams)
        self._orders = 0
        self.network = network
        self.inputs, self.outputs = network.inputs, network.outputs
        self._transformed = transform_network(network)
        self._extensions = dict(extensions)
        names = [tuple(spec.name for spec in specs) for specs in (self.inputs, self.outputs)]
        self._verifier = Verifier(network.name, names[1], inputs=names[0])
        # Apart, so that what only NumPy's plans read goes when machine code takes over.
        signature = read_static_signature(self._transformed)
        releases = signature is not None
        self._weights, self._native_weights = PackedWeights(releases=releases), PackedWeights(releases=releases)
        self._lock = threading.Lock()
        self._has_run, self._is_warm = threading.Event(), False
        self._plans: OrderedDict[Signature, PlanInUse] = OrderedDict()
        self._is_closed, self._plan_count = False, 0
        self._open_plans = OpenPlans()
        self._program: Program | None = None
        # The plan of a network whose inputs have one shape each: no run has to look for it.
        self._only_plan: PlanInUse | None = None
        if signature is not None:
            self._find_plan(signature)
            with self._lock:
                # Not what was found: machine code may have taken over already.
                self._only_plan = self._plans[signature]

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Returns the outputs; a cancelled run ends between two steps."""
        found = self._only_plan
        if found is None:
            if self._verifier.has_refuted:
                return self._run_frugally(inputs, context)
            found = self._find_plan(tuple([getattr(array, "shape", None) for array in inputs]))
        limits = context.limits
        if found.is_refuted or (limits is not None and not _has_room(limits, found.measure(inputs))):
            return self._run_frugally(inputs, context)
        try:
            # A run with limits was given neither the time nor the memory of two, unless all are to be verified.
            if found.needs_check and (limits is None or self._verifies == YES):
                return self._run_twice(found, inputs, context)
            return found.run(inputs, context, self._teams)
        except WrongTypeError as error:
            logger.info("network '%s': %s; it runs without a plan for these shapes", self.network.name, error)
            found.is_refuted = True
        finally:
            if not self._is_warm:
                self._is_warm = True
                self._has_run.set()
        return self._run_frugally(inputs, context)

    def _run_twice(self, found: PlanInUse, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Runs with a plan that nobody has verified, and without one; where the answers differ the network goes on node by node."""
        program = drop_read_pages(self._open_program(), self._transformed.initializers)
        verdict = self._verifier.run(inputs, context, lambda: found.run(inputs, context, self._teams), program)
        if verdict.fault:
            self._refute_all()
            self._verifier.warn(verdict.fault)
            if verdict.error is not None:
                raise verdict.error
            return verdict.outputs
        found.needs_check = False
        if verdict.is_lasting and found.name:
            from hetero_cpu.jit.verified_plans import note_verified

            note_verified(found.name)
        if self._weights.releases:
            # Nothing is left to be verified: the plan has what it needs of the constants.
            self._program = None
            self._let_go(self._transformed)
        return verdict.outputs

    def _refute_all(self) -> None:
        """Keeps all plans from being used again, also those that are still to come: where one is wrong, so may be others."""
        with self._lock:
            for found in self._plans.values():
                found.is_refuted = True
                found.free.clear()
            self._open_plans.refute()

    @property
    def calls_blas(self) -> bool:
        """True if a run without limits may call NumPy's BLAS, and also where it depends on the shapes of the inputs."""
        found = self._only_plan
        return found is None or found.needs_check or found.is_refuted or found.plan.calls_blas

    def _run_frugally(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Runs node by node, where a value is freed when it is read for the last time; names the node for which there is no room."""
        program = self._open_program()
        return program.run(inputs, profile=context.profile, is_cancelled=context.cancelled, limits=context.limits)

    def _open_program(self) -> Program:
        """Returns the network as the toolkit runs it."""
        program = self._program
        if program is None:
            program = self._program = compile_program(self._transformed, extensions=self._extensions)
        return program

    def metrics(self) -> Mapping[str, Any]:
        """Metrics of the plans: how many were made and may be kept, their memory, and their steps that call the toolkit."""
        return {
            "CPU_PLANS": lambda: (self._plan_count, MOST_PLANS),
            "CPU_ARENA_BYTES": lambda: max((found.plan.arena_bytes for found in list(self._plans.values())), default=0),
            "CPU_WEIGHT_BYTES": lambda: self._weights.nbytes + self._native_weights.nbytes,
            "CPU_CONSTANT_BYTES": lambda: count_constant_bytes(found.plan for found in list(self._plans.values())),
            "CPU_KERNELS_READY": lambda: self._orders == 0,
            "CPU_NATIVE_STEPS": lambda: max((found.plan.native_count for found in list(self._plans.values())), default=0),
            "CPU_FOREIGN_STEPS": lambda: max((found.plan.foreign_count for found in list(self._plans.values())), default=0),
            "CPU_VERIFIED_PLANS": lambda: self._verifier.plans,
            "CPU_VERIFY_SECONDS": lambda: self._verifier.seconds,
            "CPU_REFUTED": lambda: self._verifier.has_refuted,
        }

    @property
    def workers(self) -> int:
        """The threads that a run with machine code may have."""
        return self._workers

    @property
    def transformed(self) -> Network:
        """The network after the passes that do not ask for sizes."""
        return self._transformed

    @property
    def native_weights(self) -> PackedWeights:
        """The weights in the layouts that machine code reads."""
        return self._native_weights

    def find_native_plan(self) -> tuple[Signature, Plan, str] | None:
        """Returns the plan of machine code alone that was used last, with its input shapes and its name; None where there is none."""
        with self._lock:
            for signature, found in reversed(self._plans.items()):
                if found.plan.kernels and not found.plan.foreign_count and not found.is_refuted:
                    return signature, found.plan, found.name
        return None

    def _find_plan(self, signature: Signature) -> PlanInUse:
        with self._lock:
            found = self._plans.get(signature)
            if found is not None:
                self._plans.move_to_end(signature)
                return found
            opened = self._open_plans.find(signature)
            if opened is not None:
                return opened
        special = specialize_network(self._transformed, signature, evaluate_node)
        entry = self._make_open_plan(special, signature)
        if entry is not None:
            return entry
        special = join_network(special)
        plan, is_awaited = self._build_plan(special)
        entry = self._enter(plan, special)
        self._let_go(special)
        if not is_awaited:
            warn_where_numpy_computes(plan)
        entry.is_refuted |= self._is_faulty(plan)
        with self._lock:
            self._plan_count += 1
            found = self._plans.setdefault(signature, entry)
            while len(self._plans) > MOST_PLANS:
                self._plans.popitem(last=False)
        if is_awaited and found.plan is plan:
            self._order(special, signature)
        return found

    def _make_open_plan(self, special: Network, signature: Signature) -> PlanInUse | None:
        """Returns a new plan of a class of sizes, once a second set of input shapes came; None where there is none or not yet."""
        if self._kernels == NUMPY or not self._plans or not self._open_plans.is_wanted():
            return None
        from hetero_cpu.open.making import make_open_plan

        weights, extensions = self._native_weights, self._extensions
        made = make_open_plan(self._transformed, signature, special, weights=weights, extensions=extensions, workers=self._workers)
        if made is None:
            with self._lock:
                self._open_plans.note_failure()
            return None
        enter = partial(self._enter, made.plan, special, kind="_open")
        opened = make_plan_in_use(self.network, made, signature, enter, checks_plan=self._checks_plans)
        if not load_kernels(made, self._kernels):
            self._order_open(opened)
            return None
        with self._lock:
            self._plan_count += 1
            self._open_plans.add(opened)
        return opened

    def _order_open(self, opened: OpenPlanInUse) -> None:
        """Has the kernels of a class compiled; it is used when they are."""
        from hetero_cpu.jit.background import BACKGROUND

        owner = weakref.ref(self)

        def take_over(error: BaseException | None) -> None:
            executable = owner()
            if executable is None:
                return
            with executable._lock:
                executable._orders -= 1
                executable._open_plans.note_order(is_under_way=False)
                if error is None:
                    opened.is_refuted |= executable._verifier.has_refuted
                    executable._open_plans.add(opened)
                    executable._plan_count += 1
                else:
                    executable._open_plans.note_failure()

        def is_wanted() -> bool:
            executable = owner()
            return executable is not None and not executable._is_closed

        with self._lock:
            self._orders += 1
            self._open_plans.note_order(is_under_way=True)
        BACKGROUND.order(opened.plan.kernels, take_over, is_wanted=is_wanted, begin=self._has_run)

    def _enter(self, plan: Plan, special: Network, *, kind: str = "") -> PlanInUse:
        """Returns the plan of a network for runs, to be verified where that is asked for and nobody has."""
        name = ""
        if plan.kernels and self._verifies != NO:
            from hetero_cpu.jit.verified_plans import is_verified, name_plan

            name = name_plan(special, self._workers) + kind
            if is_verified(name):
                return PlanInUse(plan, is_refuted=self._verifier.has_refuted, name=name)
        needs_check = bool(name) or self._verifies == YES
        return PlanInUse(plan, is_refuted=self._verifier.has_refuted, needs_check=needs_check, name=name)

    def _is_faulty(self, plan: Plan) -> bool:
        """Says whether the plan was checked as a whole, where that is asked for, and refused."""
        if not self._checks_plans:
            return False
        from hetero_cpu.plan_check import is_faulty  # only where it is asked for

        return is_faulty(plan, self.network.name)

    def _let_go(self, special: Network) -> None:
        """Lets go of the constants where there will be no other plan: what this one needs of them it has."""
        if self._weights.releases:
            for constant in (*self._transformed.initializers.values(), *special.initializers.values()):
                constant.release()

    def _build_plan(self, special: Network) -> tuple[Plan, bool]:
        """Returns the plan to run, and whether one of machine code takes over when its kernels are compiled."""
        if self._kernels == NUMPY:
            return build_plan(special, self._weights, self._extensions), False
        from hetero_cpu.jit.compiler import COMPILER
        from hetero_cpu.jit.interpreter import list_interpreters

        # All plans of machine code need the interpreters: where they are not stored, none is made before NumPy's has answered.
        if self._kernels == JIT or COMPILER.load_stored(list_interpreters(self._workers)):
            native = self._build_native_plan(special)
            if self._kernels == JIT:
                try:
                    for kernel in (*native.kernels, *list_interpreters(self._workers)):
                        COMPILER.compile(kernel)
                finally:
                    COMPILER.rest()
            if self._kernels == JIT or COMPILER.load_stored(native.kernels):
                self._native_weights.pack_all(self._workers)
                return native, False
        return build_plan(special, self._weights, self._extensions, is_interim=True), True

    def _build_native_plan(self, special: Network) -> Plan:
        """Returns the plan of machine code, nothing of it compiled or packed."""
        return build_plan(special, self._native_weights, self._extensions, provider=JIT, workers=self._workers)

    def _order(self, special: Network, signature: Signature) -> None:
        """Has the plan of machine code made and its kernels compiled; it takes over when they are."""
        from hetero_cpu.jit.background import BACKGROUND
        from hetero_cpu.jit.interpreter import list_interpreters

        owner = weakref.ref(self)
        made: list[PlanInUse] = []

        def list_kernels() -> Iterator[Kernel]:
            executable = owner()
            if executable is not None:
                native = executable._build_native_plan(special)
                entry = executable._enter(native, special)
                # They are made again to be packed: compiling takes longer, and needs memory, too.
                executable._let_go(special)
                workers = executable._workers
                # Whoever compiles holds nothing but the plan.
                del executable
                made.append(entry)
                yield from native.kernels
                yield from list_interpreters(workers)

        def take_over(error: BaseException | None) -> None:
            executable = owner()
            if executable is not None:
                executable._take_over(made[0] if made else None, signature, error)

        def is_wanted() -> bool:
            executable = owner()
            return executable is not None and not executable._is_closed

        with self._lock:
            self._orders += 1
        BACKGROUND.order(list_kernels(), take_over, is_wanted=is_wanted, begin=self._has_run)

    def _take_over(self, native: PlanInUse | None, signature: Signature, error: BaseException | None) -> None:
        try:
            if error is None:
                if native is not None:
                    native.is_refuted |= self._is_faulty(native.plan)
                    warn_where_numpy_computes(native.plan)
                self._native_weights.pack_all(1)
            elif not isinstance(error, OrderDroppedError):
                logger.warning("network '%s' goes on with NumPy: its kernels could not be compiled: %s", self.network.name, error)
        finally:
            with self._lock:
                self._orders -= 1
                if error is None and native is not None and signature in self._plans:
                    native.is_refuted |= self._plans[signature].is_refuted
                    self._plans[signature] = native
                    self._only_plan = None if self._only_plan is None else native
                if error is None and self._orders == 0:
                    # What NumPy's plans read is freed with the last of them.
                    self._weights = PackedWeights(releases=self._weights.releases)

    def close(self) -> None:
        """Ends the helping threads; nothing more is compiled for this network."""
        self._is_closed = True
        self._has_run.set()
        if self._teams is not None:
            self._teams.close()


def _has_room(limits: RunLimits, nbytes: int) -> bool:
    return limits.memory_limit is None or limits.held + nbytes <= limits.memory_limit


def _open_teams(workers: int, streams: int) -> TeamPool:
    from hetero_cpu.jit.team import TeamPool

    return TeamPool(workers, most=streams)
