"""Element types follow from operator signatures if onnx has no inference rule."""

from __future__ import annotations

import onnx.parser
import pytest

from hetero_core.network.reader import read_network


def type_of_y(text: str) -> str:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17, "ai.onnx.ml": 3]> {text}')
    return str(read_network(model).type_of("y"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # The output of Scaler is tensor(float) for any input type.
        ("g (double[2,2] x) => (z) { y = ai.onnx.ml.Scaler<offset = [0.0], scale = [1.0]>(x) z = Identity(y) }", "float32[2,2]"),
        # The output of Imputer has the type of its input, also behind an operator without inference.
        ("g (int64[2] x) => (z) { y = ai.onnx.ml.Imputer<imputed_value_int64s = [1]>(x) z = Identity(y) }", "int64[2]"),
        ("g (double[2] x) => (z) { a = ai.onnx.ml.Imputer<imputed_value_floats = [1.0]>(x) b = Neg(a) "
         "y = ai.onnx.ml.Imputer<imputed_value_floats = [1.0]>(b) z = Neg(y) }", "float64[2]"),
        ("g (float x) => (z) <double[2] w = {1.0, 2.0}> { y = ai.onnx.ml.Imputer<imputed_value_floats = [1.0]>(w) z = Neg(y) }",
         "float64[2]"),
    ],
    ids=["fixed", "as_input", "chain", "of_a_constant"],
)  # fmt: skip
def test_element_type_comes_from_the_signature(text: str, expected: str) -> None:
    assert type_of_y(text) == expected


def test_known_shape_is_kept() -> None:
    text = "g (float[2,3] x) => (float[2,3] y) { y = ai.onnx.ml.Scaler<offset = [0.0]>(x) }"
    assert type_of_y(text) == "float32[2,3]"


def test_custom_operator_stays_unknown() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17, "com.acme": 1]> g (float[2] x) => (z) { y = com.acme.Twist(x) z = Neg(y) }'
    )
    assert read_network(model).type_of("y") is None
