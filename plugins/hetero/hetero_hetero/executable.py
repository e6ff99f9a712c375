"""A split network in use: runs its stages in order, moves what has to be moved, frees what nobody reads any more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from hetero_core.contract import Executable, Plan, Profile, RunContext
from hetero_core.dtypes import numpy_dtype
from hetero_core.errors import PluginError
from hetero_core.network.graph import Network
from hetero_core.network.types import HOST, ValueSpec
from hetero_core.runtime.executable import ExecutableNetwork
from hetero_hetero.routing import Transfer, plan_route


class HeteroExecutable(Executable):
    """The stages of a plan, loaded. `constants` are the outputs of the network that no stage makes."""

    def __init__(
        self,
        inputs: tuple[ValueSpec, ...],
        outputs: tuple[ValueSpec, ...],
        plan: Plan,
        loaded: Sequence[tuple[ExecutableNetwork, Network | None]],
        constants: Mapping[str, Any],
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.plan = plan
        self.constants = constants
        self.stages = stages = tuple(stage for stage, _ in loaded)
        self._loaded = tuple(loaded)
        self._route = plan_route(inputs, outputs, stages, constants)
        # A stage's outputs are checked against these: slot by slot, the NumPy type of host tensors, None for anything else.
        self._wanted = [tuple(_find_host_dtype(spec) for spec in stage.outputs) for stage in stages]

    @classmethod
    def of_network(cls, network: Network, plan: Plan, loaded: Sequence[tuple[ExecutableNetwork, Network]]) -> HeteroExecutable:
        """Returns the executable of a network whose parts are loaded."""
        names = {spec.name for spec in network.outputs}
        constants = {name: constant.array for name, constant in network.initializers.items() if name in names}
        return cls(network.inputs, network.outputs, plan, loaded, constants)

    def loaded_parts(self) -> tuple[tuple[ExecutableNetwork, Network | None], ...]:
        """Returns each stage with the network that it runs; None where it came from its device's own blob."""
        return self._loaded

    def create_state(self) -> list[object]:
        """Returns the working memory of every stage."""
        return [stage.create_state() for stage in self.stages]

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Returns the outputs by position; ends early, with whatever is there, when the request was cancelled."""
        route = self._route
        slots: list[Any] = [None] * route.slot_count
        for slot, value in zip(route.inputs, inputs, strict=True):
            slots[slot] = value
        for slot, value in route.constants:
            slots[slot] = value
        states: Any = context.state
        profile = context.profile
        for index, step in enumerate(route.steps):
            if context.token.is_set:
                break
            part = None if profile is None else profile.of_part(str(self.stages[index].device), index)
            for transfer in step.transfers:
                _move(transfer, slots, part)
            results = self._run_stage(index, tuple(slots[slot] for slot in step.inputs), states[index], part, context)
            for slot, value in zip(step.outputs, results, strict=True):
                slots[slot] = value
            for slot in step.dead:
                slots[slot] = None
        for transfer in route.last_transfers:
            _move(transfer, slots, profile)
        return tuple(slots[slot] for slot in route.outputs)

    def _run_stage(
        self, index: int, inputs: tuple[Any, ...], state: object, profile: Profile | None, context: RunContext
    ) -> tuple[Any, ...]:
        stage = self.stages[index]
        try:
            results = stage.run(inputs, RunContext(state, profile=profile, token=context.token))
            return inputs if context.token.is_set and not results else self._check(index, results)
        except Exception as error:
            error.add_note(f"in stage {index} of {len(self.stages)} on {stage.device}, nodes {_shorten(self.plan.stages[index].nodes)}")
            raise

    def _check(self, index: int, results: Any) -> tuple[Any, ...]:
        """Returns the results of a stage, contiguous; a device that breaks the contract is named before its values go on."""
        stage = self.stages[index]
        wanted = self._wanted[index]
        if not isinstance(results, tuple) or len(results) != len(wanted):
            found = f"{len(results)} values" if isinstance(results, tuple) else type(results).__name__
            raise PluginError(f"device {stage.device} returned {found}; expected a tuple of {len(wanted)} outputs")
        return tuple(
            value if dtype is None else _check_tensor(value, dtype, stage, spec)
            for value, dtype, spec in zip(results, wanted, stage.outputs, strict=True)
        )

    def metrics(self) -> Mapping[str, Any]:
        """The metrics of a split network."""
        inner = [boundary for boundary in self.plan.boundaries if boundary.producer is not None]
        return {
            "HETERO_SUBGRAPHS": tuple((stage.device, stage.nodes) for stage in self.plan.stages),
            "HETERO_NUMBER_OF_SUBMODELS": len(self.plan.stages),
            "HETERO_PLAN": self.plan,
            "HETERO_BOUNDARY_TENSORS": len(inner),
            "HETERO_BOUNDARY_BYTES": sum(boundary.nbytes or 0 for boundary in inner),
            "EXECUTION_DEVICES": tuple(dict.fromkeys(stage.device for stage in self.plan.stages)),
            "OPTIMAL_NUMBER_OF_INFER_REQUESTS": max(
                (stage.get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS") for stage in self.stages), default=1
            ),
        }

    def close(self) -> None:
        """Closes every stage."""
        for stage in self.stages:
            stage.close()


def _move(transfer: Transfer, slots: list[Any], profile: Profile | None) -> None:
    began = perf_counter()
    slots[transfer.target] = transfer.move(slots[transfer.source])
    if profile is not None:
        nbytes = getattr(slots[transfer.target], "nbytes", 0)
        profile.add_transfer(transfer.value, nbytes, perf_counter() - began)


def _find_host_dtype(spec: ValueSpec) -> np.dtype[Any] | None:
    return numpy_dtype(spec.dtype) if spec.dtype is not None and spec.memory == HOST else None


def _check_tensor(value: Any, dtype: np.dtype[Any], stage: ExecutableNetwork, spec: ValueSpec) -> Any:
    if not isinstance(value, np.ndarray) or value.dtype != dtype:
        found = value.dtype if isinstance(value, np.ndarray) else type(value).__name__
        raise PluginError(f"device {stage.device} returned {found} for '{spec.name}'; expected an array of {dtype}")
    # A device may return a transposed view; what enters the next device is C-contiguous.
    return value if value.flags.c_contiguous else np.ascontiguousarray(value)


def _shorten(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f", ... ({len(names)} in all)" if len(names) > 3 else "")
