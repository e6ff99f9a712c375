"""Types of values as ONNX stores them: TypeProto to ValueType and back.

Imports onnx only where a proto is made.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from hetero_core.dtypes import DTYPES, dtype_of_onnx, onnx_of_dtype
from hetero_core.errors import InvalidNetworkError, enumerate_choices
from hetero_core.network.types import LARGEST_RANK, Dimension, MapType, OptionalType, SequenceType, TensorType, ValueSpec, ValueType

if TYPE_CHECKING:
    import onnx


def read_type(proto: onnx.TypeProto, owner: str) -> ValueType | None:
    """Returns the type that a proto states, None where it states none. `owner` begins the message of an error.

    Raises: InvalidNetworkError for sparse tensors, opaque types and element types that are not known.
    """
    kind = proto.WhichOneof("value")
    if kind is None:
        return None
    if kind == "tensor_type":
        return _read_tensor_type(proto.tensor_type, owner)
    if kind in ("sequence_type", "optional_type"):
        element = read_type(getattr(proto, kind).elem_type, owner)
        element = TensorType(None) if element is None else element
        return SequenceType(element) if kind == "sequence_type" else OptionalType(element)
    if kind == "map_type":
        value = read_type(proto.map_type.value_type, owner)
        return MapType(_read_dtype(proto.map_type.key_type, owner) or "string", TensorType(None) if value is None else value)
    raise InvalidNetworkError(
        f"{owner} has the ONNX type '{kind}'; supported are tensors, sequences, optionals and maps. Make it a dense tensor."
    )


def _read_tensor_type(proto: onnx.TypeProto.Tensor, owner: str) -> TensorType:
    dtype = _read_dtype(proto.elem_type, owner)
    if not proto.HasField("shape"):
        return TensorType(dtype)
    rank = len(proto.shape.dim)
    if rank > LARGEST_RANK:
        raise InvalidNetworkError(
            f"{owner} has {rank} dimensions; an array has at most {LARGEST_RANK}. Correct its shape, or export the model again."
        )
    return TensorType(dtype, tuple(_read_dimension(dimension) for dimension in proto.shape.dim))


def _read_dtype(number: int, owner: str) -> str | None:
    dtype = dtype_of_onnx(number)
    if dtype is None and number != 0:
        raise InvalidNetworkError(
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
    """Fills `proto`; an unknown element type becomes 0, an unknown rank no shape, an unknown dimension an empty one."""
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


def write_spec(spec: ValueSpec, proto: onnx.ValueInfoProto) -> None:
    """Fills `proto` with the name and, as far as it is known, the type of a value."""
    proto.name = spec.name
    if spec.type != TensorType(None):
        write_type(spec.type, proto.type)
