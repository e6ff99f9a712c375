"""The loaded network: plans of machine code for sets of input shapes, and the kernels toolkit for runs without a plan.

```text
load of fixed sizes, kernels at hand ──> plan ──> machine code
else ──> the toolkit answers; the plan is made and compiled in the background, then takes over
```
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from operator import attrgetter
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from hetero_core.contract import Executable, RunContext, is_candidate
from hetero_core.executed import ExecutedNode, list_nodes, name_layout
from hetero_core.network.types import ValueType
from hetero_cpu.machine.compiler import AUTO, NUMPY, give_back_memory
from hetero_cpu.operators.weights import PackedWeights
from hetero_cpu.plan import passes
from hetero_cpu.run.blas import ProductTeam, needs_limit, share_products
from hetero_cpu.run.plans import ArenaTooLargeError, PlanInUse, Verifier, WrongTypeError, compile_plan, lay_input, load_plan
from hetero_cpu.symbols.evaluation import Signature, read_static_signature
from hetero_cpu.symbols.sizes import value_of

if TYPE_CHECKING:
    from hetero_core.kernels.execution import Program
    from hetero_core.limits import RunLimits
    from hetero_core.network.graph import Network
    from hetero_cpu.plan.open_plan import OpenPlan
    from hetero_cpu.plan.plan import ExecutionPlan
    from hetero_cpu.run.instance import Trip
    from hetero_cpu.run.plans import Planning
    from hetero_cpu.symbols.evaluation import Products
    from hetero_cpu.transforms.group_attention import EvenRows

logger = logging.getLogger(__name__)

MOST_PLANS = 16
_MOST_RUNS = 8
"""Of a stream at once, each with a part of its threads; each run under way has an arena of its own."""
_MOST_FOUND = 256
"""Input shapes whose plan is noted."""
_MOST_FAILURES = 3
"""Sets of input shapes without a class, after which no class is tried for the network."""
_LARGE_FILE = 1 << 26
"""Bytes of constants in files from which packing and runs of the toolkit take turns, because each of them holds all of the weights."""
_LONGEST_HOLD = 0.0005
"""Seconds after which short runs release the interpreter's lock: the thread that plans starves beside a loop of runs that hold it, or
release it for less than the time in which a thread wakes up, since its wait for the lock begins anew each time.
"""
_LONGEST_WAIT = 30.0
"""Seconds after which weights are packed although the toolkit still runs."""


_read_shape = attrgetter("shape")

FoundPlan = tuple["PlanInUse", "Products"]
"""A plan, and the products of atoms of its class for a set of sizes."""


class CpuExecutable(Executable):
    """Safe for threads. Results are the caller's own."""

    def __init__(
        self,
        network: Network,
        extensions: Mapping[tuple[str, str], Any],
        *,
        kernels: str = NUMPY,
        workers: int = 1,
        streams: int = 1,
        verifies: bool = False,
        is_once: bool = False,
        keeps_groups: bool = False,
        is_body: bool = False,
    ) -> None:
        """`network`: after the passes that do not ask for sizes. `kernels`: NUMPY, JIT or AUTO.

        A run with machine code may have `workers` threads, and `streams` runs may be under way.
        With `verifies` the first run of each plan is computed twice. With `is_once` each weight is held in one form, for all sizes.
        With `keeps_groups` GroupQueryAttention stays as it is, for rows of any length. With `is_body` no run of AUTO waits for a plan.
        """
        self._kernels, self.workers = kernels, workers
        self._is_candidate, self._is_body = is_candidate.get(), is_body
        self._teams = None
        if kernels != NUMPY and workers > 1:
            from hetero_cpu.machine.program import TeamPool  # LLVM

            self._teams = TeamPool(workers, streams=streams)
            self.pipeline_depth = min(workers, _MOST_RUNS)
        # On a single processor BLAS has a single thread anyway.
        self._product_team = ProductTeam(workers, streams) if needs_limit() else None
        self.network, self.inputs, self.outputs = network, network.inputs, network.outputs
        self.transformed, self._even_rows = (network, None) if keeps_groups or kernels == NUMPY else assume_even_rows(network)
        self._extensions = dict(extensions)
        own = partial(CpuExecutable, extensions=self._extensions, kernels=kernels, workers=workers, streams=streams)
        # For runs whose rows are not equally long.
        self._open_uneven = partial(own, network, verifies=verifies, is_once=is_once, keeps_groups=True)
        self._uneven: CpuExecutable | None = None
        self._bodies: list[CpuExecutable] = []
        # A weight that is held once has no second form in a body.
        self._open_body = None if is_once else partial(_open_body, self._bodies, partial(own, is_body=True))
        self._parted: Network | None = None
        """The network as it is planned, if it has sizes that its numbers decide."""
        self._verifier = Verifier(network)
        signature = read_static_signature(self.inputs)
        self._is_static = signature is not None
        self.native_weights = PackedWeights(releases=self._is_static, is_once=is_once)
        self._lock, self._has_run = threading.Lock(), threading.Event()
        self._is_closed, self._is_ordered, self._has_failed = False, False, False
        self._turn, self._toolkit_runs, self._is_packing = threading.Condition(), 0, False
        # The time of the monotonic clock at which a run last released the interpreter's lock.
        self._released = 0.0
        # The newest last; how many were made; the classes that could not be made. Used under the lock.
        self._plans: list[PlanInUse] = []
        self._made, self._failures = 0, 0
        # Outputs that only the next run reads, to which a run may append in place.
        self._appended: frozenset[str] = frozenset()
        self._verifies = verifies
        # Plans by input shapes, with the numbers that follow from the shapes; the newest shapes last.
        self._found: dict[Signature, FoundPlan] = {}
        self._program: Program | None = None
        # The only plan of a network with fixed input shapes: no run has to look for it.
        self._only_plan: FoundPlan | None = None
        if kernels == NUMPY:
            self._open_program()
        elif signature is not None:
            self._find_plan(signature)

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Returns the outputs; a cancelled run ends between two steps."""
        found = self._only_plan
        signature: Signature = ()
        if found is None or self._even_rows is not None:
            try:
                signature = tuple(map(_read_shape, inputs))
            except AttributeError:  # a list, or an optional input that is absent
                signature = tuple([getattr(array, "shape", None) for array in inputs])
        if self._even_rows is not None and not self._even_rows.holds(inputs, signature):
            return self._find_uneven().run(inputs, context)
        if found is None and self._kernels != NUMPY and not self._verifier.has_refuted:
            found = self._found.get(signature) or self._find_plan(signature)
        try:
            if self._product_team is None or (context.limits is None and not (found is None or found[0].calls_blas)):
                return self._run_plan(found, inputs, context)
            with share_products(self._product_team):
                return self._run_plan(found, inputs, context)
        finally:
            if not self._has_run.is_set():
                self._has_run.set()

    def open_trip(self) -> Trip | None:
        """Returns the call of a run for a single thread, if the network is small, of fixed sizes, and has machine code alone."""
        if self._only_plan is None or not self._only_plan[0].is_native or self._only_plan[0].needs_check:
            return None
        from hetero_cpu.run.instance import Instance  # imports the modules of plans

        plan, products = self._only_plan
        return Instance(plan.opened).open_trip(products)

    def _find_uneven(self) -> CpuExecutable:
        """Returns the executable for runs whose rows are not equally long, made the first time."""
        with self._lock:
            if self._uneven is None:
                self._uneven = self._open_uneven()
                self._uneven._appended = self._appended
            return self._uneven

    def _run_plan(self, found: FoundPlan | None, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Returns the outputs by a plan, or node by node if there is none for this run."""
        if found is None or found[0].is_refuted or not (context.limits is None or _has_room(found, context.limits)):
            return self._run_frugally(inputs, context)
        plan, products = found
        try:
            if plan.needs_check:
                return self._run_twice(found, inputs, context)
            # A run beside this one may have refuted the plan since it was found.
            if not self._verifier.has_refuted:
                return plan.run(products, inputs, context, self._teams)
        except WrongTypeError as error:
            logger.info("network '%s': %s; it runs without a plan for these shapes", self.transformed.name, error)
            plan.is_refuted = plan.calls_blas = True
        except ArenaTooLargeError as error:
            logger.info("network '%s': %s; it runs without a plan", self.transformed.name, error)
        return self._run_frugally(inputs, context)

    def _run_twice(self, found: FoundPlan, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Verifies a plan with a run; if the answers differ, the network goes on node by node."""
        program, (plan, products) = self._open_program(), found
        outputs = self._verifier.run(inputs, context, lambda: plan.run(products, inputs, context, self._teams), program)
        plan.needs_check = False
        if self._verifier.has_refuted:
            # If one plan is wrong, all may be.
            with self._lock:
                self._only_plan = None
                self._found.clear()
        elif self._is_static:
            self._program = None
            self._let_go(self.transformed)
        return outputs

    def _run_frugally(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Runs node by node and frees a value after its last use; an error names the node for which there is no room."""
        inputs = tuple(map(lay_input, inputs))
        with self._turn:
            self._toolkit_runs += 1
        try:
            # No variable holds the program, and with it the weights, when packing begins.
            return self._open_program().run(inputs, profile=context.profile, is_cancelled=context.cancelled, limits=context.limits)
        finally:
            with self._turn:
                self._toolkit_runs -= 1
                self._turn.notify_all()
            if self._is_ordered and self._has_run.is_set() and monotonic() - self._released > _LONGEST_HOLD:
                sleep(1e-6)
                self._released = monotonic()

    def _open_program(self) -> Program:
        """Returns the network as the toolkit runs it."""
        program = self._program
        if program is None:
            network = self.transformed
            # The toolkit runs until the plan takes over, and makes large weights again in each run rather than hold them beside the plan's.
            renews = self._kernels != NUMPY and bool(passes.list_large_renewable(network))
            program = self._program = passes.compile_toolkit(network, self._extensions, renews=renews)
        return program

    def _let_go(self, special: Network) -> None:
        """Releases the constants, for open sizes those that can be made again: the plans and the toolkit's program hold their own."""
        for constant in (*self.transformed.initializers.values(), *special.initializers.values()):
            if self._is_static or constant.is_renewable:
                constant.release()

    def _find_plan(self, signature: Signature) -> FoundPlan | None:
        """Returns the plan for input shapes, and notes it; None while it is made and compiled in the background."""
        with self._lock:
            found = self._match(signature)
            if found is not None:
                if len(self._found) >= _MOST_FOUND:
                    self._found.clear()
                self._found[signature] = found
                return found
        if self._is_ordered or self._has_failed:
            return self._await_plan(signature)
        # Planning open sizes takes as long as the toolkit takes to answer.
        plan = None
        if self._kernels != AUTO:
            plan = compile_plan(self._plan(signature))
        elif self._is_static and not self._is_body:
            plan = load_plan(self._plan(signature))
        if plan is None:
            self._order(signature)
            return None
        self._let_go(self.transformed)
        return self._add_plan(plan, signature)

    def _match(self, signature: Signature) -> FoundPlan | None:
        """Returns the newest plan for input shapes."""
        for plan in reversed(self._plans):
            if (products := plan.opened.match(signature)) is not None:
                return plan, products
        return None

    def _needs_class(self, signature: Signature) -> bool:
        """Says whether another class may be made, of which these input shapes are an example; sizes of 0 and 1 are no symbols."""
        if self._failures >= _MOST_FAILURES and all(plan.opened.sizes.is_single for plan in self._plans):
            return False
        return any(
            size > 1 and not isinstance(dimension, int)
            for spec, sizes in zip(self.inputs, signature, strict=True)
            if sizes is not None
            # A declared rank is a hint.
            for size, dimension in zip(sizes, spec.shape or (None,) * len(sizes), strict=False)
        )

    def _plan(self, signature: Signature) -> Planning:
        """Yields the kernels that all plans need and those of a plan, then packs its weights and returns it.

        It is of the class of sizes that input shapes belong to, or of these shapes alone. The background calls it with a proxy of the
        executable, which may be freed while its kernels are compiled.
        """
        from hetero_cpu.machine.interpreter import list_interpreters

        yield from list_interpreters(self.workers)
        from hetero_cpu.plan.open_plan import make_fixed_plan, make_open_plan  # a load without kernels at hand ends before it
        from hetero_cpu.plan.planner import build_plan

        network = self._parted or self.transformed
        special = passes.specialize_network(network, signature)
        if self._open_body is not None and self._parted is None:
            from hetero_cpu.plan.tails import part_tail

            if (parted := part_tail(network, special)) is not None:
                self._parted = network = parted
                special = passes.specialize_network(network, signature)
        if self._needs_class(signature):
            class_plan = yield from make_open_plan(
                network,
                signature,
                special,
                weights=self.native_weights,
                extensions=self._extensions,
                workers=self.workers,
                begin_packing=lambda: self._begin_packing(),  # a bound method would hold the executable
            )
            if class_plan is not None:
                return self._use(class_plan, special)
            self._failures += 1
        special = passes.join_network(special)
        plan = build_plan(special, self.native_weights, self._extensions, workers=self.workers)
        if self._is_ordered:
            # Constants are read again to be packed: compiling takes longer, and needs memory, too.
            self._let_go(special)
        yield from plan.kernels
        self._begin_packing()
        self.native_weights.pack_all(self.workers)
        opened = self._use(make_fixed_plan(plan, signature), special)
        self._let_go(special)
        return opened

    def _use(self, plan: OpenPlan, network: Network) -> PlanInUse:
        """Returns a plan in use, its bodies run by executables of their own; `network` has its constants."""
        if self._open_body is not None and plan.plan.foreign_count and any(step.node.bodies for step in plan.steps):
            from hetero_cpu.run.bodies import open_bodies  # few networks have any

            open_bodies(plan, network.initializers, self._open_body)
        return PlanInUse(plan)

    def _begin_packing(self) -> None:
        """Waits for runs of the toolkit, and delays new runs, if packing beside them would hold the weights of a large file twice."""
        constants = self.transformed.initializers.values()
        if self._is_ordered and sum(own.nbytes for own in constants if own.is_mapped or own.is_renewable) >= _LARGE_FILE:
            with self._turn:
                self._is_packing = True
                self._turn.wait_for(lambda: self._toolkit_runs == 0, _LONGEST_WAIT)
            # It holds the weights that were read; those that are packed are read again.
            self._program = None
            self._let_go(self.transformed)
            give_back_memory()

    def _await_plan(self, signature: Signature) -> FoundPlan | None:
        """Returns the plan that takes over when its weights are packed; None if packing has not begun, or for other input shapes."""
        with self._turn:
            if not self._is_packing:
                return None
            self._turn.wait_for(lambda: not self._is_packing, _LONGEST_WAIT)
        with self._lock:
            return self._match(signature)

    def _note_slow_nodes(self, plan: PlanInUse, signature: Signature) -> None:
        """Finds the slow nodes of a plan, and warns of the first plan that has any, unless AUTO compares devices."""
        from hetero_cpu.plan.plan import list_slow_nodes  # a plan of machine code alone does not need it

        network = self.transformed if self._is_static else passes.specialize_network(self.transformed, signature)
        slow = list_slow_nodes(plan.plan, network)
        plan.slow = tuple(dict.fromkeys(name for node in slow for name in node.origins or (node.name,)))
        if slow and not self._is_candidate and not any(other.slow for other in self._plans):
            names = ", ".join(f"'{node.name}' ({node.operator})" for node in slow[:3])
            logger.warning(
                "network '%s': CPU has no machine code for %s%s, and most of a run is spent there; `hetero inspect MODEL -d CPU` names the "
                "devices that take them, and AUTO chooses the fastest",
                self.transformed.name, names, f" and {len(slow) - 3} more nodes" if len(slow) > 3 else "",
            )  # fmt: skip

    def _add_plan(self, plan: PlanInUse, signature: Signature) -> FoundPlan:
        """Returns the plan that runs of input shapes use from now on: this plan, or an earlier one of a run beside it."""
        if plan.plan.foreign_count:
            self._note_slow_nodes(plan, signature)
        with self._lock:
            earlier = self._match(signature)
            if earlier is not None:
                return earlier
            plan.appended, plan.needs_check = self._appended, self._verifies
            plan.calls_blas |= self._verifies
            self._made += 1
            self._plans.append(plan)
            # The oldest one goes if there are too many.
            del self._plans[:-MOST_PLANS]
            self._program = None
            # The oldest plan may be gone.
            self._found.clear()
            products = plan.opened.match(signature)
            assert products is not None, "a plan is of a class that its example belongs to"
            found = self._found[signature] = plan, products
            if self._is_static:
                self._only_plan = found
        return found

    def _order(self, signature: Signature) -> None:
        """Has a plan made and its kernels compiled by the thread that does so for all; then it takes over.

        One plan at a time is ordered: the toolkit answers all other input shapes meanwhile.
        """
        with self._lock:
            if self._is_ordered:
                return
            self._is_ordered = True
        owner = weakref.ref(self)

        def finish(plan: PlanInUse | None, error: BaseException | None) -> None:
            executable = owner()
            if executable is not None:
                executable._take_over(plan, signature, error)

        def is_wanted() -> bool:
            executable = owner()
            return executable is not None and not executable._is_closed

        from hetero_cpu.machine.background import BACKGROUND  # LLVM

        BACKGROUND.order(CpuExecutable._plan(weakref.proxy(self), signature), finish, is_wanted=is_wanted, begin=self._has_run)

    def _take_over(self, plan: PlanInUse | None, signature: Signature, error: BaseException | None) -> None:
        if plan is not None:
            self._add_plan(plan, signature)
        elif not self._is_closed:
            logger.warning("network '%s' goes on node by node: its kernels could not be compiled: %s", self.transformed.name, error)
        with self._lock:
            self._is_ordered, self._has_failed = False, error is not None
        with self._turn:
            self._is_packing = False
            self._turn.notify_all()
        if plan is not None:
            self._let_go(self.transformed)

    def metrics(self) -> Mapping[str, Any]:
        """Metrics of the plans: how many were made and may be kept, their memory, and their steps that call the toolkit."""

        def count_constants() -> int:
            from hetero_cpu.plan.plan import count_constant_bytes  # a network without a plan does not need it

            programs = [program for own in self._list_executables() if (program := own._program) is not None]
            plans = [own.plan for own in self._list_plans()]
            return count_constant_bytes(plans, [value for program in programs for value in program.values])

        return {
            "CPU_PLANS": lambda: (sum(own._made for own in self._list_executables()), MOST_PLANS),
            "CPU_ARENA_BYTES": lambda: max((value_of(own.plan.arena_bytes) for own in self._list_plans()), default=0),
            "CPU_WEIGHT_BYTES": lambda: sum(own.native_weights.nbytes for own in self._list_executables()),
            "CPU_CONSTANT_BYTES": count_constants,
            "CPU_KERNELS_READY": lambda: not any(own._is_ordered for own in self._list_executables()),
            "CPU_NATIVE_STEPS": lambda: max((own.plan.native_count for own in self._list_plans()), default=0),
            "CPU_FOREIGN_STEPS": lambda: max((own.plan.foreign_count for own in self._list_plans()), default=0),
            "SLOW_NODES": lambda: tuple(dict.fromkeys(name for own in self._list_plans() for name in own.slow)),
            "CPU_VERIFIED_PLANS": lambda: sum(own._verifier.plans for own in self._list_executables()),
            "CPU_VERIFY_SECONDS": lambda: sum(own._verifier.seconds for own in self._list_executables()),
            "CPU_REFUTED": lambda: any(own._verifier.has_refuted for own in self._list_executables()),
        }

    def _list_plans(self) -> list[PlanInUse]:
        return [plan for own in self._list_executables() for plan in own._plans.copy()]

    def _list_executables(self) -> list[CpuExecutable]:
        executables = [self] if self._uneven is None else [self, self._uneven]
        return [*executables, *(inner for own in executables for body in own._bodies for inner in body._list_executables())]

    def keep_states(self, output_of_input: Mapping[str, str]) -> Mapping[str, Any]:
        """Notes which outputs only the next run reads: a cache among them grows in place."""
        self._appended = frozenset(output_of_input.values())
        if self._uneven is not None:
            self._uneven.keep_states(output_of_input)
        return {}

    def executed_nodes(self) -> tuple[ExecutedNode, ...]:
        """The steps of the newest plan; before the first run of a network with open sizes all its nodes."""
        network = self.transformed
        plan = next(reversed(self._plans.copy()), None)
        if plan is None or plan.is_refuted or self._verifier.has_refuted:
            return list_nodes(passes.name_nodes(network), network.types, kernel="toolkit")
        return list_steps(plan.plan, network.types)

    def close(self) -> None:
        """Ends the helping threads; nothing more is compiled for this network."""
        self._is_closed = True
        self._has_run.set()
        if self._teams is not None:
            self._teams.close()
        if self._product_team is not None:
            self._product_team.close()
        for own in self._list_executables()[1:]:
            own.close()


def _open_body(bodies: list[CpuExecutable], open_network: Callable[[Network], CpuExecutable], network: Network) -> CpuExecutable:
    """Returns the executable of a body that is written as a network, and adds it to `bodies`."""
    bodies.append(open_network(passes.transform_network(network)))
    return bodies[-1]


def assume_even_rows(network: Network) -> tuple[Network, EvenRows | None]:
    """Returns the network for runs whose rows are equally long, and their condition; the network itself and None if it serves all runs."""
    if "GroupQueryAttention" in network.op_types:
        from hetero_cpu.transforms.group_attention import append_evenly  # few networks need it

        (planned, even_rows), signature = append_evenly(network), read_static_signature(network.inputs)
        if even_rows is not None and (signature is None or even_rows.fits(signature)):
            return planned, even_rows
    return network, None


def _has_room(found: FoundPlan, limits: RunLimits) -> bool:
    """Says whether a run may have the arena of a plan beside the bytes that it holds."""
    plan, products = found
    return limits.memory_limit is None or limits.held + plan.opened.measure_arena(*products) <= limits.memory_limit


def list_steps(plan: ExecutionPlan, types: Mapping[str, ValueType]) -> tuple[ExecutedNode, ...]:
    """Returns the steps of a plan in order. Layouts are those in the arena, a layout of four axes in channels last is "acdb"."""
    from hetero_cpu.plan.plan import Foreign  # a network without a plan does not need it

    return tuple(
        ExecutedNode(
            step.node.name,
            step.node.op_type,
            step.node.origins,
            step.work.reads,
            step.writes,
            "toolkit" if isinstance(step.work, Foreign) else "machine code" if step.work.kernels else "NumPy",
            tuple(_find_layout(step.strides.get(value)) for value in step.writes),
            tuple(types.get(value) for value in step.writes),
        )
        for step in plan.steps
    )


def _find_layout(strides: tuple[int, ...] | None) -> str:
    """Returns the axes from the largest stride to the smallest, those of equal strides in order; "" if they are not known."""
    return "" if strides is None else name_layout(sorted(range(len(strides)), key=lambda axis: -strides[axis]))
