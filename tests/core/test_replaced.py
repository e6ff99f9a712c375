"""Constants that a model also lists as inputs are optional inputs of a run, on every device."""

from __future__ import annotations

import io

import numpy as np
import onnx
import onnx.parser
import pytest

from hetero_core import Core
from hetero_core.errors import InferenceError, InputNameError, InputShapeError

DEVICES = ["CPU", "TEMPLATE", "ORT", "HETERO:TEMPLATE,CPU", "HETERO:ORT,CPU"]
# As a constant, w is folded with c, and s sets a shape.
TEXT = """g (float[N,2] x, float[2] w, int64[2] s) => (float[A,B] y, float[2] v)
    <float[2] w = {2, 3}, int64[2] s = {-1, 2}, float[2] c = {10, 20}> {
    [sum] v = Add (w, c) [scale] a = Mul (x, v) [turn] y = Reshape (a, s)
}"""
X = np.arange(6, dtype=np.float32).reshape(3, 2)
W = np.array([-1, 4], np.float32)
S = np.array([1, 6])


def parse(ir_version: int = 8) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: {ir_version}, opset_import: ["": 13]> {TEXT}')


def expect(w: np.ndarray, s: np.ndarray) -> dict[str, np.ndarray]:
    v = w.astype(np.float64) + np.array([10, 20])
    return {"y": (X * v).reshape(s), "v": v}


FEEDS = [{}, {"w": W}, {"s": S}, {"w": W, "s": S}, {}, {"w": W}]
DEFAULTS = {"w": np.array([2, 3], np.float32), "s": np.array([-1, 2])}


def check(outputs: dict[str, np.ndarray], feeds: dict[str, np.ndarray]) -> None:
    expected = expect(**{**DEFAULTS, **feeds})
    assert outputs.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(outputs[name], value, rtol=1e-6)


@pytest.mark.parametrize("ir_version", [3, 8])
@pytest.mark.parametrize("device", DEVICES)
def test_constant_is_used_unless_a_run_is_given_another_value(core: Core, device: str, ir_version: int) -> None:
    pins = {"sum": "TEMPLATE", "scale": "CPU", "turn": "TEMPLATE"} if device == "HETERO:TEMPLATE,CPU" else {}
    loaded = core.load_network(core.read_network(parse(ir_version)).with_affinity(pins), device)
    assert [spec.name for spec in loaded.inputs] == ["x"]
    assert [str(spec) for spec in loaded.replaceable] == ["w: float32[2]", "s: int64[2]"]
    request = loaded.create_infer_request()
    for feeds in FEEDS:
        check(loaded.infer({"x": X, **feeds}), feeds)
        check(request.infer({"x": X, **feeds}), feeds)
        request.start_async({"x": X, **feeds})
        request.wait()
        check({name: request.get_tensor(name) for name in ("y", "v")}, feeds)


@pytest.mark.parametrize("device", ["CPU", "HETERO:ORT,CPU", "HETERO:TEMPLATE,CPU"])
def test_imported_network_takes_constants_like_the_exported(core: Core, device: str) -> None:
    stream = io.BytesIO()
    core.load_network(parse(), device).export_network(stream)
    imported = core.import_network(stream.getvalue(), device)
    for feeds in FEEDS:
        check(imported.infer({"x": X, **feeds}), feeds)


def test_network_from_the_cache_takes_constants(core: Core, tmp_path: object) -> None:
    for _ in range(2):
        loaded = core.load_network(parse(), "CPU", {"CACHE_DIR": str(tmp_path)})
        check(loaded.infer({"x": X, "w": W}), {"w": W})
    assert loaded.get_metric("LOADED_FROM_CACHE")


def test_blob_of_a_model_that_must_list_its_weights_takes_none(core: Core) -> None:
    stream = io.BytesIO()
    core.load_network(parse(3), "CPU").export_network(stream)
    imported = core.import_network(stream.getvalue(), "CPU")
    check(imported.infer({"x": X}), {})
    with pytest.raises(InputNameError, match="has no input 'w'"):
        imported.infer({"x": X, "w": W})


def test_request_keeps_a_constant_that_was_set(core: Core) -> None:
    request = core.load_network(parse(), "CPU").create_infer_request()
    request.set_tensor("w", W)
    check(request.infer({"x": X}), {"w": W})
    check(request.infer({"x": X, "s": S}), {"w": W, "s": S})
    np.testing.assert_array_equal(request.get_tensor("w"), W)


@pytest.mark.parametrize("config", [{"PERF_COUNT": True}, {"DEADLINE": 60.0}, {"MEMORY_LIMIT": 1 << 30}])
def test_constants_are_taken_with_measures_and_limits(core: Core, config: dict[str, object]) -> None:
    loaded = core.load_network(parse(), "CPU", config)
    request = loaded.create_infer_request()
    for feeds in FEEDS:
        check(loaded.infer({"x": X, **feeds}), feeds)
        check(request.infer({"x": X, **feeds}), feeds)


def test_value_of_another_shape_is_refused(core: Core) -> None:
    loaded = core.load_network(parse(), "CPU")
    with pytest.raises(InputShapeError, match=r"input 'w' of network 'g': expected shape \[2\], got \[3\]"):
        loaded.infer({"x": X, "w": np.zeros(3, np.float32)})


def test_state_and_constant_go_together(core: Core) -> None:
    text = """g (float[2] x, float[2] old, float[2] w) => (float[2] new) <float[2] w = {2, 3}> {
        a = Mul (x, w) new = Add (a, old)
    }"""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 13]> {text}')
    network = core.read_network(model).with_state({"new": "old"}).with_outputs(add=["a"])
    request = core.load_network(network, "CPU").create_infer_request()
    x = np.ones(2, np.float32)
    request.infer({"x": x, "w": W})
    request.infer({"x": x})
    np.testing.assert_array_equal(request.states["old"].value, [1, 7])


def test_loaded_networks_of_constants_are_closed_with_their_own(core: Core) -> None:
    loaded = core.load_network(parse(), "CPU")
    loaded.infer({"x": X, "w": W})
    loaded.close()
    with pytest.raises(InferenceError.__mro__[1], match="is closed"):
        loaded.infer({"x": X, "w": W})
