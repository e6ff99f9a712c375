"""A split network in use: runs its stages as their inputs exist, moves values between devices, frees values after their last reader.

The slot of each value and its transfers are planned once, at load. A value that is read in another memory than its own gets a second slot
there, filled by a single transfer right after it was made, however many stages read it. A chain runs on the caller's thread, without
locks to wait for; `schedule` spreads it over threads only if two devices could work at once.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hetero_core import Core, DeviceTensor, ExecutableNetwork
from hetero_core.composing.properties import describe_parts
from hetero_core.composing.runs import fill_tensor, read_tensor
from hetero_core.contract import Executable, RunContext
from hetero_core.devices.threads import THREADS_KEY
from hetero_core.errors import DeviceMemoryError, PluginError
from hetero_core.executed import ExecutedNode, place_executed
from hetero_core.network.graph import Network
from hetero_core.network.types import HOST, ValueSpec
from hetero_core.plan import HeldMemory, Plan
from hetero_core.profile import Profile
from hetero_core.runtime.inputs import name_place
from hetero_core.runtime.outputs import OutputCheck
from hetero_core.runtime.transfers import move_value
from hetero_hetero.branches import describe_plan
from hetero_hetero.fallback import find_guard, move_stage
from hetero_hetero.loading import shorten_names
from hetero_hetero.schedule import Flow, Schedule, find_lane

Copy = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Transfer:
    """One copy between two memories: from the device `origin` to the devices `readers`; HOST stands for the caller of the network.

    `places` are both memories as all plugins know them.
    """

    value: str
    source: int
    target: int
    move: Copy
    places: tuple[str, str]
    origin: str
    readers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StageRoute:
    """One stage: the slots that it reads and writes, the transfers that follow it, the slots that it and these read, and the stages that
    must have run before.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    transfers: tuple[Transfer, ...]
    reads: tuple[int, ...]
    predecessors: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Route:
    """All steps. `first_transfers` move inputs; `slots` are those of a run before it begins: empty but for outputs that are constants.

    `readers` counts for each slot the stages and transfers that read it; outputs of the network count an extra reader, so they are
    kept.
    """

    inputs: tuple[int, ...]
    first_transfers: tuple[Transfer, ...]
    steps: tuple[StageRoute, ...]
    outputs: tuple[int, ...]
    slots: list[Any]
    readers: tuple[int, ...]


def plan_route(
    inputs: Sequence[ValueSpec], outputs: Sequence[ValueSpec], stages: Sequence[ExecutableNetwork], constants: Mapping[str, Any]
) -> Route:
    """Returns the route through stages in an order of execution; `constants` holds the outputs that are constants of the network."""
    # A slot for each value in each memory that it has; of each value its first memory, its stage, and the function that moves it out.
    slots: dict[tuple[str, str], int] = {}
    homes: dict[str, tuple[str, int | None, Copy | None]] = {}
    transfers: dict[int | None, list[Transfer]] = {}
    readers_of_slot: dict[int, dict[str, None]] = {}

    def make(value: str, memory: str, stage: int | None, to_host: Copy | None) -> int:
        homes[value] = memory, stage, to_host
        return slots.setdefault((value, memory), len(slots))

    def read(spec: ValueSpec, memory: str, reader: ExecutableNetwork | None) -> int:
        home, maker, to_host = homes[spec.name]
        slot = slots.get((spec.name, memory))
        if slot is None:
            slot = slots[spec.name, memory] = len(slots)
            from_host = None if memory == HOST or reader is None else reader.from_host
            move = _join_moves(spec, None if home == HOST else to_host, from_host)
            origin = HOST if maker is None else str(stages[maker].device)
            transfers.setdefault(maker, []).append(Transfer(spec.name, slots[spec.name, home], slot, move, (home, memory), origin))
        readers_of_slot.setdefault(slot, {})[HOST if reader is None else str(reader.device)] = None
        return slot

    first = []
    for spec in inputs:
        holder = _find_holder(spec, [(stage, stage.inputs) for stage in stages])
        place, to_host = (HOST, None) if holder is None else (name_place(holder, spec), holder.to_host)
        first.append(make(spec.name, place, None, to_host))
    fixed = {make(name, HOST, None, None): array for name, array in constants.items()}
    borders = []
    for index, stage in enumerate(stages):
        reads = tuple(read(spec, name_place(stage, spec), stage) for spec in stage.inputs)
        borders.append((reads, tuple(make(spec.name, name_place(stage, spec), index, stage.to_host) for spec in stage.outputs)))
    results = []
    for spec in outputs:
        holder = _find_holder(spec, [(stage, stage.outputs) for stage in stages])
        results.append(read(spec, HOST if holder is None else name_place(holder, spec), None))
    planned = {
        maker: tuple(replace(transfer, readers=tuple(readers_of_slot[transfer.target])) for transfer in moved)
        for maker, moved in transfers.items()
    }
    steps = tuple(
        StageRoute(
            *borders[index],
            planned.get(index, ()),
            (*borders[index][0], *(transfer.source for transfer in planned.get(index, ()))),
            tuple(sorted({maker for spec in stage.inputs if (maker := homes[spec.name][1]) is not None})),
        )
        for index, stage in enumerate(stages)
    )
    counts = Counter([*results, *(slot for step in steps for slot in step.reads)])
    counts.update(transfer.source for transfer in planned.get(None, ()))
    readers = tuple(counts[slot] for slot in range(len(slots)))
    return Route(tuple(first), planned.get(None, ()), steps, tuple(results), list(map(fixed.get, range(len(slots)))), readers)


