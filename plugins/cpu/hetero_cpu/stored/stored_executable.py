"""A network that was imported with its plan: nothing is read, transformed or planned but what the plan does not cover."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_core.contract import Executable, Payload, RunContext
from hetero_core.executed import ExecutedNode
from hetero_core.records import record
from hetero_cpu.blas import begin_limit, end_limit, needs_limit
from hetero_cpu.executed import MOST_PLANS
from hetero_cpu.kernel_choice import NO, YES
from hetero_cpu.payload_index import PACKED, WEIGHTS, find_digests, read_index, read_signature, read_specs
from hetero_cpu.planning.plan import Plan
from hetero_cpu.planning.plans_in_use import PlanInUse, open_teams
from hetero_cpu.verification import Verifier

if TYPE_CHECKING:
    from hetero_core.kernels.execution import Program
    from hetero_core.network.graph import Network
    from hetero_cpu.executable import CpuExecutable

Load = Callable[["Network"], "CpuExecutable"]
_ALIGNMENT = 64


@record(frozen=True, slots=True)
class StoredPlan:
    """A plan from the private folder, and the name that it is noted by when it was found right."""

    plan: Plan
    name: str


class StoredExecutable(Executable):
    """Safe for threads. Other input shapes, and a memory limit below what the plan takes, make it load the network after all."""

    def __init__(
        self,
        payload: Payload,
        stored: StoredPlan,
        load: Load,
        *,
        extensions: Mapping[tuple[str, str], Any],
        workers: int,
        streams: int,
        verifies: str = NO,
    ) -> None:
        """`verifies`: unless it is NO, a plan that is not noted as right is verified in its first run."""
        from hetero_cpu.stored.verified_plans import is_verified  # LLVM

        index = read_index(payload.sections)
        self.payload = payload
        self.inputs, self.outputs = read_specs(index, "inputs"), read_specs(index, "outputs")
        self._signature, self._stored, self._load, self._verifies = read_signature(index), stored, load, verifies
        self._found = PlanInUse(stored.plan, needs_check=verifies != NO and not is_verified(stored.name))
        self._extensions, self._workers = dict(extensions), workers
        self._teams = None if workers == 1 else open_teams(workers, streams)
        self._lock = threading.Lock()
        self._loaded: CpuExecutable | None = None
        self._program: Program | None = None
        names = [tuple(spec.name for spec in specs) for specs in (self.inputs, self.outputs)]
        self._verifier = Verifier("", names[1], inputs=names[0])

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Returns the outputs; a cancelled run ends between two steps."""
        limits, stored = context.limits, self._found
        is_small = (
            limits is not None and limits.memory_limit is not None and limits.held + stored.plan.arena_bytes > limits.memory_limit
        )
        if is_small or tuple(getattr(array, "shape", None) for array in inputs) != self._signature:
            return self._open().run(inputs, context)
        if stored.is_refuted or (stored.needs_check and (limits is None or self._verifies == YES)):
            return self._run_with_toolkit(inputs, context)
        return stored.run(inputs, context, self._teams)

    def _run_with_toolkit(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Runs node by node; before the plan was found wrong also with it, so as to compare."""
        is_limited = needs_limit(self._workers)
        if is_limited:
            begin_limit(self._workers)
        try:
            if self._found.is_refuted:
                program = self._open_program()
                return program.run(inputs, profile=context.profile, is_cancelled=context.cancelled, limits=context.limits)
            return self._run_twice(inputs, context)
        finally:
            if is_limited:
                end_limit(self._workers)

    def _run_twice(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        stored = self._found
        verdict = self._verifier.run(inputs, context, lambda: stored.run(inputs, context, self._teams), self._open_program())
        if verdict.fault:
            stored.is_refuted = True
            stored.free.clear()
            self._verifier.warn(verdict.fault)
            if verdict.error is not None:
                raise verdict.error
            return verdict.outputs
        stored.needs_check = False
        if verdict.is_lasting:
            from hetero_cpu.stored.verified_plans import note_verified

            note_verified(self._stored.name)
        # Its constants are beside the packed ones in memory.
        self._program = None
        return verdict.outputs

    def _open_program(self) -> Program:
        """Returns the network as the toolkit runs it."""
        program = self._program
        if program is None:
            from hetero_core.kernels.program import compile_program  # the toolkit, which the plan does without
            from hetero_cpu.stored.payload import read_network

            network = read_network(self.payload.sections)
            # The index of a blob does not name it.
            self._verifier.name = network.name
            program = self._program = compile_program(network, extensions=self._extensions)
        return program

    def _open(self) -> CpuExecutable:
        with self._lock:
            if self._loaded is None:
                from hetero_cpu.stored.payload import read_network  # reads and writes networks

                self._loaded = self._load(read_network(self.payload.sections))
            return self._loaded

    def export(self) -> Payload:
        """Returns what it was imported from."""
        return Payload(self.payload.sections, self.payload.version)

    def executed_nodes(self) -> tuple[ExecutedNode, ...]:
        """The steps of the plan with what they read and write, which only planning tells: the network is loaded after all."""
        return self._open().executed_nodes()

    def metrics(self) -> Mapping[str, Any]:
        """Returns the metrics of a loaded network; those of the plan in memory are added once it is loaded after all."""
        plan, sections = self._stored.plan, self.payload.sections

        def add(name: str, own: int) -> int:
            loaded = self._loaded
            return own if loaded is None else own + int(loaded.metrics()[name]())

        def most(name: str, own: int) -> int:
            loaded = self._loaded
            return own if loaded is None else max(own, int(loaded.metrics()[name]()))

        return {
            "CPU_PLANS": lambda: (1 if self._loaded is None else 1 + self._loaded.metrics()["CPU_PLANS"]()[0], MOST_PLANS),
            "CPU_ARENA_BYTES": lambda: most("CPU_ARENA_BYTES", plan.arena_bytes),
            "CPU_WEIGHT_BYTES": lambda: add("CPU_WEIGHT_BYTES", sections[PACKED].nbytes),
            "CPU_CONSTANT_BYTES": lambda: add("CPU_CONSTANT_BYTES", sections[WEIGHTS].nbytes),
            "CPU_KERNELS_READY": lambda: self._loaded is None or self._loaded.metrics()["CPU_KERNELS_READY"](),
            "CPU_NATIVE_STEPS": lambda: most("CPU_NATIVE_STEPS", plan.native_count),
            "CPU_FOREIGN_STEPS": lambda: most("CPU_FOREIGN_STEPS", 0),
            "CPU_VERIFIED_PLANS": lambda: add("CPU_VERIFIED_PLANS", self._verifier.plans),
            "CPU_VERIFY_SECONDS": lambda: (
                self._verifier.seconds + (0.0 if self._loaded is None else self._loaded.metrics()["CPU_VERIFY_SECONDS"]())
            ),
            "CPU_REFUTED": lambda: (
                self._verifier.has_refuted or (self._loaded is not None and self._loaded.metrics()["CPU_REFUTED"]())
            ),
        }

    def close(self) -> None:
        """Ends the helping threads; nothing more is compiled for this network."""
        if self._teams is not None:
            self._teams.close()
        with self._lock:
            if self._loaded is not None:
                self._loaded.close()


def find_plan(payload: Payload, workers: int) -> StoredPlan | None:
    """Returns the plan that is stored for a payload and a number of threads, its kernels loaded; None where it has to be planned."""
    digests = find_digests(payload)
    if digests is None:
        return None
    from hetero_cpu.machine.compiler import COMPILER
    from hetero_cpu.machine.interpreter import list_interpreters
    from hetero_cpu.stored.captured_plan import restore_plan
    from hetero_cpu.stored.stored_plans import make_key, read_plan

    areas = (PACKED, WEIGHTS)
    captured = read_plan(make_key(digests, workers), areas)
    if captured is None:
        return None
    plan = restore_plan(captured, {name: _align(payload.sections[name]) for name in areas})
    return StoredPlan(plan, captured.name) if COMPILER.load_stored((*plan.kernels, *list_interpreters(workers))) else None


def _align(section: Any) -> np.ndarray[Any, Any]:
    """Returns a section as bytes that begin at a cache line: the section itself where it was mapped, else a copy."""
    array = np.frombuffer(section, np.uint8)
    if array.ctypes.data % _ALIGNMENT == 0:
        return array
    memory = np.empty(len(array) + _ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % _ALIGNMENT
    memory[begin : begin + len(array)] = array
    return memory[begin : begin + len(array)]
