"""Size rules on symbols agree with the same rules on integers, and with onnx's inference at sizes other than the example's."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.shape_inference
import pytest
from hetero_cpu.symbols.sizes import Scope, evaluate, is_open, terms_of, value_of
from hetero_tests.drawn_nodes import UNDRAWN, draw_model, list_versions
from hetero_tests.fixed_plans import evaluate_atoms
from onnx import TensorProto

from hetero_core.errors import HeteroError
from hetero_core.network.graph import Node
from hetero_core.network.operators import OPERATORS, REFUSALS, SizedNode, infer_sizes
from hetero_core.network.reader import assemble_network
from hetero_core.network.weights import WeightFiles

FLOAT, INT8, UINT8, INT64 = TensorProto.FLOAT, TensorProto.INT8, TensorProto.UINT8, TensorProto.INT64
Input = tuple[int, tuple[Any, ...]]

# Open sizes have names.
_PLAIN: list[Input] = [(FLOAT, ("a", "b", "c", 6))]
_FRESH: list[Input] = [(FLOAT, ("a", 2, "b", 8)), (FLOAT, ("a", 2, "b", 8)), (FLOAT, ("a", 2, "b", 4))]
_SCALE: list[Input] = [(FLOAT, ()), (UINT8, ())]
_RECURRENT: dict[str, tuple[list[Input], int]] = {
    op_type: ([(FLOAT, ("a", "b", 6)), (FLOAT, (2, gates * 5, 6)), (FLOAT, (2, gates * 5, 5))], outputs)
    for op_type, gates, outputs in (("RNN", 1, 2), ("GRU", 3, 2), ("LSTM", 4, 3))
}
_CASES: dict[str, tuple[list[Input], dict[str, Any], dict[str, Any], int]] = {
    **{name: (inputs, {}, {"hidden_size": 5, "direction": "bidirectional"}, count) for name, (inputs, count) in _RECURRENT.items()},
    "LSTM batch first": (_RECURRENT["LSTM"][0], {}, {"hidden_size": 5, "direction": "bidirectional", "layout": 1}, 3),
    "Attention": ([(FLOAT, ("a", 2, "b", 8)), (FLOAT, ("a", 2, "c", 8)), (FLOAT, ("a", 2, "c", 4))], {}, {}, 1),
    "Attention with caches": (
        [*_FRESH, (FLOAT, (1, 1)), (FLOAT, ("a", 2, "c", 8)), (FLOAT, ("a", 2, "c", 4))],
        {},
        {},
        3,
    ),
    "Conv with plain pads": (
        [(FLOAT, ("a", 3, "b", "c")), (FLOAT, (4, 3, 3, 2))],
        {},
        {"auto_pad": "NOTSET", "pads": [1, 0, 1, 1], "strides": [2, 1]},
        1,
    ),
    "ConvInteger": ([(UINT8, ("a", 3, "b", "c")), (UINT8, (4, 3, 3, 2))], {}, {"strides": [2, 1], "pads": [1, 0, 1, 1]}, 1),
    "DepthToSpace": ([(FLOAT, ("a", 8, "b", "c"))], {}, {"blocksize": 2}, 1),
    "SpaceToDepth": ([(FLOAT, ("a", 3, "b", "c"))], {}, {"blocksize": 2}, 1),
    "DynamicQuantizeLinear": (_PLAIN, {}, {}, 3),
    "EyeLike": ([(FLOAT, ("a", "b"))], {}, {}, 1),
    "GatherElements": ([(FLOAT, ("a", "b", 6)), (INT64, ("a", "c", 6))], {}, {"axis": 1}, 1),
    "GatherND": ([(FLOAT, ("a", "b", 6, 7)), (INT64, ("a", "c", 2))], {}, {"batch_dims": 1}, 1),
    "GridSample": ([(FLOAT, ("a", 3, 9, 8)), (FLOAT, ("a", "b", "c", 2))], {}, {}, 1),
    "MatMulInteger": ([(UINT8, ("a", "b", 6)), (INT8, (6, "c"))], {}, {}, 1),
    "OneHot": ([(INT64, ("a", "b"))], {"depth": np.array(4), "values": np.array([0.0, 1.0], np.float32)}, {"axis": 1}, 1),
    "ReverseSequence": ([(FLOAT, ("a", "b", 6)), (INT64, ("b",))], {}, {}, 1),
    "TopK": (_PLAIN, {"k": np.array([3])}, {"axis": -1}, 2),
    "QLinearMatMul": (
        [(UINT8, ("a", "b", 6)), *_SCALE, (UINT8, (6, "c")), *_SCALE, *_SCALE],
        {},
        {},
        1,
    ),
    "QLinearConv": (
        [(UINT8, ("a", 3, "b", "c")), *_SCALE, (UINT8, (4, 3, 3, 2)), *_SCALE, *_SCALE],
        {},
        {"dilations": [1, 2]},
        1,
    ),
}
_EXAMPLE = {"a": 2, "b": 8, "c": 10}
_OTHERS = ({"a": 5, "b": 12, "c": 6}, {"a": 3, "b": 30, "c": 44}, {"a": 7, "b": 7, "c": 9})


def _ask_onnx(op_type: str, sizes: dict[str, int], case: tuple[list[Input], dict[str, Any], dict[str, Any], int]) -> list[Any]:
    inputs, constants, attributes, count = case
    names, outputs = [f"i{place}" for place in range(len(inputs))], [f"o{place}" for place in range(count)]
    specs = [
        onnx.helper.make_tensor_value_info(name, dtype, [sizes.get(size, size) for size in shape])
        for name, (dtype, shape) in zip(names, inputs, strict=True)
    ]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(op_type, [*names, *constants], outputs, **attributes)],
        "one",
        specs,
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 24)], ir_version=11)
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    shapes = [output.type.tensor_type.shape for output in inferred.graph.output]
    return [tuple(dimension.dim_value for dimension in shape.dim) for shape in shapes]


@pytest.mark.parametrize("name", _CASES)
def test_a_rule_on_symbols_gives_what_onnx_infers(name: str) -> None:
    op_type, case = name.split()[0], _CASES[name]
    inputs, constants, attributes, count = case
    scope = Scope()
    symbols = {size: scope.open_size(size, value) for size, value in _EXAMPLE.items()}
    shapes = {f"i{place}": tuple(symbols.get(size, size) for size in shape) for place, (_, shape) in enumerate(inputs)}
    outputs = tuple(f"o{place}" for place in range(count))
    node = Node("one", op_type, (*shapes, *constants), outputs, opset=24, since_version=24, attributes=attributes)
    known = [shapes[value] if value in shapes else constants[value].shape for value in node.inputs]
    numbers = {value: array.reshape(-1).tolist() for value, array in constants.items()}
    results = infer_sizes(SizedNode(node, known, numbers.get))[:count]
    for sizes in (_EXAMPLE, *_OTHERS):
        atoms = evaluate_atoms(scope, {place: sizes[size] for place, size in enumerate(symbols)})
        ours = [tuple(evaluate(terms_of(size), atoms) if is_open(size) else size for size in shape) for shape in results]
        assert ours == _ask_onnx(op_type, sizes, case), sizes


@pytest.mark.parametrize(("op_type", "since"), dict(list_versions(OPERATORS)).items())
def test_drawn_node_has_the_same_sizes_as_symbols(op_type: str, since: int) -> None:
    draw = random.Random(f"{op_type} {since}")
    answered = 0
    for _ in range(60):
        try:
            network = assemble_network(draw_model(draw, op_type, since), WeightFiles(None), "drawn")
        except HeteroError:
            continue  # the schema has no such node
        (node,), constants = network.nodes, network.initializers
        numbers = {name: constant.array.reshape(-1).tolist() for name, constant in constants.items()}
        shapes = {spec.name: tuple(3 if isinstance(size, str) else size for size in spec.shape) for spec in network.inputs}
        known = [constants[value].shape if value in constants else shapes.get(value) for value in node.inputs]
        scope = Scope()
        opened = [
            None if own is None else tuple(scope.open_size(str(size), size) for size in own) if value in shapes else own
            for value, own in zip(node.inputs, known, strict=True)
        ]
        try:
            plain = infer_sizes(SizedNode(node, known, numbers.get))
            symbolic = infer_sizes(SizedNode(node, opened, numbers.get))
        except REFUSALS:
            continue
        answered += 1
        assert [[value_of(size) for size in shape] for shape in symbolic] == [list(shape) for shape in plain]
    assert answered or op_type in UNDRAWN
