"""A network in use on the engine: arrays go in and come out without a copy; one of the engine's requests for each run at a time."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from hetero_core.contract import Executable, Profile, RunContext
from hetero_core.dtypes import numpy_dtype
from hetero_core.errors import LoadError
from hetero_core.network.graph import Network, Node
from hetero_core.network.types import ValueSpec
from hetero_openvino.conversion import CARRIERS, TYPE_NAMES, read_model
from hetero_openvino.engine import Engine
from hetero_openvino.probing import shorten_message


class OpenvinoExecutable(Executable):
    """A compiled model and its requests, which are kept and reused; runs share nothing, so results are the caller's own."""

    def __init__(self, engine: Engine, network: Network, compiled: Any) -> None:
        self.inputs = network.inputs
        self.outputs = network.outputs
        self.network = network
        self.compiled = compiled
        self._module = engine.module
        self._requests: deque[Any] = deque()
        position_of_input = {name: index for index, port in enumerate(compiled.inputs) for name in port.get_names()}
        # The engine drops inputs that nothing reads.
        self._input_ports = [position_of_input.get(spec.name) for spec in self.inputs]
        # By position: two outputs that turn out to be one value share its names.
        self._output_ports = range(len(self.outputs))
        bindable = _list_bindable(compiled)
        self._shapes = [_find_static_shape(compiled.outputs[port]) if port in bindable else None for port in self._output_ports]
        self._dtypes = [numpy_dtype(str(spec.dtype)) for spec in self.outputs]

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Returns the outputs, in arrays of their own or in the caller's; the engine runs without the interpreter's lock."""
        try:
            request = self._requests.pop()
        except IndexError:
            request = self.compiled.create_infer_request()
        for array, port, spec in zip(inputs, self._input_ports, self.inputs, strict=True):
            if port is not None:
                request.set_input_tensor(port, self._share(array, spec))
        presets = context.outputs
        results: list[Any] = []
        for index, port in enumerate(self._output_ports):
            array = presets[index] if presets is not None else None
            if array is None and (shape := self._shapes[index]) is not None:
                array = np.empty(shape, self._dtypes[index])
            if array is not None and array.shape == self._shapes[index]:
                request.set_output_tensor(port, self._share(array, self.outputs[index]))
                results.append(array)
            else:
                results.append(None)
        # start and wait: `infer` of the binding builds a mapping of all results, which costs more than a small network.
        request.start_async()
        request.wait()
        outputs = tuple(self._take(request, index) if array is None else array for index, array in enumerate(results))
        if context.profile is not None:
            self._record(request, context.profile)
        self._requests.append(request)
        return outputs

    def _share(self, array: np.ndarray[Any, Any], spec: ValueSpec) -> Any:
        """Returns the engine's tensor over an array's own memory; one that is read-only, too, since the engine writes no input."""
        if not array.flags.writeable:
            raw = (ctypes.c_char * array.nbytes).from_address(array.ctypes.data) if array.nbytes else b""
            array = np.frombuffer(raw, array.dtype).reshape(array.shape)
        carrier = CARRIERS.get(str(spec.dtype))
        if carrier is not None:
            return self._module.Tensor(array.view(carrier), array.shape, getattr(self._module.Type, TYPE_NAMES[str(spec.dtype)]))
        return self._module.Tensor(array, shared_memory=True)

    def _take(self, request: Any, index: int) -> np.ndarray[Any, Any]:
        array = np.array(request.get_output_tensor(self._output_ports[index]).data)
        return array.view(self._dtypes[index]) if self.outputs[index].dtype in CARRIERS else array

    def _record(self, request: Any, profile: Profile) -> None:
        """Adds the times of what ran; the engine fuses nodes, and names the group after the last of them."""
        for entry in request.profiling_info:
            seconds = entry.real_time.total_seconds()
            if str(entry.status).endswith("EXECUTED") and entry.node_type not in ("Parameter", "Result", "Constant"):
                index = self.network.index_of_node.get(entry.node_name)
                node = Node(entry.node_name, entry.node_type, (), ()) if index is None else self.network.nodes[index]
                profile.add(node, seconds)

    def metrics(self) -> Mapping[str, Any]:
        """What the engine says about the compiled model."""
        return {"OPENVINO_EXECUTION_DEVICES": tuple(self.compiled.get_property("EXECUTION_DEVICES"))}

    def close(self) -> None:
        """Gives the engine's requests back."""
        self._requests.clear()


def compile_network(
    engine: Engine, network: Network, stamped: Network, device: str, properties: Mapping[str, Any]
) -> OpenvinoExecutable:
    """Returns the network compiled. Raises: LoadError with the engine's own words."""
    try:
        compiled = engine.core.compile_model(read_model(engine.core, stamped), device, dict(properties))
    except Exception as error:
        raise LoadError(
            f"OpenVINO {engine.version} cannot load network '{network.name}' on {device}: {shorten_message(str(error))}"
        ) from error
    return OpenvinoExecutable(engine, network, compiled)


def _list_bindable(compiled: Any) -> set[int]:
    """Returns the outputs that the engine writes into an array that it is given: OpenVINO 2026.4 forgets those that are inputs."""
    results = compiled.get_runtime_model().get_results()
    return {index for index, result in enumerate(results) if result.input_value(0).get_node().get_type_name() != "Parameter"}


def _find_static_shape(port: Any) -> tuple[int, ...] | None:
    """Returns the shape that every run's output has; None where it depends on the run."""
    return None if port.get_partial_shape().is_dynamic else tuple(port.get_shape())
