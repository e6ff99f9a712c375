"""Plans of classes of sizes on disk: a second process plans nothing, answers right, and takes no plan that is not its own or not whole."""

from __future__ import annotations

import hashlib
import json
import logging
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import pytest
from hetero_cpu.stored.blob_network import BlobNetwork
from hetero_cpu.stored.stored_classes import FOLDER, _remove_oldest
from hetero_tests.open_models import make_decoder, make_detector, make_encoder
from hetero_tests.open_variants import make_gpt

from hetero_core import Core

ort = pytest.importorskip("onnxruntime")
pytest.importorskip("llvmlite")

SMALL = """
<ir_version: 8, opset_import: ["": 17]>
small (float[rows, 8] x) => (float[rows, 8] y, float[rows, 8] z)
<float[8, 8] w = {FILL}, float[8] b = {0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5}>
{ h = MatMul (x, w) i = Add (h, b) y = Relu (i) z = Softmax (y) }
"""
SECOND = """
import sys
import numpy as np, onnx
from hetero_core import Core
feeds = [dict(np.load(path)) for path in sys.argv[3:]]
with Core() as core:
    network = core.load_network(sys.argv[1], "CPU", {"CPU_KERNELS": sys.argv[2], "INFERENCE_NUM_THREADS": 1})
    for path, own in zip(sys.argv[3:], feeds, strict=True):
        np.savez(path + ".out", **network.infer(own))
    print("planned" if "hetero_cpu.open.making" in sys.modules else "read", network.get_metric("CPU_PLANS")[0])
"""


@pytest.fixture(autouse=True)
def fresh_plans() -> None:
    """Here plans are stored, and read again."""


@pytest.fixture(autouse=True)
def private_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A private folder in which nothing is."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "hetero" / FOLDER


def _compute(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options)
    return list(session.run(None, dict(feeds)))


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


@pytest.mark.parametrize("name", _MODELS)
def test_a_second_process_plans_nothing_and_is_right(name: str, tmp_path: Path) -> None:
    model, rng = _MODELS[name](), np.random.default_rng(3)
    onnx.save(model, tmp_path / "model.onnx")
    feeds = [_draw(name, rng) for _ in range(4)]
    paths = [str(tmp_path / f"{place}.npz") for place in range(4)]
    for path, own in zip(paths, feeds, strict=True):
        np.savez(path, **own)

    def run(*own: str) -> list[str]:
        command = [sys.executable, "-c", SECOND, str(tmp_path / "model.onnx"), "JIT", *own]
        return subprocess.run(command, capture_output=True, text=True, timeout=900, check=True).stdout.split()

    # The file is as old as one has to be for its load to be kept.
    time.sleep(max(0.0, (tmp_path / "model.onnx").stat().st_ctime + 0.6 - time.time()))
    first = run(*paths[:3])
    assert first[0] == "planned"
    assert len(list((tmp_path / "cache" / "hetero" / "loads").glob("*.blob"))) == 1
    # Other sizes than those that the plans were made for, of the network as it is kept.
    second = run(*paths[1:])
    assert second[0] == "read"
    assert int(second[1]) <= int(first[1])
    for path, own in zip(paths, feeds, strict=True):
        _require_right(model, own, dict(np.load(f"{path}.out.npz")))


def _make_small(fill: float = 0.25) -> onnx.ModelProto:
    return onnx.parser.parse_model(SMALL.replace("FILL", ", ".join([str(fill)] * 64)))


def _run(model: onnx.ModelProto, rows: int = 7) -> None:
    feeds = {"x": np.random.default_rng(rows).standard_normal((rows, 8)).astype(np.float32)}
    # The network, which is closed, waits for what is kept.
    with Core() as core, core.load_network(model, "CPU", {"CPU_KERNELS": "JIT"}) as network:
        _require_right(model, feeds, network.infer(feeds))


def test_a_network_with_other_weights_gets_a_plan_of_its_own(private_folder: Path) -> None:
    _run(_make_small())
    _run(_make_small(0.75))
    assert len(list(private_folder.iterdir())) == 2


def test_the_plan_of_a_network_is_stored_once(private_folder: Path) -> None:
    for rows in (7, 9, 8):
        _run(_make_small(), rows)
    assert len(list(private_folder.iterdir())) == 1


def test_a_large_constant_counts_with_its_elements(private_folder: Path) -> None:
    """512 x 512 elements: another value, and the same ones in another order, are another network."""
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
    assert len(list(private_folder.iterdir())) == 3


