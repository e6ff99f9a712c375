"""Weights in a file beside the model: pages of packed weights are returned to the system, and the arrays stay valid."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx.external_data_helper
import onnx.parser
import pytest
from hetero_cpu.operators.weights import PackedWeights

from hetero_core import Core, Network

pytestmark = pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="the system does not tell which pages are resident")

SIZE = 512
WEIGHTS = {
    name: np.random.default_rng(seed).standard_normal((SIZE, SIZE)).astype(np.float32) / 20 for seed, name in enumerate("vw")
}
SLACK_KIB = 256
"""Of 2 MiB: pages at the ends, and what the system reads along."""


def write_model(folder: Path, batch: str) -> Path:
    """Writes y = tanh(x @ v) @ w with its weights in `weights.bin`."""
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 21]> g (float[{batch}, {SIZE}] x) => (float[{batch}, {SIZE}] y)'
        " { a = MatMul(x, v)  b = Tanh(a)  y = MatMul(b, w) }"
    )
    for name, array in WEIGHTS.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    path = folder / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


def count_resident_kib(path: Path) -> int:
    """Returns the resident memory of a mapped file in this process, in KiB, from /proc/self/smaps."""
    counts, is_inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            is_inside = line.endswith(str(path))
        elif is_inside and line.startswith("Rss:"):
            counts += int(line.split()[1])
    return counts


def read_network(folder: Path) -> Network:
    with Core() as core:
        return core.read_network(write_model(folder, "4"))


@pytest.mark.parametrize("releases", [True, False])
def test_pages_of_a_packed_weight_are_freed_and_the_array_stays(tmp_path: Path, releases: bool) -> None:
    constants = read_network(tmp_path).initializers
    array = constants["w"].array
    assert array.sum() == pytest.approx(WEIGHTS["w"].sum())
    assert count_resident_kib(tmp_path / "weights.bin") >= WEIGHTS["w"].nbytes // 1024
    packed = PackedWeights(releases=releases).serve(constants).pack((array,), ("doubled",), lambda w: w * 2)
    assert count_resident_kib(tmp_path / "weights.bin") <= SLACK_KIB
    np.testing.assert_array_equal(packed, WEIGHTS["w"] * 2)
    np.testing.assert_array_equal(array, WEIGHTS["w"])


@pytest.mark.parametrize("batch", ["4", "n"])
def test_network_of_machine_code_holds_its_weights_once(tmp_path: Path, batch: str) -> None:
    pytest.importorskip("llvmlite", reason="machine code is made by llvmlite")
    from hetero_cpu.machine.compiler import find_width

    if not find_width():
        pytest.skip("no machine code is made for this processor")
    x = np.linspace(-1, 1, 4 * SIZE, dtype=np.float32).reshape(4, SIZE)
    with Core() as core:
        network = core.load_network(write_model(tmp_path, batch), "CPU", {"CPU_KERNELS": "JIT"})
        y = network.infer({"x": x})["y"]
        assert count_resident_kib(tmp_path / "weights.bin") <= SLACK_KIB
    expected = np.tanh(x.astype(np.float64) @ WEIGHTS["v"]) @ WEIGHTS["w"]
    np.testing.assert_allclose(y, expected, atol=1e-4)
