"""ORT: a network keeps its opset if that suits its nodes, since the engine may lack a kernel of a newer version with equal meaning."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnxruntime
import pytest

from hetero_core import Core

TEXTS = {
    "RoiAlign": "g (float[1,2,8,8] x, float[3,4] r, int64[3] i) => (float[3,2,2,2] y) "
    "{ y = RoiAlign <output_height = 2, output_width = 2, sampling_ratio = 2> (x, r, i) }",
    "MaxRoiPool": "g (float[1,2,8,8] x, float[2,5] r) => (float[2,2,2,2] y) { y = MaxRoiPool <pooled_shape = [2, 2]> (x, r) }",
    "GlobalLpPool": "g (float[1,2,8,8] x) => (float[1,2,1,1] y) { y = GlobalLpPool <p = 1> (x) }",
    "Optional": "g (float[2] x) => (float[2] y) { o = Optional (x) y = OptionalGetElement (o) }",
}


@pytest.mark.parametrize("operator", TEXTS)
def test_operator_is_taken_in_the_models_own_opset(operator: str) -> None:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> {TEXTS[operator]}')
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    inputs = {
        spec.name: np.arange(np.prod(spec.shape)).reshape(spec.shape).astype(np.float32)  # type: ignore[arg-type]  # sizes are numbers
        for spec in session.get_inputs()
    }
    if operator == "RoiAlign":
        inputs |= {"i": np.zeros(3, np.int64), "r": np.float32([[0, 0, 4, 4], [1, 1, 7, 5], [2, 0, 3, 8]])}
    if operator == "MaxRoiPool":
        inputs |= {"r": np.float32([[0, 0, 0, 4, 4], [0, 1, 1, 7, 5]])}
    with Core() as core:
        network = core.read_network(model)
        assert not core.query_network(network, "ORT").refused
        outputs = core.load_network(network, "ORT").infer(inputs)
    np.testing.assert_array_equal(outputs["y"], session.run(None, inputs)[0])
