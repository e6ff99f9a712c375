"""The executed graph of OPENVINO: the engine's steps with their nodes, layouts and times."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

from hetero_core import Core

pytest.importorskip("openvino", reason="needs the engine: pip install 'hetero-openvino[test]'")

MODEL = onnx.parser.parse_model("""
<ir_version: 8, opset_import: ["": 17]>
picture (float[1, 3, 16, 16] x, float[8, 3, 3, 3] w) => (float[1, 8, 16, 16] y) {
    [conv] a = Conv <pads = [1, 1, 1, 1]> (x, w)
    [relu] b = Relu (a)
    [exp] y = Exp (b)
}
""")


def test_steps_stand_for_fused_nodes_with_layouts_and_times(core: Core) -> None:
    request = core.load_network(MODEL, "OPENVINO", {"PERF_COUNT": True}).create_infer_request()
    request.infer({"x": np.zeros((1, 3, 16, 16), np.float32), "w": np.zeros((8, 3, 3, 3), np.float32)})
    executed = request._network.get_runtime_model(request.profile)
    assert [name for node in executed.nodes for name in node.attributes.get("original_names", ())] == ["conv", "relu", "exp"]
    fused = next(node for node in executed.nodes if "conv" in node.origins)
    assert fused.origins == ("conv", "relu")
    assert fused.attributes["layouts"] == ("acdb",)
    microseconds = sum(node.attributes.get("microseconds", 0) for node in executed.nodes)
    assert microseconds == pytest.approx(sum(entry.seconds for entry in request.perf_counts) * 1e6)
