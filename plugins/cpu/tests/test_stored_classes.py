"""Plans of classes of sizes on disk: a second process plans nothing, answers right, and uses no plan of another network."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import pytest
from hetero_cpu import executable
from hetero_cpu.source import NetworkSource
from hetero_cpu.stored.classes import KIND
from hetero_tests.open_models import make_decoder, make_detector, make_encoder
from hetero_tests.open_variants import make_gpt

from hetero_core import Core
from hetero_core.blobs.store import FOLDER
from hetero_core.network import graph
from hetero_core.testing.reference_session import open_reference_session

pytest.importorskip("onnxruntime")
pytest.importorskip("llvmlite")

SMALL = """
<ir_version: 8, opset_import: ["": 17]>
small (float[rows, 8] x) => (float[rows, 8] y, float[rows, 8] z)
<float[8, 8] w = {FILL}, float[8] b = {0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5}>
{ h = MatMul (x, w) i = Add (h, b) y = Relu (i) z = Softmax (y) }
"""
# Runs the feeds with these numbers through the network of each folder.
PROCESS = """
import sys
from pathlib import Path
import numpy as np
from hetero_core import Core
folders, places = sys.argv[2:], sys.argv[1].split(",")
with Core() as core:
    for folder in map(Path, folders):
        network = core.load_network(folder / "model.onnx", "CPU", {"CPU_KERNELS": "JIT", "INFERENCE_NUM_THREADS": 1})
        for place in places:
            np.savez(folder / f"{place}.out.npz", **network.infer(dict(np.load(folder / f"{place}.npz"))))
        print(network.get_metric("CPU_PLANS")[0])
