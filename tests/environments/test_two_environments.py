"""Two mutually exclusive distributions of ONNX Runtime, each in an environment of its own, share a network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx.parser
import pytest

from hetero_core import Core

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = {"PROCESS:ORT": "onnxruntime==1.31.*", "PROCESS:ORT.OPENVINO": "onnxruntime-openvino==1.24.*"}
MODEL = """<ir_version: 8, opset_import: ["": 17]> g (float[n,8] x, float[8,4] w) => (float[n,4] y)
    { h = MatMul (x, w) r = Relu (h) e = Sigmoid (r) y = Add (e, r) }"""


@pytest.fixture(scope="module")
def pythons(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Device -> the Python of its environment, created as by a user."""
    pythons = {}
    for device, engine in ENVIRONMENTS.items():
        folder = tmp_path_factory.mktemp("environment")
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pythons[device] = folder / "bin" / "python"
        packages = [engine, str(ROOT), str(ROOT / "plugins" / "process"), str(ROOT / "plugins" / "onnxruntime")]
        subprocess.run([str(pythons[device]), "-m", "pip", "install", "--quiet", *packages], check=True)
    return pythons


def list_engines_of_children() -> set[str]:
    """Returns the files of ONNX Runtime that child processes have mapped."""
    engines = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(stat.read_text().rpartition(")")[2].split()[1]) != os.getpid():
                continue
            maps = (stat.parent / "maps").read_text()
        except OSError:  # the child has ended meanwhile
            continue
        engines |= {line.split()[-1] for line in maps.splitlines() if "onnxruntime_pybind11_state" in line}
    return engines


def test_one_network_runs_on_two_distributions_of_one_engine(core: Core, pythons: dict[str, Path]) -> None:
    network = core.read_network(onnx.parser.parse_model(MODEL))
    device_of_op = {
        "MatMul": "PROCESS:ORT",
        "Relu": "PROCESS:ORT.OPENVINO",
        "Sigmoid": "PROCESS:ORT",
        "Add": "PROCESS:ORT.OPENVINO",
    }
    pinned = network.with_affinity({node.name: device_of_op[node.op_type] for node in network.nodes})
    properties = {device: {"PROCESS_PYTHON": str(python)} for device, python in pythons.items()}
    split = core.load_network(pinned, "HETERO:" + ",".join(ENVIRONMENTS), {"DEVICE_PROPERTIES": properties})
    assert {device for device, _ in split.get_metric("HETERO_SUBGRAPHS")} == set(ENVIRONMENTS)

    random = np.random.default_rng(11)
    for rows in (1, 5, 64):
        x, w = random.standard_normal((rows, 8), np.float32), random.standard_normal((8, 4), np.float32)
        relu = np.maximum(x.astype(np.float64) @ w.astype(np.float64), 0)
        np.testing.assert_allclose(split.infer({"x": x, "w": w})["y"], 1 / (1 + np.exp(-relu)) + relu, rtol=1e-5)

    engines = list_engines_of_children()
    for python in pythons.values():
        assert any(engine.startswith(str(python.parents[1])) for engine in engines), engines
