"""Models of ai.onnx.ml in a form that has machine code: scalers as arithmetic, classifiers with labels that are numbers.

```text
Scaler                           ──> Sub ── Mul
classifier, labels that are text ──> classifier, labels 0, 1, ... ── Gather from the texts
ArrayFeatureExtractor            ──> Reshape ── Gather
```
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import numpy as np

from hetero_core.network.graph import Network, Node
from hetero_core.network.renaming import FreshNames
from hetero_core.network.types import TensorType, ValueType, shape_of
from hetero_core.transforms.rewrite import Replacement, replace_nodes
from hetero_cpu.transforms.microsoft import NodeWriter

_LABELS = {"LinearClassifier": "classlabels_ints", "TreeEnsembleClassifier": "classlabels_int64s"}
_SCALER = (("offset", 0.0), ("scale", 1.0))


def rewrite_models(network: Network) -> Network:
    """Returns the network with its Scalers of float32 as Sub and Mul, and the texts of its classifiers in a Gather."""
    names, types = FreshNames(network), dict[str, ValueType]()

    def rewrite(node: Node) -> Replacement | None:
        if node.domain != "ai.onnx.ml":
            return None
        writer, texts = NodeWriter(network, names, types, node.name), node.attributes.get("classlabels_strings")
        if node.op_type == "Scaler" and _is_plain(network, node):
            offset, scale = (np.array(node.attributes.get(name, (default,)), np.float32) for name, default in _SCALER)
            centered = writer.add("Sub", node.inputs[0], writer.add_constant(offset))
            writer.add("Mul", centered, writer.add_constant(scale), output=node.outputs[0])
        elif node.op_type in _LABELS and texts and node.outputs[0]:
            index = names.value(f"{node.outputs[0]}/index")
            types[index] = TensorType("int64", getattr(network.type_of(node.outputs[0]), "shape", None))
            attributes = {name: value for name, value in node.attributes.items() if name != "classlabels_strings"}
            attributes[_LABELS[node.op_type]] = tuple(range(len(texts)))
            writer.nodes.append(replace(node, outputs=(index, *node.outputs[1:]), attributes=MappingProxyType(attributes)))
            writer.add("Gather", writer.add_constant(np.array(texts, object)), index, output=node.outputs[0])
        elif node.op_type == "ArrayFeatureExtractor" and (shape := shape_of(network.type_of(node.inputs[0]))) is not None:
            index = writer.add("Reshape", node.inputs[1], writer.add_integers(-1))
            if len(shape) == 1:
                row = writer.add("Gather", node.inputs[0], index, axis=0)
                writer.add("Reshape", row, writer.add_integers(1, -1), output=node.outputs[0])
            else:
                writer.add("Gather", node.inputs[0], index, axis=len(shape) - 1, output=node.outputs[0])
        else:
            return None
        return writer.finish()

    return replace_nodes(network, rewrite)


def _is_plain(network: Network, node: Node) -> bool:
    """Says whether a Scaler reads float32 and has a number for each feature, or one for all."""
    value_type = network.type_of(node.inputs[0])
    if not isinstance(value_type, TensorType) or value_type.dtype != "float32" or not value_type.shape:
        return False
    return all(len(node.attributes.get(name, (default,))) in (1, value_type.shape[-1]) for name, default in _SCALER)
