"""Samples: inputs and expected outputs within a blob, by which an imported network is verified on another machine.

A sample is a pair of mappings, inputs and outputs by name. The samples of a blob are runs of one request in order, so states carry over.
Three sections hold them: "hetero/samples/model" and "hetero/samples/weights" are a network without nodes that has each array as a
constant, which keeps every element type of ONNX exactly; "hetero/samples/index" is JSON, the pairs with the name of a constant for an
array, null for an absent optional, a list for a sequence, and an object with "keys" and "values" for a map.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from hetero_core.errors import BlobDamagedError
from hetero_core.network.graph import Network
from hetero_core.network.initializers import Initializer
from hetero_core.network.types import ValueSpec

Sample: TypeAlias = tuple[dict[str, Any], dict[str, Any]]
PREFIX = "hetero/samples/"


def pack_samples(samples: Iterable[Sample]) -> dict[str, Any]:
    """Returns the sections that hold the samples; none if there are no samples."""
    import numpy as np  # heavy, as is onnx

    from hetero_core.network.writer import pack_network

    constants: dict[str, Initializer] = {}

    def pack(value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, list | tuple):
            return [pack(item) for item in value]
        if isinstance(value, Mapping):
            return {"keys": pack(np.array(list(value))), "values": pack(list(value.values()))}
        array = np.asarray(value, order="C")
        name = f"value{len(constants)}"
        constants[name] = Initializer.of_array(array.astype(object) if array.dtype.kind == "U" else array)
        return name

    index = [[{name: pack(value) for name, value in side.items()} for side in sample] for sample in samples]
    if not index:
        return {}
    types = {name: constant.type for name, constant in constants.items()}
    outputs = tuple(ValueSpec(name, value_type) for name, value_type in types.items())
    packed = pack_network(Network("samples", (), outputs, (), constants, types, {"": 17}))
    return {PREFIX + name: section for name, section in {"index": json.dumps(index).encode(), **packed}.items()}


def unpack_samples(sections: Mapping[str, Any]) -> list[Sample]:
    """Returns the samples in the sections of a blob; none if it has no samples. Raises: BlobDamagedError."""
    from hetero_core.network.writer import unpack_network  # imports onnx

    own = {name.removeprefix(PREFIX): section for name, section in sections.items() if name.startswith(PREFIX)}
    if not own:
        return []

    def unpack(value: Any) -> Any:
        if isinstance(value, list):
            return [unpack(item) for item in value]
        if isinstance(value, dict):
            return dict(zip(unpack(value["keys"]).tolist(), unpack(value["values"]), strict=True))
        return None if value is None else constants[value].array

    try:
        constants = unpack_network(own).initializers
        pairs = [
            [{name: unpack(value) for name, value in side.items()} for side in pair] for pair in json.loads(bytes(own["index"]))
        ]
        return [(inputs, outputs) for inputs, outputs in pairs]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BlobDamagedError(f"the blob has samples that cannot be read: {type(error).__name__}: {error}") from error
