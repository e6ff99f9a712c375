"""Models of ai.onnx.ml in a form that has machine code: scalers as arithmetic, labels that are numbers.

```text
Scaler                           ──> Sub ── Mul
Imputer                          ──> IsNaN or Equal ── Where
classifier, labels that are text ──> classifier, labels 0, 1, ... ── Gather from the texts
OneHotEncoder of int64           ──> Unsqueeze ── Equal ── Cast
Scan of rows: Sub, sum of squares or magnitudes ──> CDist
```
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import numpy as np

from hetero_core.kernels.registry import TOOLKIT, prepare_node
from hetero_core.network.contrib_types import MICROSOFT
from hetero_core.network.graph import Network, Node
from hetero_core.network.inference import read_numbers
from hetero_core.network.renaming import FreshNames
from hetero_core.network.types import TensorType, ValueType
from hetero_core.transforms.rewrite import Replacement, replace_nodes
from hetero_cpu.transforms.microsoft import NodeWriter

_LABELS = {"LinearClassifier": "classlabels_ints", "TreeEnsembleClassifier": "classlabels_int64s"}
_SCALER = (("offset", 0.0), ("scale", 1.0))


def rewrite_models(network: Network) -> Network:
    """Returns the network with its Scalers of float32 as Sub and Mul, the texts of its classifiers in a Gather, and distances as CDist."""
    names, types = FreshNames(network), dict[str, ValueType]()

    def rewrite(node: Node) -> Replacement | None:
        if node.op_type == "Scan":
            return _measure_distances(network, names, types, node)
        if node.domain != "ai.onnx.ml":
            return None
        writer, texts = NodeWriter(network, names, types, node.name), node.attributes.get("classlabels_strings")
        if node.op_type == "Scaler" and _is_scaler(types.get(node.inputs[0]) or network.type_of(node.inputs[0]), node):
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
        elif node.op_type == "OneHotEncoder" and (categories := _find_categories(network, node)):
            column = writer.add("Unsqueeze", node.inputs[0], writer.add_integers(-1))
            is_category = writer.add("Equal", column, writer.add_integers(*categories))
            writer.add("Cast", is_category, to=1, output=node.outputs[0])
        elif node.op_type == "Imputer":
            _replace_missing(writer, node, network)
        else:
            return None
        return writer.finish() if writer.nodes else None

    return replace_nodes(network, rewrite)


def _is_scaler(x: ValueType | None, node: Node) -> bool:
    """Says whether a Scaler reads float32, and has a number for each feature, or one for all."""
    if not isinstance(x, TensorType) or x.dtype != "float32" or not x.shape:
        return False
    return all(len(node.attributes.get(name, (default,))) in (1, x.shape[-1]) for name, default in _SCALER)


def _find_categories(network: Network, node: Node) -> tuple[int, ...]:
    """Returns the distinct categories of a OneHotEncoder of int64 that gives zeros for others; nothing for any other."""
    x, categories = network.type_of(node.inputs[0]), tuple(node.attributes.get("cats_int64s", ()))
    if not isinstance(x, TensorType) or x.dtype != "int64" or not x.shape or not node.attributes.get("zeros", 1):
        return ()
    return categories if not node.attributes.get("cats_strings") and len(set(categories)) == len(categories) else ()


def _replace_missing(writer: NodeWriter, node: Node, network: Network) -> None:
    """Adds the nodes of an Imputer; none for values that do not fit its input, which the toolkit's kernel refuses."""
    x, record = network.type_of(node.inputs[0]), TOOLKIT.find(node)
    if not isinstance(x, TensorType) or not x.dtype or not x.shape or record is None:
        return
    try:
        values, missing = prepare_node(node, record, (x,))
    except ValueError:
        return
    if len(values) not in (1, x.shape[-1]):
        return
    imputed, replaced = (writer.add_constant(np.array(numbers, x.dtype)) for numbers in (values, missing))
    is_missing = writer.add("IsNaN", node.inputs[0]) if np.isnan(missing) else writer.add("Equal", node.inputs[0], replaced)
    writer.add("Where", is_missing, imputed, node.inputs[0], output=node.outputs[0])


def _measure_distances(network: Network, names: FreshNames, types: dict[str, ValueType], node: Node) -> Replacement | None:
    """Returns a CDist for a Scan over rows that takes each from all rows of its state, which stays, and sums squares or magnitudes.

    Neighbors and Gaussian processes of scikit-learn are exported so.
    """
    body, specs = node.bodies["body"], [network.type_of(value) for value in node.inputs]
    is_plain = len(specs) == 2 and len(node.outputs) == 2 and not node.captures and node.opset >= 9
    if not is_plain or any(value for name, value in node.attributes.items() if name.startswith("scan_") and any(value)):
        return None
    state, row = specs
    if not (isinstance(state, TensorType) and isinstance(row, TensorType) and state.dtype == row.dtype in ("float32", "float64")):
        return None
    if not (state.shape and row.shape and len(state.shape) == len(row.shape) == 2 and state.shape[1] == row.shape[1]):
        return None
    producers = {value: inner for inner in body.nodes for value in inner.writes}

    def find_source(value: str) -> str:
        while value in producers and producers[value].op_type == "Identity":
            value = producers[value].inputs[0]
        return value

    (state_name, row_name), (kept_name, sums_name) = ([spec.name for spec in own] for own in (body.inputs, body.outputs))
    sums = producers.get(find_source(sums_name))
    if find_source(kept_name) != state_name or sums is None or sums.attributes.get("keepdims", 1):
        return None
    axes = read_numbers(body.initializers, sums.inputs[1]) if len(sums.inputs) > 1 else sums.attributes.get("axes")
    difference = producers.get(find_source(sums.inputs[0]))
    if sums.op_type == "ReduceSum" and difference is not None and difference.op_type == "Abs":
        metric, difference = "cityblock", producers.get(find_source(difference.inputs[0]))
    elif sums.op_type == "ReduceSumSquare":
        metric = "sqeuclidean"
    else:
        return None
    if tuple(axes or ()) not in ((1,), (-1,)) or difference is None or difference.op_type != "Sub":
        return None
    if {find_source(value) for value in difference.inputs} != {state_name, row_name}:
        return None
    writer = NodeWriter(network, names, types, node.name)
    if node.outputs[0]:
        writer.add("Identity", node.inputs[0], output=node.outputs[0])
    attributes, name = MappingProxyType({"metric": metric}), names.node(f"{node.name}/CDist")
    writer.nodes.append(Node(name, "CDist", node.inputs[::-1], node.outputs[1:], MICROSOFT, 1, 0, attributes))
    return writer.finish()
