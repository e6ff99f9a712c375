"""Tensors of the caller in a run of a split network: an input that a stage reads in its memory, an output that one makes there.

A tensor enters the slots in place of the transfer that would copy it: an input's array lies in the slot of its memory before the first
transfer, an output's slot holds the tensor until the transfer behind its stage gives it the array. Whoever is elsewhere gets a copy by way
of the host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hetero_core.composing.tensors import fill_tensor, read_tensor
from hetero_core.profile import Profile
from hetero_core.runtime.device_tensor import DeviceTensor
from hetero_core.runtime.executable import ExecutableNetwork
from hetero_hetero.routing import Route, StageRoute


def enter_tensors(
    slots: list[Any],
    route: Route,
    names: Sequence[str],
    stages: Sequence[ExecutableNetwork],
    tensors: Mapping[int, DeviceTensor] | None,
    profile: Profile | None,
) -> None:
    """Puts the tensors of a run into its slots, where the inputs of these names are already; `tensors` are those for outputs."""
    for slot, name in zip(route.inputs, names, strict=True):
        tensor = slots[slot]
        if not isinstance(tensor, DeviceTensor):
            continue
        transfers = [transfer for transfer in route.first_transfers if transfer.source == slot]
        for transfer in transfers:
            if transfer.places[1] == tensor.place:
                slots[transfer.target] = tensor.array
        readers = [stage for step, stage in zip(route.steps, stages, strict=True) if slot in step.inputs]
        is_read_on_host = slot in route.outputs or not all(stage.takes_tensors for stage in readers)
        if is_read_on_host or any(slots[transfer.target] is None for transfer in transfers):
            slots[slot] = read_tensor(tensor, profile, name, *(str(stage.device) for stage in readers))
    for position, tensor in (tensors or {}).items():
        slot = route.outputs[position]
        # A value that a stage reads, too, has to be there for it.
        if route.readers[slot] == 1 and slots[slot] is None:
            slots[slot] = tensor


def select_tensors(slots: Sequence[Any], step: StageRoute) -> dict[int, DeviceTensor]:
    """Returns the tensors for the outputs of a stage that takes them, by position."""
    return {position: slots[slot] for position, slot in enumerate(step.outputs) if isinstance(slots[slot], DeviceTensor)}


def leave_tensors(
    slots: Sequence[Any], outputs: Sequence[int], names: Sequence[str], tensors: Mapping[int, DeviceTensor], profile: Profile | None
) -> tuple[Any, ...]:
    """Returns the outputs of a run, those with a tensor in it."""
    values = [slots[slot] for slot in outputs]
    for position, tensor in tensors.items():
        values[position] = fill_tensor(tensor, values[position], profile, names[position], "HETERO")
    return tuple(values)
