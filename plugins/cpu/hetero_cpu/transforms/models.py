"""Models of ai.onnx.ml in a form that has machine code: scalers as arithmetic, classifiers with labels that are numbers.

```text
Scaler                           ──> Sub ── Mul
classifier, labels that are text ──> classifier, labels 0, 1, ... ── Gather from the texts
```
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from hetero_core.network.graph import Network, Node
from hetero_core.network.initializers import Initializer
from hetero_core.network.renaming import FreshNames
from hetero_core.network.types import TensorType

_OPSET = 14
_LABELS = {"LinearClassifier": "classlabels_ints", "TreeEnsembleClassifier": "classlabels_int64s"}


def rewrite_models(network: Network) -> Network:
    """Returns the network with its Scalers of float32 as Sub and Mul, and the texts of its classifiers in a Gather."""
    rewriting = _Rewriting(network)
    for node in network.nodes:
        rewriting.add(node)
    return rewriting.finish()


class _Rewriting:
    def __init__(self, network: Network) -> None:
        self._network, self._names = network, FreshNames(network)
        self._nodes: list[Node] = []
        self._types, self._constants = dict(network.types), dict(network.initializers)

    def add(self, node: Node) -> None:
        """Adds a node of the model, rewritten or as it is."""
        if node.domain != "ai.onnx.ml":
            self._nodes.append(node)
        elif node.op_type == "Scaler" and self._is_plain(node):
            offset, scale = (np.array(node.attributes.get(name, (default,)), np.float32) for name, default in _SCALER)
            centered = self._name(node.outputs[0], "centered", self._types[node.inputs[0]])
            self._emit("Sub", (node.inputs[0], self._constant(node, "offset", offset)), centered, node)
            self._emit("Mul", (centered, self._constant(node, "scale", scale)), node.outputs[0], node)
        elif node.op_type in _LABELS and node.attributes.get("classlabels_strings") and node.outputs[0]:
            texts = np.array(node.attributes["classlabels_strings"], object)
            label_type = self._types.get(node.outputs[0])
            index = self._name(node.outputs[0], "index", TensorType("int64", getattr(label_type, "shape", None)))
            attributes = {name: value for name, value in node.attributes.items() if name != "classlabels_strings"}
            attributes[_LABELS[node.op_type]] = tuple(range(len(texts)))
            self._nodes.append(replace(node, outputs=(index, *node.outputs[1:]), attributes=MappingProxyType(attributes)))
            self._emit("Gather", (self._constant(node, "labels", texts), index), node.outputs[0], node)
        else:
            self._nodes.append(node)

    def finish(self) -> Network:
        """Returns the network, itself if it has no such node."""
        if len(self._constants) == len(self._network.initializers):
            return self._network
        types, constants = MappingProxyType(self._types), MappingProxyType(self._constants)
        return replace(self._network, nodes=tuple(self._nodes), types=types, initializers=constants)

    def _is_plain(self, node: Node) -> bool:
        """Says whether a Scaler reads float32 and has a number for each feature, or one for all."""
        value_type = self._types.get(node.inputs[0])
        if not isinstance(value_type, TensorType) or value_type.dtype != "float32" or not value_type.shape:
            return False
        return all(len(node.attributes.get(name, (default,))) in (1, value_type.shape[-1]) for name, default in _SCALER)

    def _name(self, value: str, suffix: str, value_type: Any) -> str:
        name = self._names.value(f"{value}/{suffix}")
        self._types[name] = value_type
        return name

    def _constant(self, node: Node, suffix: str, array: Any) -> str:
        dtype = "string" if array.dtype == object else array.dtype.name
        name = self._name(node.outputs[0], suffix, TensorType(dtype, array.shape))
        self._constants[name] = Initializer(dtype, array.shape, lambda: array, array=array)
        return name

    def _emit(self, op_type: str, inputs: Sequence[str], output: str, owner: Node) -> None:
        name, origins = self._names.node(f"{op_type}/{output}"), owner.origins
        self._nodes.append(
            Node(name, op_type, tuple(inputs), (output,), opset=_OPSET, since_version=_SINCE[op_type], origins=origins)
        )


_SCALER = (("offset", 0.0), ("scale", 1.0))
_SINCE = {"Gather": 13, "Mul": 14, "Sub": 14}
