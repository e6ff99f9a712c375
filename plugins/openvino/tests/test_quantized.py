"""Quantized models: refused unless a key allows them, then right up to a step; wrong operators of com.microsoft stay refused."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import onnx.parser
import pytest

from hetero_core import Core, Network
from hetero_core.errors import BlobMismatchError

pytest.importorskip("openvino", reason="needs the engine: pip install 'hetero-openvino[test]'")

Read = Callable[..., Network]
KEY = {"OPENVINO_QUANTIZED": True}
PAIRS = """g (float[2,3] x) => (float[2,2] y)
<float s = {0.02}, uint8 z = {115}, int8[3,2] w = {3, -60, 27, 5, 0, 50}, float[2] sw = {0.01, 0.02}, int8[2] zw = {0, 0},
 float t = {0.05}, uint8 zt = {100}>
{
  a = QuantizeLinear (x, s, z)
  b = DequantizeLinear (a, s, z)
  v = DequantizeLinear <axis = 1> (w, sw, zw)
  c = MatMul (b, v)
  d = QuantizeLinear (c, t, zt)
  y = DequantizeLinear (d, t, zt)
}"""


def test_quantized_network_is_refused_with_the_key_that_takes_it(core: Core, read: Read) -> None:
    refused = core.query_network(read(PAIRS), "OPENVINO").refused
    assert set(refused) == {"QuantizeLinear_0", "QuantizeLinear_4"}
    assert "OPENVINO_QUANTIZED=YES takes it all the same" in refused["QuantizeLinear_0"]


@pytest.mark.parametrize("device", ["OPENVINO", "HETERO:OPENVINO,TEMPLATE"])
def test_quantized_network_is_right_up_to_a_step(core: Core, read: Read, device: str) -> None:
    x = np.random.default_rng(0).uniform(-2, 2, (2, 3)).astype(np.float32)
    codes = np.clip(np.rint(x.astype(np.float64) / 0.02) + 115, 0, 255)
    weights = np.array([[3, -60], [27, 5], [0, 50]]) * np.array([0.01, 0.02])
    product = ((codes - 115) * 0.02) @ weights
    y = core.load_network(read(PAIRS), device, KEY).infer({"x": x})["y"]
    np.testing.assert_allclose(y, (np.clip(np.rint(product / 0.05) + 100, 0, 255) - 100) * 0.05, atol=0.0501)


def test_blob_of_a_quantized_network_keeps_the_key(core: Core, read: Read) -> None:
    blob = io.BytesIO()
    core.load_network(read(PAIRS), "OPENVINO", KEY).export_network(blob)
    loaded = core.import_network(blob.getvalue(), "OPENVINO")
    assert loaded.get_config("OPENVINO_QUANTIZED") is True
    with pytest.raises(BlobMismatchError, match="OPENVINO_QUANTIZED is False in the call and True in the blob"):
        core.import_network(blob.getvalue(), "OPENVINO", {"OPENVINO_QUANTIZED": False})


def test_operators_of_onnx_runtime_that_cut_off_are_refused(core: Core, read: Read) -> None:
    text = """g (uint8[4] a, uint8[4] b) => (uint8[4] c) <float s = {0.1}, uint8 z = {3}>
    { c = com.microsoft.QLinearAdd (a, s, z, b, s, z, s, z) }"""
    refused = core.query_network(read(text), "OPENVINO", KEY).refused
    assert "OpenVINO's QLinearAdd of com.microsoft was not found right" in refused["QLinearAdd_0"]


def test_pair_behind_a_pair_that_would_crash_is_refused(core: Core, read: Read) -> None:
    text = """g (float[1,2] x) => (float[1,4] y) <float s = {0.02}, uint8 z = {115}> {
        c = Concat <axis = 1> (x, x) a = QuantizeLinear (c, s, z) b = DequantizeLinear (a, s, z) e = Dropout (b)
        f = QuantizeLinear (e, s, z) y = DequantizeLinear (f, s, z) }"""
    refused = core.query_network(read(text), "OPENVINO", KEY).refused
    assert "may end the process on a QuantizeLinear of what was dequantized" in refused["QuantizeLinear_4"]


@pytest.mark.parametrize("domain", ["", "com.microsoft."])
@pytest.mark.parametrize(("codes", "least", "largest"), [("int16", -32768, 32767), ("uint16", 0, 65535)])
def test_codes_of_16_bits_are_refused(core: Core, domain: str, codes: str, least: int, largest: int) -> None:
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]> g (float[4] x) => (float[4] y)
        <float s = {{0.001}}, {codes} z = {{7}}>
        {{ q = {domain}QuantizeLinear (x, s, z) d = {domain}DequantizeLinear (q, s, z) y = Relu (d) }}""")
    network = core.read_network(model)
    refused = core.query_network(network, "OPENVINO", KEY).refused
    assert "OpenVINO does not saturate what it quantizes to 16 bits" in refused["QuantizeLinear_0"]
    x = np.array([-500, 0.0025, 1, 500], np.float32)
    expected = np.maximum((np.clip(np.rint(x.astype(np.float64) / 0.001) + 7, least, largest) - 7) * 0.001, 0)
    y = core.load_network(network, "HETERO:OPENVINO,TEMPLATE", KEY).infer({"x": x})["y"]
    np.testing.assert_allclose(y, expected, atol=0.0011)
