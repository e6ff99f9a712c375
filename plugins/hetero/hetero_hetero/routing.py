"""Routing: which slot each value of a split network lives in, which transfers it takes, and when a slot is free again.

Worked out once, at load. A value that is needed in another memory than the one it was made in gets a second slot there, filled by one
transfer however many stages read it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hetero_core.errors import PluginError
from hetero_core.network.types import HOST, ValueSpec
from hetero_core.runtime.executable import ExecutableNetwork

Move = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Transfer:
    """One copy between two memories."""

    value: str
    source: int
    target: int
    move: Move


@dataclass(frozen=True, slots=True)
class Step:
    """One stage with the transfers that go before it, its slots, and the slots that nobody reads after it."""

    transfers: tuple[Transfer, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    dead: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Route:
    """All steps; `constants` fills the slots of outputs that are constants; `last_transfers` bring outputs to the host."""

    slot_count: int
    inputs: tuple[int, ...]
    steps: tuple[Step, ...]
    last_transfers: tuple[Transfer, ...]
    outputs: tuple[int, ...]
    constants: tuple[tuple[int, Any], ...]


class _Slots:
    """Numbers the places of values: (value, memory) -> slot, with the memory that each value was made in."""

    def __init__(self) -> None:
        self.numbers: dict[tuple[str, str], int] = {}
        self.home: dict[str, tuple[str, Move | None]] = {}

    def make(self, value: str, memory: str, to_host: Move | None) -> int:
        self.home[value] = (memory, to_host)
        return self.numbers.setdefault((value, memory), len(self.numbers))

    def find(self, spec: ValueSpec, memory: str, from_host: Callable[[Any, ValueSpec], Any] | None) -> tuple[int, Transfer | None]:
        """Returns the slot of a value in a memory, and the transfer that fills it where it is new there."""
        home, to_host = self.home[spec.name]
        if (spec.name, memory) in self.numbers:
            return self.numbers[spec.name, memory], None
        source = self.numbers[spec.name, home]
        slot = self.numbers[spec.name, memory] = len(self.numbers)
        return slot, Transfer(spec.name, source, slot, _join_moves(spec, None if home == HOST else to_host, from_host if memory != HOST else None))


def _join_moves(spec: ValueSpec, to_host: Move | None, from_host: Callable[[Any, ValueSpec], Any] | None) -> Move:
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
    """Returns the route through stages in order of execution; `constants` holds the outputs that are constants of the network."""
    slots = _Slots()
    first = tuple(slots.make(spec.name, HOST, None) for spec in inputs)
    fixed = tuple((slots.make(name, HOST, None), array) for name, array in constants.items())
    steps: list[Step] = []
    for stage in stages:
        transfers: list[Transfer] = []
        read = []
        for spec in stage.inputs:
            slot, transfer = slots.find(spec, spec.memory, stage.from_host)
            transfers += [] if transfer is None else [transfer]
            read.append(slot)
        written = tuple(slots.make(spec.name, spec.memory, stage.to_host) for spec in stage.outputs)
        steps.append(Step(tuple(transfers), tuple(read), written, ()))
    last: list[Transfer] = []
    results = []
    for spec in outputs:
        slot, transfer = slots.find(spec, HOST, None)
        last += [] if transfer is None else [transfer]
        results.append(slot)
    return Route(len(slots.numbers), first, _free_slots(steps, last, results), tuple(last), tuple(results), fixed)


def _free_slots(steps: Sequence[Step], last: Sequence[Transfer], results: Sequence[int]) -> tuple[Step, ...]:
    """Returns the steps with the slots to free after each: those whose last reader or only writer it is."""
    kept = {*results, *(transfer.source for transfer in last)}
    last_use: dict[int, int] = {}
    for index, step in enumerate(steps):
        for slot in (*step.outputs, *step.inputs, *(s for t in step.transfers for s in (t.source, t.target))):
            last_use[slot] = index
    dead: list[list[int]] = [[] for _ in steps]
    for slot in sorted(last_use):
        if slot not in kept:
            dead[last_use[slot]].append(slot)
    return tuple(
        Step(step.transfers, step.inputs, step.outputs, tuple(dead[index])) for index, step in enumerate(steps)
    )
