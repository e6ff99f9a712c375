"""The loaded network: a plan for each set of input shapes, and instances of it for runs at the same time."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from hetero_core.contract import Executable, RunContext
from hetero_core.kernels.execution import Program
from hetero_core.kernels.program import compile_program
from hetero_core.network.graph import Network
from hetero_cpu.foreign import evaluate_node
from hetero_cpu.instance import Instance, WrongTypeError
from hetero_cpu.kernel_set import warn_of_slow_kernels
from hetero_cpu.passes import join_network, transform_network
from hetero_cpu.plan import Plan, build_plan
from hetero_cpu.signature import Signature, read_static_signature, specialize_network
from hetero_cpu.weights import PackedWeights

logger = logging.getLogger(__name__)

MOST_PLANS = 16


class CpuExecutable(Executable):
    """Safe for threads. Results are the caller's own."""

    def __init__(self, network: Network, extensions: Mapping[tuple[str, str], Any]) -> None:
        warn_of_slow_kernels()
        self.network = network
        self.inputs = network.inputs
        self.outputs = network.outputs
        self._transformed = transform_network(network)
        self._extensions = dict(extensions)
        self._weights = PackedWeights()
        self._lock = threading.Lock()
        self._plans: OrderedDict[Signature, tuple[Plan, list[Instance]]] = OrderedDict()
        self._plan_count = 0
        self._refuted: set[Signature] = set()
        self._program: Program | None = None
        signature = read_static_signature(self._transformed)
        if signature is not None:
            self._find_plan(signature)

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Returns the outputs; a cancelled run ends between two steps."""
        signature = tuple(getattr(array, "shape", None) for array in inputs)
        plan, free = self._find_plan(signature)
        limits = context.limits
        if limits is not None and limits.memory_limit is not None and limits.held + plan.arena_bytes > limits.memory_limit:
            return self._run_frugally(inputs, context)
        if signature in self._refuted:
            return self._run_frugally(inputs, context)
        try:
            instance = free.pop()
        except IndexError:
            instance = Instance(plan)
        try:
            return instance.run(inputs, context)
        except WrongTypeError as error:
            logger.info("network '%s': %s; it runs without a plan for these shapes", self.network.name, error)
            self._refuted.add(signature)
        finally:
            free.append(instance)
        return self._run_frugally(inputs, context)

    def _run_frugally(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Runs node by node, where a value is freed when it is read for the last time; names the node for which there is no room."""
        if self._program is None:
            self._program = compile_program(self._transformed, extensions=self._extensions)
        return self._program.run(inputs, profile=context.profile, is_cancelled=context.cancelled, limits=context.limits)

    def metrics(self) -> Mapping[str, Any]:
        """How many plans were made and may be kept, what they hold, and how many steps are the toolkit's."""
        return {
            "CPU_PLANS": lambda: (self._plan_count, MOST_PLANS),
            "CPU_ARENA_BYTES": lambda: max((plan.arena_bytes for plan, _ in list(self._plans.values())), default=0),
            "CPU_WEIGHT_BYTES": lambda: self._weights.nbytes,
            "CPU_FOREIGN_STEPS": lambda: max((plan.foreign_count for plan, _ in list(self._plans.values())), default=0),
        }

    def _find_plan(self, signature: Signature) -> tuple[Plan, list[Instance]]:
        with self._lock:
            found = self._plans.get(signature)
            if found is not None:
                self._plans.move_to_end(signature)
                return found
        special = join_network(specialize_network(self._transformed, signature, evaluate_node))
        plan = build_plan(special, self._weights, self._extensions)
        with self._lock:
            self._plan_count += 1
            found = self._plans.setdefault(signature, (plan, []))
            while len(self._plans) > MOST_PLANS:
                self._plans.popitem(last=False)
        return found
