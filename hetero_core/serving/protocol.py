"""Tensors of the Open Inference Protocol, version 2, as arrays: from bytes and from lists of values, and back; and its errors.

Bytes are little-endian, in row-major order. An element of BYTES is the number of its bytes as uint32, then a text in UTF-8.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from hetero_core import errors
from hetero_core.dtypes import numpy_dtype
from hetero_core.errors import enumerate_choices, suggest
from hetero_core.network.types import TensorType, ValueSpec

DATATYPES = {
    **{name: name.upper() for name in ("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")},
    "float16": "FP16",
    "bfloat16": "BF16",
    "float32": "FP32",
    "float64": "FP64",
    "string": "BYTES",
}
"""Element type -> its name in the protocol."""
_NUMPY = {datatype: numpy_dtype(name) for name, datatype in DATATYPES.items()}
_DATATYPE_OF_NUMPY = {dtype: datatype for datatype, dtype in _NUMPY.items()}
_KINDS = {"b": "b", "i": "iu", "u": "iu"}
"""Kind of a NumPy type -> the kinds of values that a list for it may hold; all remaining types take numbers."""
_CONTENT_TYPES = ("np", "str")
_LENGTH = struct.Struct("<I")
_STATUSES = {
    (errors.InputNameError, errors.InputShapeError, errors.InputTypeError): 400,
    (errors.MemoryLimitError, errors.DeviceMemoryError, errors.ClosedError, errors.RequestCancelledError): 503,
    (errors.DeadlineExceededError,): 504,
}
"""Errors of a run -> status of HTTP."""


class Refusal(Exception):
    """The error that a request gets for an answer; `status` is that of HTTP."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def describe_error(error: Exception) -> tuple[int, str]:
    """Returns the status and the text of an error; the status of an unexpected error is 500."""
    own = error.status if isinstance(error, Refusal) else 500
    status = next((number for kinds, number in _STATUSES.items() if isinstance(error, kinds)), own)
    return status, "; ".join([str(error) or type(error).__name__, *getattr(error, "__notes__", ())])


def require_known(names: Iterable[str], known: Sequence[str], what: str) -> None:
    """Raises Refusal for an unknown name, since nothing in a request is ignored."""
    for name in names:
        if name not in known:
            hint = suggest(name, known) or ";"
            raise Refusal(400, f"'{name[:100]}' is no {what}{hint} known are {enumerate_choices(known) or 'none'}")


def require_parameters(parameters: Mapping[str, Any], known: Sequence[str], what: str = "parameter") -> None:
    """Raises Refusal for an unknown parameter, and for a `content_type`, by which MLServer's clients say what a model gets, other than
    arrays and texts.
    """
    require_known(parameters, [*known, "content_type"], what)
    content_type = parameters.get("content_type", _CONTENT_TYPES[0])
    if content_type not in _CONTENT_TYPES:
        text = f"models get arrays and texts: {enumerate_choices(_CONTENT_TYPES)}"
        raise Refusal(400, f"content_type is '{str(content_type)[:20]}'; {text}")


def describe_spec(spec: ValueSpec) -> dict[str, Any]:
    """Returns the metadata of an input or output; an open dimension is -1. Raises: Refusal for a type that cannot be sent."""
    kind = spec.type
    if not isinstance(kind, TensorType) or kind.dtype not in DATATYPES or kind.shape is None:
        raise Refusal(400, f"'{spec.name}' is {kind}; served are tensors of known rank of the types {enumerate_choices(DATATYPES)}")
    shape = [size if isinstance(size, int) else -1 for size in kind.shape]
    return {"name": spec.name, "datatype": DATATYPES[kind.dtype], "shape": shape}


def read_tensor(name: str, datatype: str, shape: Iterable[int], *, content: memoryview | None = None, values: Any = None) -> Any:
    """Returns the array of an input from bytes, a view if aligned, or from a list of values. Raises: Refusal if they do not agree."""
    what = f"input '{name[:100]}' of type {datatype} and shape {str(list(shape))[:100]}"
    if datatype not in _NUMPY:
        raise Refusal(400, f"{what}: the types are {enumerate_choices(_NUMPY)}")
    sizes, dtype = tuple(shape), _NUMPY[datatype]
    if not all(type(size) is int and 0 <= size < 2**48 for size in sizes):
        raise Refusal(400, f"{what}: a size is not a whole number of 0 or more")
    try:
        if content is None:
            return _convert_values(dtype, sizes, values)
        if dtype.kind == "O":
            return _as_texts(_split_texts(content), sizes)
        if prod(sizes) * dtype.itemsize != content.nbytes:
            raise ValueError(f"expected {prod(sizes) * dtype.itemsize} bytes, got {content.nbytes}")
        array = np.frombuffer(content, dtype) if content.nbytes else np.empty(0, dtype)
        if dtype.kind == "b" and (array.view(np.uint8) > 1).any():
            raise ValueError("a byte is neither 0 nor 1")
        return (array if array.flags.aligned else array.copy()).reshape(sizes)
    except (ValueError, TypeError, ArithmeticError, struct.error) as error:
        raise Refusal(400, f"{what}: {error}") from None


def _convert_values(dtype: np.dtype[Any], shape: tuple[int, ...], values: Any) -> Any:
    # NumPy makes floats of lists with small and large uint64.
    array = np.array(values, object if dtype.kind == "O" or dtype == np.uint64 else None)
    if array.shape != shape and array.shape != (prod(shape),):
        raise ValueError(f"its data has shape {list(array.shape)}")
    if dtype.kind == "O":
        return _as_texts(array.ravel().tolist(), shape)
    if dtype == np.uint64 and all(type(value) is int for value in array.flat):
        array = np.array(array, np.uint64)
    if array.size and array.dtype.kind not in _KINDS.get(dtype.kind, "iuf"):
        raise ValueError("its data has values of another kind")
    with np.errstate(over="raise"):
        cast = array.astype(dtype)
    if dtype.kind in "iu" and not (cast == array).all():
        raise ValueError("its data has numbers beyond the type")
    return cast.reshape(shape)


def _split_texts(content: memoryview) -> list[str]:
    texts: list[str] = []
    place = 0
    while place < content.nbytes:
        (length,) = _LENGTH.unpack_from(content, place)
        place += _LENGTH.size + length
        if place > content.nbytes:
            raise ValueError(f"element {len(texts)} is cut off")
        texts.append(str(content[place - length : place], "utf-8"))
    return texts


def _as_texts(texts: list[Any], shape: tuple[int, ...]) -> Any:
    if len(texts) != prod(shape) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"expected {prod(shape)} texts, got {len(texts)} values")
    array = np.empty(len(texts), object)
    array[:] = texts
    return array.reshape(shape)


def find_datatype(array: Any) -> str:
    """Returns the protocol's name of an output's type. Raises: Refusal."""
    datatype = _DATATYPE_OF_NUMPY.get(array.dtype) if isinstance(array, np.ndarray) else None
    if datatype is None:
        raise Refusal(500, f"the model has returned {type(array).__name__} of {getattr(array, 'dtype', '?')}, which cannot be sent")
    return datatype


def write_bytes(array: Any) -> bytes | memoryview:
    """Returns the bytes of an output, those of numbers as a view."""
    if array.dtype.kind != "O":
        return memoryview(array.ravel().view(np.uint8))
    return join_texts(str(text).encode() for text in array.ravel())


def join_texts(texts: Iterable[bytes]) -> bytes:
    """Returns the bytes of a tensor of BYTES with these elements."""
    return b"".join(part for text in texts for part in (_LENGTH.pack(len(text)), text))
