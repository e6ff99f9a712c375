"""Passes that join scales and shifts of channels: BatchNormalization, Mul and Add with constants, into one another and into Conv.

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
from hetero_core.network.types import TensorType
from hetero_core.transforms.constants import drop_unread

_FOLDED_DTYPES = ("float32", "float64")
_BATCH_NORM_ATTRIBUTES = {"epsilon", "momentum", "spatial", "training_mode", "is_test"}


@dataclass(frozen=True, slots=True)
class Affine:
    """y = scale * x + shift for each channel, in float64; arrays of shape (channels,) or (1,)."""

    source: str
    scale: np.ndarray[Any, Any]
    shift: np.ndarray[Any, Any]


def fold_affines(network: Network) -> Network:
    """Returns the network with each chain of channel scales behind a Conv in the weights of the Conv, and other chains joined.

    A chain that follows no Conv becomes its first BatchNormalization, where it begins with one.
    """
    folder = _Folder(network)
    for node in network.nodes:
        folder.add(node)
    return folder.finish()


class _Folder:
    """The nodes so far, and the constants that were made for them."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._nodes: list[Node | None] = []
        self._made: dict[str, int] = {}
        self._constants: dict[str, Initializer] = dict(network.initializers)
        self._changed = False

    def add(self, node: Node) -> None:
        affine = read_affine(node, self._network.type_of, self._constants)
        fused = None if affine is None else self._fold(node, affine)
        if fused is None:
            fused = node
        else:
            self._changed = True
        for value in fused.writes:
            self._made[value] = len(self._nodes)
        self._nodes.append(fused)

    def _fold(self, node: Node, affine: Affine) -> Node | None:
        position = self._made.get(affine.source)
        before = None if position is None else self._nodes[position]
        if before is None or position is None or not self._is_private(affine.source):
            return None
        if before.op_type == "Conv" and not before.domain:
            fused = self._fold_into_conv(before, node, affine)
        elif before.op_type == "BatchNormalization" and not before.domain:
            fused = self._fold_into_norm(before, node, affine)
        else:
            fused = None
        if fused is not None:
            self._nodes[position] = None
        return fused

    def _is_private(self, value: str) -> bool:
        return len(self._network.index_of_consumers.get(value, ())) == 1 and value not in self._network.names_of_outputs

    def _fold_into_conv(self, conv: Node, node: Node, affine: Affine) -> Node | None:
        if any(name and name not in self._constants for name in conv.inputs[1:]) or len(conv.inputs) < 2:
            return None
        weight = self._constants[conv.inputs[1]]
        if weight.dtype not in _FOLDED_DTYPES:
            return None
        bias = conv.inputs[2] if len(conv.inputs) > 2 else ""
        if not weight.shape or (bias and self._constants[bias].shape != weight.shape[:1]):
            # The run refuses it.
            return None
        outputs = weight.shape[0]
        if affine.scale.size not in (1, outputs) or affine.shift.size not in (1, outputs):
            return None
        w = _scale_later(weight, affine.scale)
        b = (self._constants[bias].array.astype(np.float64) if bias else np.zeros(outputs)) * affine.scale + affine.shift
        b = Initializer.of_array(b.astype(weight.dtype))
        names = (self._keep(node, "weight", w), self._keep(node, "bias", b))
        return replace(conv, inputs=(conv.inputs[0], *names), outputs=node.outputs[:1], origins=_join_origins(conv, node))

    def _fold_into_norm(self, norm: Node, node: Node, affine: Affine) -> Node | None:
        first = read_affine(norm, self._network.type_of, self._constants)
        if first is None:
            return None
        channels = first.scale.size
        if affine.scale.size not in (1, channels) or affine.shift.size not in (1, channels):
            return None
        dtype = self._constants[norm.inputs[1]].array.dtype
        epsilon = float(norm.attributes.get("epsilon", 1e-5))
        mean, variance = (self._constants[name].array.astype(np.float64) for name in norm.inputs[3:5])
        # The parameters that give the joined scale and shift with the mean and variance as they are.
        scale = first.scale * affine.scale * np.sqrt(variance + epsilon)
        shift = first.shift * affine.scale + affine.shift + mean * first.scale * affine.scale
        joined = (Initializer.of_array(scale.astype(dtype)), Initializer.of_array(shift.astype(dtype)))
        names = (self._keep(node, "scale", joined[0]), self._keep(node, "shift", joined[1]))
        inputs = (norm.inputs[0], *names, *norm.inputs[3:5])
        return replace(norm, inputs=inputs, outputs=node.outputs[:1], origins=_join_origins(norm, node))

    def _keep(self, node: Node, role: str, constant: Initializer) -> str:
        name = f"{node.outputs[0]}/{role}"
        while name in self._constants or name in self._network.types or name in self._network.index_of_producer:
            name += "'"
        self._constants[name] = constant
        return name

    def finish(self) -> Network:
        """Returns the network, without the constants that were folded."""
        if not self._changed:
            return self._network
        nodes = tuple(node for node in self._nodes if node is not None)
        return drop_unread(replace(self._network, nodes=nodes, initializers=MappingProxyType(self._constants)))


def _scale_later(weight: Initializer, scale: np.ndarray[Any, Any]) -> Initializer:
    """Returns the weights times one number for each output, made on first use: a network is never in memory twice for being folded."""

    def load() -> np.ndarray[Any, Any]:
        # In float64, rounded once; NumPy converts a few thousand elements at a time.
        array = weight.array
        scaled = np.empty_like(array)
        np.multiply(array, scale.reshape(-1, *(1,) * (array.ndim - 1)), out=scaled, dtype=np.float64, casting="same_kind")
        weight.release()
        return scaled

    return Initializer(weight.dtype, weight.shape, load, is_renewable=True)


def _join_origins(first: Node, second: Node) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first.origins, *second.origins)))


def read_affine(node: Node, type_of: Any, constants: Mapping[str, Initializer]) -> Affine | None:
    """Returns what a node does to each channel, None when it is no scale and shift with constants of float32 or float64."""
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
    if any(parameter.dtype not in _FOLDED_DTYPES or len(parameter.shape) != 1 for parameter in parameters):
        return None
    if any(parameter.shape != parameters[0].shape for parameter in parameters):
        # The run refuses it.
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
