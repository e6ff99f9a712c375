"""Constants, types and attributes as ONNX stores them, and back; graphs in attributes are left to the caller.

Rules: everything is checked when the model is read, arrays are made on first use; small types are stored packed and held with a
byte per element. Imports onnx inside functions, and NumPy when it is first used.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_core.dtypes import DTYPES, bits_of_dtype, dtype_of_onnx, numpy_dtype, onnx_of_dtype
from hetero_core.errors import HeteroError, InvalidNetworkError, NetworkReadError, enumerate_choices
from hetero_core.limits import ReadBudget
from hetero_core.network.arrays import array_of_bytes, bytes_of_array, require_dtype
from hetero_core.network.initializers import Initializer
from hetero_core.network.splitting import FileSpan, RawData
from hetero_core.network.types import LARGEST_RANK, Dimension, MapType, OptionalType, SequenceType, TensorType, ValueType
from hetero_core.network.weights import WeightSource

if TYPE_CHECKING:
    import onnx

    Array = np.ndarray[Any, Any]

_EXTERNAL = 1
"""onnx.TensorProto.EXTERNAL"""
_MOST_BYTES = 2**63 - 1
"""The limit of an array of NumPy 2."""


def read_tensor(proto: onnx.TensorProto, weights: WeightSource, owner: str, *, raw: RawData | None = None) -> Initializer:
    """Returns the constant that a proto holds. `owner` begins the message of an error: "initializer 'w'".

    `raw` stands for the `raw_data` of the proto, which is empty then. Bytes are copied out of the proto once; external weights are
    not touched before the array is used.

    Raises: NetworkReadError when type, shape and bytes do not fit together.
    """
    dtype, shape = _read_header(proto, owner)
    count = prod(shape)
    if proto.data_location == _EXTERNAL:
        if dtype == "string":
            raise NetworkReadError(
                f"{owner} holds strings in an external file, which ONNX does not allow; store them in the model."
            )
        load_bytes, drop_pages = weights.locate(proto.external_data, stored_size(dtype, count), owner)
        return Initializer(dtype, shape, lambda: array_of_bytes(load_bytes(), dtype, shape), drop_pages=drop_pages)
    if dtype == "string":
        strings = [decode_text(text) for text in proto.string_data]
        _check_length(len(strings), count, "strings", owner)
        return Initializer(dtype, shape, lambda: np.array(strings, object).reshape(shape))
    if proto.HasField("raw_data"):
        content = proto.raw_data if raw is None else raw
        _check_length(len(content), stored_size(dtype, count), "bytes", owner)
        if isinstance(content, FileSpan):
            read = content.read
            return Initializer(dtype, shape, lambda: array_of_bytes(read(), dtype, shape), is_renewable=True)
        return Initializer(dtype, shape, lambda: array_of_bytes(content, dtype, shape))
    from onnx import numpy_helper  # heavy

    try:
        array: Array = numpy_helper.to_array(proto)
    except (ValueError, TypeError, OverflowError) as error:
        raise NetworkReadError(
            f"{owner} cannot be read: {error}; expected as many elements as its shape {list(proto.dims)} has. Export or copy it again."
        ) from error
    return Initializer(dtype, shape, lambda: array)


def _read_header(proto: onnx.TensorProto, owner: str) -> tuple[str, tuple[int, ...]]:
    dtype = _read_dtype(proto.data_type, owner, NetworkReadError)
    shape = tuple(proto.dims)
    _check_shape(dtype, shape, owner)
    if proto.HasField("segment"):
        raise NetworkReadError(f"{owner} is stored in segments, which no ONNX tool reads; write the model again.")
    return dtype, shape


def _check_shape(dtype: str, shape: tuple[int, ...], owner: str) -> None:
    """Refuses a shape that no array can have, even if it is empty."""
    if any(size < 0 for size in shape):
        raise NetworkReadError(f"{owner} has the shape {list(shape)}; expected sizes of 0 or more. Export the model again.")
    bits = bits_of_dtype(dtype)
    nbytes = prod(size for size in shape if size > 0) * (8 if bits is None else max(bits // 8, 1))
    if len(shape) > LARGEST_RANK or (0 in shape and nbytes > _MOST_BYTES):
        shown = str(list(shape)) if len(shape) <= 8 else f"{[*shape[:8]]} and {len(shape) - 8} more"
        raise NetworkReadError(
            f"{owner} has the shape {shown}; an array has at most {LARGEST_RANK} dimensions, and at most {_MOST_BYTES} "
            "bytes without those of size 0. Export the model again."
        )


def _check_length(actual: int, expected: int, unit: str, owner: str) -> None:
    if actual != expected:
        raise NetworkReadError(
            f"{owner} takes {expected} {unit} by its type and shape, but holds {actual}; the file is damaged or was written wrongly. "
            "Export or copy it again."
        )


def stored_size(dtype: str, count: int) -> int:
    """Returns the bytes that `count` elements take in a file, small types packed. Not for strings."""
    bits = bits_of_dtype(dtype)
    assert bits is not None
    return (count * bits + 7) // 8


def decode_text(text: bytes) -> str | bytes:
    """Returns a text of a model, or its bytes if they are not UTF-8."""
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError:
        return text


def write_tensor(array: Array, proto: onnx.TensorProto, *, name: str = "") -> None:
    """Fills `proto` with a copy of an array. Raises: InvalidNetworkError."""
    dtype = require_dtype(array)
    if name:
        proto.name = name
    proto.data_type = onnx_of_dtype(dtype)
    proto.dims.extend(array.shape)
    if dtype == "string":
        proto.string_data.extend(
            text if isinstance(text, bytes) else str(text).encode("utf-8") for text in array.reshape(-1).tolist()
        )
    else:
        proto.raw_data = bytes_of_array(array).tobytes()


def read_sparse_tensor(proto: onnx.SparseTensorProto, weights: WeightSource, owner: str, *, budget: ReadBudget) -> Initializer:
    """Returns the dense constant of a sparse tensor; its array is filled on first use, and counts as memory of the reading.

    A few bytes in a file may stand for any number of zeros.
    Raises: NetworkReadError when indices, values and shape do not fit together; ReadLimitError.
    """
    values = read_tensor(proto.values, weights, f"values of {owner}")
    shape = tuple(proto.dims)
    if len(values.shape) != 1:
        raise NetworkReadError(
            f"{owner} has the shape {list(shape)} and values of shape {list(values.shape)}; expected one dimension. Export the model again."
        )
    _check_shape(values.dtype, shape, owner)
    budget.take_memory(Initializer(values.dtype, shape, lambda: values.array).nbytes, f"{owner}, when it is made dense,")
    positions = _read_positions(proto, weights, shape, values.shape[0], owner)

    def densify() -> Array:
        # An absent string is empty, as an absent number is 0.
        dense = np.full(prod(shape), "", object) if values.dtype == "string" else np.zeros(prod(shape), numpy_dtype(values.dtype))
        dense[positions] = values.array
        return dense.reshape(shape)

    return Initializer(values.dtype, shape, densify)


def _read_positions(proto: onnx.SparseTensorProto, weights: WeightSource, shape: tuple[int, ...], count: int, owner: str) -> Array:
    """Returns the flat positions of the values, from linear indices (count) or coordinates (count, rank)."""
    if count == 0:
        return np.zeros(0, np.int64)
    indices = read_tensor(proto.indices, weights, f"indices of {owner}")
    if indices.dtype != "int64" or indices.shape not in ((count,), (count, len(shape))):
        raise NetworkReadError(
            f"{owner} has indices {indices.type}; expected int64[{count}] or int64[{count},{len(shape)}] for its {count} values. "
            "Export the model again."
        )
    sizes = (prod(shape),) if len(indices.shape) == 1 else shape
    try:
        return np.ravel_multi_index(tuple(indices.array.reshape(count, -1).T), sizes) if sizes else np.zeros(count, np.int64)
    except ValueError as error:
        raise NetworkReadError(
            f"{owner} has an index outside its shape {list(shape)}; the file is damaged or was written wrongly. Export or copy it again."
        ) from error


def read_type(proto: onnx.TypeProto, owner: str) -> ValueType | None:
    """Returns the type that a proto states, None for an empty proto. `owner` begins the message of an error.

    Raises: InvalidNetworkError for sparse tensors, opaque types and element types that are not known.
    """
    kind = proto.WhichOneof("value")
    if kind is None:
        return None
    if kind == "tensor_type":
        number, rank = proto.tensor_type.elem_type, len(proto.tensor_type.shape.dim)
        dtype = _read_dtype(number, owner) if number else None
        if rank > LARGEST_RANK:
            raise InvalidNetworkError(
                f"{owner} has {rank} dimensions; an array has at most {LARGEST_RANK}. Correct its shape, or export the model again."
            )
        has_shape = proto.tensor_type.HasField("shape")
        return TensorType(dtype, tuple(map(_read_dimension, proto.tensor_type.shape.dim)) if has_shape else None)
    if kind in ("sequence_type", "optional_type"):
        element = read_type(getattr(proto, kind).elem_type, owner)
        element = TensorType(None) if element is None else element
        return SequenceType(element) if kind == "sequence_type" else OptionalType(element)
    if kind == "map_type":
        value = read_type(proto.map_type.value_type, owner)
        key = _read_dtype(proto.map_type.key_type or onnx_of_dtype("string"), owner)
        return MapType(key, TensorType(None) if value is None else value)
    raise InvalidNetworkError(
        f"{owner} has the ONNX type '{kind}'; supported are tensors, sequences, optionals and maps. Make it a dense tensor."
    )


def _read_dtype(number: int, owner: str, kind_of_error: type[HeteroError] = InvalidNetworkError) -> str:
    dtype = dtype_of_onnx(number)
    if dtype is None:
        raise kind_of_error(
            f"{owner} has the ONNX element type number {number}, which is not known; known are {enumerate_choices(DTYPES)}. "
            "Export the model again, or upgrade onnx."
        )
    return dtype


def _read_dimension(proto: onnx.TensorShapeProto.Dimension) -> Dimension:
    kind = proto.WhichOneof("value")
    if kind == "dim_value":
        # Some exporters write -1 for a size that is known at run time.
        return proto.dim_value if proto.dim_value >= 0 else None
    # A name that is not UTF-8, which protobuf gives as bytes, is none.
    is_name = kind == "dim_param" and isinstance(proto.dim_param, str) and not _is_placeholder(proto.dim_param)
    return proto.dim_param if is_name else None


# Compiled on the first use: most models name no size.
_PLACEHOLDER = r"""(?xis) [\W_]*         # nothing, or signs alone
    | -?\d+                    # a number, -1 for an open size
    | .*\?.*
    | .*DynamicDimension.*     # Paddle
    | unk_.*                   # ONNX's inference, tf2onnx
    | (unk|unknown|dyn|dynamic|undefined|none|null) [\W_]* \d*"""


@lru_cache(maxsize=4096)
def _is_placeholder(name: str) -> bool:
    """Says whether a tool wrote the name for any size that is open, so that two sizes of this name need not be equal."""
    return re.fullmatch(_PLACEHOLDER, name) is not None


def write_type(value_type: ValueType, proto: onnx.TypeProto) -> None:
    """Fills `proto`; an unknown element type becomes 0, an unknown rank no shape, an unknown dimension an empty dimension."""
    if isinstance(value_type, TensorType):
        tensor = proto.tensor_type
        tensor.elem_type = 0 if value_type.dtype is None else onnx_of_dtype(value_type.dtype)
        if value_type.shape is None:
            return
        tensor.shape.SetInParent()
        for size in value_type.shape:
            dimension = tensor.shape.dim.add()
            if isinstance(size, str):
                dimension.dim_param = size
            elif size is not None:
                dimension.dim_value = size
    elif isinstance(value_type, MapType):
        proto.map_type.key_type = onnx_of_dtype(value_type.key)
        write_type(value_type.value, proto.map_type.value_type)
    elif isinstance(value_type, SequenceType):
        write_type(value_type.element, proto.sequence_type.elem_type)
    else:
        write_type(value_type.element, proto.optional_type.elem_type)


# The numbers of onnx.AttributeProto.AttributeType.
FLOAT, INT, STRING, TENSOR, GRAPH = 1, 2, 3, 4, 5
FLOATS, INTS, STRINGS, TENSORS, GRAPHS = 6, 7, 8, 9, 10
SPARSE_TENSOR, SPARSE_TENSORS, TYPE_PROTO, TYPE_PROTOS = 11, 12, 13, 14
LISTS = frozenset((FLOATS, INTS, STRINGS, TENSORS, TYPE_PROTOS))

_NAMES = (
    *("a float", "an integer", "a string", "a tensor", "a graph", "a list of floats", "a list of integers", "a list of strings"),
    *("a list of tensors", "a list of graphs", "a sparse tensor", "a list of sparse tensors", "a type", "a list of types"),
)
KIND_NAMES = dict(enumerate(_NAMES, 1))
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
    if proto.type in (TYPE_PROTO, TYPE_PROTOS):
        types = [read_type(each, where) for each in (proto.type_protos if proto.type == TYPE_PROTOS else (proto.tp,))]
        if None in types:
            raise InvalidNetworkError(
                f"{where} is a type that says nothing; expected a tensor, sequence, optional or map type. State one."
            )
        return tuple(types) if proto.type == TYPE_PROTOS else types[0]
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


def write_attribute(name: str, value: Any) -> onnx.AttributeProto | None:
    """Returns the attribute of a value that is no graph; None for a value of a kind that ONNX does not have."""
    from onnx import helper  # heavy

    written = list(map(_write_element, value)) if isinstance(value, tuple) else _write_element(value)
    try:
        return helper.make_attribute(name, written)
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
