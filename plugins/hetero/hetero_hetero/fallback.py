"""Fallback in runs: if a device fails in a run, another device runs its part, for this request and all later requests.

How a value goes: inputs of the stage in its device's memory -> the run fails -> the part is loaded on the other devices of the list ->
the inputs come to the host -> the part runs there -> its outputs go into the memory from which the stages behind it read. Stages
before it are not run again. A device keeps its part if the substitute fails, too: the fault is in the inputs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

from hetero_core import Core, ExecutableNetwork, Plan
from hetero_core.composing.blobs import Loaded
from hetero_core.composing.properties import PROPERTIES_KEY, describe_error
from hetero_core.composing.runs import FINAL, RequestMemory, run_child
from hetero_core.contract import Array, Executable, RunContext, freeze_mapping
from hetero_core.devices.threads import STREAMS_KEY, THREADS_KEY
from hetero_core.errors import ClosedError, UnsupportedNodesError
from hetero_core.executed import ExecutedNode
from hetero_core.network.graph import Network
from hetero_core.network.types import HOST, ValueSpec
from hetero_core.runtime.transfers import move_value

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Substitutes:
    """The devices of a list, from which substitutes for a failing device are loaded. `own` is the configuration of HETERO itself.

    `failed` holds the devices that have failed in a run; they are not loaded again.
    """

    core: Core
    itself: str
    own: Mapping[str, Any]
    configs: Mapping[str, Mapping[str, Any]]
    failed: set[str] = field(default_factory=set)

    def load(self, part: Network, device: str, *, threads: int) -> ExecutableNetwork:
        """Returns the part of a device that has failed, loaded on the other devices of the list.

        Raises: UnsupportedNodesError if no device is left or the rest refuse nodes; the errors of loading.
        """
        rest = [other for other in self.configs if other != device and other not in self.failed]
        if not rest:
            raise UnsupportedNodesError(f"no other device of {self.itself} is left", {})
        shares = {THREADS_KEY: threads, STREAMS_KEY: 1}
        if len(rest) == 1:
            return self.core.load_network(part, rest[0], {**self.configs[rest[0]], **shares})
        composed = f"HETERO:{','.join(rest)}"
        keys = self.core.config_keys(composed)
        config = {name: value for name, value in self.own.items() if name in keys and not keys[name].is_arguments}
        if config.get(PROPERTIES_KEY):
            config[PROPERTIES_KEY] = {name: values for name, values in config[PROPERTIES_KEY].items() if name in rest}
        return self.core.load_network(part, composed, {**config, **shares})


class GuardedExecutable(Executable):
    """The executable of a stage, and behind it the substitute on other devices that takes over when it fails.

    The network of the stage runs within it, wrappers included. A device that starts runs by itself is waited for on the thread of the run.
    """

    def __init__(self, stage: ExecutableNetwork, part: Network | None, obstacle: str, substitutes: Substitutes) -> None:
        """`part` is the network of the stage; the `obstacle` is why the stage stays on its device, if it has to."""
        self._stage, self._own = stage, stage.executable
        self._device = str(stage.device)
        self._part, self._obstacle, self._substitutes = part, obstacle, substitutes
        self._lock = threading.Lock()
        self._loaded: ExecutableNetwork | None = None
        self.serving: ExecutableNetwork | None = None
        """The substitute, once it has taken over, and `reason`, the error of the stage's own device."""
        self.reason = ""
        self.inputs, self.outputs, self.takes_tensors = self._own.inputs, self._own.outputs, self._own.takes_tensors
        self.pipeline_depth, self.settable_keys = self._own.pipeline_depth, self._own.settable_keys

    def find_part(self, name: str) -> Any:
        """Returns the part of the stage's own executable, if it has parts."""
        return self._own.find_part(name)

    def create_state(self) -> RequestMemory:
        """Returns working memory, made on the device that serves when it is first needed."""
        return RequestMemory()

    def create_spare(self, state: Any) -> RequestMemory:
        """Returns the second working memory of a request."""
        return state.create_spare()  # type: ignore[no-any-return]  # of the state that this executable made

    def run(self, inputs: tuple[Array, ...], context: RunContext) -> tuple[Array, ...]:
        """Returns the outputs, in the memory of the stage's own device whichever device has computed them."""
        if self.serving is not None:
            return self._run_elsewhere(self.serving, inputs, context)
        try:
            memory: Any = context.state
            return self._stage.run_device(inputs, context.derive(memory.on(self._stage)))
        except Exception as error:
            outputs = self._take_over(inputs, context, error)
            if outputs is None:
                raise
            return outputs

    def _take_over(self, inputs: tuple[Array, ...], context: RunContext, error: Exception) -> tuple[Array, ...] | None:
        """Returns the outputs that the substitute computes; None if there is no substitute, or if it fails, too (the error notes this)."""
        if (
            isinstance(error, (*FINAL, ClosedError, IndexError)) or context.cancelled()
        ):  # not every engine checks an index of the caller
            return None
        began, reason = perf_counter(), describe_error(error)
        try:
            with self._lock:
                if self._part is None or self._obstacle:
                    raise UnsupportedNodesError(self._obstacle, {})
                if self._loaded is None:
                    self._loaded = self._substitutes.load(self._part, self._device, threads=self._stage.config[THREADS_KEY])
                substitute = self._loaded
        except Exception as refusal:  # noqa: BLE001  # the first error is raised, and notes this one
            error.add_note(f"HETERO_FALLBACK=NEXT finds no other device for the part: {describe_error(refusal)}")
            return None
        if context.cancelled():
            return None
        if context.profile is not None:
            context.profile.add_fallback(self._device, str(substitute.device), reason, begin=began)
        try:
            outputs = self._run_elsewhere(substitute, inputs, context)
        except (*FINAL, ClosedError):
            raise
        except Exception as failure:  # noqa: BLE001  # the first error is raised, and notes this one
            error.add_note(f"{substitute.device} was given the part and failed, too: {describe_error(failure)}")
            return None
        with self._lock:
            is_first = self.serving is None
            self.serving, self.reason = substitute, self.reason or reason
        if is_first:
            logger.warning("%s failed in a run: %s; it runs on %s from now on", self._stage.where, reason, substitute.device)
            self._substitutes.failed.add(self._device)
        return outputs

    def _run_elsewhere(self, substitute: ExecutableNetwork, inputs: tuple[Array, ...], context: RunContext) -> tuple[Array, ...]:
        """Returns the substitute's outputs for inputs in the memory of the stage's own device, in that memory."""
        profile, own, other = context.profile, self._device, str(substitute.device)
        if profile is not None:
            profile.device = other

        def bring_home(value: Any, spec: ValueSpec) -> Any:
            is_home = spec.memory == HOST or value is None
            return value if is_home else move_value(value, self._stage.to_host, profile, spec.name, own, (other,))

        def bring_back(value: Any, spec: ValueSpec) -> Any:
            if spec.memory == HOST or value is None:
                return value
            return move_value(value, lambda array: self._stage.from_host(array, spec), profile, spec.name, other, (own,))

        memory: Any = context.state
        values = tuple(map(bring_home, inputs, self.inputs))
        outputs = run_child(substitute, values, context.derive(memory.on(substitute)))
        # The result of a cancelled run is dropped.
        return outputs if context.token.is_set else tuple(map(bring_back, outputs, self.outputs))

    def set_config(self, config: Mapping[str, Any]) -> None:
        """Hands new values on to the stage's own device."""
        self._own.set_config(config)

    def metrics(self) -> Mapping[str, Any]:
        """The metrics of the device that serves."""
        serving = self.serving
        if serving is None:
            return self._own.metrics()
        return {name: serving.get_metric(name) for name in ("EXECUTION_DEVICES", "REFERENCE_NODES", "SLOW_NODES")}

    def executed_nodes(self) -> tuple[ExecutedNode, ...] | None:
        """The steps of the device that serves."""
        return self._own.executed_nodes() if self.serving is None else self.serving.list_executed()

    def close(self) -> None:
        """Closes the substitute and the stage."""
        with self._lock:
            loaded, self._loaded = self._loaded, None
        if loaded is not None:
            loaded.close()
        self._stage.close()


