"""Types inferred without onnx are those that onnx infers: drawn nodes of every operator with a rule, in every version that it holds for."""

from __future__ import annotations

import random
from typing import Any

import onnx
import onnx.parser
import onnx.printer
import onnx.shape_inference
import pytest
from hetero_tests.drawn_nodes import draw_model, list_versions

from hetero_core.errors import HeteroError
from hetero_core.network.inferable_windows import write_inferable_windows
from hetero_core.network.inference import infer_plainly
from hetero_core.network.merging import merge_types
from hetero_core.network.operators import OPERATORS
from hetero_core.network.reader import assemble_network, read_network
from hetero_core.network.type_protos import read_type
from hetero_core.network.types import TensorType
from hetero_core.network.weights import WeightFiles

VERSIONS = list_versions({name: operator for name, operator in OPERATORS.items() if operator.dtypes is not None})
DRAWS = 60


def infer_by_onnx(model: onnx.ModelProto) -> Any:
    write_inferable_windows(model.graph)
    graph = onnx.shape_inference.infer_shapes(model).graph
    return {output.name: read_type(output.type, "output") for output in graph.output}


@pytest.mark.parametrize(("op_type", "since"), VERSIONS, ids=[f"{name}-{since}" for name, since in VERSIONS])
def test_drawn_node_has_the_type_that_onnx_infers(op_type: str, since: int) -> None:
    draw = random.Random(f"{op_type} {since}")
    inferred_count = 0
    for _ in range(DRAWS):
        model = draw_model(draw, op_type, since)
        try:
            network = assemble_network(model, WeightFiles(None), "drawn")
        except HeteroError:
            continue  # the schema has no such node
        types = infer_plainly(network)
        if types is not None:
            inferred_count += 1
            for name, expected in infer_by_onnx(model).items():
                # A named size that onnx loses, as in a Reshape with -1, is kept here.
                assert merge_types(expected, types[name]) == types[name], onnx.printer.to_text(model)
    assert inferred_count > 0


@pytest.mark.parametrize(
    "body",
    [
        "(float[3] x) => (y) { y = Relu (a) a = NonZero (x) }",
        "(float[3] x) => (y) { a = Relu (x) y = com.acme.Twist (a) }",
        "(float[?] x) => (y) { y = Relu (x) }",
        "(float[] x) => (y) { y = Relu (x) }",
        "(float[N] x, float[M] z) => (y) { y = Add (x, z) }",
        "(float[2] x, float[3] z) => (y) { y = Add (x, z) }",
        "(float[2] x) => (double[2] y) { y = Relu (x) }",
        "(float[2,3] x, int64[1] s) => (y) { y = Reshape (x, s) }",
    ],
)
def test_network_with_anything_else_is_left_to_onnx(body: str) -> None:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18, "com.acme": 1]> g {body}')
    assert infer_plainly(assemble_network(model, WeightFiles(None), "text")) is None


def test_declared_sizes_that_say_more_are_left_to_onnx() -> None:
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 18]> g (float[N] x) => (float[4] y) { y = Relu (x) }')
    network = assemble_network(model, WeightFiles(None), "text")
    assert infer_plainly(network) is None
    assert read_network(model).types["x"] == TensorType("float32", ("N",))


def test_size_beyond_64_bits_is_left_to_onnx() -> None:
    doubled = " ".join(f"v{n + 1} = Concat <axis = 0> (v{n}, v{n})" for n in range(70))
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> g (float[2] v0) => (v70) {{ {doubled} }}')
    assert infer_plainly(assemble_network(model, WeightFiles(None), "text")) is None
