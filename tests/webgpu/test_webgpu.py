"""ONNX Runtime's WebGPU provider as ORT.WEBGPU, on a software Vulkan: an execution provider in a separate library."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnx.parser
import pytest
from numpy.lib.stride_tricks import sliding_window_view

from hetero_core import Core
from hetero_core.conformance.suite import DeviceConformance

HEAD = '<ir_version: 8, opset_import: ["": 17]>'
DIVIDED = f"""{HEAD}
g (float[N, 8] x, float[8, 16] w, int64[4] i) => (float[N, 4] y)
{{ a = MatMul (x, w) b = Relu (a) c = Gather <axis = 1> (b, i) y = Tanh (c) }}"""


class TestWebGpu(DeviceConformance):
    device = "ORT.WEBGPU"


@pytest.mark.parametrize("rows", [1, 5, 33])
def test_plan_over_the_library_and_the_processor_is_right(core: Core, rows: int) -> None:
    generator = np.random.default_rng(rows)
    x, w = generator.standard_normal((rows, 8), np.float32), generator.standard_normal((8, 16), np.float32)
    indices = np.array([3, 0, 15, 3])
    network = core.read_network(onnx.parser.parse_model(DIVIDED)).with_affinity({"Gather_2": "CPU"})
    loaded = core.load_network(network, "HETERO:ORT.WEBGPU,CPU")
    assert loaded.get_metric("EXECUTION_DEVICES") == ("ORT.WEBGPU", "CPU")
    expected = np.tanh(np.maximum(x.astype(np.float64) @ w, 0)[:, indices])
    np.testing.assert_allclose(loaded.infer({"x": x, "w": w, "i": indices})["y"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("channels", "groups", "filters"), [(33, 1, 32), (24, 4, 136), (6, 1, 8)])
def test_convolution_of_channels_not_divisible_by_four_is_right(core: Core, channels: int, groups: int, filters: int) -> None:
    generator = np.random.default_rng(0)
    x = generator.standard_normal((1, channels, 7, 5), np.float32)
    w = generator.standard_normal((filters, channels // groups, 3, 3), np.float32)
    text = f"""g (float[1, {channels}, 7, 5] x, float[{filters}, {channels // groups}, 3, 3] w) => (float[1, {filters}, 5, 3] y)
    {{ y = Conv <group = {groups}> (x, w) }}"""
    y = core.load_network(onnx.parser.parse_model(HEAD + text), "ORT.WEBGPU").infer({"x": x, "w": w})["y"]
    windows = sliding_window_view(x.astype(np.float64), (3, 3), axis=(2, 3)).reshape(1, groups, -1, 5, 3, 3, 3)
    expected = np.einsum("ngchwij,gocij->ngohw", windows, w.reshape(groups, -1, channels // groups, 3, 3)).reshape(y.shape)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("step", "is_refused"), [(1, False), (-1, True)])
def test_slice_that_goes_backwards_is_refused(core: Core, step: int, is_refused: bool) -> None:
    text = f"""g (float[8] x) => (float[k] y) <int64[1] s = {{{1 if step > 0 else 6}}}, int64[1] e = {{{5 if step > 0 else -8}}},
    int64[1] a = {{0}}, int64[1] t = {{{step}}}> {{ y = Slice (x, s, e, a, t) }}"""
    refused = core.query_network(core.read_network(onnx.parser.parse_model(HEAD + text)), "ORT.WEBGPU").refused
    assert ["where a step of a Slice is negative" in reason for reason in refused.values()] == [True] * is_refused


def test_provider_without_hardware_is_unavailable_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER")
    listed = subprocess.run(
        [sys.executable, "-m", "hetero_core", "devices"], capture_output=True, text=True, timeout=900, check=True
    )
    reason = "its library libonnxruntime_providers_webgpu.so is loaded, and finds no hardware of its kind here"
    (row,) = [line for line in listed.stdout.splitlines() if line.startswith("ORT.WEBGPU")]
    assert f"CANNOT BE USED: {reason}" in row
    program = "from hetero_core import Core\nwith Core() as core:\n    core.get_metric('ORT.WEBGPU', 'FULL_DEVICE_NAME')"
    failed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=900, check=False)
    assert f"DeviceUnavailableError: device ORT.WEBGPU cannot be used: {reason}" in failed.stderr
