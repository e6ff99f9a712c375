"""Tensors of the caller in runs of a child: given on where the child's memory is theirs, else copied by way of the host and counted."""

from __future__ import annotations

from typing import Any

from hetero_core.contract import RunContext
from hetero_core.profile import Profile
from hetero_core.runtime.device_tensor import DeviceTensor, name_place
from hetero_core.runtime.executable import ExecutableNetwork
from hetero_core.runtime.transfers import move_value


def fit_tensors(child: ExecutableNetwork, inputs: tuple[Any, ...], profile: Profile | None) -> tuple[Any, ...]:
    """Returns the inputs as a child takes them: each tensor that lies in another memory as an array of the host."""
    if DeviceTensor not in map(type, inputs) or child.takes_tensors:
        return inputs
    return tuple(
        read_tensor(value, profile, spec.name, str(child.device))
        if isinstance(value, DeviceTensor) and value.place != name_place(child, spec)
        else value
        for value, spec in zip(inputs, child.all_inputs, strict=True)
    )


def read_tensor(tensor: DeviceTensor, profile: Profile | None, name: str, *readers: str) -> Any:
    """Returns a tensor as an array of the host."""
    return move_value(tensor, lambda source: source.read(), profile, name, tensor.device, readers)


def fill_tensors(outputs: tuple[Any, ...], context: RunContext, child: ExecutableNetwork) -> tuple[Any, ...]:
    """Returns the outputs of a child with the caller's tensors in place of arrays of the host, which are copied into them."""
    tensors = context.tensors
    if not tensors:
        return outputs
    return tuple(
        fill_tensor(tensors[index], value, context.profile, spec.name, str(child.device)) if index in tensors else value
        for index, (value, spec) in enumerate(zip(outputs, child.all_outputs, strict=True))
    )


def fill_tensor(tensor: DeviceTensor, value: Any, profile: Profile | None, name: str, maker: str) -> DeviceTensor:
    """Returns the tensor with a value of the host; one that it has already stays."""
    if value is not tensor:
        move_value(value, tensor.put, profile, name, maker, (tensor.device,))
    return tensor
