"""Two devices that test the contract: a device with a memory of its own, and a device that wraps an engine.

They have the hooks of plugins; tests register them at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnxruntime

from hetero_core import Executable, Network, QueryResult, RunContext, ValueSpec, hookimpl
from hetero_core.contract import DeviceName, Done
from hetero_core.devices.query import query_by_transform, require_all_supported
from hetero_core.dtypes import numpy_dtype
from hetero_core.network.writer import network_to_bytes


class HostAccessError(TypeError):
    """Host access to device memory without a transfer."""


class FakeArray:
    """An array in a memory without host access; only its own device can read it."""

    __array_priority__ = 1000

    def __init__(self, memory: str, array: np.ndarray[Any, Any]) -> None:
        self.memory, self._array = memory, array

    def read(self, memory: str) -> np.ndarray[Any, Any]:
        if memory != self.memory:
            raise HostAccessError(f"{memory} reads an array of {self.memory}")
        return self._array

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise HostAccessError(f"the host touches an array of {self.memory}")

    __array__ = __array_ufunc__ = __array_function__ = __bool__ = __float__ = __int__ = __index__ = __iter__ = __len__ = _refuse


class FakeDevice:
    """Runs Relu, Neg and Add in a memory of its own; records each transfer."""

    OPERATORS: Mapping[str, Callable[..., Any]] = {"Relu": lambda x: np.maximum(x, 0), "Neg": np.negative, "Add": np.add}

    def __init__(self, name: str) -> None:
        self.memory = f"fake:{name}"
        self.moved: list[str] = []

    @hookimpl
    def query_network(self, device: DeviceName, network: Network) -> QueryResult:
        return query_by_transform(device, network, lambda same: same, self._refuse)

    def _refuse(self, node: Any, network: Network) -> str | None:
        return None if node.op_type in self.OPERATORS else f"no kernel for {node.operator}"

    @hookimpl
    def load_network(self, device: DeviceName, network: Network) -> Executable:
        require_all_supported(device, network, self.query_network(device, network))
        return FakeExecutable(network, self.memory, self.OPERATORS)

    @hookimpl
    def to_host(self, array: FakeArray) -> np.ndarray[Any, Any]:
        self.moved.append("to_host")
        return array.read(self.memory)

    @hookimpl
    def from_host(self, array: np.ndarray[Any, Any], spec: ValueSpec) -> FakeArray:
        self.moved.append(f"from_host {spec.name}")
        return FakeArray(self.memory, array)


class FakeExecutable(Executable):
    def __init__(self, network: Network, memory: str, operators: Mapping[str, Callable[..., Any]]) -> None:
        self.inputs = tuple(ValueSpec(spec.name, spec.type, memory) for spec in network.inputs)
        self.outputs = tuple(ValueSpec(spec.name, spec.type, memory) for spec in network.outputs)
        self._network, self._memory, self._operators = network, memory, operators

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        values = {name: constant.array for name, constant in self._network.initializers.items()}
        values.update((spec.name, array.read(self._memory)) for spec, array in zip(self.inputs, inputs, strict=True))
        for node in self._network.nodes:
            values[node.outputs[0]] = self._operators[node.op_type](*(values[name] for name in node.inputs))
        return tuple(FakeArray(self._memory, values[spec.name]) for spec in self.outputs)


class EngineDevice:
    """ONNX Runtime as a device: asynchronous with at least 2 threads, writes into the caller's arrays, reads inputs in place."""

    def __init__(self, threads: int = 2) -> None:
        self._threads = threads

    @hookimpl
    def query_network(self, device: DeviceName, network: Network) -> QueryResult:
        return query_by_transform(device, network, lambda same: same, lambda node, _: None if not node.domain else "not of ai.onnx")

    @hookimpl
    def load_network(self, network: Network) -> Executable:
        return EngineExecutable(network, self._threads)


class EngineExecutable(Executable):
    def __init__(self, network: Network, threads: int) -> None:
        self.inputs, self.outputs = network.inputs, network.outputs
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 4
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(network_to_bytes(network), options, providers=["CPUExecutionProvider"])
        self.start = self._start if threads > 1 else None

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        binding = self._session.io_binding()
        for spec, array in zip(self.inputs, inputs, strict=True):
            binding.bind_ortvalue_input(spec.name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
        presets = context.outputs or [None] * len(self.outputs)
        for spec, preset in zip(self.outputs, presets, strict=True):
            if preset is None:
                binding.bind_output(spec.name)
            else:
                dtype = numpy_dtype(spec.dtype or "float32")
                binding.bind_output(spec.name, "cpu", 0, dtype, preset.shape, preset.ctypes.data)
        self._session.run_with_iobinding(binding)
        produced = binding.get_outputs()
        return tuple(p.numpy() if preset is None else preset for p, preset in zip(produced, presets, strict=True))

    def _start(self, inputs: tuple[Any, ...], context: RunContext, done: Done) -> None:
        def end(results: Any, _: Any, error: str) -> None:
            done(None, RuntimeError(error)) if error else done(tuple(results), None)

        feeds = {spec.name: array for spec, array in zip(self.inputs, inputs, strict=True)}
        self._session.run_async([spec.name for spec in self.outputs], feeds, end, None)
