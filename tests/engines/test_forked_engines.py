"""A forked child releases networks of its parent: an engine would wait there for threads that exist only in the parent."""

from __future__ import annotations

import subprocess
import sys

import pytest

CHILD = """
import gc, os, sys
import numpy as np, onnx.parser
from hetero_core import Core
core = Core()
model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Abs (x) }')
loaded = core.load_network(model, sys.argv[1], {"INFERENCE_NUM_THREADS": 2})
request = loaded.create_infer_request()
request.infer({"x": np.ones(2, np.float32)})
child = os.fork()
if child == 0:
    del core, loaded, request
    gc.collect()
    os._exit(7)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize("device", ["CPU", "ORT", "OPENVINO", "HETERO:ORT,OPENVINO"])
def test_forked_child_that_releases_networks_ends(device: str) -> None:
    ended = subprocess.run([sys.executable, "-c", CHILD, device], check=False, timeout=900, capture_output=True, text=True)
    assert ended.returncode == 7, ended.stderr
