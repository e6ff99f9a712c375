"""ORT with a second execution provider: what it refuses that the engine's own takes. The provider here stands in for one of hardware."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx.parser
import onnxruntime
import pytest
from hetero_onnxruntime import probing
from hetero_onnxruntime.device import OrtDevice
from hetero_onnxruntime.engine import CPU_PROVIDER, Engine, make_options, open_session

from hetero_core.contract import DeviceName
from hetero_core.network.graph import Network
from hetero_core.network.reader import read_network

SECOND = "OpenVINOExecutionProvider"


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> OrtDevice:
    """A device whose engine says that it has a second provider; what is asked of that one, the CPU provider answers."""
    engine = Engine(onnxruntime, {"onnxruntime": onnxruntime.__version__})
    providers: Mapping[str, str] = {"CPU": CPU_PROVIDER, "OPENVINO": SECOND}
    monkeypatch.setitem(vars(engine), "provider_of_id", providers)
    monkeypatch.setattr(probing, "make_options", lambda module, provider: make_options(module, CPU_PROVIDER))
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
def test_network_that_returns_what_no_node_makes_is_refused_on_a_second_provider_alone(
    device: OrtDevice, text: str, passed: str
) -> None:
    network = read(text)
    result = device.query_network(DeviceName("ORT", id="OPENVINO"), network)
    reason = f"{SECOND} does not load a network that returns its input or constant '{passed}' as it is"
    assert dict(result.refused) == {"Neg_0": reason, "Abs_1": reason}
    for name in (DeviceName("ORT"), DeviceName("ORT", id="CPU")):
        assert dict(device.query_network(name, network).refused) == {}


def test_network_whose_nodes_make_all_outputs_is_taken_by_a_second_provider(device: OrtDevice) -> None:
    network = read("(float[2] x) => (float[2] y, float[2] z) { y = Neg(x) z = Abs(y) }")
    found = device.query_network(DeviceName("ORT", id="OPENVINO"), network)
    assert dict(found.supported) == {"Neg_0": "ORT.OPENVINO", "Abs_1": "ORT.OPENVINO"}
