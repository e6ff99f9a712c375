"""Tensors of the Open Inference Protocol, version 2: their types, and their values as numbers of JSON and as bytes.

Bytes are little-endian in row-major order. An element of BYTES is its length as uint32, then its UTF-8 text.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from hetero_core.dtypes import dtype_of_numpy, numpy_dtype
from hetero_core.errors import (
    ClosedError,
    DeadlineExceededError,
    DeviceMemoryError,
    InputNameError,
    InputShapeError,
    InputTypeError,
    MemoryLimitError,
    RequestCancelledError,
    enumerate_choices,
    suggest,
)
from hetero_core.network.types import LARGEST_RANK, TensorType, ValueSpec

DATATYPES = {
    "bool": "BOOL",
    **{f"{sign}int{bits}": f"{sign.upper()}INT{bits}" for sign in ("u", "") for bits in (8, 16, 32, 64)},
    "float16": "FP16",
    "bfloat16": "BF16",
    "float32": "FP32",
    "float64": "FP64",
    "string": "BYTES",
}
"""Element type -> its name in the protocol."""
_DTYPES = {datatype: dtype for dtype, datatype in DATATYPES.items()}
_LENGTH = struct.Struct("<I")


class Refusal(Exception):
    """A request that gets an error for an answer; `status` is that of HTTP."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


STATUSES: dict[type[Exception], int] = {
    InputNameError: 400,
    InputShapeError: 400,
    InputTypeError: 400,
    MemoryLimitError: 503,
    DeviceMemoryError: 503,
    ClosedError: 503,
    RequestCancelledError: 503,
    DeadlineExceededError: 504,
}
"""Errors of a run -> status of HTTP; all remaining errors are 500."""


def describe_error(error: Exception) -> tuple[int, str]:
    """Returns the status and the text of an error."""
    if isinstance(error, Refusal):
        return error.status, str(error)
    status = next((number for kind, number in STATUSES.items() if isinstance(error, kind)), 500)
    return status, "; ".join([str(error) or type(error).__name__, *getattr(error, "__notes__", ())])


@dataclass(frozen=True, slots=True)
class InferCall:
    """The decoded request: values by input, and the names of the outputs to return; all outputs if there are none."""

    inputs: dict[str, Any]
    outputs: tuple[str, ...] = ()
    id: str = ""


def require_known(names: Sequence[str], known: Sequence[str], what: str) -> None:
    """Refuses a name that is not known: nothing in a request is ignored."""
    for name in names:
        if name not in known:
            hint = suggest(name, known) or ";"
            raise Refusal(400, f"'{name[:100]}' is no {what}{hint} known are {enumerate_choices(known) or 'none'}")


def describe_spec(spec: ValueSpec) -> dict[str, Any]:
    """Returns the metadata of an input or output; an open dimension is -1. Raises: Refusal for a type that cannot be sent."""
    kind = spec.type
    if not isinstance(kind, TensorType) or kind.dtype not in DATATYPES or kind.shape is None:
        raise Refusal(
            400, f"'{spec.name}' is {kind}; the protocol carries tensors of known rank of the types {enumerate_choices(DATATYPES)}"
        )
    return {
        "name": spec.name,
        "datatype": DATATYPES[kind.dtype],
        "shape": [size if isinstance(size, int) else -1 for size in kind.shape],
    }


