"""Networks put right for ONNX Runtime's CPU provider: nodes that it computes wrongly, or at which it ends the process, are replaced.

A correction costs little beside the node that it replaces, and holds for values and sizes that come with the run. Faults without a
correction are refused by the table in `known_errors`. Seen with ONNX Runtime 1.32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from types import MappingProxyType
from typing import Any, cast

import numpy as np

from hetero_core.dtypes import onnx_of_dtype
from hetero_core.engines.inspection import dtype_of_input, find_reduced_axes, find_shape, has_input
from hetero_core.engines.known_errors import surround
from hetero_core.network.contrib_types import MICROSOFT
from hetero_core.network.graph import Graph, Network, Node, iterate_graphs
from hetero_core.network.initializers import Initializer
from hetero_core.network.types import TensorType

MANY = 1 << 20
"""Elements from which on the engine's sums in float32 are off by more than rounding: 2.4 % for 20 million."""


def correct_network(network: Network, *, saturates: bool) -> Network:
    """Returns the network with corrections in its graph and its bodies.

    `saturates` says that products of uint8 and int8 saturate on this processor.
    """
    corrected = cast(Network, _Corrector(network, saturates).correct_graph(network))
    if corrected is network:
        return network
    # The engine does not find again a constant that is given by reference and that nothing reads any more.
    read = {name for graph in iterate_graphs(corrected) for node in graph.nodes for name in node.inputs}
    read.update(spec.name for graph in iterate_graphs(corrected) for spec in graph.outputs)
    constants = {name: constant for name, constant in corrected.initializers.items() if name in read}
    return replace(corrected, initializers=MappingProxyType(constants))


