"""Which nodes the engine takes: one session on each distinct node, kept for as long as the device lives.

The engine's table of kernels knows operators and element types, but not what a kernel's constructor says to attributes and
constants; making a session of one node asks it all, in about 0.2 ms. The table words the reason where there is no kernel.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from hetero_core.errors import InvalidNetworkError
from hetero_core.network.graph import Graph, Initializer, Network, Node
from hetero_core.network.subnetwork import cut_subnetwork
from hetero_core.network.types import MapType, OptionalType, SequenceType, TensorType, ValueSpec, ValueType
from hetero_core.network.writer import network_to_bytes
from hetero_onnxruntime.engine import CPU_PROVIDER, Engine, make_options, open_session

_LARGEST_CONSTANT = 1024
"""Bytes; a kernel may look at small constants when it is made, weights are only a type to it."""

_PACKED = frozenset({"int4", "uint4", "float4e2m1", "int2", "uint2"})
"""Types that the engine packs, several elements to a byte; arrays at its border have one element a byte."""


class Prober:
    """Answers for one execution provider. Safe for threads."""

    def __init__(self, engine: Engine, provider: str) -> None:
        self._engine = engine
        self._provider = provider
        self._lock = threading.Lock()
        self._reason_of_signature: dict[bytes, str] = {}

    def find_refusal(self, node: Node, network: Network) -> str | None:
        """Returns why the engine does not take a node of a stamped network, or None when it does."""
        for value in (*node.reads, *node.writes):
            reason = _refuse_type(value, network)
            if reason is not None:
                return reason
        signature = _sign(node, network)
        with self._lock:
            known = None if signature is None else self._reason_of_signature.get(signature)
        reason = self._probe(node, network) if known is None else known
        if signature is not None:
            with self._lock:
                self._reason_of_signature[signature] = reason
        return reason or None

    def _probe(self, node: Node, network: Network) -> str:
        """Returns the reason, an empty text where there is none."""
        try:
            model = network_to_bytes(_isolate(node, network))
        except InvalidNetworkError as error:
            return f"it cannot be asked about by itself: {error}"
        options = make_options(self._engine.module, self._provider)
        options.graph_optimization_level = self._engine.module.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = 1
        try:
            open_session(self._engine.module, model, options, self._provider)
        except Exception as error:  # noqa: BLE001  # whatever the engine raises is its answer
            return self._word_reason(node, network, error)
        return ""

    def _word_reason(self, node: Node, network: Network, error: Exception) -> str:
        if type(error).__name__ != "NotImplemented":
            return f"ONNX Runtime {self._engine.version}: {shorten_message(str(error))}"
        types = ", ".join(str(network.type_of(value)) for value in node.inputs if value)
        versions = sorted(_list_kernel_versions(node, self._provider))
        if not versions:
            return f"ONNX Runtime {self._engine.version} has no {self._provider} kernel for {node.op_type}"
        listed = ", ".join(f"{low} to {high}" if low != high else str(low) for low, high in versions)
        return (
            f"ONNX Runtime {self._engine.version} has no {self._provider} kernel for {node.operator} on ({types}); "
            f"it has kernels for versions {listed}"
        )


def shorten_message(text: str) -> str:
    """Returns an engine's message without its error code and its source file, on one line."""
    line = " ".join(text.split())
    line = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", line)
    line = re.sub(r"^(Load model from \S* failed:|Exception during initialization:|This is an invalid model\. )\s*", "", line)
    line = re.sub(r"/\S+\.(?:cc|h):\d+ \S.*?\) ", "", line)
    return line if len(line) <= 300 else line[:297] + "..."


def _refuse_type(value: str, network: Network) -> str | None:
    found = network.type_of(value)
    if found is None:
        return f"the type of '{value}' is not known"
    dtypes = _element_dtypes(found)
    if None in dtypes:
        return f"the element type of '{value}' is not known"
    if value not in network.initializers and (packed := sorted(set(map(str, dtypes)) & _PACKED)):
        return f"'{value}' is {packed[0]}, which ONNX Runtime packs; only constants of such types are handed to it"
    return None


def _element_dtypes(found: ValueType) -> tuple[str | None, ...]:
    if isinstance(found, TensorType):
        return (found.dtype,)
    if isinstance(found, SequenceType | OptionalType):
        return _element_dtypes(found.element)
    assert isinstance(found, MapType)
    return (found.key, *_element_dtypes(found.value))


def _isolate(node: Node, network: Network) -> Network:
    """Returns the network of one node, with its large constants as inputs."""
    part = cut_subnetwork(network, [node.name])
    large = {name: constant for name, constant in part.initializers.items() if constant.nbytes > _LARGEST_CONSTANT}
    if not large:
        return part
    return replace(
        part,
        inputs=(*part.inputs, *(ValueSpec(name, constant.type) for name, constant in large.items())),
        initializers=MappingProxyType({name: constant for name, constant in part.initializers.items() if name not in large}),
    )


def _sign(node: Node, network: Network) -> bytes | None:
    """Returns a digest of all that the answer depends on; None for nodes with bodies, which are each asked about."""
    if node.bodies:
        return None
    digest = hashlib.sha256(repr((node.domain, node.op_type, node.opset, len(node.outputs))).encode())
    for key in sorted(node.attributes):
        digest.update(f"{key}={_describe_attribute(node.attributes[key])};".encode())
    for value in node.inputs:
        constant = network.initializers.get(value) if value else None
        content = constant.digest if constant is not None and constant.nbytes <= _LARGEST_CONSTANT else b""
        digest.update(f"{network.type_of(value) if value else ''}|".encode() + content)
    for value in node.outputs:
        digest.update(f"{network.type_of(value) if value else ''}|".encode())
    return digest.digest()


def _describe_attribute(value: Any) -> str:
    assert not isinstance(value, Graph)
    if isinstance(value, Initializer):
        return value.digest.hex()
    if hasattr(value, "tobytes"):
        return f"{value.dtype}{value.shape}{hashlib.sha256(value.tobytes()).hexdigest()}"
    return repr(value)


def _list_kernel_versions(node: Node, provider: str) -> set[tuple[int, int]]:
    """Returns the ranges of versions of an operator for which the engine has a kernel of any element type."""
    if provider != CPU_PROVIDER:
        return set()
    from onnxruntime.capi import onnxruntime_pybind11_state as state  # the engine; loaded already

    newest = 2**31 - 1
    found: Mapping[tuple[str, str], set[tuple[int, int]]] = {}
    found = {}
    for kernel in state.get_all_opkernel_def():
        low, high = kernel.version_range
        found.setdefault((kernel.domain, kernel.op_name), set()).add((low, low if high == newest else high))
    return found.get((node.domain, node.op_type), set())
