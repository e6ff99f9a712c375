"""Asks an engine about each distinct node once, as a network of that node alone, and caches the answer; for devices that wrap an engine.

An engine's list of operators does not cover attributes, constants and combinations of types, so each node is tried. Two nodes are
equivalent if their operators, opsets, attributes, types and small constants are equal. NumPy is not imported.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from hetero_core.errors import InvalidNetworkError
from hetero_core.network.graph import Graph, Network, Node
from hetero_core.network.subnetwork import cut_subnetwork
from hetero_core.network.types import MapType, OptionalType, SequenceType, TensorType, ValueSpec, ValueType
from hetero_core.network.writer import network_to_proto

LARGEST_CONSTANT = 1024
"""Bytes; engines look at the values of small constants when they make a kernel, weights are mostly a type to them."""

_UNIQUE = b"node "
"""Prefix of the signature of a node that no other node shares; answers for such nodes are not kept."""


class NodeProber:
    """The cached answers of an engine about networks of a single node. `ask` returns the answers: the reason of a refusal, "" if the engine
    takes the node. It gets all nodes at once, but each node with bodies alone, and may raise any error for several nodes, of which it is
    then asked by halves.

    Nodes with a value that cannot be passed to the engine are refused without asking: `find_type_fault` returns the reason, or None. With
    `keeps_weights`, constants above `LARGEST_CONSTANT` bytes stay constants, for engines that need them so; otherwise they become inputs.
    Safe for threads.
    """

    def __init__(
        self,
        ask: Callable[[Sequence[Network]], Sequence[str]],
        find_type_fault: Callable[[str, Network], str | None],
        *,
        keeps_weights: bool,
    ) -> None:
        self._ask = ask
        self._find_type_fault = find_type_fault
        self._keeps_weights = keeps_weights
        self._reason_of_signature: dict[bytes, str] = {}

    def find_refusals(self, nodes: Iterable[Node], network: Network) -> dict[str, str]:
        """Returns the nodes of a network that the engine does not take, by name, each with the reason."""
        names_of_signature: dict[bytes, list[str]] = {}
        reasons: dict[str, str] = {}
        for node in nodes:
            fault = self._find_fault(node, network)
            if fault is not None:
                reasons[node.name] = fault
                continue
            names_of_signature.setdefault(_sign(node, network), []).append(node.name)
        answered = self._reason_of_signature
        unknown = [signature for signature in names_of_signature if signature not in answered]
        answers = dict(zip(unknown, self._ask_alone([names_of_signature[each][0] for each in unknown], network), strict=True))
        answered.update({signature: answer for signature, answer in answers.items() if not signature.startswith(_UNIQUE)})
        for signature, names in names_of_signature.items():
            if reason := answers.get(signature) or answered.get(signature):
                reasons.update(dict.fromkeys(names, reason))
        return reasons

    def _find_fault(self, node: Node, network: Network) -> str | None:
        # Outputs without readers, such as the mask of an inference Dropout, may be of unknown type.
        read = (value for value in node.writes if value in network.index_of_consumers or value in network.names_of_outputs)
        return next(filter(None, (self._find_type_fault(value, network) for value in (*node.reads, *read))), None)

    def _ask_alone(self, names: Sequence[str], network: Network) -> list[str]:
        answers: dict[str, str] = {}
        alone: dict[str, Network] = {}
        for name in names:
            try:
                part = cut_subnetwork(network, [name])
            except InvalidNetworkError as error:
                answers[name] = f"it cannot be asked about by itself: {error}"
            else:
                alone[name] = part if self._keeps_weights else _open_weights(part)
        # Captures of a body keep their names when networks are joined, and are not found then.
        joint = [name for name, part in alone.items() if not part.nodes[0].bodies]
        for together in (joint, *([name] for name, part in alone.items() if part.nodes[0].bodies)):
            answers.update(zip(together, self._ask_halves([alone[name] for name in together]), strict=True))
        return [answers[name] for name in names]

    def _ask_halves(self, networks: Sequence[Network]) -> Sequence[str]:
        try:
            return self._ask(networks) if networks else ()
        except Exception:
            if len(networks) == 1:
                raise
            half = len(networks) // 2
            return (*self._ask_halves(networks[:half]), *self._ask_halves(networks[half:]))


def join_networks(networks: Sequence[Network]) -> bytes:
    """Returns a model of all networks, side by side and unconnected; names of the network at index i begin with "i/"."""
    import onnx  # heavy, and loaded already with the network

    joined = onnx.ModelProto()
    for index, network in enumerate(networks):
        model = onnx.compose.add_prefix(network_to_proto(network), f"{index}/", inplace=True)
        if index == 0:
            joined.CopyFrom(model)
            continue
        for field in ("node", "input", "output", "initializer", "value_info"):
            getattr(joined.graph, field).extend(getattr(model.graph, field))
        present = {opset.domain for opset in joined.opset_import}
        joined.opset_import.extend(opset for opset in model.opset_import if opset.domain not in present)
        joined.ir_version = max(joined.ir_version, model.ir_version)
    content: bytes = joined.SerializeToString()
    return content


def list_element_types(value_type: ValueType) -> tuple[str | None, ...]:
    """Returns the element types in a type, keys of maps included; None for an unknown element type."""
    if isinstance(value_type, TensorType):
        return (value_type.dtype,)
    if isinstance(value_type, SequenceType | OptionalType):
        return list_element_types(value_type.element)
    assert isinstance(value_type, MapType)
    return (value_type.key, *list_element_types(value_type.value))


def _open_weights(network: Network) -> Network:
    large = {name: constant for name, constant in network.initializers.items() if constant.nbytes > LARGEST_CONSTANT}
    if not large:
        return network
    return replace(
        network,
        inputs=(*network.inputs, *(ValueSpec(name, constant.type) for name, constant in large.items())),
        initializers=MappingProxyType({name: constant for name, constant in network.initializers.items() if name not in large}),
    )


def _sign(node: Node, network: Network) -> bytes:
    """Returns the cache key of a node's answer, a digest of all that it depends on; the key of a node with bodies is unique."""
    if node.bodies:
        return _UNIQUE + node.name.encode()
    digest = hashlib.sha256(repr((node.domain, node.op_type, node.opset, len(node.outputs))).encode())
    for key in sorted(node.attributes):
        digest.update(f"{key}={_describe_attribute(node.attributes[key])};".encode())
    for value in node.inputs:
        constant = network.initializers.get(value) if value else None
        # A large constant is still told apart from a computed input.
        kind = b"" if constant is None else constant.digest if constant.nbytes <= LARGEST_CONSTANT else b"constant"
        digest.update(f"{network.type_of(value) if value else ''}|".encode() + kind)
    for value in node.outputs:
        digest.update(f"{network.type_of(value) if value else ''}|".encode())
    return digest.digest()


def _describe_attribute(value: Any) -> str:
    assert not isinstance(value, Graph)
    if hasattr(value, "tobytes"):
        return f"{value.dtype}{value.shape}{hashlib.sha256(value.tobytes()).hexdigest()}"
    if isinstance(value, tuple):
        return ",".join(_describe_attribute(each) for each in value)
    return repr(value)
