"""TEMPLATE, the device to copy: the kernels toolkit on arrays in a memory of its own, every hook once with a sentence of why.

The file reads in the order in which a value meets it: the memory, the device, the loaded network. A device of yours replaces `XP` and
`TemplateArray` by its library's namespace and arrays, and the queue by its library's stream.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

from hetero_core.contract import (
    BlobCheck,
    ConfigKey,
    DeviceHooks,
    DeviceName,
    Done,
    Executable,
    Extension,
    Payload,
    QueryResult,
    RunContext,
)
from hetero_core.devices.processors import describe_host_memory
from hetero_core.devices.query import query_by_transform, require_all_supported
from hetero_core.errors import DeviceUnavailableError, InferenceError
from hetero_core.executed import ExecutedNode
from hetero_core.hookspecs import hookimpl
from hetero_core.kernels.execution import Program
from hetero_core.kernels.program import compile_program
from hetero_core.kernels.registry import find_refusals
from hetero_core.network.graph import Network, Node, iterate_graphs
from hetero_core.network.types import HOST, ValueSpec
from hetero_core.network.writer import pack_network, unpack_network
from hetero_core.transforms.copies import eliminate_copies

IDS = ("0", "1")
REFUSED_KEY = "TEMPLATE_REFUSED_OPERATORS"
PAYLOAD_VERSION = 1
"""The meaning of the sections of a blob; a change of it gets the next number."""
XP = np
"""The array namespace of the kernels. With another namespace, as CuPy's, `compile_program` also takes the two copies."""


class TemplateArray:
    """An array in the memory of a physical device: its type and shape are public, its elements are readable only on that device."""

    # NumPy's functions raise a TypeError for this array in place of reading it element by element.
    __array_ufunc__ = None

    def __init__(self, memory: str, elements: Any) -> None:
        self.memory = memory
        self.dtype, self.shape, self.nbytes = elements.dtype, elements.shape, elements.nbytes
        self._elements = elements

    def read(self, memory: str) -> Any:
        """Returns the elements, in this memory only. Raises: InferenceError for another memory."""
        if memory != self.memory:
            raise InferenceError(f"an array in {self.memory} was given to {memory}; expected a transfer by to_host, from_host")
        return self._elements

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise TypeError(f"an array in {self.memory} cannot be read by the host; to_host copies it")

    __array__ = __bool__ = _refuse


