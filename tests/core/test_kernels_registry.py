"""The table of kernels: its claims agree with onnx's schemas, and its refusals have reasons."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from hetero_tests.ops_page import format_ops_page
from onnx import helper

from hetero_core.kernels.program import compile_program
from hetero_core.kernels.registry import NOT_STRING, find_kernel, find_refusal, find_refusals, kernel, read_table
from hetero_core.kernels.tables import KernelTable
from hetero_core.network.contrib_types import knows_contrib
from hetero_core.network.graph import Network, Node
from hetero_core.network.reader import read_network
from hetero_core.network.types import MapType, TensorType

SCHEMAS = {(schema.domain, schema.name, schema.since_version): schema for schema in onnx.defs.get_all_schemas_with_history()}
# A hint of opset 1 without effect on the result, and an output switch of old recurrent operators.
IGNORED_ATTRIBUTES = {"consumed_inputs", "output_sequence"}
FLOAT = TensorType("float32", (2, 3))


def read(text: str, opset: int = 21) -> Network:
    return read_network(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}, "com.acme": 1]> {text}'))


def node_of(op_type: str, since_version: int, *inputs: str, outputs: tuple[str, ...] = ("y",), **attributes: Any) -> Node:
    return Node("n", op_type, inputs, outputs, opset=since_version, since_version=since_version, attributes=attributes)


def default_of(attribute: onnx.defs.OpSchema.Attribute) -> Any:
    if attribute.default_value.type == onnx.AttributeProto.UNDEFINED:
        return None
    value = helper.get_attribute_value(attribute.default_value)
    values = [item.decode() if isinstance(item, bytes) else item for item in (value if isinstance(value, list) else [value])]
    return tuple(values) if isinstance(value, list) else values[0]


@pytest.mark.parametrize("key", [key for key in read_table() if key in SCHEMAS], ids=lambda key: f"{key[1]}-{key[2]}")
def test_version_has_the_attributes_and_defaults_of_its_schema(key: tuple[str, str, int]) -> None:
    record, schema = read_table()[key], SCHEMAS[key]
    for name, attribute in schema.attributes.items():
        if name not in record.attributes:
            # A node with such an attribute is refused; the standard's text on LSTM's clip is ambiguous.
            assert name in IGNORED_ATTRIBUTES or (key[1], name) == ("LSTM", "clip"), name
            continue
        if attribute.required:
            assert name in record.required or name == "consumed_inputs"
            continue
        expected_value, default = default_of(attribute), record.attributes[name]
        is_close = isinstance(expected_value, float) and math.isclose(expected_value, default, rel_tol=1e-6)
        # None and () both mean "absent"; a kernel may also require an attribute that is optional in the schema.
        # GRU-1 spells its default "foward".
        is_alike = is_close or expected_value == default or (expected_value, default) == ("foward", "forward")
        assert is_alike or expected_value is None or name in record.required, (name, expected_value, default)
    least, most = record.input_limits
    assert least <= schema.min_input or key[1] == "Gemm"
    assert most is None or most >= schema.max_input


def test_operators_without_a_schema_have_a_rule_of_types() -> None:
    outside = [key for key in read_table() if key not in SCHEMAS]
    assert {version for _, _, version in outside} == {0}
    assert [key for key in outside if not knows_contrib(Node("node", key[1], (), (), key[0], 1))] == []


def test_every_standard_operator_but_constant_has_a_kernel() -> None:
    latest = {name for domain, name, _ in SCHEMAS if domain == ""}
    missing = latest - {op_type for domain, op_type, _ in read_table() if domain == ""}
    # A Network has no Constant nodes: the reader turns them into initializers.
    assert missing == {"Constant"}


def test_every_operator_of_further_domains_but_gradient_is_there() -> None:
    latest = {(domain, name) for domain, name, _ in SCHEMAS if domain}
    assert latest - {(domain, op_type) for domain, op_type, _ in read_table()} == {("ai.onnx.preview.training", "Gradient")}


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (node_of("Relux", 1, "x"), "operator Relux has no kernel, did you mean 'Relu'"),
        (node_of("Upsample", 10, "x", "x"), "Upsample-10 has no kernel; there are kernels for version 1, 7, 9"),
        (node_of("Relu", 14, "x", slope=0.5), "attribute 'slope' of Relu-14 is not implemented"),
        (node_of("Conv", 22, "x", "w", auto_pad="SOME"),
         "attribute 'auto_pad' of Conv-22 is 'SOME'; implemented: NOTSET, SAME_LOWER, SAME_UPPER, VALID"),
        (node_of("Cast", 21, "x", to=99), "attribute 'to' of Cast-21 is 99; implemented: "),
        (node_of("Concat", 13, "x"), "attribute 'axis' of Concat-13 is missing"),
        (node_of("Relu", 14, "x", "x"), "Relu-14 has 2 inputs; implemented: 1 to 1"),
        (node_of("Relu", 14, "x", outputs=("y", "z")), "Relu-14 has 2 outputs; implemented: 1"),
        (node_of("BatchNormalization", 9, "x", "x", "x", "x", "x", outputs=("y", "m", "v")),
         "BatchNormalization-9 has 3 outputs; implemented: 1"),
        (node_of("BatchNormalization", 6, "x", "x", "x", "x", "x"), "attribute 'is_test' of BatchNormalization-6 is missing"),
        (node_of("RNN", 22, "x", "x", "x", activations=("Affine",)), "activation 'affine' of RNN-22 has no activation_alpha"),
        (node_of("RNN", 22, "x", "x", "x", activations=("Tanx",)), "activation 'tanx' of RNN-22 does not exist, did you mean 'tanh'?"),
        (node_of("GRU", 22, "x", "x", "x", activations=("Tanh",)), "GRU-22 has 1 activations; it needs 2"),
        (node_of("Resize", 19, "x", "", "x", coordinate_transformation_mode="tf_crop_and_resize"),
         "tf_crop_and_resize of Resize-19 is implemented for sizes, not for scales"),
    ],
)  # fmt: skip
def test_refusal_names_the_missing_part(node: Node, reason: str) -> None:
    refusal = find_refusal(node, [FLOAT] * len(node.inputs))
    assert refusal is not None
    assert refusal.startswith(reason)


def test_refusal_names_the_input_and_its_element_type() -> None:
    refusal = find_refusal(node_of("Relu", 14, "x"), [TensorType("uint8", None)])
    assert refusal == (
        "input 'x' of Relu-14 has dtype uint8; implemented: bfloat16, float16, float32, float64, int16, int32, int64, int8"
    )
    assert find_refusal(node_of("Identity", 25, "x"), [MapType("int64", FLOAT)]) is not None


def test_most_interpolated_integers_are_refused() -> None:
    node = node_of("Resize", 19, "x", "", "s", mode="linear")
    assert find_refusal(node, [TensorType("uint8", None), None, FLOAT]) is None
    assert find_refusal(node, [TensorType("uint16", None), None, FLOAT]) == (
        "mode 'linear' of Resize-19 is implemented for bfloat16, float16, float32, float64, int32, int8, uint8, not for uint16"
    )


def test_element_types_of_the_device_limit_what_it_runs() -> None:
    node = node_of("Identity", 25, "x")
    assert find_refusal(node, [TensorType("string", None)]) is None
    refusal = find_refusal(node, [TensorType("string", None)], dtypes=NOT_STRING)
    assert refusal is not None
    assert refusal.startswith("input 'x' of Identity-25 has dtype string")
    cast = find_refusal(node_of("Cast", 21, "x", to=8), [FLOAT], dtypes=NOT_STRING)
    assert cast is not None
    assert cast.startswith("Cast-21 makes string; this device has ")


def test_unknown_type_is_not_refused_before_the_run() -> None:
    assert find_refusal(node_of("Relu", 14, "x"), [None]) is None


def test_node_in_a_body_is_refused_with_its_place() -> None:
    network = read("""g (bool c, float[2] x) => (float[2] y) {
        [choice] y = If<then_branch = t () => (float[2] a) { [inner] a = com.acme.Twist(x) },
                         else_branch = e () => (float[2] b) { b = Relu(x) }>(c)
    }""")
    assert find_refusals(network) == {"choice": "node 'inner' in then_branch of If-21: operator com.acme:Twist has no kernel"}


def test_extension_serves_an_operator_without_a_kernel() -> None:
    node = Node("n", "Twist", ("x",), ("y",), domain="com.acme", since_version=1)
    assert find_refusal(node, [FLOAT]) == "operator com.acme:Twist has no kernel"
    assert find_refusal(node, [FLOAT], extensions={("com.acme", "Twist"): object()}) is None


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (
            node_of("Attention", 23, "x", "x", "x", left_window_size=1),
            "attribute 'left_window_size' of Attention-23 is not implemented",
        ),
        (node_of("Resize", 13, "x", "", "s", antialias=1), "attribute 'antialias' of Resize-13 is not implemented"),
        (node_of("RNN", 1, "x", "x", "x", layout=1), "attribute 'layout' of RNN-1 is not implemented"),
        (node_of("RNN", 7, "x", "x", "x", output_sequence=1), "attribute 'output_sequence' of RNN-7 is not implemented"),
        (node_of("RNN", 1, "x", "x", "x", output_sequence=1, hidden_size=2), None),
    ],
)
def test_old_version_refuses_later_attributes(node: Node, reason: str | None) -> None:
    assert find_refusal(node, [TensorType("float32")] * 3) == reason


def test_kernel_says_which_inputs_stay_on_the_host() -> None:
    record = find_kernel(node_of("Reshape", 21, "x", "s"))
    assert record is not None
    assert record.host == (1,)
    assert record.dtypes_of_input(1) == {"int64"}


def test_import_of_the_registry_is_light() -> None:
    heavy = "{'onnx', 'ml_dtypes', 'hetero_core.kernels.operators.layout'}"
    code = f"import sys, hetero_core.kernels.registry; sys.stdout.write(str(sorted(set(sys.modules) & {heavy})))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "[]"


def test_page_of_operators_is_fresh() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "ops.md"
    assert page.read_text() == format_ops_page(), (
        "run: PYTHONPATH=tests/shared python -m hetero_tests.ops_page docs/reference/ops.md"
    )


def test_kernels_do_not_write_into_their_inputs() -> None:
    # Initializers are read-only views, so a write raises; the backend cases check ordinary inputs by value.
    network = read(
        "g (float[3,3] x) => (y) <int64[1,3] i = {1, 0, 2}, float[1,3] u = {7.0, 8.0, 9.0}> { y = ScatterElements(x, i, u) }"
    )
    x = np.zeros((3, 3), np.float32)
    x.flags.writeable = False
    (y,) = compile_program(network).run((x,))
    assert y.tolist() == [[0, 8, 0], [7, 0, 0], [0, 0, 9]]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"outputs": (1, 1)}, r"outputs=\(1, 1\); expected the largest number of outputs, or None for any number"),
        ({"unread": ("x",)}, r"unread=\('x',\); expected a mapping of attributes to their defaults"),
        ({"since": 13}, "since=13; expected a tuple of versions"),
        (
            {"dtypes": "float32"},
            "dtypes='float32'; expected a frozenset of element types, or a tuple of such for the inputs; there are bfloat16",
        ),
        ({"dtypes": frozenset({"float"})}, r"dtypes=frozenset\({'float'}\); expected a frozenset of element types"),
        ({"choices": {"axis": -1}}, r"choices={'axis': -1}; expected a mapping of attributes to tuples of values"),
        ({"bodies": "body"}, "bodies='body'; expected a tuple of attributes"),
        (
            {"choices": {"axes": (-1,), "mode": ("a",)}, "unread": {"mode": "a"}},
            "choices of 'axes'; its signature has 1 inputs at most and the attributes mode$",
        ),
        ({"bodies": ("body",)}, "bodies of 'body'; .* the attributes none"),
        ({"without": ("axis",)}, "without 'axis'; "),
        ({"host": (0, 1)}, "host=1; "),
    ],
)
def test_wrong_argument_is_told_where_the_kernel_is_declared(arguments: dict[str, Any], reason: str) -> None:
    table = KernelTable()
    with pytest.raises(TypeError, match=f"the kernel negate of Neg is declared with {reason}"):

        @kernel("Neg", **{"since": (13,), "dtypes": frozenset({"float32"}), "table": table, **arguments})
        def negate(xp: Any, x: Any) -> Any:
            return -x
