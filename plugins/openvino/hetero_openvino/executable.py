"""A network in use on the engine: arrays go in and come out without a copy; one of the engine's requests for each run at a time."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from hetero_core.contract import Executable, Profile, RunContext
from hetero_core.dtypes import numpy_dtype
from hetero_core.errors import InferenceError, LoadError
from hetero_core.network.graph import Network, Node
from hetero_core.network.types import ValueSpec
from hetero_openvino.arithmetic import EXACT_FLOAT, find_limits
from hetero_openvino.conversion import CARRIERS, TYPE_NAMES, read_model
from hetero_openvino.engine import Engine
from hetero_openvino.packing import PACKED, pack_array, unpack_array
from hetero_openvino.ports import Ports, assign_ports
from hetero_openvino.probing import shorten_message

_SECOND_NAMES = "qQ"
"""C has two names for integers of 64 bits, and the binding knows NumPy's arrays of the first only."""


class OpenvinoExecutable(Executable):
    """A compiled model and its requests, which are kept and reused; runs share nothing, so results are the caller's own."""

    def __init__(self, engine: Engine, network: Network, compiled: Any, ports: Ports) -> None:
        self.inputs = network.inputs
        self.outputs = network.outputs
        self.network = network
        self.compiled = compiled
        self._module = engine.module
        self._ports = ports
        self._requests: deque[Any] = deque()
        self._dtypes = [numpy_dtype(str(spec.dtype)) for spec in self.outputs]
        self._shapes = [
            None if port is None or spec.dtype in PACKED else _find_static_shape(compiled.outputs[port])
            for port, spec in zip(ports.outputs, self.outputs, strict=True)
        ]
        limits = find_limits(network)
        self._limited = [
            (index, spec.name, limits[spec.name])
            for index, spec in enumerate(self.inputs)
            if spec.name in limits and ports.inputs[index] is not None
        ]

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Returns the outputs, in arrays of their own or in the caller's; the engine runs without the interpreter's lock.

        Raises: InferenceError for integers that are larger than what the engine computes them in.
        """
        for index, name, limit in self._limited:
            _require_within(inputs[index], name, limit)
        presets = context.outputs
        results: list[Any] = list(presets) if presets is not None else [None] * len(self.outputs)
        if self.compiled is not None:
            self._run_engine(inputs, results, context.profile)
        for index, source in self._ports.passed.items():
            results[index] = _copy(inputs[source], results[index])
        return tuple(results)

    def _run_engine(self, inputs: tuple[Any, ...], results: list[Any], profile: Profile | None) -> None:
        """Runs one request, and puts its outputs in the place of the arrays in `results` that it cannot fill."""
        try:
            request = self._requests.pop()
        except IndexError:
            request = self.compiled.create_infer_request()
        # A tensor does not keep the memory that it stands on, and every run puts all of them on memory of its own.
        shared = [self._carry(array, spec) for array, spec in zip(inputs, self.inputs, strict=True)]
        for index, port in enumerate(self._ports.inputs):
            if port is not None:
                request.set_input_tensor(port, self._share(shared[index], self.inputs[index], inputs[index].shape))
        taken = []
        for index, port in enumerate(self._ports.outputs):
            if port is None:
                continue
            shape = self._shapes[index]
            if shape is None:
                taken.append((index, port))
                continue
            if results[index] is None or results[index].shape != shape:
                results[index] = np.empty(shape, self._dtypes[index])
            spec = self.outputs[index]
            request.set_output_tensor(port, self._share(self._carry(results[index], spec), spec, shape))
        # start and wait: `infer` of the binding builds a mapping of all results, which costs more than a small network.
        request.start_async()
        request.wait()
        for index, port in taken:
            results[index] = self._take(request.get_output_tensor(port), index)
        if profile is not None:
            self._record(request, profile)
        self._requests.append(request)

    def _carry(self, array: np.ndarray[Any, Any], spec: ValueSpec) -> np.ndarray[Any, Any]:
        """Returns an array of a type that the engine's binding knows: of the same memory, but for types of four bits."""
        if spec.dtype in PACKED:
            return pack_array(array)
        if not array.flags.writeable:
            array = _open_for_engine(array)
        if array.dtype.char in _SECOND_NAMES:
            return array.view(array.dtype.name)
        carrier = CARRIERS.get(str(spec.dtype))
        return array if carrier is None else array.view(carrier)

    def _share(self, array: np.ndarray[Any, Any], spec: ValueSpec, shape: tuple[int, ...]) -> Any:
        """Returns the engine's tensor over an array's own memory; one that is read-only, too, since the engine writes no input."""
        if spec.dtype in PACKED or spec.dtype in CARRIERS:
            return self._module.Tensor(array, shape, getattr(self._module.Type, TYPE_NAMES[str(spec.dtype)]))
        return self._module.Tensor(array, shared_memory=True)

    def _take(self, tensor: Any, index: int) -> np.ndarray[Any, Any]:
        dtype = self.outputs[index].dtype
        if dtype in PACKED:
            return unpack_array(tensor.data, tuple(tensor.shape), self._dtypes[index])
        array = np.array(tensor.data)
        return array.view(self._dtypes[index]) if dtype in CARRIERS else array

    def _record(self, request: Any, profile: Profile) -> None:
        """Adds the times of what ran; what the engine has fused stands under the names of all its nodes."""
        nodes_of_layer = self._nodes_of_layer()
        for entry in request.profiling_info:
            if str(entry.status).endswith("EXECUTED") and entry.node_type not in ("Parameter", "Result", "Constant"):
                nodes = nodes_of_layer.get(entry.node_name, ())
                profile.add(_join_nodes(nodes, entry), entry.real_time.total_seconds())

    def _nodes_of_layer(self) -> dict[str, tuple[Node, ...]]:
        """Returns the network's nodes in each of the engine's layers; its own, as changes of layout, have none."""
        found = {}
        for layer in self.compiled.get_runtime_model().get_ordered_ops():
            info = layer.get_rt_info()
            names = info["originalLayersNames"].value.split(",") if "originalLayersNames" in info else []
            indices = {index for name in names if (index := self._find_node(name)) is not None}
            found[layer.get_friendly_name()] = tuple(self.network.nodes[index] for index in sorted(indices))
        return found

    def _find_node(self, name: str) -> int | None:
        """Returns the index of the node that an operation of the engine comes from.

        It has the node's name, or, where it makes an output, the output's; a node that becomes several has its name at their heads.
        """
        for candidate in (name, name.rpartition("/")[0]):
            index = self.network.index_of_node.get(candidate, self.network.index_of_producer.get(candidate))
            if index is not None:
                return index
        return None

    def metrics(self) -> Mapping[str, Any]:
        """What the engine says about the compiled model; nothing where all outputs are inputs, and nothing was compiled."""
        if self.compiled is None:
            return {}
        return {
            "OPENVINO_EXECUTION_DEVICES": tuple(self.compiled.get_property("EXECUTION_DEVICES")),
            "OPENVINO_THREADS": int(self.compiled.get_property("INFERENCE_NUM_THREADS")),
            "OPENVINO_STREAMS": int(self.compiled.get_property("NUM_STREAMS")),
        }

    def close(self) -> None:
        """Gives the engine's requests back."""
        self._requests.clear()


