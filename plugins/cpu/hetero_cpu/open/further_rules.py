"""The shapes of results of operators that few networks have, by ONNX's text: recurrent layers, searches, integers, attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hetero_core.network.graph import Node
from hetero_cpu.open.rules import Rule, Shape, UnknownError, Values, convolve_shapes, multiply_shapes


def _recur(node: Node, values: Values) -> Sequence[Shape]:
    shape, recurrence = values.find_shape(node.inputs[0]), values.find_shape(node.inputs[2])
    directions, hidden = recurrence[0], recurrence[-1]
    if node.attributes.get("layout", 0):
        batch, steps, _ = shape
        whole, last = (batch, steps, directions, hidden), (batch, directions, hidden)
    else:
        steps, batch, _ = shape
        whole, last = (steps, directions, batch, hidden), (directions, batch, hidden)
    return [whole, last, last][: len(node.outputs)]


def _take_indices(node: Node, values: Values) -> Sequence[Shape]:
    return [values.find_shape(node.inputs[1])]


def _gather_slices(node: Node, values: Values) -> Sequence[Shape]:
    shape, indices = (values.find_shape(value) for value in node.inputs)
    batch, depth = int(node.attributes.get("batch_dims", 0)), indices[-1]
    return [(*indices[:-1], *shape[batch + int(depth) :])]


def _search(node: Node, values: Values) -> Sequence[Shape]:
    if node.since_version < 10:
        raise UnknownError(node.op_type)
    shape, count = values.find_shape(node.inputs[0]), values.read(node.inputs[1])
    if count is None:
        raise UnknownError(node.op_type)
    axis = int(node.attributes.get("axis", -1)) % len(shape)
    largest = (*shape[:axis], count.reshape(-1)[0], *shape[axis + 1 :])
    return [largest, largest]


def _mark_ones(node: Node, values: Values) -> Sequence[Shape]:
    shape, depth = values.find_shape(node.inputs[0]), values.read(node.inputs[1])
    if depth is None:
        raise UnknownError(node.op_type)
    axis = int(node.attributes.get("axis", -1)) % (len(shape) + 1)
    return [(*shape[:axis], depth.reshape(-1)[0], *shape[axis:])]


def _sample_grid(node: Node, values: Values) -> Sequence[Shape]:
    shape, grid = (values.find_shape(value) for value in node.inputs[:2])
    return [(*shape[:2], *grid[1:-1])]


def _keep(node: Node, values: Values) -> Sequence[Shape]:
    return [values.find_shape(node.inputs[0])]


def _quantize(node: Node, values: Values) -> Sequence[Shape]:
    return [values.find_shape(node.inputs[0]), (), ()]


def _multiply(first: int, second: int) -> Rule:
    """Returns the rule of products whose matrices are these inputs."""

    def infer(node: Node, values: Values) -> Sequence[Shape]:
        return [multiply_shapes(*(values.find_shape(node.inputs[position]) for position in (first, second)))]

    return infer


def _convolve(first: int, second: int) -> Rule:
    """Returns the rule of convolutions whose image and filters are these inputs."""

    def infer(node: Node, values: Values) -> Sequence[Shape]:
        return [convolve_shapes(node, *(values.find_shape(node.inputs[position]) for position in (first, second)))]

    return infer


def _attend(node: Node, values: Values) -> Sequence[Shape]:
    q, k, v = (values.find_shape(value) for value in node.inputs[:3])
    if len(q) != 4 or len(node.outputs) > 3:
        raise UnknownError(node.op_type)
    joined = []
    for position, fresh in ((4, k), (5, v)):
        past = values.find_shape(node.inputs[position]) if len(node.inputs) > position and node.inputs[position] else None
        joined.append(fresh if past is None else (*fresh[:2], past[2] + fresh[2], fresh[3]))
    return [(*q[:3], v[3]), *joined][: len(node.outputs)]


FURTHER_RULES: Mapping[str, Rule] = {
    "Attention": _attend,
    "ConvInteger": _convolve(0, 1),
    "DynamicQuantizeLinear": _quantize,
    "EyeLike": _keep,
    "GRU": _recur,
    "GatherElements": _take_indices,
    "GatherND": _gather_slices,
    "GridSample": _sample_grid,
    "LSTM": _recur,
    "MatMulInteger": _multiply(0, 1),
    "OneHot": _mark_ones,
    "QLinearConv": _convolve(0, 3),
    "QLinearMatMul": _multiply(0, 3),
    "RNN": _recur,
    "ReverseSequence": _keep,
    "TopK": _search,
}
