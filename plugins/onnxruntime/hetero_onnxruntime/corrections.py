"""Networks put right for ONNX Runtime's CPU provider: nodes that it computes wrongly, or at which it ends the process, are replaced.

A correction costs little beside the node that it replaces, and holds for values and sizes that come with the run. Faults without a
correction are refused by the table in `known_errors`. Seen with ONNX Runtime 1.32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from types import MappingProxyType
from typing import Any, cast

import numpy as np

from hetero_core.dtypes import numpy_dtype, onnx_of_dtype
from hetero_core.engines.inspection import dtype_of_input, find_constant, find_reduced_axes, find_shape, has_input
from hetero_core.engines.known_errors import surround
from hetero_core.network.contrib_types import MICROSOFT
from hetero_core.network.graph import Graph, Network, Node, iterate_graphs
from hetero_core.network.initializers import Initializer
from hetero_core.network.types import TensorType, ValueSpec, fixed_sizes

MANY = 1 << 20
"""Elements from which on the engine's sums in float32 are off by more than rounding: 2.4 % for 20 million."""


def correct_network(network: Network, *, saturates: bool, widens: bool = False) -> Network:
    """Returns the network with corrections in its graph and its bodies.

    `saturates` says that products of uint8 and int8 saturate on this processor; `widens` that reductions over open sizes are over many
    elements.
    """
    corrected = cast(Network, _Corrector(network, saturates, widens).correct_graph(network))
    if corrected is network:
        return network
    # The engine does not find again a constant that is given by reference and that nothing reads any more.
    read = {name for graph in iterate_graphs(corrected) for node in graph.nodes for name in node.inputs}
    read.update(spec.name for graph in iterate_graphs(corrected) for spec in graph.outputs)
    constants = {name: constant for name, constant in corrected.initializers.items() if name in read}
    return replace(corrected, initializers=MappingProxyType(constants))


def has_open_sum(graph: Graph) -> bool:
    """Says whether a graph, or a body in it, adds up float32 along axes of open size."""
    return any(
        (
            _CORRECTIONS.get((node.domain, node.op_type)) in (_correct_integer_sum, _correct_float_sum)
            and dtype_of_input(node, graph) == "float32"
            and _count_reduced(node, graph) is None
        )
        or any(map(has_open_sum, node.bodies.values()))
        for node in graph.nodes
    )