def test_a_damaged_file_is_named_and_planned_again(private_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    _run(_make_small())
    (path,) = private_folder.iterdir()
    path.write_bytes(path.read_bytes()[:-1] + b"]")
    with caplog.at_level(logging.WARNING):
        _run(_make_small(), 9)
    assert f"'{path}' is damaged; the network is planned again" in caplog.text


def _rewrite(path: Path, change: Any) -> None:
    """Changes what a file holds; its digest is right."""
    form = json.loads(path.read_bytes()[32:])
    change(form)
    content = json.dumps(form).encode()
    path.write_bytes(hashlib.sha256(content).digest() + content)


def _change(*places: Any, value: Any) -> Any:
    def change(form: Any) -> None:
        for place in places[:-1]:
            form = form[place]
        form[places[-1]] = value(form[places[-1]]) if callable(value) else value

    return change


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(_change("calls", 0, 1, value=3), id="a call of fewer numbers"),
        pytest.param(_change("calls", 0, 0, value=7), id="a kernel without a name"),
        pytest.param(_change("counts", value=lambda counts: counts[:-1]), id="a part is missing"),
        pytest.param(_change("table", 0, value=lambda own: own[:-1]), id="a number is missing"),
        pytest.param(_change("table", 1, value=lambda own: [9999, *own[1:]]), id="a row that is not there"),
        pytest.param(_change("table", 2, value=lambda own: [99, *own[1:]]), id="a product that is not there"),
        pytest.param(_change("table", 3, value=lambda own: [0.5, *own[1:]]), id="a fraction"),
        pytest.param(_change("rows_in_arena", value=[-1]), id="an address before all"),
        pytest.param(_change("addresses", 0, 0, value=1 << 40), id="an address behind all"),
        pytest.param(_change("addresses", 0, 1, value=99), id="a memory that is not there"),
        pytest.param(_change("addresses", 0, 2, value=1 << 40), id="an address outside of its memory"),
        pytest.param(_change("memories", 0, value=["file", "/etc/passwd"]), id="a memory of another kind"),
        pytest.param(_change("memories", 0, value=["constant", "none"]), id="a constant that is not there"),
        pytest.param(_change("class", "symbols", 0, 2, value=5), id="an axis that is not there"),
        pytest.param(_change("class", "products", value=[["a0 + 1"]]), id="a product of text"),
        pytest.param(_change("class", "shapes", value=[]), id="no inputs"),
        pytest.param(_change("class", "equal", value=1 << 20), id="more guards than there are"),
        pytest.param(_change("steps", 0, 1, value=[["range", 0, 99]]), id="calls that are not there"),
        pytest.param(_change("steps", 0, 1, value=[["function", "os:abort"]]), id="a function of another package"),
        pytest.param(_change("steps", 0, 1, value=[["array", 99]]), id="what is no function"),
        pytest.param(_change("inputs", value=["other"]), id="another input"),
        pytest.param(_change("lent", value={}), id="outputs that lie nowhere"),
        pytest.param(_change("laid", 0, 0, value=["dtype", "|O"]), id="elements that are no numbers"),
        pytest.param(_change("late", value=[["y"], [], [], {}]), id="a late constant of nothing"),
    ],
)
def test_a_file_of_another_form_is_refused_before_it_is_bound(
    change: Any, private_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _run(_make_small())
    (path,) = private_folder.iterdir()
    _rewrite(path, change)
    with caplog.at_level(logging.WARNING):
        _run(_make_small(), 9)
    assert f"'{path}' holds no plan" in caplog.text
    # It is written again.
    json.loads(path.read_bytes()[32:])


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
    """Returns the number of plans after a load, and after a right answer."""
    feeds = {"x": np.random.default_rng(rows).standard_normal((rows, features)).astype(np.float32)}
    with Core() as core, core.load_network(model, "CPU", {"CPU_KERNELS": "JIT"}) as network:
        loaded = network.get_metric("CPU_PLANS")[0]
        _require_right(model, feeds, network.infer(feeds))
        return loaded, network.get_metric("CPU_PLANS")[0]


def test_a_load_of_many_constants_reads_the_plans_of_earlier_processes() -> None:
    large = _make_large(0.01)
    assert _count_plans(large, 20, 256) == (0, 1)
    assert _count_plans(large, 30, 256) == (1, 1)
    assert _count_plans(large, 3, 256) == (1, 2)
    assert _count_plans(large, 4, 256) == (2, 2)


def test_a_load_reads_no_plan_of_a_network_with_other_constants() -> None:
    assert _count_plans(_make_large(0.01), 20, 256) == (0, 1)
    assert _count_plans(_make_large(0.02), 20, 256) == (0, 1)


def test_a_load_of_few_constants_reads_no_plan_before_it_is_wanted() -> None:
    assert _count_plans(_make_small(), 20, 8) == (0, 1)
    assert _count_plans(_make_small(), 30, 8) == (0, 1)


def test_an_import_with_a_plan_reads_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[BlobNetwork] = []
    open_network = BlobNetwork.open
    monkeypatch.setattr(BlobNetwork, "open", lambda source: (opened.append(source), open_network(source))[1])
    feeds = {"x": np.random.default_rng(7).standard_normal((7, 8)).astype(np.float32)}
    with Core() as core:
        network = core.load_network(_make_small(), "CPU", {"CPU_KERNELS": "JIT"})
        network.infer(feeds)
        network.export_network(tmp_path / "x.blob")
        imported = core.import_network(tmp_path / "x.blob", "CPU", {"CPU_KERNELS": "JIT"})
        assert isinstance(imported.executable.source, BlobNetwork)
        assert not opened
        _require_right(_make_small(), feeds, imported.infer(feeds))


@pytest.mark.parametrize("example", [[[20, 255]], [[1, 256]], [[20]], [], None, [["20", 256]]])
def test_a_load_refuses_a_plan_that_was_made_for_other_sizes(
    example: Any, private_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _count_plans(_make_large(0.01), 20, 256)
    (path,) = private_folder.iterdir()
    _rewrite(path, _change("example", value=example))
    with caplog.at_level(logging.WARNING):
        assert _count_plans(_make_large(0.01), 20, 256) == (0, 1)
    assert f"'{path}' holds no plan" in caplog.text


def test_a_file_that_another_process_removes_meanwhile_is_passed_over(tmp_path: Path) -> None:
    # A name without a file is what the process sees that was slower.
    (tmp_path / "a.json").symlink_to(tmp_path / "removed")
    (tmp_path / "b.json").write_text("{}")
    _remove_oldest(tmp_path)
    assert (tmp_path / "b.json").exists()
