"""ORT with a second execution provider, which refuses nodes that the CPU provider takes.

The provider here stands in for a hardware provider and takes every node that the engine's own takes; the plugin adds the refusals.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import onnx.parser
import onnxruntime
import pytest
from hetero_onnxruntime import probing
from hetero_onnxruntime.device import OrtDevice
from hetero_onnxruntime.engine import CPU_PROVIDER, OrtEngine, make_options, open_session
from hetero_onnxruntime.known_errors import find_provider_error
from hetero_onnxruntime.libraries import LIBRARY_VARIABLE, register_libraries

from hetero_core.contract import DeviceName
from hetero_core.network.graph import Network
from hetero_core.network.reader import read_network

SECOND = "OpenVINOExecutionProvider"


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> OrtDevice:
    """A device of an engine with a simulated second provider, backed by the CPU provider."""
    engine = OrtEngine(onnxruntime, {"onnxruntime": onnxruntime.__version__})
    monkeypatch.setitem(vars(engine), "_fault_of_provider", {SECOND: None})
    monkeypatch.setattr(probing, "make_options", lambda module, provider, **more: make_options(module, CPU_PROVIDER, **more))
    monkeypatch.setattr(probing, "open_session", lambda module, model, options, provider: _open(module, model, options))
    return OrtDevice("ORT", engine)


def _open(module: Any, model: bytes, options: Any) -> Any:
    return open_session(module, model, options, CPU_PROVIDER)


def read(text: str) -> Network:
    return read_network(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {text}'))


@pytest.mark.parametrize(
    ("text", "passed"),
    [
        ("(float[2] x) => (float[2] y, float[2] x) { a = Neg(x) y = Abs(a) }", "x"),
        ("(float[2] x) => (float[2] y, float[2] c) <float[2] c = {1, 2}> { a = Neg(x) y = Abs(a) }", "c"),
    ],
    ids=["input", "constant"],
)
def test_network_that_returns_its_input_needs_the_cpu_provider(device: OrtDevice, text: str, passed: str) -> None:
    network = read(text)
    result = device.query_network(DeviceName("ORT", id="OPENVINO"), network, {})
    reason = f"{SECOND} does not load a network that returns its input or constant '{passed}' as it is"
    assert dict(result.refused) == {"Neg_0": reason, "Abs_1": reason}
    for name in (DeviceName("ORT"), DeviceName("ORT", id="CPU")):
        assert dict(device.query_network(name, network, {}).refused) == {}


def test_network_that_computes_its_outputs_is_taken(device: OrtDevice) -> None:
    network = read("(float[2] x) => (float[2] y, float[2] z) { y = Neg(x) z = Abs(y) }")
    answer = device.query_network(DeviceName("ORT", id="OPENVINO"), network, {})
    assert dict(answer.supported) == {"Neg_0": "ORT.OPENVINO", "Abs_1": "ORT.OPENVINO"}


HALVES = "OpenVINO's provider multiplies by the reciprocal, so that a quotient may be on the other side of a half"
LONG = "OpenVINO's provider computes integers of 64 bits in 32; "


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("(int64[2] x) => (int64[2] y) { y = Neg(x) }", LONG + "'x' may be larger"),
        (
            "(float[2] x) => (int64[1] y) <int64[1] c = {5000000000}> { s = Shape(x) y = Add(c, c) }",
            LONG + "the constant 'c' is larger",
        ),
        ("(int32[2] x) => (bool[2] y) { y = Equal(x, x) }", "OpenVINO's provider computes Equal of int32 in float32"),
        (
            "(uint8[2] x) => (uint8[2] y) { y = Add(x, x) }",
            "OpenVINO's provider saturates uint8 in Add; the standard's reference wraps around",
        ),
        ("(float[2] x) => (float[2] y) { y = Max(x) }", "OpenVINO's provider does not write the Max of one value"),
        ("(float[2] x, float[2] z) => (float[2] y) { d = Div(x, z) y = Round(d) }", HALVES),
        (
            "(float[2] x, int64[1] r) => (float[N] y) { y = Tile(x, r) }",
            "OpenVINO's provider returns what it has not written where repeats are no constant",
        ),
        (
            "(float[2] x) => (float[1] y) { y = ReduceMax(x) }",
            "OpenVINO's provider returns the lowest or highest float of infinities alone",
        ),
        (
            "(float[1,1,4,4] x) => (float[1,1,2,2] y) { y = MaxPool <kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1> (x) }",
            "OpenVINO's provider counts a window that begins behind the end of the input, under ceil_mode",
        ),
    ],
)
def test_row_of_openvinos_provider_refuses_there_alone(device: OrtDevice, text: str, reason: str) -> None:
    network = read(text)
    assert list(device.query_network(DeviceName("ORT", id="OPENVINO"), network, {}).refused.values()) == [reason]
    assert dict(device.query_network(DeviceName("ORT"), network, {}).refused) == {}


def test_flattening_softmax_is_refused_by_openvinos_provider(device: OrtDevice) -> None:
    text = '<ir_version: 7, opset_import: ["": 11]> g (float[2,3,4] x) => (float[2,3,4] y) {{ y = Softmax <axis = {axis}> (x) }}'
    reason = "OpenVINO's provider computes Softmax before opset 13 along one axis; the standard flattens all from that axis on"
    for axis, reasons in ((1, [reason]), (2, []), (-1, [])):
        network = read_network(onnx.parser.parse_model(text.format(axis=axis)))
        assert list(device.query_network(DeviceName("ORT", id="OPENVINO"), network, {}).refused.values()) == reasons


def test_body_of_int64_is_refused_by_openvinos_provider(device: OrtDevice) -> None:
    network = read(
        """(bool b, int32[2] x) => (int32[2] y) { y = If(b) <
        then_branch = yes () => (int32[2] p) <int64[2] c = {5000000000, 1}> { [sum] a = Add(c, c) p = Cast <to = 6> (a) },
        else_branch = no () => (int32[2] q) { q = Neg(x) }> }"""
    )
    reasons = list(device.query_network(DeviceName("ORT", id="OPENVINO"), network, {}).refused.values())
    assert reasons == [f"its body holds 'sum' (Add): {LONG}the constant 'c' is larger"]
    network = read(
        """(bool b, int64[2] x) => (int64[2] y) { y = If(b) <
        then_branch = yes () => (int64[2] p) { p = Add(x, x) }, else_branch = no () => (int64[2] q) { q = Neg(x) }> }"""
    )
    reasons = list(device.query_network(DeviceName("ORT", id="OPENVINO"), network, {}).refused.values())
    assert reasons == [LONG + "'x' may be larger"]


@pytest.mark.parametrize(
    "body",
    [
        "(float[4] x, int64[2] i) => (float[2] y) { y = Gather(x, i) }",
        "(float[2,3] x) => (float[4,3] y) <int64[2] r = {2, 1}> { y = Tile(x, r) }",
        "(float[4] x) => (int64[1] y) { y = Shape(x) }",
        "(float[4] x) => (float[2] y) <int64[1] s = {2}, int64[1] e = {9223372036854775807}> { y = Slice(x, s, e) }",
        "(int32[4] x) => (int32[4] y) { y = Add(x, x) }",
    ],
)
def test_sizes_and_positions_are_taken_by_openvinos_provider(device: OrtDevice, body: str) -> None:
    assert dict(device.query_network(DeviceName("ORT", id="OPENVINO"), read(body), {}).refused) == {}


def test_missing_kernel_beside_more_providers_is_worded(device: OrtDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime 1.24 with OpenVINO kills the process if it is asked for its list of kernels."""
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [SECOND, CPU_PROVIDER])
    monkeypatch.setattr(probing, "_kernel_versions", lambda: pytest.fail("asked for the list"))
    network = read("(int16[2] x) => (int16[2] y) { y = Min(x, x) }")
    (reason,) = device.query_network(DeviceName("ORT"), network, {}).refused.values()
    assert reason == f"ONNX Runtime {onnxruntime.__version__} has no CPUExecutionProvider kernel for Min-13 on (int16[2], int16[2])"


