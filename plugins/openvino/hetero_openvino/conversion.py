"""Networks as the engine reads them, and element types as it names them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from hetero_core.network.graph import EMPTY, Network, Node
from hetero_core.network.initializers import Initializer
from hetero_core.network.renaming import FreshNames
from hetero_core.network.types import TensorType
from hetero_core.network.writer import network_to_bytes, write_network
from hetero_core.transforms.rewrite import Replacement, replace_nodes
from hetero_openvino.corrections import correct_model

_LARGEST_IN_MEMORY = 2**30
"""Bytes of weights; a larger model goes through a file, as a protobuf message ends at 2 GiB."""

TYPE_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "float32": "f32",
        "float16": "f16",
        "bfloat16": "bf16",
        "bool": "boolean",
        **{f"{sign}int{bits}": f"{sign or 'i'}{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    }
)
"""Element types of inputs and outputs, and the engine's names for them. float64 is missing: it is computed in float32 there."""

_RESHAPE_OPSET = 5
"""The first opset in which Reshape has its shape as an input."""

_STORED = frozenset({"float4e2m1", "float8e4m3fn", "float8e5m2", "float8e8m0", "int4", "uint4"})
"""Element types of constants alone: the engine packs them, or NumPy lacks them."""


def read_model(core: Any, network: Network) -> Any:
    """Returns the engine's model of a network, corrected. Raises: any error of the engine."""
    model = _read(core, _state_lengths(network))
    correct_model(model)
    return model


def _state_lengths(network: Network) -> Network:
    """Returns the network with a Reshape behind each list whose known length the engine cannot infer.

    OpenVINO 2026.4 converts no reduction with axes of unknown length, and ignores the declared type of a value.
    """
    names = FreshNames(network)

    def state_length(node: Node) -> Replacement | None:
        is_open = node.op_type in ("ConstantOfShape", "Range", "Slice") and not node.domain and node.opset >= _RESHAPE_OPSET
        value_type = network.type_of(node.outputs[0]) if is_open else None
        shape = value_type.shape if isinstance(value_type, TensorType) and value_type.dtype in ("int32", "int64") else None
        if not shape or len(shape) > 1 or not isinstance(shape[0], int) or shape[0] < 1:
            return None
        source, length = names.value(f"{node.name}/list"), names.value(f"{node.name}/length")
        name = names.node(f"{node.name}/reshape")
        reshape = Node(name, "Reshape", (source, length), node.outputs, "", node.opset, _RESHAPE_OPSET, EMPTY)
        return Replacement(
            (replace(node, outputs=(source,)), reshape), {}, {length: Initializer.of_array(np.array(shape, np.int64))}
        )

    return replace_nodes(network, state_length)


def _read(core: Any, network: Network) -> Any:
    if sum(constant.nbytes for constant in network.initializers.values()) <= _LARGEST_IN_MEMORY:
        return core.read_model(network_to_bytes(network))
    with tempfile.TemporaryDirectory(prefix="hetero-openvino-") as folder:
        path = os.path.join(folder, "model.onnx")
        write_network(network, path, inline_limit=0)
        return core.read_model(path)


def find_type_fault(name: str, network: Network) -> str | None:
    """Returns why a value cannot be handed over, or None when it can."""
    value_type = network.type_of(name)
    if value_type is None:
        return f"the type of '{name}' is not known"
    if not isinstance(value_type, TensorType):
        return f"'{name}' is {value_type}; OpenVINO takes and gives tensors"
    if value_type.dtype == "float64":
        return f"'{name}' is float64, which OpenVINO computes in float32"
    if value_type.dtype not in TYPE_NAMES and not (value_type.dtype in _STORED and name in network.initializers):
        return f"'{name}' is {value_type.dtype}, which OpenVINO does not take or give as an array"
    return None


def find_border_fault(network: Network) -> str | None:
    """Returns why an input that no node reads, or an output that no node makes, cannot be handed over, or None.

    Nodes that read or make such a value are refused for it. float64 is copied as it is.
    """
    unread = [spec.name for spec in network.inputs if spec.name not in network.index_of_consumers]
    unmade = [spec.name for spec in network.outputs if spec.name not in network.index_of_producer]
    copied = [name for name in (*unread, *unmade) if getattr(network.type_of(name), "dtype", None) != "float64"]
    return next((fault for name in copied if (fault := find_type_fault(name, network)) is not None), None)
