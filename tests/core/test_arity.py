"""The reader refuses nodes that break their operator's schema, in graphs, bodies and functions; it reads all valid nodes."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import onnx.checker
import onnx.defs
import onnx.helper as helper
import onnx.parser
import pytest

from hetero_core.errors import InvalidNetworkError
from hetero_core.network.assembly import check_arity
from hetero_core.network.graph import Node
from hetero_core.network.reader import read_network

HEAD = '<ir_version: 10, opset_import: ["": {opset}, "local": 1]>'


def parse(text: str, opset: int = 17) -> onnx.ModelProto:
    return onnx.parser.parse_model(HEAD.format(opset=opset) + text)


@pytest.mark.parametrize(
    "op_type", ["Sum", "Max", "Min", "Mean", "LogSoftmax", "Shape", "Reshape", "ConstantOfShape", "Slice", "Conv"]
)
def test_node_without_inputs_is_refused(op_type: str) -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    model.graph.node.append(helper.make_node(op_type, [], ["z"]))
    with pytest.raises(InvalidNetworkError, match=rf"'{op_type}_1' \({op_type}-[0-9]+\) has 0 inputs; its operator has "):
        read_network(model)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("y = Neg(x, x)", "has 2 inputs; its operator has 1"),
        ("y, z = Neg(x)", "has 2 outputs; its operator has 1"),
        ("y = Sum(x, , x)", "lacks its input 1, which its operator needs"),
        ("y = Conv(x, , x)", "lacks its input 1, which its operator needs"),
        ("y = Cast(x)", "lacks the attribute 'to', which its operator needs"),
        ("y = Elu <alpha = [1, 2]>(x)", "attribute 'alpha' .* is a list of integers; its operator takes a float"),
        ("y = Elu <alpha = 1>(x)", "attribute 'alpha' .* is an integer; its operator takes a float"),
        ("y = Transpose <perm = 0>(x)", "attribute 'perm' .* is an integer; its operator takes a list of integers"),
        ("y = LayerNormalization <axis = 2147483648>(x, x)", "has axis 2147483648; expected one from -64 to 64"),
        ("y = GatherND <batch_dims = -4>(x, i)", "has batch_dims -4; expected one from 0 to 64"),
        ("y = Elu <alpha: floats = []>(x)", "attribute 'alpha' .* is an empty list; its operator takes a float"),
        ('y = Cast <to = "a">(x)', "attribute 'to' .* is a string; its operator takes an integer"),
    ],
)
@pytest.mark.parametrize("place", ["root", "function", "body"])
def test_node_against_its_schema_is_refused_everywhere(body: str, message: str, place: str) -> None:
    texts = {
        "root": f"g (float[2] x, int64[1] i) => (float[2] y) {{ {body} }}",
        "function": "g (float[2] x, int64[1] i) => (float[2] y) { y = local.f (x, i) } "
        f'<opset_import: ["": 17], domain: "local"> f (x, i) => (y) {{ {body} }}',
        "body": "g (float[2] x, int64[1] i, bool c) => (float[2] r) { r = If (c) "
        f"<then_branch = t () => (float[2] y) {{ {body} }}, else_branch = e () => (float[2] n) {{ n = Neg(x) }}> }}",
    }
    with pytest.raises(InvalidNetworkError, match=message):
        read_network(parse(texts[place]))


def test_split_with_unequal_parts_and_outputs_is_refused() -> None:
    model = parse("g (float[6] x) => (float[2] a, float[2] b, float[2] c) { a, b, c = Split <num_outputs = 1>(x) }", opset=18)
    with pytest.raises(InvalidNetworkError, match="has num_outputs 1; expected one from 3 to 3"):
        read_network(model)


def test_scan_with_too_many_scan_inputs_is_refused() -> None:
    body = "g () => (float[1] z) <float[1] c = {1}> { z = Identity (c) }"
    model = parse(
        f"g (float[6] x) => (float[a, b] y) {{ y = Scan (x, x) <body: graph = {body}, num_scan_inputs: int = 2147483648> }}"
    )
    with pytest.raises(InvalidNetworkError, match="has num_scan_inputs 2147483648; expected one from 0 to 2"):
        read_network(model)


@pytest.mark.parametrize(
    "body",
    [
        "y = Clip(x, , m)",
        "y = Clip(x)",
        "y = Clip(x, m)",
        "y, z = Dropout(x)",
        "y = Neg <unknown = 3>(x)",
        "y = Squeeze(x)",
        "y = Max(x)",
    ],
)
def test_optional_inputs_and_unknown_attributes_are_accepted(body: str) -> None:
    network = read_network(parse(f"g (float[2] x, float m) => (float[2] y) {{ {body} }}"))
    assert len(network.nodes) == 1


def test_arity_rules_equal_onnxs_checker_for_every_operator() -> None:
    disagreements = []
    for schema in onnx.defs.get_all_schemas():
        if schema.domain or schema.deprecated:
            continue
        context = onnx.checker.C.CheckerContext()
        context.ir_version, context.opset_imports = 10, {"": schema.since_version}
        for count in range(min(schema.max_input, schema.min_input + 2, 8) + 2):
            names = ("x",) * count
            proto = helper.make_node(schema.name, names, ["y"])
            node = Node("n", schema.name, names, ("y",), opset=schema.since_version, since_version=schema.since_version)
            if is_refused_by(
                lambda proto=proto, context=context: onnx.checker.check_node(proto, context), onnx.checker.ValidationError
            ) != is_refused_by(lambda node=node: check_arity(node), InvalidNetworkError):
                disagreements.append((schema.name, count))
    assert disagreements == []


def is_refused_by(check: Callable[[], None], error: type[Exception]) -> bool:
    try:
        check()
    except error:
        return True
    return False
