"""A pass that computes convolutions and poolings of sequences as those of images of height 1, which have machine code.

A value of (batch, channels, length) has a twin of (batch, channels, 1, length). Operators that work element by element, and those along the
channels, follow on the twin; for any other reader the value is made of it by a view.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from hetero_core.network.graph import Network, Node
from hetero_core.network.initializers import Initializer
from hetero_core.network.renaming import FreshNames
from hetero_core.network.types import TensorType
from hetero_core.transforms.constants import drop_unread
from hetero_core.transforms.matching import read_integers

_WINDOWS = frozenset({"AveragePool", "Conv", "ConvTranspose", "MaxPool"})
_WHOLE = frozenset({"BatchNormalization", "GlobalAveragePool", "GlobalMaxPool", "InstanceNormalization"})
_ELEMENTWISE = frozenset(
    {
        "Abs", "Add", "Ceil", "Celu", "Clip", "Cos", "Div", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish",
        "LeakyRelu", "Log", "Max", "Min", "Mish", "Mul", "MultiplyAdd", "Neg", "PRelu", "Pow", "Reciprocal", "Relu", "Round", "Selu",
        "Sigmoid", "Sign", "Sin", "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Swish", "Tanh", "ThresholdedRelu"
    }
)  # fmt: skip
_BEFORE = {"dilations": (1,), "kernel_shape": (1,), "output_padding": (0,), "output_shape": (1,), "strides": (1,)}
"""The numbers of the new axis, which stands before the length."""


def lift_lines(network: Network) -> Network:
    """Returns the network with its windows over sequences as windows over images of height 1."""
    lifter = _Lifter(network)
    for node in network.nodes:
        lifter.add(node)
    for spec in network.outputs:
        lifter.make(spec.name)
    if not lifter.has_windows:
        return network
    types, constants = MappingProxyType(lifter.types), MappingProxyType(lifter.constants)
    return drop_unread(replace(network, nodes=tuple(lifter.nodes), types=types, initializers=constants))


class _Lifter:
    """The network as far as it is rewritten."""

    def __init__(self, network: Network) -> None:
        self.network, self.names, self.nodes = network, FreshNames(network), list[Node]()
        self.types, self.constants = dict(network.types), dict(network.initializers)
        self.twins: dict[str, str] = {}
        self.pending: dict[str, tuple[str, ...]] = {}
        """The origins of values that exist as twins alone."""
        self.has_windows = False

    def add(self, node: Node) -> None:
        """Adds a node, on twins if that is possible."""
        if not node.domain and self._lift(node):
            return
        for value in node.reads:
            self.make(value)
        self.nodes.append(node)

    def make(self, value: str) -> None:
        """Makes a value that exists as a twin alone."""
        if value in self.pending:
            self._move("Squeeze", self.twins[value], value, self.pending.pop(value))

    def _move(self, op_type: str, source: str, target: str, origins: tuple[str, ...]) -> None:
        axes = self.names.value(f"{target}/axes")
        self.constants[axes] = Initializer.of_array(np.array([2], np.int64))
        self.nodes.append(
            Node(self.names.node(f"{target}/{op_type}"), op_type, (source, axes), (target,), "", 13, 13, origins=origins)
        )

    def _lift(self, node: Node) -> bool:
        is_window = node.op_type in _WINDOWS
        # Old operators broadcast along an axis that is named.
        if not node.inputs or not all(map(self._is_line, node.outputs)) or "broadcast" in node.attributes:
            return False
        if is_window:
            if not self._is_line(node.inputs[0]):
                return False
            weights = [self.constants.get(name) for name in node.inputs[1:2]]
            if any(weight is None or weight.dtype != "float32" or len(weight.shape) != 3 for weight in weights):
                return False
            if node.attributes.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
                return False
            inputs = (self._find_twin(node.inputs[0], node), *map(self._widen, node.inputs[1:2]), *node.inputs[2:])
        elif not any(name in self.twins for name in node.reads):
            return False
        elif node.inputs[0] in self.twins and self._takes_image(node):
            inputs = (self.twins[node.inputs[0]], *node.inputs[1:])
        elif (
            node.op_type == "Concat" and node.attributes.get("axis") in (1, -2) and all(name in self.twins for name in node.inputs)
        ):
            inputs = tuple(self.twins[name] for name in node.inputs)
        elif node.op_type in _ELEMENTWISE:
            if not all(not name or name in self.constants or self._is_line(name) for name in node.inputs):
                return False
            inputs = tuple(
                self._widen(name) if name in self.constants else self._find_twin(name, node) if name else "" for name in node.inputs
            )
        else:
            return False
        self.has_windows |= is_window
        for output in node.outputs:
            self.pending[output] = node.origins
        attributes = _widen_attributes(node) if is_window or "axis" in node.attributes else node.attributes
        self.nodes.append(replace(node, inputs=inputs, outputs=tuple(map(self._name_twin, node.outputs)), attributes=attributes))
        return True

    def _takes_image(self, node: Node) -> bool:
        """Says whether only the first input has the axes of an image, and the operator works along its batch and channels."""
        if node.op_type == "Split":
            return node.attributes.get("axis") in (1, -2)
        if node.op_type == "Slice":
            return read_integers(self.network, (*node.inputs, *("",) * 4)[3]) == (1,)
        return node.op_type in _WHOLE

    def _is_line(self, value: str) -> bool:
        value_type = self.types.get(value)
        is_float = isinstance(value_type, TensorType) and value_type.dtype == "float32" and value not in self.constants
        return is_float and value_type.shape is not None and len(value_type.shape) == 3  # type: ignore[union-attr]  # a TensorType

    def _name_twin(self, value: str) -> str:
        value_type, twin = self.types[value], self.names.value(f"{value}/image")
        assert isinstance(value_type, TensorType)
        assert value_type.shape is not None
        batch, channels, length = value_type.shape
        self.twins[value], self.types[twin] = twin, TensorType("float32", (batch, channels, 1, length))
        return twin

    def _find_twin(self, value: str, node: Node) -> str:
        if value not in self.twins:
            self._move("Unsqueeze", value, self._name_twin(value), node.origins)
        return self.twins[value]

    def _widen(self, value: str) -> str:
        """Returns a constant with an axis before the last, which a constant of a single axis does not need."""
        constant = self.constants[value]
        if len(constant.shape) < 2:
            return value
        shape = (*constant.shape[:-1], 1, constant.shape[-1])

        def load() -> Any:
            array = constant.array.reshape(shape)
            constant.release()
            return array

        name = self.names.value(f"{value}/image")
        self.constants[name] = Initializer(constant.dtype, shape, load, is_renewable=True)
        return name


def _widen_attributes(node: Node) -> Mapping[str, Any]:
    attributes = {name: (*_BEFORE.get(name, ()), *value) if name in _BEFORE else value for name, value in node.attributes.items()}
    if "pads" in attributes:
        begin, end = attributes["pads"]
        attributes["pads"] = (0, begin, 0, end)
    if "axis" in attributes:
        attributes["axis"] = 1
    return MappingProxyType(attributes)
