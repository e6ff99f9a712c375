"""Network to ONNX: a proto, bytes, files, and the sections of a blob, from which the same network comes back.

Rule: a node of another opset than the model's stands in a function of domain "hetero.opset" that imports its own; the reader takes
it out again. Other engines may ignore such an import: ask `needs_wrappers` first. Imports onnx inside functions, and NumPy when
it is first used.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_core.dtypes import onnx_of_dtype
from hetero_core.errors import InvalidNetworkError, NetworkReadError, enumerate_choices
from hetero_core.files import replace_file
from hetero_core.network import tensors as kinds
from hetero_core.network.affinity import AFFINITY_KEY
from hetero_core.network.arrays import bytes_of_array
from hetero_core.network.border import BORDER_KEY, NO_BORDER, border_to_json
from hetero_core.network.graph import EMPTY, Graph, Network, Node, iterate_graphs
from hetero_core.network.initializers import Initializer
from hetero_core.network.scopes import OPSET_DOMAIN, OPSET_KEY, ORIGINAL_NAME_KEY, ORIGINS_KEY, since_version
from hetero_core.network.splitting import LARGEST_MODEL
from hetero_core.network.tensors import stored_size, write_tensor, write_type
from hetero_core.network.types import ValueType, has_known_element
from hetero_core.network.weights import WeightBuffer

if TYPE_CHECKING:
    import onnx

_ALIGNMENT = 64
"""Bytes; a cache line, as vector loads need it."""
_SMALLEST_EXTERNAL = 1024
"""Bytes; smaller constants stay in the model, so that shape inference of any tool sees them."""
_LARGEST_INLINE = 2**30
_ADVICE = "Write it to a file with its weights outside: write_network(network, path, inline_limit=0)."


ConstantWriter = Callable[[str, Initializer, "onnx.TensorProto"], None]
"""Fills a proto with the constant of a name, or with a reference to it."""


def write_inline(name: str, initializer: Initializer, proto: onnx.TensorProto) -> None:
    """Copies a constant into `proto`."""
    write_tensor(initializer.array, proto, name=name)


class GraphWriter:
    """Writes the graphs of a model. `functions` are the wrappers that the nodes written so far need."""

    def __init__(
        self,
        write_constant: ConstantWriter = write_inline,
        states_type: Callable[[ValueType], bool] = has_known_element,
        *,
        has_history: bool = False,
    ) -> None:
        """`has_history` adds opsets, origins and original names, for which ONNX has no field, to a packed network."""
        import onnx  # heavy

        self._onnx = onnx
        self.write_constant = write_constant
        self._states_type = states_type
        self._has_history = has_history
        self.functions: list[onnx.FunctionProto] = []

    def write_graph(
        self, graph: Graph, proto: onnx.GraphProto, opsets: Mapping[str, int], *, affinity: Mapping[str, str] = EMPTY
    ) -> None:
        """Fills `proto`. `opsets` are those of the nodes unless a node is wrapped."""
        proto.name = graph.name or "graph"
        for specs, protos in ((graph.inputs, proto.input), (graph.outputs, proto.output)):
            for spec in specs:
                info = protos.add(name=spec.name)
                if self._states_type(spec.type):
                    write_type(spec.type, info.type)
        border = {spec.name for spec in (*graph.inputs, *graph.outputs)}
        for name, initializer in graph.initializers.items():
            self.write_constant(name, initializer, proto.initializer.add())
        for name, value_type in graph.types.items():
            if name not in border and name not in graph.initializers and self._states_type(value_type):
                write_type(value_type, proto.value_info.add(name=name).type)
        for node in graph.nodes:
            self._write_node_or_wrapper(node, proto.node.add(), opsets, affinity.get(node.name))

    def _write_node_or_wrapper(self, node: Node, proto: onnx.NodeProto, opsets: Mapping[str, int], pin: str | None) -> None:
        version = opsets[node.domain]
        # Under another opset the operator may mean the same.
        if node.opset == version or 0 != node.since_version == since_version(node.op_type, node.domain, version):
            self.write_node(node, proto, opsets)
            if self._has_history and node.opset != version:
                proto.metadata_props.add(key=OPSET_KEY, value=str(node.opset))
        else:
            self._write_wrapper(node, proto)
        if pin is not None:
            proto.metadata_props.add(key=AFFINITY_KEY, value=pin)

    def _write_wrapper(self, node: Node, proto: onnx.NodeProto) -> None:
        """Writes a call of a function that holds just this node and imports its opset: a model has a single opset per domain."""
        opsets = {OPSET_DOMAIN: 1, **opsets_of_nodes([node])}
        function = self._onnx.FunctionProto(
            domain=OPSET_DOMAIN, name=f"{node.op_type}_{len(self.functions)}", input=node.reads, output=node.writes
        )
        self.functions.append(function)
        for domain, version in opsets.items():
            function.opset_import.add(domain=domain, version=version)
        self.write_node(node, function.node.add(), opsets)
        proto.name, proto.op_type, proto.domain = node.name, function.name, OPSET_DOMAIN
        proto.input.extend(node.reads)
        proto.output.extend(node.writes)

    def write_node(self, node: Node, proto: onnx.NodeProto, opsets: Mapping[str, int]) -> None:
        """Fills `proto` with the node and its bodies."""
        proto.name, proto.op_type = node.name, node.op_type
        if node.domain:
            proto.domain = node.domain
        proto.input.extend(node.inputs)
        proto.output.extend(node.outputs)
        for name, value in node.attributes.items():
            if isinstance(value, Graph):
                self.write_graph(value, proto.attribute.add(name=name, type=kinds.GRAPH).g, opsets)
            elif isinstance(value, tuple) and not value:
                proto.attribute.add(name=name, type=self._type_of_empty_list(node, name))
            else:
                attribute = kinds.write_attribute(name, value)
                if attribute is None:
                    raise InvalidNetworkError(
                        f"attribute '{name}' of node {node.label} holds {type(value).__name__}; expected int, float, str, bytes, an "
                        "array, a type, a Graph, or a tuple of one of them. Convert it."
                    )
                proto.attribute.append(attribute)
        if self._has_history and node.original_name is not None:
            proto.metadata_props.add(key=ORIGINAL_NAME_KEY, value=node.original_name)
        if self._has_history and node.origins != (node.name,):
            proto.metadata_props.add(key=ORIGINS_KEY, value=json.dumps(node.origins))

    def _type_of_empty_list(self, node: Node, name: str) -> int:
        """Returns the kind of list that the operator's schema gives an attribute; INTS without a schema."""
        if node.since_version:
            declared = self._onnx.defs.get_schema(node.op_type, node.opset, node.domain).attributes.get(name)
            # An empty list of a kind that is no list would come back as a number.
            if declared is not None and declared.type.value in kinds.LISTS:
                return int(declared.type.value)
        return kinds.INTS


