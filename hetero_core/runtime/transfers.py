"""Moving values between two memories, and the record of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any

from hetero_core.network.types import HOST, ValueSpec
from hetero_core.profile import Profile
from hetero_core.runtime.inputs import DeviceTensor, name_place

if TYPE_CHECKING:
    from hetero_core.runtime.executable import ExecutableNetwork


def move_value(
    value: Any, move: Callable[[Any], Any], profile: Profile | None, name: str, source: str, targets: tuple[str, ...]
) -> Any:
    """Returns the result of `move` for a value; a profile gets the time, the bytes, the source and the targets of a copy."""
    if profile is None:
        return move(value)
    began = perf_counter()
    moved = move(value)
    seconds = perf_counter() - began
    if moved is value:
        return moved
    # An array of a device may lack `nbytes`; an array on the host has it.
    nbytes = max(getattr(value, "nbytes", 0), getattr(moved, "nbytes", 0))
    profile.add_transfer(name, nbytes, seconds, source=source, targets=targets)
    return moved


def bring_in(network: ExecutableNetwork, inputs: tuple[Any, ...], profile: Profile | None) -> tuple[Any, ...]:
    """Returns the host's inputs in the memories that the device requires; values that stay in a memory are unchanged."""

    def place(value: Any, spec: ValueSpec) -> Any:
        return move_value(value, lambda array: network.from_host(array, spec), profile, spec.name, HOST, (str(network.device),))

    return tuple(
        value.array
        if isinstance(value, DeviceTensor) and not network.takes_tensors
        else value
        if spec.memory == HOST or value is None or spec.name in network.resident
        else place(value, spec)
        for value, spec in zip(inputs, network.all_inputs, strict=True)
    )


def take_home(network: ExecutableNetwork, outputs: Any, profile: Profile | None, tensors: Mapping[int, Any] | None = None) -> Any:
    """Returns a device's outputs in the host's memory; outputs for `tensors` stay in the device's memory. Anything but a tuple is
    left to the check.
    """
    if not isinstance(outputs, tuple):
        return outputs
    if tensors:
        outputs = tuple(
            _keep(network, tensors[index], value, spec) if index in tensors else value
            for index, (value, spec) in enumerate(zip(outputs, network.all_outputs, strict=False))
        )
    return tuple(
        value
        if spec.memory == HOST or value is None or spec.name in network.resident or isinstance(value, DeviceTensor)
        else move_value(value, network.to_host, profile, spec.name, str(network.device), (HOST,))
        for value, spec in zip(outputs, network.all_outputs, strict=False)
    )


def _keep(network: ExecutableNetwork, tensor: DeviceTensor, value: Any, spec: ValueSpec) -> Any:
    """Returns the caller's tensor with the value of the device; the value itself if the tensor lies in another memory."""
    if value is tensor or name_place(network, spec) != tensor.place:
        return value
    tensor.keep(value)
    return tensor
