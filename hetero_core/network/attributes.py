"""Attributes of nodes as Python values: AttributeProto to int, float, text, arrays, types and tuples, and back.

Graphs are left to the caller. Imports no onnx at run time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_core.errors import InvalidNetworkError
from hetero_core.network.tensors import decode_text, read_tensor, read_type, write_tensor, write_type
from hetero_core.network.types import MapType, OptionalType, SequenceType, TensorType
from hetero_core.network.weights import WeightSource

if TYPE_CHECKING:
    import onnx

# The numbers of onnx.AttributeProto.AttributeType.
FLOAT, INT, STRING, TENSOR, GRAPH = 1, 2, 3, 4, 5
FLOATS, INTS, STRINGS, TENSORS, GRAPHS = 6, 7, 8, 9, 10
SPARSE_TENSOR, SPARSE_TENSORS, TYPE_PROTO, TYPE_PROTOS = 11, 12, 13, 14
LISTS = frozenset((FLOATS, INTS, STRINGS, TENSORS, TYPE_PROTOS))

KIND_NAMES = {
    FLOAT: "a float",
    INT: "an integer",
    STRING: "a string",
    TENSOR: "a tensor",
    GRAPH: "a graph",
    FLOATS: "a list of floats",
    INTS: "a list of integers",
    STRINGS: "a list of strings",
    TENSORS: "a list of tensors",
    GRAPHS: "a list of graphs",
    SPARSE_TENSOR: "a sparse tensor",
    SPARSE_TENSORS: "a list of sparse tensors",
    TYPE_PROTO: "a type",
    TYPE_PROTOS: "a list of types",
}

_TYPES = (TensorType, SequenceType, OptionalType, MapType)

_PLAIN: dict[int, Callable[[onnx.AttributeProto], Any]] = {
    FLOAT: lambda proto: proto.f,
    INT: lambda proto: proto.i,
    STRING: lambda proto: decode_text(proto.s),
    FLOATS: lambda proto: tuple(proto.floats),
    INTS: lambda proto: tuple(proto.ints),
    STRINGS: lambda proto: tuple(decode_text(text) for text in proto.strings),
}


def read_attribute(proto: onnx.AttributeProto, weights: WeightSource, owner: str) -> Any:
    """Returns the value of an attribute that is no graph. Raises: InvalidNetworkError."""
    read = _PLAIN.get(proto.type)
    if read is not None:
        return read(proto)
    where = f"attribute '{proto.name}' of {owner}"
    if proto.type == TENSOR:
        return read_tensor(proto.t, weights, where).array
    if proto.type == TENSORS:
        return tuple(read_tensor(tensor, weights, where).array for tensor in proto.tensors)
    if proto.type == TYPE_PROTO:
        return _read_type_attribute(proto.tp, where)
    if proto.type == TYPE_PROTOS:
        return tuple(_read_type_attribute(each, where) for each in proto.type_protos)
    raise InvalidNetworkError(
        f"{where} is {KIND_NAMES.get(proto.type, f'of kind {proto.type}')}; supported are numbers, strings, dense tensors, types, one "
        "graph, and lists of the first four. Store it as one of these."
    )


_KINDS: dict[type, int] = {float: FLOAT, int: INT, str: STRING, bytes: STRING, **dict.fromkeys(_TYPES, TYPE_PROTO)}


def kind_of_value(value: Any) -> int:
    """Returns the number of the kind that `read_attribute` read, or a reader of graphs; 0 for an empty list."""
    kind = _KINDS.get(type(value))
    if kind is not None:
        return kind
    if isinstance(value, tuple):
        # A list's number is that of its elements' kind and 5 more; the number of TYPE_PROTOS is TYPE_PROTO and 1.
        element = kind_of_value(value[0]) if value else 0
        return 0 if not element else TYPE_PROTOS if element == TYPE_PROTO else element + 5
    return TENSOR if hasattr(value, "dtype") else GRAPH


def _read_type_attribute(proto: onnx.TypeProto, where: str) -> Any:
    value_type = read_type(proto, where)
    if value_type is None:
        raise InvalidNetworkError(
            f"{where} is a type that says nothing; expected a tensor, sequence, optional or map type. State one."
        )
    return value_type


def write_attribute(name: str, value: Any) -> onnx.AttributeProto | None:
    """Returns the attribute of a value that is no graph; None for a value of a kind that ONNX does not have."""
    from onnx import helper  # heavy

    elements = [_write_element(element) for element in (value if isinstance(value, tuple) else (value,))]
    try:
        return helper.make_attribute(name, elements if isinstance(value, tuple) else elements[0])
    except (TypeError, ValueError):
        return None


def _write_element(value: Any) -> Any:
    import onnx  # heavy

    if isinstance(value, np.ndarray):
        tensor = onnx.TensorProto()
        write_tensor(value, tensor)
        return tensor
    if isinstance(value, _TYPES):
        proto = onnx.TypeProto()
        write_type(value, proto)
        return proto
    return value