def opsets_of_nodes(nodes: Iterable[Node]) -> dict[str, int]:
    """Returns domain -> opset of the nodes and of the nodes in their bodies; if they differ, the first counts."""
    opsets: dict[str, int] = {}
    for node in nodes:
        opsets.setdefault(node.domain, node.opset)
        for body in node.bodies.values():
            for domain, version in opsets_of_nodes(body.nodes).items():
                opsets.setdefault(domain, version)
    return opsets


def write_model(network: Network, writer: GraphWriter) -> onnx.ModelProto:
    """Returns the model of a network as `writer` writes it.

    The IR version is that of the network, raised if its opsets, its wrappers or its metadata need it.
    """
    import onnx  # heavy

    model = onnx.ModelProto(producer_name="hetero")
    opsets = {**opsets_of_nodes(network.nodes), **network.opsets}
    writer.write_graph(network, model.graph, opsets, affinity=network.affinity)
    model.functions.extend(writer.functions)
    if writer.functions:
        opsets[OPSET_DOMAIN] = 1
    for domain, version in opsets.items():
        model.opset_import.add(domain=domain, version=version)
    # Values of inputs that may be left out are initializers of the inputs' names. Source: ONNX IR 4.
    for name, constant in network.border.defaults.items():
        writer.write_constant(name, constant, model.graph.initializer.add())
    described = border_to_json(network.border)
    for key, text in (network.metadata if described == NO_BORDER else {**network.metadata, BORDER_KEY: described}).items():
        model.metadata_props.add(key=key, value=text)
    standard = [entry for entry in model.opset_import if entry.domain in _VERSIONED_DOMAINS]
    needed = int(onnx.helper.find_min_ir_version_for(standard, ignore_unknown=True))
    # Node metadata came with IR version 10, functions with 8, constants that are no inputs with 4.
    extras = 10 if network.affinity else 8 if writer.functions else 4
    model.ir_version = max(network.ir_version, needed, extras)
    return model


