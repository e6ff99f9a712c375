"""Values of configuration, metrics and arguments as JSON, and back: nothing is pickled, so nothing that arrives is executed.

Tuples, byte strings, arrays, types of values and dictionaries are written as objects with a tag.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from hetero_core.dtypes import dtype_of_numpy, numpy_dtype
from hetero_core.errors import BlobError
from hetero_core.network.types import ValueSpec, type_of_json, type_to_json

_TAGS = ("tuple", "bytes", "array", "strings", "spec", "items", "text")


def dump_value(value: Any) -> bytes:
    """Returns a value as the bytes of a JSON document."""
    return json.dumps(_to_json(value)).encode()


def load_value(text: bytes | memoryview) -> Any:
    """Returns the value that `dump_value` wrote. Raises: BlobError for any other text."""
    try:
        return _of_json(json.loads(bytes(text)))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise BlobError(f"a message from another process cannot be read: {type(error).__name__}: {error}") from error


def _to_json(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple):
        return {"tuple": [_to_json(item) for item in value]}
    if isinstance(value, list):
        return [_to_json(item) for item in value]
    if isinstance(value, ValueSpec):
        return {"spec": [value.name, type_to_json(value.type), value.memory]}
    if isinstance(value, Mapping):
        return {"items": [[_to_json(key), _to_json(item)] for key, item in value.items()]}
    if isinstance(value, bytes | bytearray | memoryview):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, np.generic):
        return _to_json(np.asarray(value)) if value.dtype.kind not in "biuf" else value.item()
    if isinstance(value, np.ndarray):
        return _array_to_json(value)
    # Any other value, such as a plan among the metrics, is sent as text.
    return {"text": str(value)}


def _array_to_json(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    if array.dtype.kind in "OUS":
        return {"strings": [list(array.shape), [_to_json(item) for item in array.ravel().tolist()]]}
    return {"array": [dtype_of_numpy(array.dtype), list(array.shape), base64.b64encode(array.tobytes()).decode()]}


def _of_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_of_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((tag, content),) = value.items()
    if tag == "tuple":
        return tuple(_of_json(item) for item in content)
    if tag == "items":
        return {_of_json(key): _of_json(item) for key, item in content}
    if tag == "bytes":
        return base64.b64decode(content)
    if tag == "spec":
        return ValueSpec(content[0], type_of_json(content[1]), content[2])
    if tag == "text":
        return content
    return _array_of_json(tag, content)


def _array_of_json(tag: str, content: Any) -> Any:
    if tag == "strings":
        array = np.empty(content[0], object)
        array.ravel()[:] = [_of_json(item) for item in content[1]]
        return array
    if tag != "array":
        raise ValueError(f"unknown tag {tag!r}; expected one of {', '.join(_TAGS)}")
    dtype, shape, raw = content
    return np.frombuffer(base64.b64decode(raw), numpy_dtype(dtype)).reshape(shape).copy()
