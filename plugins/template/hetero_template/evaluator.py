"""One node of a network as an evaluator of `onnx.reference`, or the reason why there is none.

Query and load build the same evaluator: what cannot be built is refused, with the reason that building gave.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx.defs
import onnx.helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from hetero_core.contract import Extension
from hetero_core.kernels.program import bind_kernel
from hetero_core.kernels.registry import find_kernel
from hetero_core.kernels.registry import find_refusal as refuse_by_kernel
from hetero_core.network.graph import Network, Node, iterate_graphs
from hetero_core.network.type_protos import write_spec
from hetero_core.network.types import TensorType, ValueSpec
from hetero_core.network.writer import node_to_proto
from hetero_template.corrections import find_corrections
from hetero_template.faults import find_fault

ExtensionTable = dict[tuple[str, str], Extension]
Evaluate = Callable[[Mapping[str, Any]], tuple[Any, ...]]
"""Returns the outputs of a node, in order of its named outputs, from a mapping that holds all values that it reads."""


def find_refusal(node: Node, network: Network, extensions: ExtensionTable) -> str | None:
    """Returns why the device cannot run the node, or None when it can."""
    try:
        build_evaluator(node, network, extensions)
    except Exception as error:  # noqa: BLE001  # onnx raises many kinds; the text is the reason that the user reads
        return str(error).strip().partition("\n")[0] or type(error).__name__
    return None


def build_evaluator(node: Node, network: Network, extensions: ExtensionTable) -> Evaluate:
    """Returns the function that runs the node.

    Raises: NotImplementedError with the reason, or what onnx raises.
    """
    extension = extensions.get((node.domain, node.op_type))
    if extension is not None:
        return _evaluate_extension(node, extension)
    if not node.since_version:
        return _evaluate_kernel(node, network, f"operator {node.operator} is known neither to ONNX nor as an extension")
    _refuse_mixed_opsets(node)
    fault = find_fault(node, network)
    if fault is not None:
        raise NotImplementedError(fault)
    try:
        evaluator = ReferenceEvaluator(_wrap_node(node, network), new_ops=_list_operators(node, extensions))
    except RuntimeError as error:
        # onnx.reference lacks some old versions, as DequantizeLinear-13.
        return _evaluate_kernel(node, network, str(error))
    _refuse_unknown_attributes(node, evaluator.rt_nodes_[0])
    names = node.reads
    return lambda values: tuple(evaluator.run(None, {name: values[name] for name in names}))


def _evaluate_kernel(node: Node, network: Network, lack: str) -> Evaluate:
    """Runs what onnx.reference has not by the core's own NumPy function; where that, too, is missing, `lack` is the reason.

    A node with bodies is refused: the function would have to be given them as programs.
    """
    kernel, types = find_kernel(node), tuple(network.type_of(name) if name else None for name in node.inputs)
    if kernel is None or node.bodies:
        raise NotImplementedError(lack)
    reason = refuse_by_kernel(node, types)
    if reason is not None:
        raise NotImplementedError(reason)
    function = bind_kernel(node, kernel, np, types)

    def evaluate(values: Mapping[str, Any]) -> tuple[Any, ...]:
        result = function(*(values[name] if name else None for name in node.inputs))
        outputs = result if isinstance(result, tuple) else (result,)
        return tuple(np.asarray(output) for name, output in zip(node.outputs, outputs, strict=False) if name)

    return evaluate


def _evaluate_extension(node: Node, extension: Extension) -> Evaluate:
    def evaluate(values: Mapping[str, Any]) -> tuple[Any, ...]:
        result = extension.function(*(values[name] if name else None for name in node.inputs), **node.attributes)
        return result if isinstance(result, tuple) else (result,)

    return evaluate


def _wrap_node(node: Node, network: Network) -> onnx.ModelProto:
    """Returns a model of the one node; its types are given because some operators are functions that depend on them."""
    proto = node_to_proto(node)
    _fill_defaults(node, proto)
    inputs = [_describe_value(name, network) for name in node.reads]
    outputs = [_describe_value(name, network) for name in node.writes]
    graph = onnx.helper.make_graph([proto], "node", inputs, outputs)
    opsets = dict(_opsets_of(node))
    return onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    )


def _describe_value(name: str, network: Network) -> onnx.ValueInfoProto:
    value = onnx.ValueInfoProto()
    write_spec(ValueSpec(name, network.type_of(name) or TensorType(None)), value)
    return value


def _fill_defaults(node: Node, proto: onnx.NodeProto) -> None:
    """Writes out the defaults of the node's own version; the evaluator would take those of the newest one."""
    given = {attribute.name for attribute in proto.attribute}
    for name, attribute in onnx.defs.get_schema(node.op_type, node.since_version, node.domain).attributes.items():
        if name not in given and attribute.default_value.type != onnx.AttributeProto.UNDEFINED:
            proto.attribute.append(attribute.default_value)


def _opsets_of(node: Node) -> dict[str, int]:
    opsets = {node.domain: node.opset}
    for body in node.bodies.values():
        for graph in iterate_graphs(body):
            for inner in graph.nodes:
                opsets.setdefault(inner.domain, inner.opset)
    opsets.setdefault("", onnx.defs.onnx_opset_version())
    return opsets


def _refuse_mixed_opsets(node: Node) -> None:
    opsets = _opsets_of(node)
    for body in node.bodies.values():
        for graph in iterate_graphs(body):
            for inner in graph.nodes:
                if inner.opset != opsets[inner.domain]:
                    raise NotImplementedError(
                        f"its body has node {inner.label} of opset {inner.opset} beside opset {opsets[inner.domain]}, "
                        "which onnx.reference cannot tell apart"
                    )


def _list_operators(node: Node, extensions: ExtensionTable) -> list[type[OpRun]]:
    opset = _opsets_of(node)[""]
    return [*find_corrections(opset), *(_make_operator(extension) for extension in extensions.values())]


def _make_operator(extension: Extension) -> type[OpRun]:
    """Returns the class that lets the evaluator meet the extension inside a body."""

    def run(self: OpRun, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        result = extension.function(*inputs, **attributes)
        return result if isinstance(result, tuple) else (result,)

    return type(extension.op_type, (OpRun,), {"op_domain": extension.domain, "_run": run})


def _refuse_unknown_attributes(node: Node, operator: Any) -> None:
    """An attribute that the evaluator's own function does not take would fail at run time; an old one may be meant otherwise."""
    if type(operator).run is not OpRun.run:
        return  # such an operator reads its attributes from itself
    parameters = inspect.signature(operator._run).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    unknown = sorted(name for name in operator.attributes_names_ if name not in parameters)
    if unknown:
        raise NotImplementedError(f"onnx.reference does not know the attribute {', '.join(unknown)} of {node.operator}")
