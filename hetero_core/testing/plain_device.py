"""PLAIN: a small correct device on NumPy, from which tests derive devices with a single fault.

It runs a few operators, exports and imports, records times and stops early when cancelled. Unlike a plugin's device it is a base class:
each step is a method that a test can override.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

import numpy as np

from hetero_core.contract import DeviceName, Executable, Payload, QueryResult, RunContext
from hetero_core.devices.query import query_by_transform, require_all_supported
from hetero_core.hookspecs import hookimpl
from hetero_core.network.graph import Network, Node
from hetero_core.network.types import TensorType
from hetero_core.network.writer import pack_network, unpack_network

KERNELS: Mapping[tuple[str, int], Callable[..., Any]] = {
    ("Identity", 1): lambda x: x,
    ("Neg", 6): np.negative,
    ("Abs", 6): np.abs,
    ("Relu", 6): lambda x: np.maximum(x, 0),
    ("Add", 7): np.add,
    ("Sub", 7): np.subtract,
    ("Mul", 7): np.multiply,
    ("MatMul", 1): np.matmul,
}
"""Operator and the version from which on it means this."""

FLOATS = ("float16", "float32", "float64")


class PlainDevice:
    """A device for tests; a test registers the object itself, so it can read the device's state."""

    @hookimpl
    def query_network(self, device: DeviceName, network: Network) -> QueryResult:
        """Returns a result that claims every node except the nodes that `find_refusal` refuses."""
        return query_by_transform(device, network, lambda same: same, self.find_refusal)

    @hookimpl
    def load_network(self, device: DeviceName, network: Network) -> Executable:
        """Returns the loaded network. Raises: UnsupportedNodesError for nodes that the query refuses."""
        require_all_supported(device, network, self.query_network(device, network))
        return self.make_executable(network)

    @hookimpl
    def export_network(self, executable: PlainExecutable) -> Payload:
        """Returns the network itself as the payload."""
        return Payload(pack_network(executable.network))

    @hookimpl
    def import_network(self, device: DeviceName, payload: Payload) -> Executable:
        """Returns the exported network, loaded."""
        payload.require_version(1)
        return self.load_network(device, unpack_network(payload.sections))

    def find_refusal(self, node: Node, network: Network) -> str | None:
        """Returns the reason for refusing a node, None if it is supported."""
        if find_kernel(node) is None:
            return f"this device has no kernel for {node.operator}"
        types = [network.type_of(name) for name in node.reads]
        wrong = [
            str(value_type) for value_type in types if not isinstance(value_type, TensorType) or value_type.dtype not in FLOATS
        ]
        return f"this device computes {', '.join(FLOATS)}, not {', '.join(wrong)}" if wrong else None

    def make_executable(self, network: Network) -> Executable:
        """Returns the loaded network."""
        return PlainExecutable(network)


def find_kernel(node: Node) -> Callable[..., Any] | None:
    """Returns the function that computes a node, None if the operator is not supported."""
    kernels = [
        kernel
        for (op_type, version), kernel in KERNELS.items()
        if node.op_type == op_type and not node.domain and node.since_version >= version and not node.attributes
    ]
    return kernels[0] if kernels else None


class PlainExecutable(Executable):
    """A loaded network that runs its kernels in sequence. Runs share only constants."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.inputs, self.outputs = network.inputs, network.outputs
        self._constants = {name: constant.array for name, constant in network.initializers.items()}

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Runs the network and returns its outputs."""
        values = {**self._constants, **{spec.name: value for spec, value in zip(self.inputs, inputs, strict=True)}}
        for node in self.network.nodes:
            if context.cancelled():
                break
            began = perf_counter()
            values[node.outputs[0]] = self.compute(node, [values[name] for name in node.inputs])
            if context.profile is not None:
                context.profile.add(node, perf_counter() - began)
        return tuple(values.get(spec.name) for spec in self.outputs)

    def compute(self, node: Node, inputs: list[Any]) -> Any:
        """Returns the output of a node, always as an array, even without dimensions."""
        kernel = find_kernel(node)
        assert kernel is not None, f"{node.label} was loaded without a kernel"
        return np.asarray(kernel(*inputs))
