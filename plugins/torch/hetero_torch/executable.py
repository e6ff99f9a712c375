"""A loaded network: tensors of the inputs' own memory go in, the results' own memory comes out; nothing is copied on the processor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hetero_core.contract import Executable, Extension, RunContext
from hetero_core.errors import DeviceMemoryError
from hetero_core.executed import ExecutedNode
from hetero_core.kernels.execution import Program
from hetero_core.kernels.program import HostOperator, compile_program, find_host_inputs
from hetero_core.network.graph import Network
from hetero_core.network.types import HOST, ValueSpec
from hetero_torch.arrays import DTYPES, to_array, to_tensor
from hetero_torch.table import TORCH_KERNELS, find_operator


class TorchExecutable(Executable):
    """A program at one place, shared by threads. `network` is the user's, `transformed` the compiled network.

    On the processor values lie in the memory of the host, unless `memory` names a memory of their own.
    """

    def __init__(
        self,
        network: Network,
        transformed: Network,
        place: torch.device,
        *,
        memory: str,
        extensions: Mapping[tuple[str, str], Extension],
        where: str,
    ) -> None:
        self.network = network
        self._place = place
        self._where = where
        host_inputs = find_host_inputs(transformed)
        self.inputs = tuple(_place_value(spec, HOST if spec.name in host_inputs else memory) for spec in network.inputs)
        self.outputs = tuple(_place_value(spec, memory) for spec in network.outputs)
        self._is_entered = tuple(spec.name not in host_inputs and spec.memory == HOST for spec in self.inputs)
        with torch.inference_mode():
            namespace = TorchNamespace(place)
            self._program = compile_program(
                transformed,
                xp=namespace,
                to_host=to_array,
                from_host=namespace.asarray,
                extensions={
                    key: HostOperator(extension, _read, partial(to_tensor, place=place)) for key, extension in extensions.items()
                },
                dtypes=DTYPES,
                host_inputs=host_inputs,
                table=TORCH_KERNELS,
            )
        self._constant_memory = find_constant_memory(self._program)

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Returns the outputs by position. Raises: DeviceMemoryError if the place has no room."""
        with torch.inference_mode():
            values = tuple(
                to_tensor(value, self._place) if enters else value for value, enters in zip(inputs, self._is_entered, strict=True)
            )
            try:
                program = self._program if context.profile is None else wait_for_steps(self._program, self._place)
                results = program.run(values, profile=context.profile, is_cancelled=context.cancelled, limits=context.limits)
            except RuntimeError as error:
                if not isinstance(error, torch.OutOfMemoryError) and "allocate memory" not in str(error):
                    raise
                raise DeviceMemoryError(
                    f"{self._where}: PyTorch has no room for what a node makes ({error}); use smaller inputs, or give a part of the "
                    "network to another device, as in HETERO:TORCH,CPU"
                ) from error
            # A result that shares memory with a constant is copied, since its reader may write into it.
            owned = (result.clone() if _address(result) in self._constant_memory else result for result in results)
            return tuple(
                to_array(result) if spec.memory == HOST else result for result, spec in zip(owned, self.outputs, strict=True)
            )

    def executed_nodes(self) -> tuple[ExecutedNode, ...]:
        """The steps in order: `torch` is a function of PyTorch, `toolkit` a kernel of the toolkit."""
        has_function = {step.node.name for step in self._program.steps if find_operator(step.node) is not None}
        steps = self._program.list_steps(self.network.types)
        return tuple(replace(step, kernel="torch") if step.name in has_function else step for step in steps)


def _place_value(spec: ValueSpec, memory: str) -> ValueSpec:
    return spec if memory == HOST else replace(spec, memory=memory)


def _read(value: Any) -> Any:
    return to_array(value) if isinstance(value, Tensor) else value


class TorchNamespace:
    """The functions of an array namespace that the kernels of `table.TENSOR_KERNELS` call, on tensors of a place."""

    def __init__(self, place: torch.device) -> None:
        self._place = place

    def asarray(self, value: Any, dtype: Any = None) -> Tensor:
        """Returns an array or a number as a tensor."""
        if isinstance(value, Tensor):
            return value
        array = np.asarray(value, dtype=dtype)
        # PyTorch knows no negative strides, as of reversed arrays.
        return to_tensor(array.copy() if any(stride < 0 for stride in array.strides) else array, self._place)

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Tensor:
        """Returns zeros of a type of NumPy, or of PyTorch."""
        if isinstance(dtype, torch.dtype):
            return torch.zeros(shape, dtype=dtype, device=self._place)
        return self.asarray(np.zeros(shape, dtype))

    def concatenate(self, tensors: Any, axis: int = 0) -> Tensor:
        """Returns the tensors joined along an axis."""
        return torch.cat(tuple(tensors), axis)

    def stack(self, tensors: Any, axis: int = 0) -> Tensor:
        """Returns tensors along a new axis."""
        return torch.stack(tuple(tensors), axis)

    def transpose(self, x: Tensor, axes: tuple[int, ...] | None) -> Tensor:
        """Returns x with its axes in another order, None for the reverse order."""
        return x.permute(tuple(reversed(range(x.ndim))) if axes is None else axes)

    def broadcast_to(self, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Returns x as a view in a larger shape."""
        return x.expand(shape)

    def moveaxis(self, x: Tensor, source: int, target: int) -> Tensor:
        """Returns x with one axis moved."""
        return torch.movedim(x, source, target)


def find_constant_memory(program: Program) -> frozenset[int]:
    """Returns the memory addresses of the constants of a program and of its bodies."""
    own = {_address(value) for value in program.values if isinstance(value, Tensor)}
    return frozenset(own.union(*(find_constant_memory(body.program) for step in program.steps for body in step.bodies)))


def _address(tensor: Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr())


def wait_for_steps(program: Program, place: torch.device) -> Program:
    """Returns a program whose steps wait for the place, so that their times are right."""
    synchronize = torch.get_device_module(place).synchronize

    def wait(function: Callable[..., Any]) -> Callable[..., Any]:
        def compute(*inputs: Any, **bodies: Any) -> Any:
            results = function(*inputs, **bodies)
            synchronize()
            return results

        return compute

    return replace(program, steps=tuple(replace(step, function=wait(step.function)) for step in program.steps))
