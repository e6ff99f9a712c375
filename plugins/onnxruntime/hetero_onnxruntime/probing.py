"""The nodes that the engine takes: it is asked for a session of all distinct nodes, side by side; answers live as long as the device.

A session of a single node takes 0.2 to 2 ms. Nodes that the engine refuses are found by bisection; its table of kernels words the reason
if a kernel is missing.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import TypeVar

from hetero_core.engines.probing import NodeProber, join_networks, list_element_types
from hetero_core.network.contrib_types import knows_contrib
from hetero_core.network.graph import Graph, Network, Node
from hetero_core.network.types import TensorType, ValueType
from hetero_core.network.writer import network_to_bytes
from hetero_onnxruntime.custom_operators import LIBRARY_VARIABLE, find_libraries
from hetero_onnxruntime.engine import CPU_PROVIDER, NO_DEVICES, OrtEngine, find_turn, make_options, open_session

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
AnyGraph = TypeVar("AnyGraph", bound=Graph)

_ELSEWHERE = "assigned to the default CPU EP"
"""The engine's words if a provider leaves a node to the CPU provider, which the options forbid."""

_PACKED = frozenset({"int4", "uint4", "float4e2m1", "int2", "uint2"})
"""Types that the engine packs, several elements to a byte; NumPy's arrays have an element in each byte."""


class OrtProber:
    """Answers for an execution provider: `find_refusals` is that of `NodeProber`. Safe for threads."""

    def __init__(self, engine: OrtEngine, provider: str) -> None:
        self._engine = engine
        self._provider = provider
        self.find_refusals = NodeProber(self._ask, _refuse_type, keeps_weights=False).find_refusals
        # The engine lists the kernels of its CPU provider; if it was built with OpenVINO (1.24), it ends the process instead.
        self._lists_kernels = provider == CPU_PROVIDER and set(engine.module.get_available_providers()) <= {
            CPU_PROVIDER,
            *NO_DEVICES,
        }

    def _ask(self, networks: Sequence[Network]) -> list[str]:
        if len(networks) == 1:
            return [self._ask_one(networks[0])]
        self._try_session([node for network in networks for node in network.nodes], join_networks(networks))
        return [""] * len(networks)

    def _ask_one(self, network: Network) -> str:
        """Returns the reason why the network's only node is refused; an empty text if it is accepted."""
        try:
            retry_with_open_sizes(network, lambda network: self._try_session(network.nodes, network_to_bytes(network)))
        except Exception as error:  # noqa: BLE001  # any error of the engine is its answer
            return self._word_reason(network.nodes[0], network, error)
        return ""

    def _try_session(self, nodes: Sequence[Node], model: bytes) -> None:
        """Makes a session and lets it go. Raises: any error of the engine."""
        options = make_options(self._engine.module, self._provider, libraries=find_libraries(nodes))
        options.graph_optimization_level = self._engine.module.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = 1
        with find_turn(self._provider):  # the session goes in it, too
            open_session(self._engine.module, model, options, self._provider)

    def _word_reason(self, node: Node, network: Network, error: Exception) -> str:
        if type(error).__name__ != "NotImplemented" and _ELSEWHERE not in str(error):
            return f"ONNX Runtime {self._engine.version}: {shorten_message(str(error))}"
        types = ", ".join(str(network.type_of(value)) for value in node.inputs if value)
        if not self._lists_kernels:
            return f"ONNX Runtime {self._engine.version} has no {self._provider} kernel for {node.operator} on ({types})"
        versions = sorted(_kernel_versions().get((node.domain, node.op_type), set()))
        if not versions:
            return f"ONNX Runtime {self._engine.version} has no {self._provider} kernel for {node.op_type}"
        listed = ", ".join(f"{low} to {high}" if low != high else str(low) for low, high in versions)
        return (
            f"ONNX Runtime {self._engine.version} has no {self._provider} kernel for {node.operator} on ({types}); "
            f"it has kernels for versions {listed}"
        )


def retry_with_open_sizes(network: Network, open_network: Callable[[Network], Result]) -> Result:
    """Returns the result for a network; if the engine misjudges ranks in its bodies, that for the network with open sizes.

    Raises: the engine's error about the network as it is.
    """
    try:
        return open_network(network)
    except Exception as error:
        if _MISJUDGED not in str(error) or not any(node.bodies for node in network.nodes):
            raise
        logger.info("network '%s' is loaded with open sizes: %s", network.name, shorten_message(str(error)))
        try:
            return open_network(_open_graph(network))
        except Exception:  # noqa: BLE001  # the first error is about the network as it is
            raise error from None


_MISJUDGED = "InferenceError]"
"""The engine's message if it folds an If by fixed sizes, and mistakes the rank of the branch's result.

ONNX Runtime 1.32, on networks with an If in the body of an If that it runs with open sizes.
"""


def _open_graph(graph: AnyGraph) -> AnyGraph:
    """Returns a graph with open sizes at its inputs, outputs and inner values, in its bodies, too."""
    inputs, outputs = (tuple(replace(spec, type=_open_type(spec.type)) for spec in side) for side in (graph.inputs, graph.outputs))
    types = {name: value_type if name in graph.initializers else _open_type(value_type) for name, value_type in graph.types.items()}
    nodes = tuple(
        node.with_bodies({key: _open_graph(body) for key, body in node.bodies.items()}) if node.bodies else node
        for node in graph.nodes
    )
    return replace(graph, nodes=nodes, inputs=inputs, outputs=outputs, types=MappingProxyType(types))


def _open_type(value_type: ValueType) -> ValueType:
    if not isinstance(value_type, TensorType) or value_type.shape is None:
        return value_type
    return replace(value_type, shape=(None,) * len(value_type.shape))


def shorten_message(text: str) -> str:
    """Returns an engine's message without its error code and its source file, on one line."""
    line = " ".join(text.split())
    line = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", line)
    line = re.sub(r"^(Load model from \S* failed:|Exception during initialization:|This is an invalid model\. )\s*", "", line)
    line = re.sub(r"/\S+\.(?:cc|h):\d+ \S.*?\) ", "", line)
    return line if len(line) <= 300 else line[:297] + "..."


def _refuse_type(value: str, network: Network) -> str | None:
    value_type = network.type_of(value)
    if value_type is None:
        return f"the type of '{value}' is not known{_find_cure(value, network)}"
    dtypes = list_element_types(value_type)
    if None in dtypes:
        return f"the element type of '{value}' is not known"
    if value not in network.initializers and (packed := sorted(set(map(str, dtypes)) & _PACKED)):
        return f"'{value}' is {packed[0]}, which ONNX Runtime packs; only constants of such types are handed to it"
    return None


def _find_cure(value: str, network: Network) -> str:
    node = network.find_producer(value)
    if node is None or node.since_version or knows_contrib(node):
        return ""
    return (
        f": neither ONNX Runtime nor a library that it was given has {node.operator} for these inputs; name a library "
        f"that has it in the environment variable {LIBRARY_VARIABLE}, or declare the type in the model"
    )


@cache
def _kernel_versions() -> dict[tuple[str, str], set[tuple[int, int]]]:
    from onnxruntime.capi import onnxruntime_pybind11_state as state  # the engine; loaded already

    versions: dict[tuple[str, str], set[tuple[int, int]]] = {}
    for kernel in state.get_all_opkernel_def():
        low, high = kernel.version_range
        versions.setdefault((kernel.domain, kernel.op_name), set()).add((low, low if high == 2**31 - 1 else high))  # no end
    return versions