class TemplateDevice(DeviceHooks):
    """The device object, a single object per Core and registered name; the physical id comes with each call in `device.id`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._extensions: dict[tuple[str, str], Extension] = {}
        _probe()

    @hookimpl
    def close_device(self) -> bool:
        """Frees the resources of all networks: pools, contexts, driver handles. The queues belong to the loaded networks."""
        self._extensions.clear()
        return True

    @hookimpl
    def config_keys(self) -> Mapping[str, ConfigKey]:
        """Keys are declared, so that the core converts texts, fills defaults and refuses unknown keys; the device parses nothing."""
        doc = "Operator types that the device refuses, as a device without kernels for them would; for trying out splits."
        return {REFUSED_KEY: ConfigKey(tuple, (), doc)}

    @hookimpl
    def metrics(self, device: DeviceName) -> Mapping[str, Any]:
        """Facts about the device. A function stands for a value that costs time; it is called when that metric is asked for."""
        return {
            "AVAILABLE_DEVICES": IDS,
            "FULL_DEVICE_NAME": f"{self._name} device {device.id or IDS[0]} (NumPy {np.__version__})",
            # A device may add capabilities of its own to the standard capabilities; this device claims blocks for convolutions.
            "OPTIMIZATION_CAPABILITIES": ("FP32", "FP64", "FP16", "BF16", "INT8", "HARDWARE_CONVOLUTION"),
            "DEVICE_ARCHITECTURE": "kernels toolkit",
            "RANGE_FOR_ASYNC_INFER_REQUESTS": (1, 1, 1),
            # Most of a kernel is Python, so HETERO does not run two such devices at once.
            "HOLDS_INTERPRETER_LOCK": True,
            # A card asks its driver here; the memory of this device is a part of the host's.
            **describe_host_memory(),
        }

    @hookimpl
    def query_network(self, device: DeviceName, network: Network, config: Mapping[str, Any]) -> QueryResult:
        """Applies the passes of loading and asks the table of kernels about the result; answers in the names of `network`."""
        transformed = transform_network(network)
        reasons = find_refusals(transformed, extensions=self._extensions)

        def refuse(node: Node, _: Network) -> str | None:
            return _refuse_by_type(node, config[REFUSED_KEY]) or reasons.get(node.name)

        return query_by_transform(device, network, lambda _: transformed, refuse)

    @hookimpl
    def load_network(
        self, device: DeviceName, network: Network, config: Mapping[str, Any], query: QueryResult | None
    ) -> Executable:
        """Compiles the network. Raises: UnsupportedNodesError with the refusals of the passed query, or of a new query."""
        require_all_supported(device, network, self.query_network(device, network, config) if query is None else query)
        program = compile_program(transform_network(network), xp=XP, extensions=self._extensions)
        return TemplateExecutable(network, program, memory=f"{device.name}:{device.id or IDS[0]}")

    @hookimpl
    def export_network(self, executable: TemplateExecutable) -> Payload:
        """Returns sections of bytes. Nothing costly was compiled, so the network is all that importing needs."""
        return Payload(pack_network(executable.network), PAYLOAD_VERSION)

    @hookimpl
    def check_payload(self, device: DeviceName, payload: Payload) -> BlobCheck:
        """Nothing was compiled that could belong to another machine, so a payload of this version fits."""
        payload.require_version(PAYLOAD_VERSION)
        return BlobCheck(str(device))

    @hookimpl
    def import_network(self, device: DeviceName, payload: Payload, config: Mapping[str, Any]) -> Executable:
        """Loads the network of a blob that the core has checked; nodes that this device refuses today are refused here, too."""
        self.check_payload(device, payload)
        return self.load_network(device, unpack_network(payload.sections), config, None)

    @hookimpl
    def add_extension(self, extension: Extension) -> bool:
        """Adds a custom operator for query and load; its function gets arrays of `XP`."""
        self._extensions[extension.domain, extension.op_type] = extension
        return True

    @hookimpl
    def to_host(self, array: TemplateArray) -> Any:
        """Copies a value out of the device; the core calls it for a reader in another memory, never between two stages of this memory."""
        return array.read(array.memory).copy()

    @hookimpl
    def from_host(self, array: Any, spec: ValueSpec) -> TemplateArray:
        """Copies a NumPy array into the memory that the executable has named for this value."""
        return TemplateArray(spec.memory, array.copy())


class TemplateExecutable(Executable):
    """A loaded network. Several threads run it at once: a run changes nothing here, and shares nothing with other runs but constants."""

    # While a run computes, the next run waits in the queue with its inputs in place.
    pipeline_depth = 2

    def __init__(self, network: Network, program: Program, *, memory: str) -> None:
        self.network = network
        self.memory = memory
        self.inputs = tuple(_place(spec, memory) for spec in network.inputs)
        self.outputs = tuple(_place(spec, memory) for spec in network.outputs)
        self._program = program
        # Its thread starts with the first queued run, and ends when the executable is closed or freed.
        self._queue = ThreadPoolExecutor(max_workers=1, thread_name_prefix=memory)

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Returns the outputs, each in the memory that its spec names; the caller waits."""
        values = tuple(value.read(self.memory) if isinstance(value, TemplateArray) else value for value in inputs)
        results = self._program.run(values, profile=context.profile, is_cancelled=context.cancelled, limits=context.limits)
        return tuple(
            result if spec.memory == HOST else TemplateArray(self.memory, result)
            for spec, result in zip(self.outputs, results, strict=True)
        )

    def start(self, inputs: tuple[Any, ...], context: RunContext, done: Done) -> None:
        """Puts a run into the queue and returns at once; `done` is called exactly once, from the thread of the queue."""
        self._queue.submit(self._run_queued, inputs, context, done)

    def _run_queued(self, inputs: tuple[Any, ...], context: RunContext, done: Done) -> None:
        try:
            outputs = self.run(inputs, context)
        except BaseException as error:  # noqa: BLE001  # the caller gets every end, an exit included
            done(None, error)
        else:
            done(outputs, None)

    def executed_nodes(self) -> tuple[ExecutedNode, ...]:
        """Returns the steps of a run, for `network.get_runtime_model()`."""
        return self._program.list_steps(self.network.types)

    def close(self) -> None:
        """Lets the queue run empty and end. Does not wait: `close` may be called by `done`, on the thread of the queue."""
        self._queue.shutdown(wait=False)


def transform_network(network: Network) -> Network:
    """Returns the network as it is compiled. A pass keeps each node's origins, so that the query can answer in the names of the user."""
    return eliminate_copies(network)


def _place(spec: ValueSpec, memory: str) -> ValueSpec:
    """Names the memory of an input or output: numbers live in the device's; texts, sequences and maps stay on the host."""
    return spec if spec.dtype in (None, "string") else replace(spec, memory=memory)


def _refuse_by_type(node: Node, refused: Collection[str]) -> str | None:
    """Returns why the configuration refuses a node: its operator type, or an operator type in the bodies of an If, Loop or Scan."""
    bodies = [graph for body in node.bodies.values() for graph in iterate_graphs(body)]
    for inner in (node, *(inner for graph in bodies for inner in graph.nodes)):
        if inner.op_type in refused:
            where = "" if inner is node else f"node '{inner.name}' in a body of {node.operator}: "
            return f"{where}operator {inner.op_type} is refused by {REFUSED_KEY}"
    return None


def _probe() -> None:
    """Runs a tiny computation: a device says that it works after it worked, not after counting drivers."""
    total = XP.add(XP.ones(2), XP.ones(2)).tolist()
    if total != [2.0, 2.0]:
        raise DeviceUnavailableError(f"NumPy {np.__version__} computes 1 + 1 = {total}; reinstall numpy")
