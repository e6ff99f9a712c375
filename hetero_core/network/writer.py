"""Network to ONNX: a proto, bytes, files, and the sections of a blob, from which the same network comes back.

Rule: a node of another opset than the model's stands in a function of domain "hetero.opset" that imports its own; the reader takes
it out again. Other engines may ignore such an import: ask `needs_wrappers` first. Imports onnx inside functions, and NumPy when
it is first used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from hetero_core.dtypes import onnx_of_dtype
from hetero_core.errors import InvalidNetworkError, NetworkReadError, enumerate_choices
from hetero_core.files import replace_file, replace_files
from hetero_core.network.arrays import bytes_of_array
from hetero_core.network.encoding import GraphWriter, InlineWeights, opsets_of_nodes, write_model
from hetero_core.network.graph import Network, Node, iterate_graphs
from hetero_core.network.initializers import Initializer
from hetero_core.network.notes import history_of_node, no_notes
from hetero_core.network.tensors import stored_size, write_tensor
from hetero_core.network.types import ValueType, has_known_element
from hetero_core.network.weights import WeightBuffer, WeightSource

if TYPE_CHECKING:
    import onnx

_ALIGNMENT = 64
"""Bytes; a cache line, and what vector loads ask for."""
_SMALLEST_EXTERNAL = 1024
"""Bytes; smaller constants stay in the model, so that shape inference of any tool sees them."""
_LARGEST_MODEL = 2**31 - 1
"""Bytes; protobuf reads and writes no more."""
_LARGEST_INLINE = 2**30
_ADVICE = "Write it to a file with its weights outside: write_network(network, path, inline_limit=0)."


def network_to_proto(network: Network) -> onnx.ModelProto:
    """Returns the network as an ONNX model with copies of its weights; types that are not known are left out."""
    return write_model(network, GraphWriter(InlineWeights(), has_known_element, notes_of_node=no_notes))


def network_to_bytes(network: Network) -> bytes:
    """Returns the network as the bytes of an ONNX file.

    Raises: InvalidNetworkError above 2 GiB, where `write_network` with a weights file is the way.
    """
    _check_size(network)
    return _serialize(network_to_proto(network), network)


def _check_size(network: Network) -> None:
    size = _weights_size(network)
    if size > _LARGEST_MODEL:
        raise InvalidNetworkError(
            f"network '{network.name}' has {size} bytes of weights; one ONNX model holds {_LARGEST_MODEL}. {_ADVICE}"
        )


def _weights_size(network: Network) -> int:
    return sum(initializer.nbytes for graph in iterate_graphs(network) for initializer in graph.initializers.values())


def _serialize(model: onnx.ModelProto, network: Network) -> bytes:
    from google.protobuf.message import EncodeError  # type: ignore[import-untyped]  # comes with onnx, without stubs

    try:
        content: bytes = model.SerializeToString()
    except EncodeError as error:
        raise InvalidNetworkError(f"network '{network.name}' cannot be written as one ONNX model: {error}. {_ADVICE}") from error
    return content


def write_network(
    network: Network,
    path: str | os.PathLike[str],
    *,
    inline_limit: int = _LARGEST_INLINE,
    annotate: Callable[[onnx.ModelProto], None] = lambda model: None,
) -> None:
    """Writes the network to an ONNX file; weights of more than `inline_limit` bytes in all go to '<name>.data' beside it.

    `annotate` may add to the model before it is written. Both files appear complete or not at all, and may replace those that the
    network was read from.

    Raises: InvalidNetworkError above 2 GiB; OSError that names the file.
    """
    path = os.fspath(path)
    if _weights_size(network) <= inline_limit:
        _check_size(network)
        model = network_to_proto(network)
        annotate(model)
        content = _serialize(model, network)
        with replace_file(path) as file:
            file.write(content)
        return
    outside = OutsideWeights(os.path.basename(path) + ".data")
    model = write_model(network, GraphWriter(outside, has_known_element, notes_of_node=no_notes))
    annotate(model)
    content = _serialize(model, network)
    # The weights first: a model is never without them.
    with replace_files(path + ".data", path) as (weights, file):
        outside.copy_to_file(weights)
        file.write(content)


def node_to_proto(node: Node) -> onnx.NodeProto:
    """Returns the node as ONNX, bodies included; its opset, and that of all nodes in its bodies, is `opsets_of_nodes([node])`.

    Raises: InvalidNetworkError when its bodies mix opsets of one domain, which a single node cannot express.
    """
    import onnx  # heavy

    writer = GraphWriter(InlineWeights(), has_known_element, notes_of_node=no_notes)
    proto = onnx.NodeProto()
    writer.write_node(node, proto, opsets_of_nodes([node]))
    if writer.functions:
        raise InvalidNetworkError(
            f"node {node.label} cannot be written by itself: its bodies mix opsets of one domain. Write the network that holds it."
        )
    return proto


def needs_wrappers(network: Network) -> bool:
    """Says whether some node has an opset that its model cannot have, so that only hetero reads the written model right."""
    writer = GraphWriter(OutsideWeights(""), has_known_element, notes_of_node=no_notes)
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
    named = NamedWeights(network.initializers)
    return write_model(network, GraphWriter(named, has_known_element, notes_of_node=no_notes)), named.left_out


class NamedWeights:
    """The constants of a root graph left out of the model, each to be given by its name."""

    def __init__(self, initializers: Mapping[str, Initializer]) -> None:
        self._initializers = initializers
        self._outside = OutsideWeights("weights")
        self.left_out: dict[str, Initializer] = {}

    def write(self, name: str, initializer: Initializer, proto: onnx.TensorProto) -> None:
        """Fills `proto` with a reference, or with the constant where it is small or in a body."""
        if self._initializers.get(name) is not initializer:
            write_tensor(initializer.array, proto, name=name)
            return
        self._outside.write(name, initializer, proto)
        if proto.data_location == proto.EXTERNAL:
            self.left_out[name] = initializer


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
            write_tensor(initializer.array, proto, name=name)
            return
        length = _stored_bytes(initializer)
        offset = self._offsets.get(id(initializer))
        if offset is None:
            offset = self._offsets[id(initializer)] = -(-self.size // _ALIGNMENT) * _ALIGNMENT
            self.initializers.append((offset, initializer))
            self.size = offset + length
        proto.name, proto.data_type, proto.data_location = name, onnx_of_dtype(initializer.dtype), proto.EXTERNAL
        proto.dims.extend(initializer.shape)
        for key, text in (("location", self.location), ("offset", str(offset)), ("length", str(length))):
            proto.external_data.add(key=key, value=text)

    def copy_to_file(self, file: IO[bytes]) -> None:
        """Writes all constants at their offsets."""
        for offset, initializer in self.initializers:
            file.seek(offset)
            file.write(bytes_of_array(initializer.array).data)

    def copy_to_memory(self) -> memoryview:
        """Returns one buffer with all constants at their offsets."""
        buffer = np.zeros(self.size, np.uint8)
        for offset, initializer in self.initializers:
            raw = bytes_of_array(initializer.array)
            buffer[offset : offset + raw.size] = raw
        return buffer.data


def _stored_bytes(initializer: Initializer) -> int:
    count = 1
    for size in initializer.shape:
        count *= size
    return stored_size(initializer.dtype, count)


def pack_network(network: Network) -> dict[str, bytes | memoryview]:
    """Returns the network as two sections, "model" (an ONNX model without large weights) and "weights" (these, 64-byte aligned).

    Raises: InvalidNetworkError when the model without its weights is above 2 GiB.
    """
    model, outside = pack_model(network)
    return {"model": model, "weights": outside.copy_to_memory()}


def pack_model(network: Network) -> tuple[bytes, OutsideWeights]:
    """Returns the section "model", and the constants that the section "weights" holds, for whoever stores these in another way.

    Raises: InvalidNetworkError as `pack_network`.
    """
    outside = OutsideWeights("weights")
    model = write_model(network, GraphWriter(outside, _any_type, notes_of_node=history_of_node))
    # The writer raises the version to what it writes; the network keeps the one that it was read with.
    model.metadata_props.add(key=_IR_VERSION_KEY, value=str(network.ir_version))
    return _serialize(model, network), outside


_IR_VERSION_KEY = "hetero.ir_version"


def _any_type(value_type: ValueType) -> bool:
    return True


def unpack_network(sections: Mapping[str, Any]) -> Network:
    """Returns the network that was packed: same names, origins, types, opsets, captures, affinity and metadata.

    Large weights are views of the "weights" section, which must stay as it is; types of less than a byte are unpacked on first use.

    Raises: NetworkReadError when the sections do not fit together.
    """
    if not {"model", "weights"} <= set(sections):
        raise NetworkReadError(
            f"{_PACKED} has the sections {enumerate_choices(sections)}; expected model, weights. Export the network again."
        )
    return unpack_model(sections["model"], WeightBuffer(np.frombuffer(sections["weights"], np.uint8)))


_PACKED = "a packed network"


def unpack_model(model: Any, weights: WeightSource) -> Network:
    """Returns the network of a section "model", its large constants from `weights`, for whoever stored these in another way.

    Raises: NetworkReadError as `unpack_network`.
    """
    from hetero_core.network.reader import assemble_network, parse_model

    title = _PACKED
    network = assemble_network(parse_model(bytes(model), title), weights, title)
    metadata = dict(network.metadata)
    ir_version = metadata.pop(_IR_VERSION_KEY, "")
    if not ir_version.isdecimal() or len(ir_version) > 9:
        raise NetworkReadError(f"{title} does not state its IR version; it was not made by pack_network. Export the network again.")
    return replace(network, ir_version=int(ir_version), metadata=MappingProxyType(metadata))
