"""Models that list a constant or an output twice, as ONNX Runtime allows, and a check of a device on them."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import onnx.parser
from onnx import ModelProto, helper, numpy_helper

from hetero_core import Core
from hetero_core.errors import NetworkDeclarationWarning

X = np.array([1, -2], np.float32)


def parse(text: str) -> ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')


def outputs_listed_twice() -> ModelProto:
    return parse("""g (float[2] x) => (float[2] y, float[2] x, float[2] c, float[2] y, float[2] x, float[2] c, float[K] y)
        <float[2] c = {3, 4}> { y = Neg (x) }""")


def output_of_loop_listed_twice() -> ModelProto:
    return parse("""g (float[2] x) => (float[2] y, float[3,2] a, float[3,2] b) <int64 n = {3}> { y, a, b = Loop (n, , x) <body = body
        (int64 i, bool p, float[2] v) => (bool q, float[2] w, float[2] s, float[2] s) { q = Identity (p) w = Neg (v) s = Exp (v) }> }""")


def constants_listed_twice() -> ModelProto:
    return parse("g (float[2] x) => (float[2] y) <float[2] c = {3, 4}, float[2] c = {5, 6}> { y = Add (x, c) }")


def replaceable_constant_listed_twice() -> ModelProto:
    model = constants_listed_twice()
    model.graph.input.append(helper.make_tensor_value_info("c", onnx.TensorProto.FLOAT, [2]))
    return model


def constant_of_node_and_file() -> ModelProto:
    return parse("""g (float[2] x) => (float[2] y) <float[2] c = {3, 4}> {
        c = Constant <value = float[2] {5, 6}> () c = Constant <value = float[2] {7, 8}> () y = Add (x, c) }""")


def dense_and_sparse_constant() -> ModelProto:
    model = parse("g (float[2] x) => (float[2] y) <float[2] c = {3, 4}> { y = Add (x, c) }")
    values, places = (
        numpy_helper.from_array(np.array([9], np.float32), "c"),
        numpy_helper.from_array(np.array([1], np.int64), "places"),
    )
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [2]))
    return model


BUILDERS = (
    outputs_listed_twice,
    output_of_loop_listed_twice,
    constants_listed_twice,
    replaceable_constant_listed_twice,
    constant_of_node_and_file,
    dense_and_sparse_constant,
)


def check_device(core: Core, device: str, model: ModelProto) -> None:
    """Compares a device's outputs, by position, with ONNX Runtime's."""
    import onnxruntime

    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": X})
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", NetworkDeclarationWarning
        )  # for different constants of a name; a test of the core asserts it
        outputs = list(core.load_network(model, device).infer({"x": X}).values())
    assert len(outputs) == len(expected)
    for output, reference in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(output, reference, rtol=1e-5)
