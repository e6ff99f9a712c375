"""Tokenizer of com.microsoft against ONNX Runtime, whose operator it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from hetero_core.errors import UnsupportedNodesError
from hetero_core.kernels.program import compile_program
from hetero_core.network.reader import read_network

TEXTS = np.array(["ab cd  e", "", "fg\u00e9 x-1"], dtype=object)


def make_model(x: np.ndarray[Any, Any], **attributes: Any) -> onnx.ModelProto:
    settings = {"mark": 0, "pad_value": "#", "mincharnum": 1, **attributes}
    node = helper.make_node("Tokenizer", ["x"], ["y"], domain="com.microsoft", **settings)
    specs = [helper.make_tensor_value_info(name, TensorProto.STRING, shape) for name, shape in (("x", x.shape), ("y", None))]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(helper.make_graph([node], "g", specs[:1], specs[1:]), opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize(
    "attributes",
    [
        {"tokenexp": "[a-z]+"},
        {"tokenexp": "[a-z]+", "mincharnum": 2},
        {"tokenexp": "."},
        {"tokenexp": "b?"},
        {"separators": [" "]},
        {"separators": [""]},
        {"separators": ["c", " +"]},
        {"tokenexp": "[0-9]{7}"},
        {"tokenexp": "a|ab"},
        {"tokenexp": "(f|fg)."},
        {"tokenexp": "[a-z]+?"},
        {"separators": ["(c| )"]},
    ],
    ids=lambda attributes: "-".join(f"{name}={value}" for name, value in attributes.items()),
)
@pytest.mark.parametrize("x", [TEXTS, TEXTS.reshape(1, 3)], ids=["vector", "matrix"])
def test_tokens_are_those_of_onnxruntime(x: np.ndarray[Any, Any], attributes: dict[str, Any]) -> None:
    model = make_model(x, **attributes)
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})
    (found,) = compile_program(read_network(model)).run((x,))
    assert found.shape == expected.shape
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"tokenexp": "[a"}, "has the expression '[a', which is none of RE2's: missing ]: [a"),
        ({"separators": ["(a)\\1"]}, "has the expression '(a)\\\\1', which is none of RE2's: invalid escape sequence: \\1"),
        ({"separators": ["b?"]}, "has the separator 'b?', which matches the empty text"),
        ({}, "needs either separators or a tokenexp"),
    ],
    ids=["broken", "backreference", "empty", "none"],
)
def test_expression_that_is_none_of_re2_is_refused(attributes: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnsupportedNodesError) as caught:
        compile_program(read_network(make_model(TEXTS, **attributes)))
    assert f"com.microsoft:Tokenizer-1 {reason}" in str(caught.value)


def test_marks_are_refused() -> None:
    with pytest.raises(UnsupportedNodesError, match="attribute 'mark' of com.microsoft:Tokenizer-1 is 1; implemented: 0"):
        compile_program(read_network(make_model(TEXTS, tokenexp=".", mark=1)))


def test_element_type_of_the_tokens_is_known() -> None:
    model = make_model(TEXTS, tokenexp=".")
    del model.graph.output[:]
    model.graph.output.append(onnx.ValueInfoProto(name="y"))
    assert read_network(model).outputs[0].dtype == "string"