class _Corrector:
    """The corrections of one network. Names of new values and nodes are unique in it."""

    def __init__(self, network: Network, saturates: bool) -> None:
        self.opset = network.opsets.get("", 1)
        self.saturates = saturates
        self.shifts_dequantized = saturates and _dequantizes_both(network)
        self._count = 0
        self._graph: Graph = network
        self._nodes: list[Node] = []
        self._constants: dict[str, Initializer] = {}

    def correct_graph(self, graph: Graph, outer: Graph | None = None) -> Graph:
        """Returns a graph with corrections; `outer` holds types and constants of the graphs around it."""
        around = graph if outer is None else surround(graph, outer)
        above = self._nodes, self._constants
        nodes: list[Node] = []
        constants: dict[str, Initializer] = {}
        for node in graph.nodes:
            corrected = node.with_bodies({name: self.correct_graph(body, around) for name, body in node.bodies.items()})
            corrected = self._name_outputs(corrected)
            self._graph, self._nodes, self._constants = graph, nodes, constants
            correction = _CORRECTIONS.get((node.domain, node.op_type))
            if correction is None or not correction(self, corrected, around):
                nodes.append(corrected)
        self._nodes, self._constants = above
        if len(nodes) == len(graph.nodes) and all(new is old for new, old in zip(nodes, graph.nodes, strict=True)):
            return graph
        initializers = MappingProxyType({**graph.initializers, **constants})
        types = MappingProxyType({**graph.types, **{name: constant.type for name, constant in constants.items()}})
        return replace(graph, nodes=tuple(nodes), initializers=initializers, types=types)

    def _name_outputs(self, node: Node) -> Node:
        """Returns the node with a name for each output that nothing reads, if the engine ends the process without one."""
        if (node.domain, node.op_type) not in (("", "Split"), ("", "Loop")) or all(node.outputs):
            return node
        return replace(node, outputs=tuple(name or self.name_value("unread") for name in node.outputs))

    def add(self, op_type: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        """Appends a node with a single output and returns the output's name."""
        name = self.name_value(op_type) if output is None else output
        self._nodes.append(
            Node(self.name_value("node"), op_type, inputs, (name,), opset=self.opset, attributes=MappingProxyType(attributes))
        )
        return name

    def is_captured(self, constant: str) -> bool:
        """Says whether a constant belongs to a graph around the one that is being corrected."""
        return constant not in self._graph.initializers and constant not in self._constants

    def keep(self, node: Node, **changes: Any) -> bool:
        """Appends a node with changes."""
        self._nodes.append(replace(node, **changes))
        return True

    def constant(self, array: Any) -> str:
        """Adds a constant to the graph and returns its name."""
        name = self.name_value("constant")
        self._constants[name] = Initializer.of_array(np.asarray(array))
        return name

    def name_value(self, stem: str) -> str:
        """Returns an unused name."""
        self._count += 1
        return f"hetero/corrected/{stem}_{self._count}"


def _correct_integer_sum(corrector: _Corrector, node: Node, graph: Graph) -> bool:
    """Adds up int32 in int64, and of int64 the upper and the lower halves: the engine adds in float64 and saturates."""
    dtype = dtype_of_input(node, graph)
    if dtype not in ("int32", "int64"):
        return False
    value = node.inputs[0]
    if dtype == "int32":
        value = corrector.add("Cast", value, to=onnx_of_dtype("int64"))
    if node.op_type == "ReduceL1":
        value = corrector.add("Abs", value)
    elif node.op_type == "ReduceSumSquare":
        value = corrector.add("Mul", value, value)
    if dtype == "int32" and node.op_type != "ReduceSumSquare":
        total = _add_sum(corrector, node, value)
    else:
        base = corrector.constant(np.array(2**32, np.int64))
        upper = corrector.add("Div", value, base)
        lower = corrector.add("Sub", value, corrector.add("Mul", upper, base))
        sums = (corrector.add("Mul", _add_sum(corrector, node, upper), base), _add_sum(corrector, node, lower))
        if dtype == "int64":
            corrector.add("Add", *sums, output=node.outputs[0])
            return True
        total = corrector.add("Add", *sums)
    corrector.add("Cast", total, output=node.outputs[0], to=onnx_of_dtype("int32"))
    return True


def _add_sum(corrector: _Corrector, node: Node, value: str) -> str:
    """Appends a ReduceSum over the axes of a reduction. Axes are an input of ReduceSum from opset 13 on, of every reduction from 18 on."""
    attributes = dict(node.attributes)
    axes = node.inputs[1:]
    if "axes" in attributes and corrector.opset >= 13:
        axes = (corrector.constant(np.array(attributes.pop("axes"), np.int64)),)
    return corrector.add("ReduceSum", value, *axes, **attributes)


def _correct_float_sum(corrector: _Corrector, node: Node, graph: Graph) -> bool:
    if dtype_of_input(node, graph) != "float32":
        return False
    count = _count_reduced(node, graph)
    if count is not None and count < MANY:
        return False
    wide = corrector.add("Cast", node.inputs[0], to=onnx_of_dtype("float64"))
    if node.op_type == "ReduceMean":
        output = corrector.name_value("mean")
        corrector.keep(node, inputs=(wide, *node.inputs[1:]), outputs=(output,))
    else:
        square = node.op_type in ("ReduceL2", "ReduceSumSquare")
        each = corrector.add("Mul", wide, wide) if square else corrector.add("Abs", wide) if node.op_type == "ReduceL1" else wide
        output = _add_sum(corrector, node, each)
    final = {"ReduceL2": "Sqrt", "ReduceLogSum": "Log"}.get(node.op_type)
    if final is not None:
        output = corrector.add(final, output)
    corrector.add("Cast", output, output=node.outputs[0], to=onnx_of_dtype("float32"))
    return True


def _correct_reduction(corrector: _Corrector, node: Node, graph: Graph) -> bool:
    return (node.op_type in _INTEGER_SUMS and _correct_integer_sum(corrector, node, graph)) or _correct_float_sum(
        corrector, node, graph
    )


def _count_reduced(node: Node, graph: Graph) -> int | None:
    shape, axes = find_shape(node, graph), find_reduced_axes(node, graph)
    sizes = None if shape is None or axes is None else [shape[axis] for axis in axes]
    if sizes is None or not all(isinstance(size, int) for size in sizes):
        return None
    return prod(cast("list[int]", sizes))


def _correct_group_normalization(corrector: _Corrector, node: Node, graph: Graph) -> bool:
    """Normalizes each group as an instance: the engine takes the mean of the squares less the square of the mean."""
    shape, dtype = find_shape(node, graph), dtype_of_input(node, graph)
    if node.since_version < 21 or dtype not in ("float32", "float64", "float16") or not shape or len(shape) < 3 or 0 in shape:
        return False
    groups = int(node.attributes["num_groups"])
    value, work = node.inputs[0], "float64" if dtype == "float64" else "float32"
    wide = corrector.add("Cast", value, to=onnx_of_dtype(work))
    layout = corrector.constant(np.array([0, groups, -1], np.int64))
    units, zeros = (corrector.constant(np.full(groups, fill, work)) for fill in (1, 0))
    epsilon = node.attributes.get("epsilon", 1e-5)
    normal = corrector.add("InstanceNormalization", corrector.add("Reshape", wide, layout), units, zeros, epsilon=epsilon)
    channels = corrector.constant(np.array([1, -1, *[1] * (len(shape) - 2)], np.int64))
    scale, bias = (
        corrector.add("Reshape", corrector.add("Cast", name, to=onnx_of_dtype(work)), channels) for name in node.inputs[1:3]
    )
    normal = corrector.add("Reshape", normal, corrector.add("Shape", value))
    result = corrector.add("Add", corrector.add("Mul", normal, scale), bias)
    corrector.add("Cast", result, output=node.outputs[0], to=onnx_of_dtype(dtype))
    return True


def has_int8(network: Network) -> bool:
    """Says whether a network, or a body in it, has a value of int8."""
    return any(
        isinstance(value_type, TensorType) and value_type.dtype == "int8"
        for graph in iterate_graphs(network)
        for value_type in (*graph.types.values(), *(constant.type for constant in graph.initializers.values()))
    )


def _dequantizes_both(network: Network) -> bool:
    dtypes = {
        dtype_of_input(node, graph)
        for graph in iterate_graphs(network)
        for node in graph.nodes
        if node.op_type == "DequantizeLinear"
    }
    return not dtypes.isdisjoint({"uint8", None}) and not dtypes.isdisjoint({"int8", None})


def _shift_product(weight: int, point: int) -> Callable[[_Corrector, Node, Graph], bool]:
    """Returns a correction that makes uint8 of an int8 operand and its zero point, both more by 128."""

    def correct(corrector: _Corrector, node: Node, graph: Graph) -> bool:
        if not corrector.saturates or dtype_of_input(node, graph, weight) != "int8":
            return False
        if dtype_of_input(node, graph) == "int8":
            return False
        inputs = [*node.inputs, *[""] * (point + 1 - len(node.inputs))]
        for index in (weight, point):
            inputs[index] = (
                _shift(corrector, inputs[index], graph) if inputs[index] else corrector.constant(np.array(128, np.uint8))
            )
        return corrector.keep(node, inputs=tuple(inputs))

    return correct


def _shift(corrector: _Corrector, name: str, graph: Graph) -> str:
    constant = graph.initializers.get(name)
    if constant is not None:
        return corrector.constant(constant.array.view(np.uint8) ^ np.uint8(128))
    wide = corrector.add("Cast", name, to=onnx_of_dtype("int32"))
    return corrector.add("Cast", corrector.add("Add", wide, corrector.constant(np.array(128, np.int32))), to=onnx_of_dtype("uint8"))


def _shift_recurrent(corrector: _Corrector, node: Node, graph: Graph) -> bool:
    for weight, point in ((1, 9), (2, 11)):
        if corrector.saturates and dtype_of_input(node, graph, weight) == "int8":
            inputs = list(node.inputs)
            inputs[weight], inputs[point] = _shift(corrector, inputs[weight], graph), _shift(corrector, inputs[point], graph)
            node = replace(node, inputs=tuple(inputs))
    return corrector.keep(node)


def _shift_convolution(corrector: _Corrector, node: Node, graph: Graph) -> bool:
    """Makes uint8 of an int8 image: ConvInteger multiplies filters by images, so that uint8 filters and int8 images saturate."""
    if not corrector.saturates or (dtype_of_input(node, graph), dtype_of_input(node, graph, 1)) != ("int8", "uint8"):
        return False
    inputs = [*node.inputs, *[""] * (3 - len(node.inputs))]
    inputs[0] = _shift(corrector, inputs[0], graph)
    inputs[2] = _shift(corrector, inputs[2], graph) if inputs[2] else corrector.constant(np.array(128, np.uint8))
    return corrector.keep(node, inputs=tuple(inputs))


def _shift_dequantized(corrector: _Corrector, node: Node, graph: Graph) -> Node:
    """Returns a dequantization of uint8 in place of int8, if the engine would otherwise fuse a product of uint8 and int8."""
    if not corrector.shifts_dequantized or dtype_of_input(node, graph) != "int8":
        return node
    value = _shift(corrector, node.inputs[0], graph)
    if has_input(node, 2):
        point = _shift(corrector, node.inputs[2], graph)
    else:
        shape = find_shape(node, graph, 1)
        if shape is None or not all(isinstance(size, int) for size in shape):
            sizes = corrector.add("Shape", node.inputs[1])
            point = corrector.add("ConstantOfShape", sizes, value=np.full(1, 128, np.uint8))
        else:
            point = corrector.constant(np.full(cast("tuple[int, ...]", shape), 128, np.uint8))
    return replace(node, inputs=(value, node.inputs[1], point))


def may_have_no_depth(node: Node, graph: Graph, second: int = 1) -> bool:
    """Says whether a product of the first input and the one at `second`, or their convolution, may be over an axis of length 0."""
    is_convolution = "Conv" in node.op_type
    axes = (
        (1, 1)
        if is_convolution
        else (-2 if node.attributes.get("transA", 0) else -1, -1 if node.attributes.get("transB", 0) else -2)
    )
    for index, axis in zip((0, second), axes, strict=True):
        shape = find_shape(node, graph, index)
        size = None if not shape else shape[axis if len(shape) > 1 else 0]
        if isinstance(size, int):
            return size == 0
    return True


def _part_product(corrector: _Corrector, node: Node, graph: Graph) -> bool:
    """Puts a Sum between a dequantization and a product with a summed axis that may be empty, or with scales of another axis.

    The Sum keeps the engine from fusing them. The fused product returns unwritten memory if the summed axis is empty, and fails with
    scales of other axes or of blocks.
    """
    producers = [graph.find_producer(name) for name in node.inputs[:2]]
    if any(producer is None or producer.op_type != "DequantizeLinear" for producer in producers):
        return False
    if not may_have_no_depth(node, graph) and _scales_outputs(node, cast(Node, producers[1]), graph):
        return False
    return corrector.keep(node, inputs=(corrector.add("Sum", node.inputs[0]), *node.inputs[1:]))


def _scales_outputs(node: Node, dequantize: Node, graph: Graph) -> bool:
    """Says whether the second operand of a product has a single scale, or a scale for each output channel or column."""
    if _has_one_scale(dequantize, graph):
        return True
    shape, scales = find_shape(node, graph, 1), find_shape(dequantize, graph, 1)
    if shape is None or scales is None or len(scales) != 1 or (len(shape) != 2 and node.op_type != "Conv"):
        return False
    is_first = node.op_type == "Conv" or bool(node.attributes.get("transB", 0))
    return int(dequantize.attributes.get("axis", 1)) % len(shape) == (0 if is_first else len(shape) - 1)


def _has_one_scale(node: Node, graph: Graph) -> bool:
    shape = find_shape(node, graph, 1)
    return shape is not None and all(size == 1 for size in shape)


def _part_dequantized(corrector: _Corrector, node: Node, graph: Graph) -> bool:
    """Puts a Sum behind a dequantization that the engine fuses wrongly with the node that reads it.

    ONNX Runtime 1.32 fails to load a fused node with scales by channels of an activation, with weights of no elements or of 2 bits, or with
    weights of an outer graph. Its MatMulNBits of 2 bits is wrong unless the columns are a multiple of 4.
    """
    shifted, weights = _shift_dequantized(corrector, node, graph), graph.initializers.get(node.inputs[0])
    if weights is None:
        fuses = _has_one_scale(node, graph)
    else:
        fuses = not weights.dtype.endswith("int2") and 0 not in weights.shape and not corrector.is_captured(node.inputs[0])
    if fuses:
        return shifted is not node and corrector.keep(shifted)
    value = corrector.name_value("DequantizeLinear")
    corrector.keep(shifted, outputs=(value,))
    corrector.add("Sum", value, output=node.outputs[0])
    return True


def _part_quantized(corrector: _Corrector, node: Node, graph: Graph) -> bool:
    """Puts a Sum in front of a quantization by channels, with which the engine fuses no node rightly."""
    if _has_one_scale(node, graph):
        return False
    return corrector.keep(node, inputs=(corrector.add("Sum", node.inputs[0]), *node.inputs[1:]))


_INTEGER_SUMS = frozenset({"ReduceL1", "ReduceSum", "ReduceSumSquare"})
_SUMS = _INTEGER_SUMS | {"ReduceL2", "ReduceLogSum", "ReduceMean"}

_CORRECTIONS: Mapping[tuple[str, str], Callable[[_Corrector, Node, Graph], bool]] = {
    **{("", name): _part_product for name in ("Conv", "Gemm", "MatMul")},
    ("", "ConvInteger"): _shift_convolution,
    ("", "DequantizeLinear"): _part_dequantized,
    ("", "GroupNormalization"): _correct_group_normalization,
    **{("", name): _correct_reduction for name in sorted(_SUMS)},
    ("", "MatMulInteger"): _shift_product(1, 3),
    ("", "QLinearConv"): _shift_product(3, 5),
    ("com.microsoft", "QLinearConv"): _shift_product(3, 5),
    ("", "QLinearMatMul"): _shift_product(3, 5),
    ("", "QuantizeLinear"): _part_quantized,
    (MICROSOFT, "DynamicQuantizeLSTM"): _shift_recurrent,
    (MICROSOFT, "DynamicQuantizeMatMul"): _shift_product(1, 3),
    (MICROSOFT, "MatMulIntegerToFloat"): _shift_product(1, 5),
    (MICROSOFT, "QAttention"): _shift_product(1, 7),
    (MICROSOFT, "QGemm"): _shift_product(3, 5),
}
"""Operator -> the correction of its nodes, which says whether it has replaced the node."""
