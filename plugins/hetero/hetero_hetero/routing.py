"""Routing: the slot of each value of a split network, its transfers, and the last reader of a slot. Planned once, at load. A value
that is read in another memory than its own gets a second slot there, filled by a single transfer right after it was made, however
many stages read it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from hetero_core import ExecutableNetwork
from hetero_core.errors import PluginError
from hetero_core.network.types import HOST, ValueSpec
from hetero_core.runtime.inputs import name_place

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
    origin: str = HOST
    readers: tuple[str, ...] = ()


@dataclass(frozen=True)
class StageRoute:
    """One stage: the slots that it reads and writes, the transfers that follow it, and the stages that must have run before."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    transfers: tuple[Transfer, ...]
    predecessors: tuple[int, ...]

    @cached_property
    def reads(self) -> tuple[int, ...]:
        """The slots that the stage and its transfers read."""
        return (*self.inputs, *(transfer.source for transfer in self.transfers))


@dataclass(frozen=True, slots=True)
class Route:
    """All steps. `first_transfers` move inputs; `constants` fills the slots of outputs that are constants.

    `readers` counts for each slot the stages and transfers that read it; outputs of the network count an extra reader, so they are
    kept.
    """

    inputs: tuple[int, ...]
    first_transfers: tuple[Transfer, ...]
    steps: tuple[StageRoute, ...]
    outputs: tuple[int, ...]
    constants: tuple[tuple[int, Any], ...]
    readers: tuple[int, ...]


class _Slots:
    """Numbers the places of values: (value, memory) -> slot; knows the memory and the stage of each value, and the function that
    moves it."""

    def __init__(self) -> None:
        self.numbers: dict[tuple[str, str], int] = {}
        self.home: dict[str, tuple[str, int | None, Copy | None]] = {}
        self.transfers: dict[int | None, list[Transfer]] = {}

    def make(self, value: str, memory: str, stage: int | None, to_host: Copy | None) -> int:
        self.home[value] = (memory, stage, to_host)
        return self.numbers.setdefault((value, memory), len(self.numbers))

    def find(self, spec: ValueSpec, memory: str, from_host: Callable[[Any, ValueSpec], Any] | None) -> int:
        """Returns the slot of a value in a memory; plans the transfer that fills a new slot."""
        home, stage, to_host = self.home[spec.name]
        slot = self.numbers.get((spec.name, memory))
        if slot is None:
            slot = self.numbers[spec.name, memory] = len(self.numbers)
            move = _join_moves(spec, None if home == HOST else to_host, None if memory == HOST else from_host)
            self.transfers.setdefault(stage, []).append(
                Transfer(spec.name, self.numbers[spec.name, home], slot, move, (home, memory))
            )
        return slot


def _join_moves(spec: ValueSpec, to_host: Copy | None, from_host: Callable[[Any, ValueSpec], Any] | None) -> Copy:
    if to_host is None and from_host is not None:
        return lambda array: from_host(array, spec)
    if to_host is not None and from_host is None:
        return to_host
    if to_host is None or from_host is None:
        raise PluginError(f"value '{spec.name}' moves from the host to the host; a device names a memory that it does not have")
    return lambda array: from_host(to_host(array), spec)


def plan_route(
    inputs: Sequence[ValueSpec], outputs: Sequence[ValueSpec], stages: Sequence[ExecutableNetwork], constants: Mapping[str, Any]
) -> Route:
    """Returns the route through stages in an order of execution; `constants` holds the outputs that are constants of the network."""
    slots = _Slots()
    reading = [(stage, stage.inputs) for stage in stages]
    first = tuple(slots.make(spec.name, _name_outer(spec, reading), None, _find_mover(spec, stages)) for spec in inputs)
    fixed = tuple((slots.make(name, HOST, None, None), array) for name, array in constants.items())
    read, written = [], []
    for index, stage in enumerate(stages):
        read.append(tuple(slots.find(spec, name_place(stage, spec), stage.from_host) for spec in stage.inputs))
        written.append(tuple(slots.make(spec.name, name_place(stage, spec), index, stage.to_host) for spec in stage.outputs))
    results = tuple(slots.find(spec, _name_outer(spec, [(stage, stage.outputs) for stage in stages]), None) for spec in outputs)
    _name_ends(slots.transfers, [str(stage.device) for stage in stages], read, results)
    steps = tuple(
        StageRoute(
            read[index],
            written[index],
            tuple(slots.transfers.get(index, ())),
            tuple(sorted({maker for spec in stage.inputs if (maker := slots.home[spec.name][1]) is not None})),
        )
        for index, stage in enumerate(stages)
    )
    transfers = [transfer for planned in slots.transfers.values() for transfer in planned]
    readers = [0] * len(slots.numbers)
    for slot in (*results, *(slot for step in steps for slot in step.inputs), *(transfer.source for transfer in transfers)):
        readers[slot] += 1
    return Route(first, tuple(slots.transfers.get(None, ())), steps, results, fixed, tuple(readers))


def _name_outer(spec: ValueSpec, sides: Sequence[tuple[ExecutableNetwork, Sequence[ValueSpec]]]) -> str:
    """Returns the memory of an input or output of the whole, which is the host's or that of the stage that has it."""
    if spec.memory == HOST:
        return HOST
    holders = (stage for stage, specs in sides if any((own.name, own.memory) == (spec.name, spec.memory) for own in specs))
    return name_place(next(holders), spec)


def _find_mover(spec: ValueSpec, stages: Sequence[ExecutableNetwork]) -> Copy | None:
    """Returns the transfer that brings an input from a stage's memory to the host; None for an input in host memory."""
    if spec.memory == HOST:
        return None
    return next(
        stage.to_host for stage in stages if any(own.name == spec.name and own.memory == spec.memory for own in stage.inputs)
    )


def find_homes(stages: Sequence[ExecutableNetwork], output_of_input: Mapping[str, str]) -> dict[str, tuple[ExecutableNetwork, str]]:
    """Returns the inputs that a stage makes in a memory in which another stage reads them: the reading stage, and the memory.

    An output that gives several inputs is left to the host.
    """
    memory_of_output = {spec.name: name_place(stage, spec) for stage in stages for spec in stage.outputs if spec.memory != HOST}
    readers_of_output = Counter(output_of_input.values())
    homes = {}
    for name, output in output_of_input.items():
        memory = memory_of_output.get(output)
        readers = [
            (stage, spec.memory)
            for stage in stages
            for spec in stage.inputs
            if spec.name == name and name_place(stage, spec) == memory
        ]
        if memory is not None and readers and readers_of_output[output] == 1:
            homes[name] = readers[0]
    return homes


def _name_ends(
    transfers: dict[int | None, list[Transfer]], devices: Sequence[str], read: Sequence[tuple[int, ...]], results: tuple[int, ...]
) -> None:
    """Writes into each transfer the devices that make and read its value."""
    readers: dict[int, dict[str, None]] = {}
    for device, slots in [*zip(devices, read, strict=True), (HOST, results)]:
        for slot in slots:
            readers.setdefault(slot, {})[device] = None
    for maker, planned in transfers.items():
        origin = HOST if maker is None else devices[maker]
        planned[:] = [replace(transfer, origin=origin, readers=tuple(readers[transfer.target])) for transfer in planned]