print("planned" if "hetero_cpu.plan.tabulating" in sys.modules else "read")
"""


@pytest.fixture(autouse=True)
def fresh_plans() -> None:
    """Turns stored plans on again for this file."""


@pytest.fixture(autouse=True)
def private_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty private folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "hetero" / FOLDER


def _compute(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    return list(open_reference_session(model.SerializeToString()).run(None, dict(feeds)))


def _require_right(model: onnx.ModelProto, feeds: Mapping[str, Any], answers: Mapping[str, Any]) -> None:
    for output, expected in zip(model.graph.output, _compute(model, feeds), strict=True):
        scale = max(float(np.abs(expected).max(initial=0)), 1e-3)
        np.testing.assert_allclose(answers[output.name], expected, rtol=0, atol=1e-4 * scale, err_msg=output.name)


def _draw(name: str, rng: np.random.Generator) -> dict[str, Any]:
    if name == "encoder":
        batch, length = int(rng.integers(2, 6)), int(rng.integers(8, 60))
        mask = (rng.random((batch, length)) < 0.8).astype(np.int64)
        mask[:, 0] = 1
        return {"tokens": rng.integers(0, 1000, (batch, length)), "mask": mask}
    if name == "detector":
        return {"image": rng.standard_normal((1, 3, *rng.integers(40, 90, 2))).astype(np.float32)}
    past, steps = (0, int(rng.integers(30, 90))) if name == "prompts" else (int(rng.integers(30, 90)), 1)
    caches = {f"past_{part}_{layer}": (1, 2, past, 16) for layer in range(2) for part in ("key", "value")}
    return {"tokens": rng.integers(0, 1000, (1, steps))} | {
        key: rng.standard_normal(shape).astype(np.float32) for key, shape in caches.items()
    }


_MODELS = {
    "encoder": lambda: make_encoder(layers=1, width=64),
    "detector": make_detector,
    "decoder": lambda: make_decoder(layers=2, width=64, heads=4, key_heads=2),
    "tokens": lambda: make_gpt(layers=2, width=32, heads=2),
    "prompts": lambda: make_gpt(layers=2, width=32, heads=2),
}


def test_a_second_process_plans_nothing_and_is_right(tmp_path: Path) -> None:
    folders, models, rng = [tmp_path / name for name in _MODELS], [make() for make in _MODELS.values()], np.random.default_rng(3)
    feeds = [[_draw(folder.name, rng) for _ in range(4)] for folder in folders]
    for folder, model, drawn in zip(folders, models, feeds, strict=True):
        folder.mkdir()
        onnx.save(model, folder / "model.onnx")
        for place, own in enumerate(drawn):
            np.savez(folder / f"{place}.npz", **own)

    def run(places: str) -> tuple[list[int], str]:
        command = [sys.executable, "-c", PROCESS, places, *map(str, folders)]
        *counts, kind = subprocess.run(command, capture_output=True, text=True, timeout=900, check=True).stdout.split()
        return list(map(int, counts)), kind

    first, kind = run("0,1,2")
    assert kind == "planned"
    # Sizes that the first process did not plan for.
    second, kind = run("1,2,3")
    assert kind == "read"
    assert all(later <= earlier for later, earlier in zip(second, first, strict=True))
    for folder, model, drawn in zip(folders, models, feeds, strict=True):
        for place, own in enumerate(drawn):
            _require_right(model, own, dict(np.load(folder / f"{place}.out.npz")))


def _make_small(fill: float = 0.25) -> onnx.ModelProto:
    return onnx.parser.parse_model(SMALL.replace("FILL", ", ".join([str(fill)] * 64)))


def _list_entries(folder: Path) -> list[Path]:
    return list(folder.glob(f"{KIND}-*"))


def _run(model: onnx.ModelProto, rows: int = 7) -> None:
    feeds = {"x": np.random.default_rng(rows).standard_normal((rows, 8)).astype(np.float32)}
    # Closing the network waits until its plans are stored.
    with Core() as core, core.load_network(model, "CPU", {"CPU_KERNELS": "JIT"}) as network:
        _require_right(model, feeds, network.infer(feeds))


def test_a_network_with_other_weights_gets_a_plan_of_its_own(private_folder: Path) -> None:
    _run(_make_small())
    _run(_make_small(0.75))
    assert len(_list_entries(private_folder)) == 2


def test_the_plan_of_a_network_is_stored_once(private_folder: Path) -> None:
    for rows in (7, 9, 8):
        _run(_make_small(), rows)
    assert len(_list_entries(private_folder)) == 1


def test_a_load_without_stored_plans_reads_no_constant(private_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _run(_make_small())
    monkeypatch.setattr(executable, "_MANY_CONSTANTS", 0)  # plans are read by the load
    monkeypatch.setattr(graph, "fingerprint_network", lambda network: pytest.fail("the fingerprint reads all constants"))
    other = _make_small()
    other.graph.node[0].name = "another"
    with Core() as core:
        core.load_network(other, "CPU", {"CPU_KERNELS": "JIT"})


def test_a_large_constant_counts_with_its_elements(private_folder: Path) -> None:
    """512 x 512 elements: a changed value and a changed order each make another network."""
    text = SMALL.replace("8", "512").replace(
        "<float[512, 512] w = {FILL}, float[512] b = {0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5}>", ""
    )
    text = text.replace("<ir_version: 512", "<ir_version: 8")
    weights = np.random.default_rng(1).standard_normal((512, 512)).astype(np.float32) / 16
    changed, moved = weights.copy(), weights.copy().reshape(-1)
    changed[300, 200] += 1
    moved[:4084] = np.roll(moved[:4084], 2042)
    for constant in (weights, changed, moved.reshape(512, 512)):
        model = onnx.parser.parse_model(text)
        model.graph.initializer.extend(
            [onnx.numpy_helper.from_array(constant, "w"), onnx.numpy_helper.from_array(np.ones(512, np.float32), "b")]
        )
        feeds = {"x": np.random.default_rng(2).standard_normal((9, 512)).astype(np.float32)}
        with Core() as core:
            _require_right(model, feeds, core.load_network(model, "CPU", {"CPU_KERNELS": "JIT"}).infer(feeds))
    assert len(_list_entries(private_folder)) == 3


def test_a_damaged_file_is_named_and_planned_again(private_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    _run(_make_small())
    (path,) = _list_entries(private_folder)
    path.write_bytes(path.read_bytes()[:-1] + b"]")
    with caplog.at_level(logging.WARNING):
        _run(_make_small(), 9)
    assert f"'{path}' is damaged; it is made anew" in caplog.text


def test_a_stored_plan_is_verified_on_request(private_folder: Path, recwarn: pytest.WarningsRecorder) -> None:
    _run(_make_small())
    feeds = {"x": np.ones((5, 8), np.float32)}
    with Core() as core:
        network = core.load_network(_make_small(), "CPU", {"CPU_KERNELS": "JIT", "CPU_VERIFY": "YES"})
        for _ in range(2):
            _require_right(_make_small(), feeds, network.infer(feeds))
            assert network.get_metric("CPU_VERIFIED_PLANS") == 1
    assert not [warning for warning in recwarn if "WrongPlan" in str(warning.category)]


def _make_large(fill: float) -> onnx.ModelProto:
    """A network with 17 MB of constants."""
    nodes = [onnx.helper.make_node("MatMul", ["x", "w"], ["h"]), onnx.helper.make_node("Relu", ["h"], ["y"])]
    inputs, outputs = (
        [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["rows", size])]
        for name, size in (("x", 256), ("y", 16640))
    )
    weight = np.full((256, 16640), fill, np.float32)
    weight[:, ::3] *= -1
    graph = onnx.helper.make_graph(nodes, "large", inputs, outputs, [onnx.numpy_helper.from_array(weight, "w")])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)


def _count_plans(model: onnx.ModelProto, rows: int, features: int) -> tuple[int, int]:
    """Returns the number of plans after the load, and after an answer, which is checked."""
    feeds = {"x": np.random.default_rng(rows).standard_normal((rows, features)).astype(np.float32)}
    with Core() as core, core.load_network(model, "CPU", {"CPU_KERNELS": "JIT"}) as network:
        loaded = network.get_metric("CPU_PLANS")[0]
        _require_right(model, feeds, network.infer(feeds))
        return loaded, network.get_metric("CPU_PLANS")[0]


def test_load_with_many_constants_reads_earlier_plans() -> None:
    large = _make_large(0.01)
    assert _count_plans(large, 20, 256) == (0, 1)
    assert _count_plans(large, 30, 256) == (1, 1)
    assert _count_plans(large, 3, 256) == (1, 2)
    assert _count_plans(large, 4, 256) == (2, 2)


def test_a_load_reads_no_plan_of_a_network_with_other_constants() -> None:
    assert _count_plans(_make_large(0.01), 20, 256) == (0, 1)
    assert _count_plans(_make_large(0.02), 20, 256) == (0, 1)


def test_load_with_few_constants_reads_plans_lazily() -> None:
    assert _count_plans(_make_small(), 20, 8) == (0, 1)
    assert _count_plans(_make_small(), 30, 8) == (0, 1)


def test_an_import_with_a_plan_reads_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[NetworkSource] = []
    open_network = NetworkSource.open
    feeds = {"x": np.random.default_rng(7).standard_normal((7, 8)).astype(np.float32)}
    with Core() as core:
        network = core.load_network(_make_small(), "CPU", {"CPU_KERNELS": "JIT"})
        network.infer(feeds)
        network.export_network(tmp_path / "x.blob")
        monkeypatch.setattr(NetworkSource, "open", lambda source: (opened.append(source), open_network(source))[1])
        imported = core.import_network(tmp_path / "x.blob", "CPU", {"CPU_KERNELS": "JIT"})
        assert imported.executable.source.payload is not None
        assert not opened
        _require_right(_make_small(), feeds, imported.infer(feeds))