class _Corrector:
    """The corrections of one network. Names of new values and nodes are unique in it."""

    def __init__(self, network: Network, saturates: bool, widens: bool) -> None:
        self.opset = network.opsets.get("", 1)
        self.saturates = saturates
        self.shifts_dequantized = saturates and _dequantizes_both(network)
        self.widens = widens
        self._count = 0
        self.graph: Graph = network
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
            if (node.domain, node.op_type) in (("", "Split"), ("", "Loop")) and not all(node.outputs):
                # The engine ends the process if an output that nothing reads has no name.
                corrected = replace(corrected, outputs=tuple(name or self.name_value("unread") for name in node.outputs))
            self.graph, self._nodes, self._constants = graph, nodes, constants
            correction = _CORRECTIONS.get((node.domain, node.op_type))
            if correction is None or not correction(self, corrected, around):
                nodes.append(corrected)
        self._nodes, self._constants = above
        if len(nodes) == len(graph.nodes) and all(new is old for new, old in zip(nodes, graph.nodes, strict=True)):
            return graph
        initializers = MappingProxyType({**graph.initializers, **constants})
        types = MappingProxyType({**graph.types, **{name: constant.type for name, constant in constants.items()}})
        return replace(graph, nodes=tuple(nodes), initializers=initializers, types=types)

    def add(self, op_type: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        """Appends a node with a single output and returns the output's name."""
        name = self.name_value(op_type) if output is None else output
        self._nodes.append(
            Node(self.name_value("node"), op_type, inputs, (name,), opset=self.opset, attributes=MappingProxyType(attributes))
        )
        return name

    def keep(self, node: Node, **changes: Any) -> bool:
        """Appends a node with changes."""
        self._nodes.append(replace(node, **changes))
        return True

    def build_branch(self, name: str, dtype: str, build: Callable[[], list[str]]) -> Graph:
        """Returns a graph of the nodes and constants that `build` adds; `build` returns the names of the outputs, which share a type."""
        above = self._nodes, self._constants
        nodes, constants = self._nodes, self._constants = list[Node](), dict[str, Initializer]()
        outputs = tuple(ValueSpec(value, TensorType(dtype, None)) for value in build())
        self._nodes, self._constants = above
        types = {spec.name: spec.type for spec in outputs} | {value: constant.type for value, constant in constants.items()}
        return Graph(name, (), outputs, tuple(nodes), MappingProxyType(constants), MappingProxyType(types))

    def constant(self, array: Any) -> str:
        """Adds a constant to the graph and returns its name."""
        name = self.name_value("constant")
        self._constants[name] = Initializer.of_array(np.asarray(array))
        return name

    def name_value(self, stem: str) -> str:
        """Returns an unused name."""
        self._count += 1
        return f"hetero/corrected/{stem}_{self._count}"


def _correct_division(corrector: _Corrector, node: Node, graph: Graph) -> bool:
    """Divides by 1 in place of -1, and negates the dividend by a product, which wraps around.

    The processor raises a signal if the least integer is divided by -1.
    """
    dtype = dtype_of_input(node, graph)
    if dtype not in ("int32", "int64"):
        return False
    numerators, denominators = (find_constant(name, graph) for name in node.inputs)
    may_be_least = numerators is None or bool((numerators == np.iinfo(numerators.dtype).min).any())
    if not may_be_least or not (denominators is None or bool((denominators == -1).any())):
        return False
    dividend, divisor = node.inputs
    minus_one, two, unit = (corrector.constant(np.array(value, dtype)) for value in (-1, 2, 1))
    is_minus_one = corrector.add("Cast", corrector.add("Equal", divisor, minus_one), to=onnx_of_dtype(dtype))
    twice = corrector.add("Mul", is_minus_one, two)
    sign = corrector.add("Sub", unit, twice)
    return corrector.keep(node, inputs=(corrector.add("Mul", dividend, sign), corrector.add("Add", divisor, twice)))


def _correct_integer_sum(corrector: _Corrector, node: Node, graph: Graph) -> bool:
    """Adds up int32 in int64, and of int64 the upper and the lower halves: the engine adds in float64 and saturates."""
    dtype = dtype_of_input(node, graph)
    if dtype not in ("int32", "int64"):
        return _correct_float_sum(corrector, node, graph)
    value = corrector.add("Cast", node.inputs[0], to=onnx_of_dtype("int64"))
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
        total = corrector.add("Add", corrector.add("Mul", _add_sum(corrector, node, upper), base), _add_sum(corrector, node, lower))
    corrector.add("Cast", total, output=node.outputs[0], to=onnx_of_dtype(dtype))
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
    if not (corrector.widens if count is None else count >= MANY):
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


def _count_reduced(node: Node, graph: Graph) -> int | None:
    shape, axes = find_shape(node, graph), find_reduced_axes(node, graph)
    sizes = None if shape is None or axes is None else fixed_sizes([shape[axis] for axis in axes])
    return None if sizes is None else prod(sizes)


def _correct_recurrent(corrector: _Corrector, node: Node, graph: Graph) -> bool:
    """Returns the initial states of sequences of length 0, of which the engine makes zeros."""
    states = [index for index in range(1, len(node.outputs)) if node.outputs[index] and has_input(node, 4 + index)]
    lengths = find_constant(node.inputs[4], graph) if has_input(node, 4) else np.ones(1)
    # Where is of opset 9.
    if not states or corrector.opset < 9 or (lengths is not None and bool((lengths > 0).all())):
        return _correct_steps(corrector, node, graph)
    outputs = [corrector.name_value("state") if index in states else name for index, name in enumerate(node.outputs)]
    layer = replace(node, outputs=tuple(outputs))
    if not _correct_steps(corrector, layer, graph):
        corrector.keep(layer)
    shape = corrector.constant(np.array([-1, 1, 1] if node.attributes.get("layout", 0) else [1, -1, 1], np.int64))
    is_empty = corrector.add("Equal", corrector.add("Reshape", node.inputs[4], shape), corrector.constant(np.array(0, np.int32)))
    for index in states:
        corrector.add("Where", is_empty, node.inputs[4 + index], outputs[index], output=node.outputs[index])
    return True


def _correct_steps(corrector: _Corrector, node: Node, graph: Graph) -> bool:
    """Puts a recurrent layer into an If: without steps or sequences it returns its initial states."""
    dtype = dtype_of_input(node, graph)
    has_steps = all(isinstance(size, int) and size > 0 for size in (find_shape(node, graph) or (None,))[:2])
    if has_steps or dtype is None or node.attributes.get("layout", 0):
        return False
    return _avoid_nothing(corrector, node, dtype, (0,), lambda index: _make_initial_state(corrector, node, index, dtype))


def _avoid_nothing(
    corrector: _Corrector, node: Node, dtype: str, operands: Sequence[int], make_output: Callable[[int], str]
) -> bool:
    """Puts a node into an If. If an input of `operands` is empty, `make_output` builds each output from its index."""
    outputs = [index for index, name in enumerate(node.outputs) if name]
    full = replace(node, outputs=tuple(f"{name}/full" if name else "" for name in node.outputs))

    def compute_node() -> list[str]:
        corrector.keep(full)
        return [full.outputs[index] for index in outputs]

    count, *others = [corrector.add("Size", node.inputs[index]) for index in operands]
    for other in others:
        count = corrector.add("Mul", count, other)
    is_empty = corrector.add("Equal", count, corrector.constant(np.array(0, np.int64)))
    branches = {
        "then_branch": corrector.build_branch(f"{node.name}/empty", dtype, lambda: list(map(make_output, outputs))),
        "else_branch": corrector.build_branch(f"{node.name}/full", dtype, compute_node),
    }
    return corrector.keep(
        node,
        name=corrector.name_value("If"),
        op_type="If",
        domain="",
        inputs=(is_empty,),
        outputs=tuple(node.outputs[index] for index in outputs),
        opset=corrector.opset,
        attributes=MappingProxyType(branches),
        captures=node.reads,
    )


def _make_initial_state(corrector: _Corrector, node: Node, index: int, dtype: str) -> str:
    """Returns an output of a recurrent layer without steps or sequences: output 0 is empty, outputs 1 and 2 are states."""
    initial = 4 + index
    if index and has_input(node, initial):
        return corrector.add("Identity", node.inputs[initial])
    directions = 2 if node.attributes.get("direction", "forward") == "bidirectional" else 1
    sizes = corrector.add("Shape", node.inputs[0])
    steps, batch = (corrector.add("Gather", sizes, corrector.constant(np.array([axis], np.int64))) for axis in (0, 1))
    count, hidden = (corrector.constant(np.array([size], np.int64)) for size in (directions, node.attributes["hidden_size"]))
    shape = corrector.add("Concat", *((count, batch, hidden) if index else (steps, count, batch, hidden)), axis=0)
    # ConstantOfShape is younger, of opset 9.
    return corrector.add("Tile", corrector.constant(np.zeros((1,) * (3 if index else 4), numpy_dtype(dtype))), shape)


def _correct_einsum(corrector: _Corrector, node: Node, graph: Graph) -> bool:
    """Puts an Einsum with a product into an If: the engine ends the process at one over nothing."""
    terms, _, result = str(node.attributes["equation"]).replace(" ", "").partition("->")
    labels, dtype = terms.split(","), dtype_of_input(node, graph)
    shapes = [find_shape(node, graph, index) for index in range(len(labels))]
    is_product = any(sum(label in term for term in labels) > 1 and label not in result for label in set(terms) - {","})
    is_full = all(shape is not None and 0 not in shape and fixed_sizes(shape) is not None for shape in shapes)
    if not is_product or is_full or "->" not in str(node.attributes["equation"]) or "." in terms or dtype is None:
        return False

    def make_zeros(_: int) -> str:
        sizes = [corrector.constant(np.zeros(0, np.int64))]
        for label in result:
            operand = next(index for index, term in enumerate(labels) if label in term)
            axis = corrector.constant(np.array([labels[operand].index(label)], np.int64))
            sizes.append(corrector.add("Gather", corrector.add("Shape", node.inputs[operand]), axis))
        return corrector.add("ConstantOfShape", corrector.add("Concat", *sizes, axis=0), value=np.zeros(1, numpy_dtype(dtype)))

    return _avoid_nothing(corrector, node, dtype, range(len(labels)), make_zeros)


def _correct_group_normalization(corrector: _Corrector, node: Node, graph: Graph) -> bool:
    """Normalizes each group as an instance: the engine takes the mean of the squares less the square of the mean."""
    shape, dtype = find_shape(node, graph), dtype_of_input(node, graph)
    if shape is None or len(shape) < 3 or dtype not in ("float32", "float64", "float16"):
        return False
    groups = int(node.attributes["num_groups"])
    value = node.inputs[0]
    if 0 in shape:
        corrector.add("Identity", value, output=node.outputs[0])
        return True
    narrow = dtype == "float16"
    work = "float32" if narrow else dtype
    wide = corrector.add("Cast", value, to=onnx_of_dtype(work)) if narrow else value
    layout = corrector.constant(np.array([0, groups, -1], np.int64))
    units, zeros = (corrector.constant(np.full(groups, fill, work)) for fill in (1, 0))
    epsilon = node.attributes.get("epsilon", 1e-5)
    normal = corrector.add("InstanceNormalization", corrector.add("Reshape", wide, layout), units, zeros, epsilon=epsilon)
    # Scale and bias have a number for each group before version 21, and for each channel since.
    each = node.since_version < 21
    sides = [corrector.constant(np.array([1, groups, 1] if each else [1, -1, *[1] * (len(shape) - 2)], np.int64))]
    scale, bias = (
        corrector.add("Reshape", corrector.add("Cast", name, to=onnx_of_dtype(work)) if narrow else name, sides[0])
        for name in node.inputs[1:3]
    )
    sizes = corrector.add("Shape", value)
    if not each:
        normal = corrector.add("Reshape", normal, sizes)
    result = corrector.add("Add", corrector.add("Mul", normal, scale), bias)
    if each:
        result = corrector.add("Reshape", result, sizes)
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


def _shift_product(operand: int, point: int, other: int = 0) -> Callable[[_Corrector, Node, Graph], bool]:
    """Returns a correction that makes uint8 of an int8 operand and its zero point, both more by 128, beside another operand of uint8."""

    def correct(corrector: _Corrector, node: Node, graph: Graph) -> bool:
        is_mixed = dtype_of_input(node, graph, operand) == "int8" != dtype_of_input(node, graph, other)
        if not corrector.saturates or not is_mixed:
            return False
        inputs = [*node.inputs, *[""] * (point + 1 - len(node.inputs))]
        inputs[operand] = _shift(corrector, inputs[operand], graph)
        inputs[point] = _shift(corrector, inputs[point], graph)
        return corrector.keep(node, inputs=tuple(inputs))

    return correct


def _shift(corrector: _Corrector, name: str, graph: Graph) -> str:
    """Returns an int8 value plus 128; 128 for an absent zero point."""
    if not name:
        return corrector.constant(np.array(128, np.uint8))
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
    return _correct_recurrent(corrector, node, graph) or corrector.keep(node)


def _shift_dequantized(corrector: _Corrector, node: Node, graph: Graph) -> Node:
    """Returns a dequantization of uint8 in place of int8, if the engine would otherwise fuse a product of uint8 and int8."""
    if not corrector.shifts_dequantized or dtype_of_input(node, graph) != "int8":
        return node
    value = _shift(corrector, node.inputs[0], graph)
    if has_input(node, 2):
        point = _shift(corrector, node.inputs[2], graph)
    else:
        point = corrector.add("ConstantOfShape", corrector.add("Shape", node.inputs[1]), value=np.full(1, 128, np.uint8))
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
        fuses = not weights.dtype.endswith("int2") and 0 not in weights.shape and node.inputs[0] in corrector.graph.initializers
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


_CORRECTIONS: Mapping[tuple[str, str], Callable[[_Corrector, Node, Graph], bool]] = {
    **{("", name): _part_product for name in ("Conv", "Gemm", "MatMul")},
    # ConvInteger multiplies filters by images, so that uint8 filters and int8 images saturate.
    ("", "ConvInteger"): _shift_product(0, 2, other=1),
    ("", "DequantizeLinear"): _part_dequantized,
    ("", "Div"): _correct_division,
    ("", "Einsum"): _correct_einsum,
    ("", "GroupNormalization"): _correct_group_normalization,
    **{("", name): _correct_recurrent for name in ("GRU", "LSTM", "RNN")},
    **{("", name): _correct_integer_sum for name in ("ReduceL1", "ReduceSum", "ReduceSumSquare")},
    **{("", name): _correct_float_sum for name in ("ReduceL2", "ReduceLogSum", "ReduceMean")},
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
