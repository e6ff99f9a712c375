"""What `onnx.reference` 1.23 computes wrongly and this device does not correct: refused, with the reason. Gone when onnx has mended it."""

from __future__ import annotations

from hetero_core.kernels.expressions import compile_match
from hetero_core.network.graph import Network, Node
from hetero_core.network.types import OptionalType, SequenceType, TensorType, ValueSpec
from hetero_template.ml_faults import find_ml_fault


def find_fault(node: Node, network: Network) -> str | None:
    """Returns why the evaluator's answer for this node could not be trusted, or None."""
    if node.domain == "ai.onnx.ml":
        return find_ml_fault(node, network)
    if node.domain:
        return None
    if node.op_type == "RegexFullMatch":
        try:
            compile_match(node.attributes.get("pattern", ""))
        except ValueError as error:
            return f"{node.operator} {error}"
        return None
    if node.op_type == "GridSample" and node.attributes.get("padding_mode") == "border":
        if node.attributes.get("mode") in ("cubic", "bicubic"):
            return f"{node.operator} with a cubic and the padding mode border: onnx.reference moves positions to the border first"
        return None
    if node.op_type == "Erf" and getattr(network.type_of(node.inputs[0]), "dtype", None) == "float64":
        return f"{node.operator} of float64: onnx.reference computes it in float32"
    if node.op_type == "ConvTranspose" and _has_wide_groups(node, network):
        return f"{node.operator} with several channels in each of its groups: onnx.reference lays them out wrongly"
    if node.op_type == "Loop" and not "".join(node.inputs[1:2]):
        return f"{node.operator} without a condition: onnx.reference makes no trip"
    if node.op_type == "MaxPool" and _is_mixed_up_pooling(node):
        return f"{node.operator} with a stride of 1 and pads that differ, or along one axis: onnx.reference mixes up the sides"
    if node.op_type == "BatchNormalization" and 7 <= node.since_version < 14 and _is_training(node):
        return f"{node.operator} is supported for inference with one output and spatial = 1"
    if node.op_type == "Scan" and node.since_version < 9:
        return f"{node.operator} has a batch axis, which onnx.reference does not know"
    if node.op_type == "Scan" and not 0 <= node.attributes.get("num_scan_inputs", 0) <= len(node.inputs):
        return f"{node.operator} says that it scans {node.attributes['num_scan_inputs']} inputs and has {len(node.inputs)}"
    if node.op_type == "Loop" and _has_wide_scan_output(node):
        return f"{node.operator} with a scan output of several dimensions: onnx.reference joins the trips along the first of them"
    if node.op_type == "Loop" and _has_scalar_scan_output(node):
        return f"{node.operator} with a scan output that has no dimensions (or may have none): onnx.reference adds one"
    if node.op_type == "If" and any(_is_optional_sequence(network, value) for value in node.writes):
        return f"{node.operator} with an optional sequence as output: onnx.reference wraps it twice"
    return None


def _has_wide_groups(node: Node, network: Network) -> bool:
    group = node.attributes.get("group", 1)
    name = node.inputs[1]
    weight = network.initializers[name].type if name in network.initializers else network.type_of(name)
    return group > 1 and not (isinstance(weight, TensorType) and weight.shape and weight.shape[0] == group)


def _is_mixed_up_pooling(node: Node) -> bool:
    """Says whether a pooling takes the evaluator's way for windows side by side, with pads that it puts on other sides."""
    moves = (*node.attributes.get("strides", ()), *node.attributes.get("dilations", ()))
    pads = node.attributes.get("pads", ())
    return all(step == 1 for step in moves) and (len(set(pads)) > 1 or (len(pads) == 2 and any(pads)))


def _is_training(node: Node) -> bool:
    return len(node.writes) > 1 or node.attributes.get("spatial", 1) != 1


def _list_scan_outputs(node: Node) -> tuple[ValueSpec, ...]:
    carried = max(len(node.inputs) - 2, 0)
    return tuple(node.attributes["body"].outputs[1 + carried :])


def _has_wide_scan_output(node: Node) -> bool:
    types = [spec.type for spec in _list_scan_outputs(node)]
    return any(isinstance(one, TensorType) and len(one.shape or ()) > 1 for one in types)


def _has_scalar_scan_output(node: Node) -> bool:
    return any(not isinstance(spec.type, TensorType) or not spec.type.shape for spec in _list_scan_outputs(node))


def _is_optional_sequence(network: Network, value: str) -> bool:
    found = network.type_of(value)
    return isinstance(found, OptionalType) and isinstance(found.element, SequenceType)
