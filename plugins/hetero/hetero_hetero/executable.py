"""A split network in use: runs its stages as their inputs exist, moves what has to be moved, frees what nobody reads any more.

A chain runs on the caller's thread, without locks to wait for; only where two devices could work at once does `schedule` spread it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hetero_core.composing.properties import PROPERTIES_KEY, describe_properties
from hetero_core.contract import Executable, RunContext
from hetero_core.core import Core
from hetero_core.devices.threads import THREADS_KEY
from hetero_core.dtypes import numpy_dtype
from hetero_core.errors import PluginError
from hetero_core.executed import ExecutedNode
from hetero_core.network.graph import Network
from hetero_core.network.types import HOST, ValueSpec
from hetero_core.plan import Plan
from hetero_core.profile import Profile
from hetero_core.runtime.device_tensor import DeviceTensor
from hetero_core.runtime.door import fits_shape
from hetero_core.runtime.executable import ExecutableNetwork
from hetero_core.runtime.transfers import move_value
from hetero_hetero.executed import list_steps
from hetero_hetero.held import count_held_bytes
from hetero_hetero.routing import Transfer, find_dead_slots, find_homes, plan_route
from hetero_hetero.schedule import Flow, plan_schedule
from hetero_hetero.shares import find_lane
from hetero_hetero.tensors import enter_tensors, leave_tensors, select_tensors

Submit = Callable[[Callable[[], None]], object]


class _Readers:
    """Counts who still reads the slots of one run, and empties a slot after its last reader; for stages in several threads."""

    __slots__ = ("_left", "_lock", "_slots")

    def __init__(self, slots: list[Any], readers: Sequence[int]) -> None:
        self._slots = slots
        self._left = list(readers)
        self._lock = threading.Lock()

    def release(self, read: Sequence[int], written: Sequence[int]) -> None:
        """Empties the slots that were read for the last time, and those written ones that nobody reads."""
        with self._lock:
            for slot in read:
                self._left[slot] -= 1
            for slot in (*read, *written):
                if self._left[slot] == 0:
                    self._slots[slot] = None


class HeteroExecutable(Executable):
    """The stages of a plan, loaded. `constants` are the outputs of the network that no stage makes."""

    takes_tensors = True

    def __init__(
        self,
        inputs: tuple[ValueSpec, ...],
        outputs: tuple[ValueSpec, ...],
        plan: Plan,
        loaded: Sequence[tuple[ExecutableNetwork, Network | None]],
        constants: Mapping[str, Any],
        *,
        core: Core,
        threads: int,
        streams: int,
    ) -> None:
        """`threads` is the budget of one run, of which each stage has its own part; `streams` is how many runs are to be expected."""
        self.inputs = inputs
        self.outputs = outputs
        self.plan = plan
        self.constants = constants
        self.stages = stages = tuple(stage for stage, _ in loaded)
        self._loaded = tuple(loaded)
        lanes = [find_lane(core, str(stage.device)) for stage in stages]
        # While one request is on its second device, the next one can be on the first.
        self.pipeline_depth = max(len(set(lanes)), 1)
        self._plan_route()
        self._schedule = plan_schedule(
            [step.predecessors for step in self._route.steps],
            lanes,
            threads=[stage.config[THREADS_KEY] for stage in stages],
            budget=threads,
        )
        if self._schedule.is_parallel:
            # Besides the thread that a run is on, which works, too.
            helpers = streams * (min(len(set(lanes)), threads) - 1)
            self._submit: Submit = core.create_executor(f"HETERO:{','.join(dict.fromkeys(lanes))}", workers=helpers).submit
        self._names = [(tuple(spec.name for spec in stage.inputs), tuple(spec.name for spec in stage.outputs)) for stage in stages]
        # A stage's outputs are checked against these: NumPy type and shape of host tensors, None for anything else.
        self._wanted = [tuple(_find_host_type(spec) for spec in stage.outputs) for stage in stages]

    def _plan_route(self) -> None:
        """Works out the route from the memories that inputs and outputs name."""
        self._route = plan_route(self.inputs, self.outputs, self.stages, self.constants)
        self._dead = find_dead_slots(self._route)
        # A run starts from a copy: constants in their slots, everything else empty.
        self._empty: list[Any] = [None] * len(self._route.readers)
        for slot, value in self._route.constants:
            self._empty[slot] = value

    def keep_states(self, output_of_input: Mapping[str, str]) -> Mapping[str, ExecutableNetwork]:
        """Leaves the states in the memory of a stage that one stage makes and another one, or the same, reads there."""
        homes = find_homes(self.stages, output_of_input)
        memories = {name: memory for name, (_, memory) in homes.items()}
        memories |= {output_of_input[name]: memory for name, (_, memory) in homes.items()}
        self.inputs, self.outputs = (
            tuple(ValueSpec(spec.name, spec.type, memories.get(spec.name, spec.memory)) for spec in specs)
            for specs in (self.inputs, self.outputs)
        )
        self._plan_route()
        return {name: stage for name, (stage, _) in homes.items()}

    def find_part(self, name: str) -> ExecutableNetwork | None:
        """Returns the first stage that reads an input, or makes an output, in a memory of its own or of a device in it."""
        for stage in self.stages:
            specs = [spec for spec in (*stage.all_inputs, *stage.all_outputs) if spec.name == name]
            if any(spec.memory != HOST or stage.takes_tensors for spec in specs):
                return stage
        return None

    def loaded_parts(self) -> tuple[tuple[ExecutableNetwork, Network | None], ...]:
        """Returns each stage with the network that it runs; None where it came from its device's own blob."""
        return self._loaded

    def replace_part(self, index: int, loaded: ExecutableNetwork, plan: Plan) -> None:
        """Notes what runs a part from now on, for exports and metrics; the stage itself hands its runs on."""
        self._loaded = (*self._loaded[:index], (loaded, self._loaded[index][1]), *self._loaded[index + 1 :])
        self.plan = plan

    def create_state(self) -> list[object]:
        """Returns the working memory of every stage."""
        return [stage.create_state() for stage in self.stages]

    def create_spare(self, state: Any) -> list[object]:
        """Returns the second working memory of every stage."""
        return [stage.create_state(beside) for stage, beside in zip(self.stages, state, strict=True)]

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Returns the outputs by position; ends early, with whatever is there, when the request was cancelled."""
        slots = self._fill_slots(inputs, context)
        if self._schedule.is_parallel:
            self._run_spread(slots, context)
        else:
            for index, dead in enumerate(self._dead):
                if context.token.is_set:
                    break
                self._run_step(index, slots, context)
                for slot in dead:
                    slots[slot] = None
        return self._take_outputs(slots, context)

    def _take_outputs(self, slots: list[Any], context: RunContext) -> tuple[Any, ...]:
        """Returns the outputs by position, those for which the caller has set a tensor in it."""
        if not context.tensors:
            return tuple([slots[slot] for slot in self._route.outputs])
        names = [spec.name for spec in self.outputs]
        return leave_tensors(slots, self._route.outputs, names, context.tensors, context.profile)

    def _fill_slots(self, inputs: tuple[Any, ...], context: RunContext) -> list[Any]:
        """Returns the slots of a run with its inputs and constants in place, also where they are needed elsewhere."""
        route = self._route
        slots = self._empty.copy()
        for slot, value in zip(route.inputs, inputs, strict=True):
            slots[slot] = value
        if context.tensors or DeviceTensor in map(type, inputs):
            names = [spec.name for spec in self.inputs]
            enter_tensors(slots, route, names, self.stages, context.tensors, context.profile)
        if route.first_transfers:
            _move(route.first_transfers, slots, context.profile)
        return slots

    def _run_spread(self, slots: list[Any], context: RunContext) -> None:
        """Runs the stages in as many threads as can work at once."""
        release = self._count_readers(slots)

        def run_stage(index: int) -> None:
            self._run_step(index, slots, context)
            release(index)

        Flow(self._schedule, run_stage, self._submit, context.token).run()

    def _count_readers(self, slots: list[Any]) -> Callable[[int], None]:
        """Returns a function that empties the slots which a stage was the last to read; for stages that run at once."""
        readers = _Readers(slots, self._route.readers)
        readers.release([transfer.source for transfer in self._route.first_transfers], ())

        def release(index: int) -> None:
            step = self._route.steps[index]
            readers.release([*step.inputs, *(transfer.source for transfer in step.transfers)], step.outputs)

        return release

    def _run_step(self, index: int, slots: list[Any], context: RunContext) -> None:
        """Runs one stage: takes its inputs out of the slots, keeps its outputs, moves them where they are needed elsewhere."""
        inner = self._open_step(index, slots, context)
        try:
            results = self.stages[index].run(tuple([slots[slot] for slot in self._route.steps[index].inputs]), inner)
            self._end_step(index, results, slots, inner)
        except Exception as error:
            self._note_step(index, error)
            raise

    def _open_step(self, index: int, slots: Sequence[Any], context: RunContext) -> RunContext:
        """Returns the context of a stage's run within that of the whole."""
        states: Any = context.state
        profile = None if context.profile is None else context.profile.of_part(str(self.stages[index].device), index)
        inner = RunContext(states[index], profile=profile, token=context.token, limits=context.limits)
        if context.tensors and self.stages[index].takes_tensors:
            inner.tensors = select_tensors(slots, self._route.steps[index])
        return inner

    def _end_step(self, index: int, results: Any, slots: list[Any], inner: RunContext) -> None:
        """Keeps the outputs of a stage, and moves them where they are needed elsewhere."""
        if inner.token.is_set:
            return  # nobody waits for what a cancelled stage returns
        transfers = self._route.steps[index].transfers
        self._keep_outputs(index, results, slots)
        if inner.profile is not None:
            inner.profile.end_part(*self._names[index])
        if transfers:
            _move(transfers, slots, inner.profile)
            if inner.limits is not None:
                # A copy in another memory is what the run has made, as any value; inputs of the caller count nothing.
                inner.limits.hold([slots[transfer.target] for transfer in transfers])

    def _note_step(self, index: int, error: BaseException) -> None:
        """Adds to an error in which stage it was raised."""
        nodes = _shorten(self.plan.stages[index].nodes)
        error.add_note(f"in stage {index} of {len(self.stages)} on {self.stages[index].device}, nodes {nodes}")

    def _keep_outputs(self, index: int, results: Any, slots: list[Any]) -> None:
        """Puts the results of a stage into their slots; a device that breaks the contract is named before its values go on."""
        host_types, targets = self._wanted[index], self._route.steps[index].outputs
        if not isinstance(results, tuple) or len(results) != len(host_types):
            description = f"{len(results)} values" if isinstance(results, tuple) else type(results).__name__
            raise PluginError(
                f"device {self.stages[index].device} returned {description}; expected a tuple of {len(host_types)} outputs"
            )
        for position, value in enumerate(results):
            host_type = host_types[position]
            if host_type is not None and not _is_plainly(value, *host_type) and not isinstance(value, DeviceTensor):
                value = _check_tensor(value, host_type[0], self.stages[index], position)
            slots[targets[position]] = value
        watch = self.stages[index].shape_watch
        if watch is not None:
            watch.check(results)

    def metrics(self) -> Mapping[str, Any]:
        """The metrics of a split network."""
        inner = [boundary for boundary in self.plan.boundaries if boundary.producer is not None]
        return {
            "HETERO_SUBGRAPHS": tuple((stage.device, stage.nodes) for stage in self.plan.stages),
            "HETERO_NUMBER_OF_SUBMODELS": len(self.plan.stages),
            "HETERO_PLAN": self.plan,
            "HETERO_BOUNDARY_TENSORS": len(inner),
            "HETERO_BOUNDARY_BYTES": sum(boundary.nbytes or 0 for boundary in inner),
            "HETERO_HELD_BYTES": lambda: count_held_bytes(self.stages),
            PROPERTIES_KEY: lambda: describe_properties(self.stages),
            "REFERENCE_NODES": tuple(name for stage in self.stages for name in stage.get_metric("REFERENCE_NODES")),
            "EXECUTION_DEVICES": tuple(
                dict.fromkeys(name for stage in self.stages for name in stage.get_metric("EXECUTION_DEVICES"))
            ),
        }

    def executed_nodes(self) -> tuple[ExecutedNode, ...]:
        """The steps of every stage, and after each the copies into other memories."""
        return list_steps(self.plan, self.stages, self._route)

    def close(self) -> None:
        """Closes every stage."""
        for stage in self.stages:
            stage.close()