_VERSIONED_DOMAINS = ("", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training")


def network_to_proto(network: Network) -> onnx.ModelProto:
    """Returns the network as an ONNX model with copies of its weights; types that are not known are left out."""
    return write_model(network, GraphWriter())


def network_to_bytes(network: Network) -> bytes:
    """Returns the network as the bytes of an ONNX file. Raises: InvalidNetworkError."""
    size = _weights_size(network)
    if size > LARGEST_MODEL:
        raise InvalidNetworkError(
            f"network '{network.name}' has {size} bytes of weights; one ONNX model holds {LARGEST_MODEL}. {_ADVICE}"
        )
    return _serialize(network_to_proto(network), network)


def _weights_size(network: Network) -> int:
    return sum(initializer.nbytes for graph in iterate_graphs(network) for initializer in graph.initializers.values())


def _serialize(model: onnx.ModelProto, network: Network) -> bytes:
    from google.protobuf.message import EncodeError  # type: ignore[import-untyped]  # comes with onnx, without stubs

    try:
        content: bytes = model.SerializeToString()
    except EncodeError as error:
        raise InvalidNetworkError(f"network '{network.name}' cannot be written as one ONNX model: {error}. {_ADVICE}") from error
    return content


def write_network(network: Network, path: str | os.PathLike[str], *, inline_limit: int = _LARGEST_INLINE) -> None:
    """Writes the network to an ONNX file; weights of more than `inline_limit` bytes in all go to '<name>.data' beside it.

    Both files appear complete or not at all, and may replace those that the network was read from.

    Raises: InvalidNetworkError above 2 GiB; OSError that names the file.
    """
    path = os.fspath(path)
    if _weights_size(network) <= inline_limit:
        content = network_to_bytes(network)
        with replace_file(path) as file:
            file.write(content)
        return
    outside = OutsideWeights(os.path.basename(path) + ".data")
    content = _serialize(write_model(network, GraphWriter(outside.write)), network)
    # The weights first: a model is never without them.
    with replace_file(path) as file, replace_file(path + ".data") as weights:
        for offset, initializer in outside.initializers:
            weights.seek(offset)
            weights.write(bytes_of_array(initializer.array).data)
        file.write(content)


def needs_wrappers(network: Network) -> bool:
    """Says whether some node has an opset that its model cannot have, so that only hetero reads the written model right."""
    writer = GraphWriter(OutsideWeights("").write)
    write_model(network, writer)
    return bool(writer.functions)


def network_to_skeleton(network: Network) -> tuple[onnx.ModelProto, dict[str, Initializer]]:
    """Returns the network as an ONNX model without its large weights, and these by name.

    They stand in the model as external ones of location "weights", as engines expect that are given weights by reference. Constants
    in bodies stay in the model; those that nothing reads are left out, since an engine that drops them does not find them again.
    """
    read = network.index_of_consumers.keys() | network.names_of_outputs
    constants = {name: constant for name, constant in network.initializers.items() if name in read}
    network = network if len(constants) == len(network.initializers) else replace(network, initializers=MappingProxyType(constants))
    outside, left_out = OutsideWeights("weights"), {}

    def write(name: str, initializer: Initializer, proto: onnx.TensorProto) -> None:
        if constants.get(name) is not initializer:
            write_inline(name, initializer, proto)
            return
        outside.write(name, initializer, proto)
        if proto.data_location == proto.EXTERNAL:
            left_out[name] = initializer

    return write_model(network, GraphWriter(write)), left_out


@dataclass(slots=True, eq=False)
class OutsideWeights:
    """Constants stored outside of the model, in order, each once however often it is used."""

    location: str
    size: int = 0
    initializers: list[tuple[int, Initializer]] = field(default_factory=list)
    _offsets: dict[int, int] = field(default_factory=dict)

    def write(self, name: str, initializer: Initializer, proto: onnx.TensorProto) -> None:
        """Fills `proto` with a reference and reserves the place; small constants and strings are copied into `proto`."""
        if initializer.dtype == "string" or initializer.nbytes < _SMALLEST_EXTERNAL:
            write_inline(name, initializer, proto)
            return
        length = stored_size(initializer.dtype, prod(initializer.shape))
        offset = self._offsets.get(id(initializer))
        if offset is None:
            offset = self._offsets[id(initializer)] = -(-self.size // _ALIGNMENT) * _ALIGNMENT
            self.initializers.append((offset, initializer))
            self.size = offset + length
        proto.name, proto.data_type, proto.data_location = name, onnx_of_dtype(initializer.dtype), proto.EXTERNAL
        proto.dims.extend(initializer.shape)
        for key, text in (("location", self.location), ("offset", str(offset)), ("length", str(length))):
            proto.external_data.add(key=key, value=text)


def pack_network(network: Network) -> dict[str, bytes | memoryview]:
    """Returns the network as two sections, "model" (an ONNX model without large weights) and "weights" (these, 64-byte aligned).

    Raises: InvalidNetworkError when the model without its weights is above 2 GiB.
    """
    outside = OutsideWeights("weights")
    model = write_model(network, GraphWriter(outside.write, lambda _: True, has_history=True))
    # The writer raises the version to what it writes; the network keeps the one that it was read with.
    model.metadata_props.add(key=_IR_VERSION_KEY, value=str(network.ir_version))
    weights = np.zeros(outside.size, np.uint8)
    for offset, initializer in outside.initializers:
        raw = bytes_of_array(initializer.array)
        weights[offset : offset + raw.size] = raw
    return {"model": _serialize(model, network), "weights": weights.data}


_IR_VERSION_KEY = "hetero.ir_version"
_PACKED = "a packed network"


def unpack_network(sections: Mapping[str, Any]) -> Network:
    """Returns the network that was packed: same names, origins, types, opsets, captures, affinity and metadata.

    Large weights are views of the "weights" section, which must stay as it is; types of less than a byte are unpacked on first use.

    Raises: NetworkReadError when the sections do not fit together.
    """
    from hetero_core.network.reader import assemble_network, parse_model

    if not {"model", "weights"} <= set(sections):
        raise NetworkReadError(
            f"{_PACKED} has the sections {enumerate_choices(sections)}; expected model, weights. Export the network again."
        )
    weights = WeightBuffer(np.frombuffer(sections["weights"], np.uint8))
    network = assemble_network(parse_model(bytes(sections["model"]), _PACKED), weights, _PACKED)
    metadata = dict(network.metadata)
    ir_version = metadata.pop(_IR_VERSION_KEY, "")
    if not ir_version.isdecimal() or len(ir_version) > 9:
        raise NetworkReadError(
            f"{_PACKED} does not state its IR version; it was not made by pack_network. Export the network again."
        )
    return replace(network, ir_version=int(ir_version), metadata=MappingProxyType(metadata))