def check_tensor(name: object, datatype: object, shape: object) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Returns the NumPy type and the shape of a tensor in a request. Raises: Refusal."""
    if not isinstance(name, str) or not name:
        raise Refusal(400, f"an input has no name, but {name!r}")
    if not isinstance(datatype, str) or datatype not in _DTYPES:
        raise Refusal(400, f"input '{name}' has datatype {datatype!r}; the datatypes are {enumerate_choices(_DTYPES)}")
    if (
        not isinstance(shape, Sequence)
        or isinstance(shape, str)
        or len(shape) > LARGEST_RANK
        or not all(type(size) is int and 0 <= size < 2**48 for size in shape)
    ):
        raise Refusal(
            400, f"input '{name}' has shape {str(shape)[:100]}; expected a list of at most {LARGEST_RANK} sizes of 0 or more"
        )
    return numpy_dtype(_DTYPES[datatype]), tuple(shape)


def read_bytes(name: str, dtype: np.dtype[Any], shape: tuple[int, ...], content: memoryview) -> Any:
    """Returns the array of a tensor in bytes, as a view if it is aligned. Raises: Refusal unless the size is right."""
    if dtype.kind == "O":
        return _read_texts(name, shape, content)
    nbytes = prod(shape) * dtype.itemsize
    if nbytes != content.nbytes:
        raise Refusal(400, f"input '{name}' of shape {list(shape)} takes {nbytes} bytes, got {content.nbytes}")
    array = np.frombuffer(content, dtype) if nbytes else np.empty(0, dtype)
    if dtype.kind == "b" and (array.view(np.uint8) > 1).any():
        raise Refusal(400, f"input '{name}' is BOOL and has bytes other than 0 and 1")
    return (array if array.flags.aligned else array.copy()).reshape(shape)


def _read_texts(name: str, shape: tuple[int, ...], content: memoryview) -> Any:
    texts, place = [], 0
    try:
        while place < content.nbytes:
            (length,) = _LENGTH.unpack_from(content, place)
            place += _LENGTH.size + length
            texts.append(str(content[place - length : place], "utf-8"))
    except (struct.error, UnicodeDecodeError) as error:
        raise Refusal(400, f"input '{name}': element {len(texts)} is no length with a text in UTF-8: {error}") from None
    if place != content.nbytes or len(texts) != prod(shape):
        raise Refusal(400, f"input '{name}' of shape {list(shape)} takes {prod(shape)} texts, got bytes for {len(texts)}")
    return _as_objects(texts, shape)


def _as_objects(texts: list[str], shape: tuple[int, ...]) -> Any:
    array = np.empty(len(texts), object)
    array[:] = texts
    return array.reshape(shape)


def read_numbers(name: str, dtype: np.dtype[Any], shape: tuple[int, ...], values: object) -> Any:
    """Returns the array of a list, flat or nested as the shape. Raises: Refusal for other lengths, kinds of values, and ranges."""
    if not isinstance(values, list):
        raise Refusal(400, f"input '{name}': expected data as a list, got {type(values).__name__}")
    try:
        array = np.array(values, object if dtype.kind == "O" else None)
    except (ValueError, OverflowError) as error:
        raise Refusal(400, f"input '{name}': the lists in its data have different lengths or depths: {error}") from None
    if array.shape != shape and (array.ndim != 1 or array.size != prod(shape)):
        raise Refusal(400, f"input '{name}' has shape {list(shape)}, and data of shape {list(array.shape)}")
    if dtype.kind == "O":
        texts = array.ravel().tolist()
        if not all(isinstance(text, str) for text in texts):
            raise Refusal(400, f"input '{name}' is BYTES; expected texts as data")
        return _as_objects(texts, shape)
    is_float = dtype_of_numpy(dtype) in ("float16", "bfloat16", "float32", "float64")
    if array.size and array.dtype.kind not in ("b" if dtype.kind == "b" else "iuf" if is_float else "iu"):
        raise Refusal(
            400, f"input '{name}' is {DATATYPES[str(dtype_of_numpy(dtype))]}; its data has values of another kind or size"
        )
    try:
        with np.errstate(over="raise"):
            cast = array.astype(dtype)
    except FloatingPointError:
        raise Refusal(400, f"input '{name}' is {DATATYPES[str(dtype_of_numpy(dtype))]}; its data has numbers beyond it") from None
    if array.size and array.dtype.kind in "iu" and not is_float and not (cast == array).all():
        raise Refusal(400, f"input '{name}' is {DATATYPES[str(dtype_of_numpy(dtype))]}; its data has numbers beyond it")
    return cast.reshape(shape)


def find_datatype(array: Any) -> str:
    """Returns the protocol's name of an output's element type. Raises: Refusal."""
    dtype = dtype_of_numpy(array.dtype) if isinstance(array, np.ndarray) else None
    if dtype not in DATATYPES:
        raise Refusal(500, f"the protocol has no type for an output of {type(array).__name__} of {dtype}")
    return DATATYPES[dtype]


def write_bytes(array: Any) -> bytes:
    """Returns the bytes of an output."""
    if array.dtype.kind != "O":
        return bytes(array.tobytes())
    texts = [str(text).encode() for text in array.ravel()]
    return b"".join(part for text in texts for part in (_LENGTH.pack(len(text)), text))