def _join_moves(spec: ValueSpec, to_host: Copy | None, from_host: Callable[[Any, ValueSpec], Any] | None) -> Copy:
    if from_host is None:
        if to_host is None:
            raise PluginError(f"value '{spec.name}' moves from the host to the host; a device names a memory that it does not have")
        return to_host
    return lambda array: from_host(array if to_host is None else to_host(array), spec)


def _find_holder(spec: ValueSpec, sides: Sequence[tuple[ExecutableNetwork, Sequence[ValueSpec]]]) -> ExecutableNetwork | None:
    """Returns the stage in whose memory an input or output of the whole lies; None for the host's memory."""
    holders = (stage for stage, specs in sides if any((own.name, own.memory) == (spec.name, spec.memory) for own in specs))
    return None if spec.memory == HOST else next(holders)


def _count_readers(slots: list[Any], readers: Sequence[int]) -> Callable[[Sequence[int], Sequence[int]], None]:
    """Returns a function that takes the slots which were read and written, and empties those without a further reader. Safe for threads."""
    counts, lock = list(readers), threading.Lock()

    def release(reads: Sequence[int], writes: Sequence[int]) -> None:
        with lock:
            for slot in reads:
                counts[slot] -= 1
                if counts[slot] == 0:
                    slots[slot] = None
            for slot in writes:
                if counts[slot] == 0:
                    slots[slot] = None

    return release


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
        """`threads` is the budget of a run, of which each stage has its own part; `streams` is how many runs are to be expected."""
        self.inputs = inputs
        self.outputs = outputs
        self._plan = plan
        self.constants = constants
        self.stages = stages = tuple(stage for stage, _ in loaded)
        self._loaded = tuple(loaded)
        lanes = [find_lane(core, str(stage.device)) for stage in stages]
        # While a request is on its second device, the next request can be on the first.
        self.pipeline_depth = max(len(set(lanes)), 1)
        self._route = plan_route(inputs, outputs, stages, constants)
        predecessors = tuple(step.predecessors for step in self._route.steps)
        self._schedule = Schedule(predecessors, lanes, [stage.config[THREADS_KEY] for stage in stages], threads)
        if self._schedule.is_parallel:
            # Besides the thread that a run is on, which works, too.
            helpers = streams * (min(len(set(lanes)), threads) - 1)
            self._submit = core.create_executor(f"HETERO:{','.join(dict.fromkeys(lanes))}", workers=helpers).submit
        # Outputs that stay in the memory of a device are not arrays of the host.
        self._checks = [
            OutputCheck(
                stage.outputs,
                [spec.name for spec in stage.outputs if spec.memory != HOST],
                stage.shape_watch,
                blame=stage.provenance,
            ).check
            for stage in stages
        ]

    def keep_states(self, output_of_input: Mapping[str, str]) -> Mapping[str, ExecutableNetwork]:
        """Leaves a state in the memory of a stage if the stage that makes it and the stage that reads it share that memory."""
        # An output that gives several inputs is left to the host.
        readers_of_output = Counter(output_of_input.values())
        makers = {spec.name: name_place(stage, spec) for stage in self.stages for spec in stage.outputs if spec.memory != HOST}
        memories: dict[str, str] = {}
        homes: dict[str, ExecutableNetwork] = {}
        for stage in self.stages:
            for spec in stage.inputs:
                output = output_of_input.get(spec.name, "")
                is_near = output in makers and name_place(stage, spec) == makers[output] and readers_of_output[output] == 1
                if is_near and spec.name not in homes:
                    homes[spec.name] = stage
                    memories |= {spec.name: spec.memory, output: spec.memory}
        self.inputs, self.outputs = (
            tuple(ValueSpec(spec.name, spec.type, memories.get(spec.name, spec.memory)) for spec in specs)
            for specs in (self.inputs, self.outputs)
        )
        self._route = plan_route(self.inputs, self.outputs, self.stages, self.constants)
        return homes

    def find_part(self, name: str) -> ExecutableNetwork | None:
        """Returns the first stage that reads an input, or makes an output, in a memory of its own or of a device in it."""
        values = ((stage, spec) for stage in self.stages for spec in (*stage.all_inputs, *stage.all_outputs) if spec.name == name)
        return next((stage for stage, spec in values if spec.memory != HOST or stage.takes_tensors), None)

    def loaded_parts(self) -> tuple[tuple[ExecutableNetwork, Network | None], ...]:
        """Returns the executable of each stage now and its network, which is None if the stage came from its device's own blob."""
        guards = [find_guard(stage) for stage in self.stages]
        return tuple(
            (stage if guard is None or guard.serving is None else guard.serving, part)
            for guard, (stage, part) in zip(guards, self._loaded, strict=True)
        )

    @property
    def plan(self) -> Plan:
        """The plan, with those stages on another device that have failed on their own."""
        plan = self._plan
        for index, stage in enumerate(self.stages):
            guard = find_guard(stage)
            if guard is not None and guard.serving is not None:
                plan = move_stage(plan, index, str(guard.serving.device), guard.reason)
        return plan

    def create_state(self) -> list[object]:
        """Returns the working memory of every stage."""
        return [stage.create_state() for stage in self.stages]

    def create_spare(self, state: Any) -> list[object]:
        """Returns the second working memory of every stage."""
        return [stage.create_state(beside) for stage, beside in zip(self.stages, state, strict=True)]

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Returns the outputs by position; ends early, with the outputs so far, if the request was cancelled."""
        route = self._route
        slots = route.slots.copy()
        for slot, value in zip(route.inputs, inputs, strict=True):
            slots[slot] = value
        if context.tensors or DeviceTensor in map(type, inputs):
            self._enter_tensors(slots, context)
        _move(route.first_transfers, slots, context.profile)
        release = _count_readers(slots, route.readers)
        release([transfer.source for transfer in route.first_transfers], ())

        def run_stage(index: int) -> None:
            self._run_step(index, slots, context)
            release(route.steps[index].reads, route.steps[index].outputs)

        if self._schedule.is_parallel:
            Flow(self._schedule, run_stage, self._submit, context.token).run()
        else:
            for index in range(len(self.stages)):
                if context.token.is_set:
                    break
                run_stage(index)
        values = [slots[slot] for slot in route.outputs]
        for position, tensor in (context.tensors or {}).items():
            values[position] = fill_tensor(tensor, values[position], context.profile, self.outputs[position].name, "HETERO")
        return tuple(values)

    def _enter_tensors(self, slots: list[Any], context: RunContext) -> None:
        """Puts the tensors of a run into its slots, which hold the inputs already."""
        route = self._route
        for slot, spec in zip(route.inputs, self.inputs, strict=True):
            tensor = slots[slot]
            if not isinstance(tensor, DeviceTensor):
                continue
            transfers = [transfer for transfer in route.first_transfers if transfer.source == slot]
            for transfer in transfers:
                if transfer.places[1] == tensor.place:
                    slots[transfer.target] = tensor.array
            readers = [stage for step, stage in zip(route.steps, self.stages, strict=True) if slot in step.inputs]
            is_read_on_host = slot in route.outputs or not all(stage.takes_tensors for stage in readers)
            if is_read_on_host or any(slots[transfer.target] is None for transfer in transfers):
                slots[slot] = read_tensor(tensor, context.profile, spec.name, *(str(stage.device) for stage in readers))
        for position, tensor in (context.tensors or {}).items():
            slot = route.outputs[position]
            # A value that a stage reads, too, has to be there for it.
            if route.readers[slot] == 1 and slots[slot] is None:
                slots[slot] = tensor

    def _run_step(self, index: int, slots: list[Any], context: RunContext) -> None:
        """Runs one stage: takes its inputs out of the slots, checks its outputs under its device's name, keeps them C-contiguous, and moves
        them to the memories of their readers.
        """
        stage, step = self.stages[index], self._route.steps[index]
        states: Any = context.state
        profile = None if context.profile is None else context.profile.of_part(str(stage.device), index)
        tensors = None
        if context.tensors and stage.takes_tensors:
            tensors = {place: slots[slot] for place, slot in enumerate(step.outputs) if isinstance(slots[slot], DeviceTensor)}
        inner = context.derive(states[index], profile=profile, outputs=None, tensors=tensors)
        try:
            results = stage.run_device(tuple([slots[slot] for slot in step.inputs]), inner)
            if inner.token.is_set:
                return  # the result of a cancelled stage is dropped
            # The stage's device has counted its values already.
            unlimited = inner if inner.limits is None else inner.derive(inner.state, limits=None)
            for slot, value in zip(step.outputs, self._checks[index](results, unlimited), strict=True):
                is_turned = type(value) is np.ndarray and not value.flags.c_contiguous
                slots[slot] = np.ascontiguousarray(value) if is_turned else value
            if profile is not None:
                profile.end_part(tuple(spec.name for spec in stage.inputs), tuple(spec.name for spec in stage.outputs))
            _move(step.transfers, slots, profile)
            if step.transfers and inner.limits is not None:
                # A copy in another memory belongs to the run, as any value; inputs of the caller count nothing.
                inner.limits.hold([slots[transfer.target] for transfer in step.transfers])
        except Exception as error:
            nodes = shorten_names(self.plan.stages[index].nodes)
            error.add_note(f"in stage {index} of {len(self.stages)} on {stage.device}, nodes {nodes}")
            raise

    def metrics(self) -> Mapping[str, Any]:
        """The metrics of a split network."""
        held = {"HETERO_HELD_BYTES": lambda: count_held_bytes(self.stages)}
        return {**describe_plan(self.plan), **held, **describe_parts(self.stages)}

    def executed_nodes(self) -> tuple[ExecutedNode, ...]:
        """The steps in order of execution; a copy stands behind the stage that made the value, copies of inputs stand first.

        A stage that reads a copy reads it under the name of the copy, "b@CPU".
        """
        copies: dict[int, str] = {}
        steps = list(_list_copies(self._route.first_transfers, (), copies))
        for placed, stage, step in zip(self.plan.stages, self.stages, self._route.steps, strict=True):
            names = {spec.name: copies[slot] for spec, slot in zip(stage.all_inputs, step.inputs, strict=True) if slot in copies}
            nodes = place_executed(stage.list_executed(placed.nodes), placed.device, placed.index)
            steps += [replace(node, inputs=tuple(names.get(value, value) for value in node.inputs)) for node in nodes]
            steps += _list_copies(step.transfers, (placed.index,), copies)
        return tuple(steps)

    def close(self) -> None:
        """Closes every stage."""
        for stage in self.stages:
            stage.close()


def _move(transfers: Sequence[Transfer], slots: list[Any], profile: Profile | None) -> None:
    for transfer in transfers:
        value, target = slots[transfer.source], slots[transfer.target]
        if target is not None:
            # A tensor of the caller, or its array.
            if type(target) is not DeviceTensor:
                continue
            if target.place == transfer.places[0]:
                target.keep(value)
                continue
        slots[transfer.target] = move_value(value, transfer.move, profile, transfer.value, transfer.origin, transfer.readers)


def _list_copies(transfers: Iterable[Transfer], path: tuple[int, ...], copies: dict[int, str]) -> Iterable[ExecutedNode]:
    """Yields the copies as steps, and notes in `copies` the name of the value in each slot."""
    for transfer in transfers:
        targets = ", ".join(transfer.readers)
        copies[transfer.target] = f"{transfer.value}@{targets}"
        name = f"{transfer.value} to {targets}"
        yield ExecutedNode(name, "transfer", (), (transfer.value,), (copies[transfer.target],), device=transfer.origin, path=path)


_HELD_BYTES = ("_WEIGHT_BYTES", "_CONSTANT_BYTES", "_ARENA_BYTES")
"""Ends of the names of metrics by which a device tells the bytes of its weights, of constants that it reads as they are, and of a run."""


def count_held_bytes(stages: Sequence[ExecutableNetwork]) -> dict[str, int]:
    """Returns device -> the bytes that its parts hold now; a device that tells nothing is not in it."""
    bytes_of_device: dict[str, int] = {}
    for stage in stages:
        names = [name for name in stage.get_metric("SUPPORTED_METRICS") if name.endswith(_HELD_BYTES)]
        if names:
            device = str(stage.device)
            bytes_of_device[device] = bytes_of_device.get(device, 0) + sum(int(stage.get_metric(name)) for name in names)
    return bytes_of_device


def require_limits(name: str, memory: Sequence[HeldMemory], stages: Sequence[ExecutableNetwork]) -> None:
    """Raises DeviceMemoryError with the numbers if a device of a network that was placed by memory holds more than its limit.

    It closes the stages then.
    """
    bytes_of_device = count_held_bytes(stages) if any(estimated.limit is not None for estimated in memory) else {}
    for estimated in memory:
        used, limit = bytes_of_device.get(estimated.device, 0), estimated.limit
        if limit is None or used <= limit:
            continue
        for stage in stages:
            stage.close()
        raise DeviceMemoryError(
            f"network '{name}' does not fit: its part on {estimated.device} was estimated to hold {estimated.total} bytes "
            f"and holds {used} of {limit}. "
            f"Name a smaller limit for {estimated.device}, so that the next device takes more nodes, or raise it",
            needed=used,
            free=limit,
        )
