"""Passes that join scales and shifts of channels: BatchNormalization, Mul and Add with constants, with Conv.

Everything is computed in float64 and rounded once, to the type of the weights. Only float32 and float64 are folded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from hetero_core.network.graph import Network, Node
from hetero_core.network.initializers import Initializer
from hetero_core.network.renaming import FreshNames
from hetero_core.network.types import TensorType
from hetero_core.transforms.constants import drop_unread
from hetero_core.transforms.rewrite import fuse_pairs

_FOLDED_DTYPES = ("float32", "float64")
_BATCH_NORM_ATTRIBUTES = {"epsilon", "momentum", "spatial", "training_mode", "is_test"}


@dataclass(frozen=True, slots=True)
class Affine:
    """y = scale * x + shift for each channel, in float64; arrays of shape (channels,) or (1,)."""

    source: str
    scale: np.ndarray[Any, Any]
    shift: np.ndarray[Any, Any]


def fold_affines(network: Network) -> Network:
    """Returns the network with each chain of channel scales behind a Conv in the weights of the Conv."""
    constants = dict(network.initializers)
    names = FreshNames(network)

    def fuse(first: Node, second: Node) -> Node | None:
        affine = read_affine(second, network.type_of, constants)
        if affine is None or affine.source not in first.outputs or first.domain:
            return None
        parameters = _scale_convolution(first, affine, constants) if first.op_type == "Conv" else None
        if parameters is None:
            return None
        inputs: list[str] = []
        for parameter in parameters:
            inputs.append(names.value(f"{second.outputs[0]}/{('scale', 'shift')[len(inputs)]}"))
            constants[inputs[-1]] = parameter
        return replace(first, inputs=(first.inputs[0], *inputs, *first.inputs[3:]), outputs=second.outputs[:1])

    fused = fuse_pairs(network, fuse)
    return network if fused is network else drop_unread(replace(fused, initializers=MappingProxyType(constants)))


def _scale_convolution(conv: Node, affine: Affine, constants: Mapping[str, Initializer]) -> tuple[Initializer, Initializer] | None:
    """Returns the weights and the bias of a convolution with a scale and a shift behind it."""
    if any(name and name not in constants for name in conv.inputs[1:]) or len(conv.inputs) < 2:
        return None
    weight = constants[conv.inputs[1]]
    bias = conv.inputs[2] if len(conv.inputs) > 2 else ""
    if weight.dtype not in _FOLDED_DTYPES or not weight.shape or (bias and constants[bias].shape != weight.shape[:1]):
        return None
    outputs = weight.shape[0]
    if affine.scale.size not in (1, outputs) or affine.shift.size not in (1, outputs):
        return None
    b = (constants[bias].array.astype(np.float64) if bias else np.zeros(outputs)) * affine.scale + affine.shift
    return _scale_later(weight, affine.scale), Initializer.of_array(b.astype(weight.dtype))


def _scale_later(weight: Initializer, scale: np.ndarray[Any, Any]) -> Initializer:
    """Returns the weights times a number for each output, made on first use: a network is never in memory twice for being folded."""

    def load() -> np.ndarray[Any, Any]:
        # In float64, rounded once; NumPy converts a few thousand elements at a time.
        array = weight.array
        scaled = np.empty_like(array)
        np.multiply(array, scale.reshape(-1, *(1,) * (array.ndim - 1)), out=scaled, dtype=np.float64, casting="same_kind")
        weight.release()
        return scaled

    return Initializer(weight.dtype, weight.shape, load, is_renewable=True)


def read_affine(node: Node, type_of: Any, constants: Mapping[str, Initializer]) -> Affine | None:
    """Returns the scale and shift of each channel by a node; None without constants of float32 or float64 for them."""
    if node.domain or len(node.writes) != 1 or not node.outputs[0]:
        return None
    if node.op_type == "BatchNormalization":
        return _read_batch_norm(node, constants)
    if node.op_type in ("Mul", "Add") and node.since_version >= 7:
        return _read_arithmetic(node, type_of, constants)
    return None


def _read_batch_norm(node: Node, constants: Mapping[str, Initializer]) -> Affine | None:
    """Source: ONNX BatchNormalization-15, inference. Versions before 9 could train or normalize each pixel for itself."""
    if node.since_version < 9 or len(node.inputs) != 5 or not set(node.attributes) <= _BATCH_NORM_ATTRIBUTES:
        return None
    if node.attributes.get("training_mode", 0) or any(name not in constants for name in node.inputs[1:]):
        return None
    parameters = [constants[name] for name in node.inputs[1:]]
    shape = parameters[0].shape
    if len(shape) != 1 or any(parameter.dtype not in _FOLDED_DTYPES or parameter.shape != shape for parameter in parameters):
        return None
    scale, bias, mean, variance = (parameter.array.astype(np.float64) for parameter in parameters)
    scale = scale / np.sqrt(variance + float(node.attributes.get("epsilon", 1e-5)))
    return Affine(node.inputs[0], scale, bias - mean * scale)


def _read_arithmetic(node: Node, type_of: Any, constants: Mapping[str, Initializer]) -> Affine | None:
    for source, name in (node.inputs, node.inputs[::-1]):
        source_type, constant = type_of(source), constants.get(name)
        if constant is None or source in constants or constant.dtype not in _FOLDED_DTYPES:
            continue
        rank = len(source_type.shape) if isinstance(source_type, TensorType) and source_type.shape is not None else 0
        if rank < 3 or len(constant.shape) > rank or source_type.dtype != constant.dtype:
            continue
        padded = (1,) * (rank - len(constant.shape)) + constant.shape
        if any(size != 1 for axis, size in enumerate(padded) if axis != 1):
            continue
        numbers = constant.array.astype(np.float64).reshape(-1)
        neutral = np.ones(1) if node.op_type == "Add" else np.zeros(1)
        return Affine(source, neutral, numbers) if node.op_type == "Add" else Affine(source, numbers, neutral)
    return None
