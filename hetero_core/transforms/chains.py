"""Chains of nodes that a pass puts in front of an input or behind an output: each step one operator of ONNX.

Nodes take the opset of the network where its version of the operator will do, so that other engines read the written model right.
The new nodes are their own origins: they are nodes of the network that the user asks about.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hetero_core.network.graph import EMPTY, Network, Node
from hetero_core.network.initializers import Initializer
from hetero_core.network.opsets import since_version
from hetero_core.network.renaming import FreshNames
from hetero_core.network.types import Dimension, TensorType

# The first version with the meaning that is needed: Cast by number, broadcasting by NumPy's rules, Resize with half-pixel centers.
_FIRST_OPSET = {
    "Cast": 6,
    "Add": 7,
    "Sub": 7,
    "Mul": 7,
    "Div": 7,
    "Resize": 11,
    "MatMul": 1,
    "Transpose": 1,
    "Gather": 1,
    "Shape": 1,
    "Concat": 4,
    "Reshape": 5,
    "Slice": 10,
    "Clip": 11,
    "Pad": 11,
}
DEFAULT_OPSET = 18
"""The opset of ONNX's own domain in a network that has no operator of it yet."""


class Chain:
    """Steps behind one another, beginning at a value; names of new nodes and values begin with `base`.

    `type` is what the last step makes; its shape has as many axes as the first value has.
    """

    def __init__(self, network: Network, names: FreshNames, *, base: str, value: str, value_type: TensorType) -> None:
        self._network = network
        self._names = names
        self._base = base
        self.value = value
        self.dtype = value_type.dtype or "float32"
        self.shape: tuple[Dimension, ...] | None = value_type.shape
        self.nodes: list[Node] = []
        self.types: dict[str, TensorType] = {value: value_type}
        self.initializers: dict[str, Initializer] = {}

    @property
    def opset(self) -> int:
        """The opset that the network's own operators have, and new ones should have, so that an engine finds one opset for all."""
        return self._network.opsets.get("", DEFAULT_OPSET)

    @property
    def type(self) -> TensorType:
        """The type of the last value."""
        return TensorType(self.dtype, self.shape)

    def hold(self, purpose: str, array: np.ndarray[Any, Any]) -> str:
        """Returns the name of a new constant."""
        name = self._names.value(f"{self._base}/{purpose}")
        self.initializers[name] = constant = Initializer.of_array(array)
        self.types[name] = constant.type
        return name

    def add(
        self,
        op_type: str,
        *more: str,
        dtype: str | None = None,
        shape: tuple[Dimension, ...] | None = None,
        attributes: Mapping[str, Any] = EMPTY,
        begins: str = "",
    ) -> None:
        """Adds a node that reads the last value and `more`; `dtype` and `shape` are the new ones where they change.

        `begins` is read before the last value: the first operand of an operator that does not commute.
        """
        opset = max(self.opset, _FIRST_OPSET[op_type])
        value = self._names.value(f"{self._base}/{op_type.lower()}")
        name = self._names.node(f"{self._base}/{op_type.lower()}")
        inputs = (begins, self.value, *more) if begins else (self.value, *more)
        self.nodes.append(Node(name, op_type, inputs, (value,), "", opset, since_version(op_type, "", opset), attributes))
        self.value = value
        self.dtype = self.dtype if dtype is None else dtype
        self.shape = self.shape if shape is None else shape
        self.types[value] = self.type

    def cast(self, dtype: str) -> None:
        """Adds a Cast unless the value is of this element type."""
        from hetero_core.dtypes import onnx_of_dtype

        if dtype != self.dtype:
            self.add("Cast", dtype=dtype, attributes={"to": onnx_of_dtype(dtype)})

    def transpose(self, order: tuple[int, ...]) -> None:
        """Adds a Transpose unless the order is that of the value."""
        if order != tuple(range(len(order))):
            shape = None if self.shape is None else tuple(self.shape[axis] for axis in order)
            self.add("Transpose", shape=shape, attributes={"perm": order})

    def rename_end(self, name: str) -> None:
        """Gives the last value, which a node of the chain makes, another name."""
        from dataclasses import replace

        self.types[name] = self.types.pop(self.value)
        self.nodes[-1] = replace(self.nodes[-1], outputs=(name,))
        self.value = name
