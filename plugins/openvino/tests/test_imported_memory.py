"""OPENVINO: the memory of a blob lives as long as a network imported from it; in a process of its own, as the fault is a crash."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("openvino", reason="needs the engine: pip install 'hetero-openvino[test]'")

CHILD = '''
import gc, sys
import numpy as np, onnx.parser
from hetero_core import Core
model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
g (float[N,4] x) => (float[N,3] y, float[P,Q] z)
<float[4,3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}, float[3] b = {-9, 0, 9}, int64[2] column = {-1, 1}>
{ m = MatMul (x, w) a = Add (m, b) y = Relu (a) z = Reshape (y, column) }""")
weights = np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9], [1, 2, 3]])
device, path = sys.argv[1:]
with Core() as core:
    core.load_network(core.read_network(model), device).export_network(path)
    loaded = core.import_network(path, device.partition(":")[0], trust=True)
    gc.collect()
    for rows in (3, 5, 2):
        x = np.full((rows, 4), rows, np.float32)
        outputs = loaded.infer({"x": x})
        expected = np.maximum(x @ weights + [-9, 0, 9], 0)
        assert outputs["y"].tolist() == expected.tolist() and outputs["z"].tolist() == expected.reshape(-1, 1).tolist()
print("END")
'''


@pytest.mark.parametrize("device", ["OPENVINO", "HETERO:OPENVINO"])
def test_imported_network_runs_after_the_blob_was_let_go(tmp_path: Path, device: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", CHILD, device, str(tmp_path / "blob")], capture_output=True, text=True, check=False, timeout=900
    )
    assert (ended.returncode, ended.stdout) == (0, "END\n"), ended.stderr[-2000:]
