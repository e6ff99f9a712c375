"""A loaded network: tensors of the inputs' own memory go in, the results' own memory comes out; nothing is copied on the processor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from hetero_core.contract import Executable, Extension, RunContext
from hetero_core.errors import DeviceMemoryError
from hetero_core.executed import ExecutedNode
from hetero_core.kernels.execution import Program
from hetero_core.kernels.program import find_host_inputs
from hetero_core.network.graph import Network
from hetero_core.network.types import HOST, ValueSpec
from hetero_torch.arrays import to_array, to_tensor
from hetero_torch.program import compile_torch, copy_constants, find_constant_memory, wait_for_steps


class TorchExecutable(Executable):
    """A program at one place, shared by threads. `network` is the user's own, `transformed` the one that is compiled.

    On the processor values lie in the memory of the host, unless `memory` says that they are in one of their own.
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
            self._program: Program = compile_torch(transformed, place, extensions, host_inputs)
        self._constant_memory = find_constant_memory(self._program)

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Returns the outputs by position. Raises: DeviceMemoryError if the place has no room."""
        with torch.inference_mode():
            values = tuple(
                to_tensor(value, self._place) if enters else value for value, enters in zip(inputs, self._is_entered, strict=True)
            )
            try:
                results = self._compute(values, context)
            except RuntimeError as error:
                if not isinstance(error, torch.OutOfMemoryError) and "allocate memory" not in str(error):
                    raise
                raise DeviceMemoryError(
                    f"{self._where}: PyTorch has no room for what a node makes ({error}); use smaller inputs, or give a part of the "
                    "network to another device, as in HETERO:TORCH,CPU"
                ) from error
            return tuple(
                to_array(result) if spec.memory == HOST else result for result, spec in zip(results, self.outputs, strict=True)
            )

    def _compute(self, values: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        program = self._program if context.profile is None else wait_for_steps(self._program, self._place)
        results = program.run(values, profile=context.profile, is_cancelled=context.cancelled, limits=context.limits)
        return copy_constants(results, self._constant_memory)

    def executed_nodes(self) -> tuple[ExecutedNode, ...]:
        """The functions in the order in which they are called."""
        return tuple(replace(node, kernel="torch") for node in self._program.list_steps(self.network.types))


def _place_value(spec: ValueSpec, memory: str) -> ValueSpec:
    return spec if memory == HOST else replace(spec, memory=memory)