def test_invalid_library_is_named_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, absent = tmp_path / "text.so", tmp_path / "absent.so"
    text.write_text("no library")
    monkeypatch.setenv(LIBRARY_VARIABLE, os.pathsep.join(map(str, (text, absent))))
    faults = register_libraries(onnxruntime)
    assert re.search(r"text\.so: (file too short|invalid ELF header)", faults["text"])
    assert (
        faults["absent"]
        == f"FileNotFoundError: ORT_PROVIDER_LIBRARY names '{absent}', which is no file; give the path of a provider's library"
    )


@pytest.mark.parametrize(
    ("provider", "fault", "text", "reason"),
    [
        (SECOND, "the driver is too old", "g (float16[2] x) => (float16[2] y) { y = Neg (x) }",
         "OpenVINOExecutionProvider does not run float16 here: the driver is too old"),
        (SECOND, "the driver is too old", "g (float[2] x) => (float[2] y) { y = Neg (x) }", None),
        ("WebGpuExecutionProvider", None, "g (float[1,2,4] x, float[4,12] w) => (float[1,2,4] y) "
         "{ y = com.microsoft.Attention <num_heads = 2> (x, w) }",
         "WebGPU's provider ends the process on Attention of com.microsoft"),
        ("WebGpuExecutionProvider", None, "g (float[2] x) => (float[2] y) { y = com.microsoft.Gelu (x) }", None),
    ],
)  # fmt: skip
def test_provider_gets_no_node_that_it_computes_wrong(provider: str, fault: str | None, text: str, reason: str | None) -> None:
    head = '<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>'
    network = read_network(onnx.parser.parse_model(f"{head} {text}"))
    assert find_provider_error(network.nodes[0], network, provider, fault) == reason
