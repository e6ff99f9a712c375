"""Values of configuration, metrics and arguments as JSON, and back: nothing is pickled, so nothing that arrives is executed.

Tuples, byte strings, arrays, types of values and dictionaries are written as objects with a tag.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from hetero_core.dtypes import dtype_of_numpy, numpy_dtype
from hetero_core.errors import BlobError
from hetero_core.network.types import ValueSpec, ValueType, read_record, type_of_json, type_to_json, write_record


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
        return {"spec": write_record(value)}
    if isinstance(value, ValueType):
        return {"type": type_to_json(value)}
    if isinstance(value, Mapping):
        return {"items": [[_to_json(key), _to_json(item)] for key, item in value.items()]}
    if isinstance(value, bytes | bytearray | memoryview):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, np.generic):
        return _to_json(np.asarray(value)) if value.dtype.kind not in "biuf" else value.item()
    if isinstance(value, np.ndarray) and value.dtype.kind in "OUS":
        return {"strings": [list(value.shape), [_to_json(item) for item in value.ravel().tolist()]]}
    if isinstance(value, np.ndarray):
        return {"array": [dtype_of_numpy(value.dtype), list(value.shape), base64.b64encode(value.tobytes()).decode()]}
    # Any other value, such as a plan among the metrics, is sent as text.
    return {"text": str(value)}


def _of_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_of_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((tag, content),) = value.items()
    return _READERS[tag](content)


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "tuple": lambda items: tuple(map(_of_json, items)),
    "items": lambda pairs: {_of_json(key): _of_json(item) for key, item in pairs},
    "bytes": base64.b64decode,
    "spec": partial(read_record, ValueSpec),
    "type": type_of_json,
    "text": lambda text: text,
    "strings": lambda fields: np.fromiter(map(_of_json, fields[1]), object, len(fields[1])).reshape(fields[0]),
    "array": lambda fields: np.frombuffer(base64.b64decode(fields[2]), numpy_dtype(fields[0])).reshape(fields[1]).copy(),
}
"""Tag -> the value of its content."""
