"""Writes the nodes that stand for a node."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from hetero_core.network.graph import Node
from hetero_core.network.initializers import Initializer
from hetero_core.network.renaming import FreshNames
from hetero_core.network.types import Dimension, TensorType, ValueType
from hetero_core.transforms.rewrite import Replacement

_OPSET = 13
_VERSIONS = {"Conv": 11}
"""The versions of operators that opset 13 did not change."""


class NodeWriter:
    """The nodes that stand for a node of float32, as far as they are written; `names` are those of the network."""

    def __init__(self, node: Node, names: FreshNames) -> None:
        self._node, self._names = node, names
        self._nodes: list[Node] = []
        self._types: dict[str, ValueType] = {}
        self._constants: dict[str, Initializer] = {}

    def keep(self, array: Any) -> str:
        """Returns the name of a new constant; numbers are int64."""
        value = self._names.value(f"{self._node.outputs[0]}/constant")
        array = array if isinstance(array, np.ndarray) else np.array(array, np.int64)
        self._constants[value] = Initializer.of_array(array)
        return value

    def add(self, operator: str, *inputs: str, shape: tuple[Dimension, ...], **attributes: Any) -> str:
        """Returns the output of a new node."""
        value = self._names.value(f"{self._node.outputs[0]}/{operator}")
        self._types[value] = TensorType("float32", shape)
        self._nodes.append(Node(value, operator, inputs, (value,), "", _OPSET, _VERSIONS.get(operator, _OPSET), attributes))
        return value

    def finish(self) -> Replacement:
        """Returns the replacement, whose last node makes the output."""
        *nodes, last = self._nodes
        self._types.pop(last.outputs[0])
        last = replace(last, name=self._node.name, outputs=self._node.outputs)
        return Replacement((*nodes, last), self._types, self._constants)
