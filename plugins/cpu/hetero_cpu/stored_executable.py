"""A network that was imported with its plan: nothing is read, transformed or planned but what the plan does not cover."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_core.contract import Executable, Payload, RunContext
from hetero_cpu.executable import MOST_PLANS, CpuExecutable
from hetero_cpu.instance import Instance
from hetero_cpu.payload import PACKED, WEIGHTS, find_digests, read_index, read_network, read_signature, read_specs
from hetero_cpu.plan import Plan

if TYPE_CHECKING:
    from hetero_core.network.graph import Network

Load = Callable[["Network"], CpuExecutable]
_ALIGNMENT = 64


class StoredExecutable(Executable):
    """Safe for threads. Other input shapes, and a memory limit below what the plan takes, make it load the network after all."""

    def __init__(self, payload: Payload, plan: Plan, load: Load, *, workers: int, streams: int) -> None:
        from hetero_cpu.jit.team import TeamPool

        index = read_index(payload.sections)
        self.payload = payload
        self.inputs, self.outputs = read_specs(index, "inputs"), read_specs(index, "outputs")
        self._signature, self._plan, self._load = read_signature(index), plan, load
        self._free: list[Instance] = []
        self._teams = None if workers == 1 else TeamPool(workers, most=streams)
        self._lock = threading.Lock()
        self._loaded: CpuExecutable | None = None

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Returns the outputs; a cancelled run ends between two steps."""
        limits, plan = context.limits, self._plan
        is_small = limits is not None and limits.memory_limit is not None and limits.held + plan.arena_bytes > limits.memory_limit
        if is_small or tuple(getattr(array, "shape", None) for array in inputs) != self._signature:
            return self._open().run(inputs, context)
        try:
            instance = self._free.pop()
        except IndexError:
            instance = Instance(plan)
        try:
            with nullcontext() if self._teams is None else self._teams.lease() as team:
                return instance.run(inputs, context, team)
        finally:
            self._free.append(instance)

    def _open(self) -> CpuExecutable:
        with self._lock:
            if self._loaded is None:
                self._loaded = self._load(read_network(self.payload.sections))
            return self._loaded

    def export(self) -> Payload:
        """Returns what it was imported from."""
        return Payload(self.payload.sections, self.payload.version)

    def metrics(self) -> Mapping[str, Any]:
        """Those of a network that was loaded; once it is loaded after all, with what that holds added."""
        plan, sections = self._plan, self.payload.sections

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
        }

    def close(self) -> None:
        """Ends the helping threads; nothing more is compiled for this network."""
        if self._teams is not None:
            self._teams.close()
        with self._lock:
            if self._loaded is not None:
                self._loaded.close()


def find_plan(payload: Payload, workers: int) -> Plan | None:
    """Returns the plan that is stored for a payload and a number of threads, its kernels loaded; None where it has to be planned."""
    digests = find_digests(payload)
    if digests is None:
        return None
    from hetero_cpu.jit.captured_plan import restore_plan
    from hetero_cpu.jit.compiler import COMPILER
    from hetero_cpu.jit.interpreter import list_interpreters
    from hetero_cpu.jit.stored_plans import make_key, read_plan

    captured = read_plan(make_key(digests, workers))
    if captured is None:
        return None
    plan = restore_plan(captured, {name: _align(payload.sections[name]) for name in (PACKED, WEIGHTS)})
    return plan if COMPILER.load_stored((*plan.kernels, *list_interpreters(workers))) else None


def _align(section: Any) -> np.ndarray[Any, Any]:
    """Returns a section as bytes that begin at a cache line: the section itself where it was mapped, else a copy."""
    found = np.frombuffer(section, np.uint8)
    if found.ctypes.data % _ALIGNMENT == 0:
        return found
    memory = np.empty(len(found) + _ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % _ALIGNMENT
    memory[begin : begin + len(found)] = found
    return memory[begin : begin + len(found)]
