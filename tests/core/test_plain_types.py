"""Types inferred without onnx are those that onnx infers: drawn nodes of every operator with a rule, in every version that it holds for."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import onnx
import onnx.defs
import onnx.helper
import onnx.numpy_helper
import onnx.parser
import onnx.shape_inference
import pytest

from hetero_core.errors import HeteroError
from hetero_core.network.plain_rules import PLAIN_RULES
from hetero_core.network.plain_types import infer_plainly
from hetero_core.network.reader import assemble_network, read_network
from hetero_core.network.type_protos import read_type
from hetero_core.network.types import TensorType
from hetero_core.network.weights import WeightFiles

VERSIONS = sorted(
    (schema.name, schema.since_version)
    for schema in onnx.defs.get_all_schemas_with_history()
    if not schema.domain and schema.name in PLAIN_RULES and schema.since_version >= PLAIN_RULES[schema.name][0]
)
DRAWS = 60
SIZES = (1, 1, 2, 3, 4, "N")
LISTED = ("Reshape", "Squeeze", "Unsqueeze", *(name for name in PLAIN_RULES if name.startswith("Reduce")))
"""The operators whose second input is a list of numbers."""
WINDOWS = ("Conv", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool")


def draw_shape(draw: random.Random, least: int = 0, most: int = 4) -> list[int | str]:
    return [draw.choice(SIZES) for _ in range(draw.randint(least, most))]


def draw_shapes(draw: random.Random, op_type: str, count: int, attributes: dict[str, Any]) -> list[list[Any]]:
    """Returns shapes of inputs that fit together more often than not."""
    if op_type in WINDOWS:
        image = [draw.choice((1, 2, "N")), draw.choice((2, 4)), *[draw.choice((3, 5, 8)) for _ in range(draw.choice((1, 2, 2, 3)))]]
        group = attributes.get("group", 1)
        weight = [4, max(image[1] // group, 1), *attributes.get("kernel_shape", [draw.choice((1, 2, 3)) for _ in image[2:]])]
        return [image, weight, [4]][:count]
    base = draw_shape(draw)
    if op_type in ("MatMul", "Gemm"):
        m, k, n = (draw.choice((2, 3, "N")) for _ in range(3))
        first, second = ([k, m] if attributes.get("transA") else [m, k]), ([n, k] if attributes.get("transB") else [k, n])
        batch = draw_shape(draw, 0, 2) if op_type == "MatMul" else []
        return [draw.choice(([*batch, *first], [k])) if op_type == "MatMul" else first, second, [1]][:count]
    if op_type == "BatchNormalization":
        base = [*draw_shape(draw, 1, 1), draw.choice((2, 3)), *draw_shape(draw)]
        return [base, *[[base[1]]] * (count - 1)]
    if op_type == "Concat":
        return [
            [draw.choice((1, 2, 3)) if axis == abs(attributes.get("axis", 0)) else size for axis, size in enumerate(base)]
            for _ in range(count)
        ]
    if op_type in ("Gather", "LayerNormalization", "Dropout"):
        return [base, *[draw_shape(draw, 0, 2) for _ in range(count - 1)]]
    others = [[draw.choice((size, size, 1)) for size in base[draw.randint(0, 1) :]] for _ in range(count - 1)]
    return [base, *others]


def draw_attributes(draw: random.Random, schema: Any) -> dict[str, Any]:
    rank = draw.choice((1, 2, 2, 3))
    values: dict[str, Any] = {
        "axis": draw.randint(-3, 3),
        "axes": [draw.randint(-2, 3) for _ in range(draw.randint(1, 2))],
        "perm": draw.sample(range(rank), rank),
        "kernel_shape": [draw.randint(1, 3) for _ in range(rank)],
        "strides": [draw.randint(1, 2) for _ in range(rank)],
        "dilations": [draw.randint(1, 2) for _ in range(rank)],
        "pads": [draw.randint(-1 if draw.random() < 0.1 else 0, 2) for _ in range(2 * rank)],
        "auto_pad": draw.choice(("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")),
        "group": draw.choice((1, 1, 2)),
        "to": draw.randint(1, 13),
        **{name: draw.randint(0, 1) for name in ("keepdims", "ceil_mode", "transA", "transB", "allowzero")},
        **{name: draw.randint(0, 1) for name in ("noop_with_empty_axes", "training_mode")},
    }
    chosen = {name for name, each in schema.attributes.items() if each.required or draw.random() < 0.5}
    return {name: value for name, value in values.items() if name in chosen}


def draw_model(draw: random.Random, op_type: str, since: int) -> onnx.ModelProto:
    schema = onnx.defs.get_schema(op_type, since, "")
    attributes = draw_attributes(draw, schema)
    count = draw.randint(schema.min_input, min(schema.max_input, schema.min_input + 2))
    shapes = draw_shapes(draw, op_type, count, attributes)
    dtype = onnx.TensorProto.BOOL if op_type in ("And", "Or", "Xor") else draw.choice((1, 1, 1, 11, 7))
    dtypes = [dtype if draw.random() < 0.97 else onnx.TensorProto.INT64 for _ in shapes]
    if op_type == "Gather":
        dtypes[1:] = [onnx.TensorProto.INT64]
    if op_type == "Where":
        dtypes[0] = onnx.TensorProto.BOOL
    constants = []
    if op_type in LISTED and count > 1 and draw.random() < 0.9:
        numbers = (-1, 0, 1, 2, 3, 4, 6) if op_type == "Reshape" else (-2, -1, 0, 1, 2)
        listed = np.array([draw.choice(numbers) for _ in range(draw.randint(0, 3))], np.int64)
        constants.append(onnx.numpy_helper.from_array(listed, "x1"))
    names = [f"x{index}" for index in range(len(shapes))]
    inputs = [onnx.helper.make_tensor_value_info(*each) for each in zip(names, dtypes, shapes, strict=True)]
    outputs = ["y", draw.choice(("z", ""))] if schema.max_output == 2 and draw.random() < 0.3 else ["y"]
    node = onnx.helper.make_node(op_type, names, outputs, name="n", **attributes)
    inputs = [each for each in inputs if each.name not in [constant.name for constant in constants]]
    graph = onnx.helper.make_graph([node], "g", inputs, [onnx.ValueInfoProto(name=name) for name in outputs if name], constants)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", since)], ir_version=8)


def infer_by_onnx(model: onnx.ModelProto) -> Any:
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
            assert {name: types[name] for name in ("y", "z") if name in types} == infer_by_onnx(model), onnx.printer.to_text(model)
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
        "(float[4] x) => (y, z) { y, z = Split <num_outputs = 2> (x) }",
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
