"""If, Loop and Scan, with bodies that capture values of the graph around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_core.conformance.graphs.builder import DrawnValue, GraphBuilder, NotApplicable

if TYPE_CHECKING:
    import onnx

_UNARY = ("Relu", "Tanh", "Sigmoid", "Neg", "Abs")


def grow_if(b: GraphBuilder) -> None:
    """Adds an If that is steered by a number of the graph; both branches capture values."""
    x = b.pick_float(bound=100)
    y = b.pick_like(x)
    condition = _draw_condition(b)
    bodies = []
    for operator in ("Add", b.choose("Sub", "Mul", "Max")):
        first, last = b.name("v"), b.name("v")
        nodes = [_node(b.choose(*_UNARY), [x.name], [first]), _node(operator, [first, y.name], [last])]
        bodies.append(_body(b.name("branch"), nodes, [], [(last, x.dtype, x.shape)]))
    _note_captures(b, x, y)
    b.add("If", [condition], x.shape, dtype=x.dtype, bound=100, then_branch=bodies[0], else_branch=bodies[1])


def grow_loop(b: GraphBuilder) -> None:
    """Adds a Loop of up to five iterations that carries a value, captures a second value and stacks a third."""
    x = b.pick_float(bound=30)
    y = b.pick_like(x)
    trips = b.integer(1, 5)
    count, going, state, still, inner, result, stacked = (b.name("v") for _ in range(7))
    nodes = [
        _node("Identity", [going], [still]),
        _node(b.choose("Add", "Sub"), [state, y.name], [inner]),
        _node(b.choose("Tanh", "Sigmoid"), [inner], [result]),
        _node(b.choose(*_UNARY), [inner], [stacked]),
    ]
    inputs = [(count, "int64", ()), (going, "bool", ()), (state, x.dtype, x.shape)]
    outputs = [(still, "bool", ()), (result, x.dtype, x.shape), (stacked, x.dtype, x.shape)]
    body = _body(b.name("body"), nodes, inputs, outputs)
    _note_captures(b, y)
    maximum = b.constant(np.array(trips, np.int64))
    start = b.constant(np.array(True)) if b.chance(0.5) else ""
    b.add_many(
        "Loop", [maximum, start, x], [x.shape, (trips, *x.shape)], dtypes=[x.dtype] * 2, bound=x.bound + y.bound + 1, body=body
    )


def grow_scan(b: GraphBuilder) -> None:
    """Adds a Scan along the first axis of a value, at times backwards."""
    x = b.pick(lambda value: value.dtype == b.dtype and 2 <= value.rank <= 4 and value.bound < 30)
    row = x.shape[1:]
    if not all(isinstance(size, int) for size in row):
        raise NotApplicable
    start = b.weight(*(int(size) for size in row))
    state, item, inner, result, stacked = (b.name("v") for _ in range(5))
    nodes = [
        _node("Add", [state, item], [inner]),
        _node(b.choose("Tanh", "Sigmoid"), [inner], [result]),
        _node(b.choose("Mul", "Sub", "Max"), [result, item], [stacked]),
    ]
    inputs = [(state, x.dtype, row), (item, x.dtype, row)]
    outputs = [(result, x.dtype, row), (stacked, x.dtype, row)]
    body = _body(b.name("body"), nodes, inputs, outputs)
    directions = [1] if b.chance(0.3) else None
    b.add_many(
        "Scan",
        [start, x],
        [row, x.shape],
        dtypes=[x.dtype] * 2,
        bound=x.bound + 1,
        body=body,
        num_scan_inputs=1,
        scan_input_directions=directions,
    )


def _draw_condition(b: GraphBuilder) -> DrawnValue:
    """Returns a bool that depends on a value of the graph, far from any tie."""
    x = b.pick(lambda value: value.is_float or value.dtype in ("int64", "int32"))
    size = b.add("Size", [x], (), dtype="int64", bound=1e6)
    return b.add(b.choose("Greater", "Less"), [size, b.constant(np.array(b.choose(0, 100), np.int64))], (), dtype="bool", bound=1)


def _note_captures(b: GraphBuilder, *values: DrawnValue) -> None:
    for value in values:
        b.readers[value.name] = b.readers.get(value.name, 0) + 1


def _node(op_type: str, inputs: Sequence[str], outputs: Sequence[str]) -> onnx.NodeProto:
    import onnx  # heavy

    return onnx.helper.make_node(op_type, inputs, outputs)


def _body(
    name: str, nodes: Any, inputs: Sequence[tuple[str, str, Any]], outputs: Sequence[tuple[str, str, Any]]
) -> onnx.GraphProto:
    from onnx import helper  # heavy

    def declare(specs: Sequence[tuple[str, str, Any]]) -> list[onnx.ValueInfoProto]:
        return [
            helper.make_tensor_value_info(value, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)
            for value, dtype, shape in specs
        ]

    return helper.make_graph(nodes, name, declare(inputs), declare(outputs))


OPERATORS = ((1.0, grow_if), (1.0, grow_loop), (0.6, grow_scan))
"""Each operator with its weight."""