def guard_stages(plan: Plan, loaded: Sequence[Loaded], substitutes: Substitutes) -> list[Loaded]:
    """Returns the stages so that each goes on elsewhere when its device fails in a run.

    A stage on HETERO itself is left as it is: the networks in it look after themselves.
    """
    guarded = []
    for index, (stage, part) in enumerate(loaded):
        if str(stage.device) != substitutes.itself:
            pinned = (f"node '{name}' is pinned to {plan.pins[name]}" for name in plan.stages[index].nodes if name in plan.pins)
            obstacle = next(pinned, "" if part is not None else "the network of the part is not in the blob")
            stage = stage.surround(GuardedExecutable(stage, part, obstacle, substitutes))
        guarded.append((stage, part))
    return guarded


def find_guard(stage: ExecutableNetwork) -> GuardedExecutable | None:
    """Returns the guard of a stage that goes on elsewhere; None for any other stage."""
    return stage.executable if isinstance(stage.executable, GuardedExecutable) else None


def move_stage(plan: Plan, index: int, device: str, reason: str) -> Plan:
    """Returns the plan with a stage on another device, and with the reason in the refusals of its nodes."""
    stage = plan.stages[index]
    reasons = {name: {**plan.refusals.get(name, {}), stage.device: f"failed in a run: {reason}"} for name in stage.nodes}
    return replace(
        plan,
        device_of_node=freeze_mapping({**plan.device_of_node, **dict.fromkeys(stage.nodes, device)}),
        refusals=freeze_mapping({**plan.refusals, **reasons}),
        stages=(*plan.stages[:index], replace(stage, device=device), *plan.stages[index + 1 :]),
    )
