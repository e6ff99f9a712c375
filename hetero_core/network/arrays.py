"""Arrays as the bytes that ONNX stores, and back; and their digests. Small types are stored packed and held with one byte per
element.

Imports NumPy when it is first used.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_core.dtypes import bits_of_dtype, dtype_of_numpy, numpy_dtype
from hetero_core.errors import InvalidNetworkError

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]


def require_dtype(array: Array) -> str:
    """Returns the element type of an array. Raises: InvalidNetworkError if ONNX does not have it."""
    dtype = dtype_of_numpy(array.dtype)
    if dtype is None:
        raise InvalidNetworkError(f"a constant has the NumPy type {array.dtype}, which ONNX does not have; convert the array")
    return dtype


def array_of_bytes(raw: bytes | Array, dtype: str, shape: tuple[int, ...]) -> Array:
    """Returns the stored little-endian bytes as an array: a view if the bytes are aligned and the type is not packed."""
    bits = bits_of_dtype(dtype)
    assert bits is not None
    if bits < 8:
        return (
            _unpack(np.frombuffer(raw, np.uint8), bits, prod(shape), signed=dtype.startswith("int"))
            .view(numpy_dtype(dtype))
            .reshape(shape)
        )
    if prod(shape) == 0:
        return np.empty(shape, numpy_dtype(dtype))
    array = np.frombuffer(raw, np.uint8).view(numpy_dtype(dtype)).reshape(shape)
    # Compiled kernels load aligned vectors; an odd offset in a file costs one copy.
    return array if array.flags.aligned else array.copy()


def _unpack(packed: Array, bits: int, count: int, *, signed: bool) -> Array:
    """Returns one byte per element; the first element stands in the lowest bits. Source: onnx.proto, TensorProto.int32_data."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    unpacked = ((packed[:, None] >> shifts) & np.uint8((1 << bits) - 1)).reshape(-1)[:count]
    if not signed:
        return unpacked
    sign = np.uint8(1 << (bits - 1))
    return (unpacked ^ sign) - sign


def bytes_of_array(array: Array) -> Array:
    """Returns the little-endian bytes that ONNX stores for an array, small types packed; a view wherever possible.

    Raises: InvalidNetworkError for strings and for types that ONNX does not have.
    """
    dtype = require_dtype(array)
    bits = bits_of_dtype(dtype)
    if bits is None:
        raise InvalidNetworkError("an array of strings has no bytes in ONNX. Convert it to numbers.")
    flat = np.ascontiguousarray(array, dtype=numpy_dtype(dtype)).reshape(-1)
    if bits >= 8:
        return flat.view(np.uint8)
    unpacked = flat.view(np.uint8) & np.uint8((1 << bits) - 1)
    per_byte = 8 // bits
    padded = np.zeros(-(-flat.size // per_byte) * per_byte, np.uint8)
    padded[: flat.size] = unpacked
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    packed: Array = np.bitwise_or.reduce(padded.reshape(-1, per_byte) << shifts, axis=1)
    return packed


def digest_array(array: Array) -> bytes:
    """Returns the SHA-256 over element type, shape and contents; the same for equal strings and for every memory layout."""
    from hashlib import sha256  # OpenSSL, which most loads do without

    digest = sha256(f"{dtype_of_numpy(array.dtype)}{array.shape}".encode())
    if dtype_of_numpy(array.dtype) != "string":
        digest.update(bytes_of_array(array).data)
        return digest.digest()
    for text in array.reshape(-1).tolist():
        encoded = text if isinstance(text, bytes) else str(text).encode("utf-8")
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.digest()