_HostType = tuple[np.dtype[Any], tuple[int | str | None, ...] | None]


def _find_host_type(spec: ValueSpec) -> _HostType | None:
    return (numpy_dtype(spec.dtype), spec.shape) if spec.dtype is not None and spec.memory == HOST else None


def _is_plainly(value: Any, dtype: np.dtype[Any], shape: tuple[int | str | None, ...] | None) -> bool:
    """Says whether a value is exactly what is wanted; one that is not may still do."""
    return type(value) is np.ndarray and value.dtype is dtype and value.shape == shape and value.flags.c_contiguous


def _check_tensor(value: Any, dtype: np.dtype[Any], stage: ExecutableNetwork, position: int) -> Any:
    """Returns the value C-contiguous. Raises: PluginError when it is no array of the element type and shape."""
    if not isinstance(value, np.ndarray) or value.dtype != dtype:
        description = value.dtype if isinstance(value, np.ndarray) else type(value).__name__
        raise PluginError(
            f"device {stage.device} returned {description} for '{stage.outputs[position].name}'; expected an array of {dtype}"
        )
    spec = stage.outputs[position]
    if spec.shape is not None and not fits_shape(value.shape, spec.shape):
        # The next device compiled for this shape; what it would do with another one, nobody knows.
        raise PluginError(
            f"device {stage.device} returned shape {list(value.shape)} for '{spec.name}'; expected {spec.type}, as inference proves"
        )
    # A device may return a transposed view; what enters the next device is C-contiguous.
    return value if value.flags.c_contiguous else np.ascontiguousarray(value)


def _move(transfers: Sequence[Transfer], slots: list[Any], profile: Profile | None) -> None:
    for transfer in transfers:
        value, target = slots[transfer.source], slots[transfer.target]
        if target is not None:
            # A tensor of the caller, or the array of one.
            if type(target) is not DeviceTensor:
                continue
            if target.place == transfer.places[0]:
                target.keep(value)
                continue
        slots[transfer.target] = move_value(value, transfer.move, profile, transfer.value, transfer.origin, transfer.readers)


def _shorten(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f", ... ({len(names)} in all)" if len(names) > 3 else "")
