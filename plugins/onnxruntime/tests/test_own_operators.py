"""ORT and the operators that ONNX Runtime adds to ONNX: opsets unknown to onnx, and operators without a kernel."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

from hetero_core import Core

GELU = "g (float[4] x) => (float[4] z) { [first] y = com.microsoft.Gelu(x) [second] z = Neg(y) }"


def model(text: str, *, opset: int = 17, imports: bool = True) -> onnx.ModelProto:
    domains = ', "com.microsoft": 1' if imports else ""
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}{domains}]> {text}')


def gelu(x: np.ndarray) -> np.ndarray:
    from math import erf

    return np.array([value / 2 * (1 + erf(value / np.sqrt(2))) for value in x.astype(np.float64)])


@pytest.mark.parametrize("imports", [True, False])
@pytest.mark.parametrize("device", ["ORT", "HETERO:ORT,CPU", "HETERO:CPU,ORT"])
def test_own_operator_runs_whole_and_in_parts(core: Core, device: str, imports: bool) -> None:
    network = core.read_network(model(GELU, imports=True) if imports else _without_import())
    if device.startswith("HETERO"):
        names = device.partition(":")[2].split(",")
        network = network.with_affinity({"first": names[0], "second": names[1]})
    x = np.array([-1, 0, 0.5, 3], np.float32)
    with core.load_network(network, device) as loaded:
        np.testing.assert_allclose(loaded.infer({"x": x})["z"], -gelu(x), rtol=1e-5, atol=1e-6)


def _without_import() -> onnx.ModelProto:
    proto = model(GELU)
    del proto.opset_import[1]
    return proto


def test_operator_of_onnx_runs_in_an_opset_unknown_to_the_engine(core: Core) -> None:
    proto = model("g (float[2,4] x, float[4] w) => (float[2,4] y) { y = SimplifiedLayerNormalization(x, w) }", opset=28)
    x, w = np.arange(8, dtype=np.float32).reshape(2, 4), np.ones(4, np.float32)
    wide = x.astype(np.float64)
    with core.load_network(proto, "ORT") as loaded:
        expected = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 1e-5)
        np.testing.assert_allclose(loaded.infer({"x": x, "w": w})["y"], expected, rtol=1e-5)


def test_withdrawn_operator_runs_in_its_own_opsets(core: Core) -> None:
    text = "g (float[2] x) => (float[2] y) { y = Affine <alpha = 2.0, beta = 1.0> (x) }"
    assert not core.query_network(core.read_network(model(text, opset=9)), "ORT").refused
    assert "Affine" in core.query_network(core.read_network(model(text, opset=17)), "ORT").refused["Affine_0"]


def test_attention_that_writes_into_its_inputs_is_refused(core: Core) -> None:
    text = """g (float[1,2,8] x, float[8,24] w, float[2,1,2,6,4] past, int32[1] length) => (y, present) {
        y, present = com.microsoft.Attention <num_heads = 2, past_present_share_buffer = 1> (x, w, , , past, , length)
    }"""
    refused = core.query_network(core.read_network(model(text)), "ORT").refused
    assert "writes its caches into its inputs, and inputs are never written here" in refused["Attention_0"]