def compile_network(
    engine: Engine, network: Network, stamped: Network, device: str, properties: Mapping[str, Any]
) -> OpenvinoExecutable:
    """Returns the network compiled. Raises: LoadError with the engine's own words."""
    try:
        model = read_model(engine.core, stamped)
        ports = assign_ports(model, stamped)
        needs_engine = any(port is not None for port in ports.outputs)
        compiled = engine.core.compile_model(model, device, dict(properties)) if needs_engine else None
    except LoadError:
        raise
    except Exception as error:
        raise LoadError(
            f"OpenVINO {engine.version} cannot load network '{network.name}' on {device}: {shorten_message(str(error))}"
        ) from error
    return OpenvinoExecutable(engine, network, compiled, ports)


def _find_static_shape(port: Any) -> tuple[int, ...] | None:
    """Returns the shape that every run's output has; None where it depends on the run."""
    return None if port.get_partial_shape().is_dynamic else tuple(port.get_shape())


def _open_for_engine(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns an array over the same memory that the binding accepts, which refuses what is read-only."""
    if not array.size:
        return np.empty(array.shape, array.dtype)
    raw = (ctypes.c_char * array.nbytes).from_address(array.ctypes.data)
    return np.frombuffer(memoryview(raw), array.dtype).reshape(array.shape)


def _copy(array: np.ndarray[Any, Any], preset: np.ndarray[Any, Any] | None) -> np.ndarray[Any, Any]:
    if preset is None or preset.shape != array.shape:
        return np.array(array)
    np.copyto(preset, array)
    return preset


def _require_within(array: np.ndarray[Any, Any], name: str, limit: int) -> None:
    if array.size and (array.max() > limit or array.min() < -limit - 1):
        raise InferenceError(
            f"input '{name}' has {array.dtype} values from {array.min()} to {array.max()}; OpenVINO computes what is made of them in "
            f"{'float32' if limit == EXACT_FLOAT else 'int32'}, exact up to {limit}. Run the nodes that read it on another device"
        )


def _join_nodes(nodes: tuple[Node, ...], entry: Any) -> Node:
    if len(nodes) == 1:
        return nodes[0]
    if not nodes:
        return Node(entry.node_name, entry.node_type, (), ())
    return Node(" + ".join(node.name for node in nodes), "+".join(node.op_type for node in nodes), (), ())
