"""Model files on CPU: what machine code alone runs is kept, and the next load of the file plans and packs nothing; so are open sizes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import pytest

pytest.importorskip("llvmlite", reason="machine code is made by llvmlite")

from hetero_cpu.machine.compiler import find_width
from hetero_cpu.stored.blob_network import BlobNetwork
from hetero_tests.larger_models import vit_tiny_model

from hetero_core import Core
from hetero_core.errors import NetworkDeclarationWarning
from hetero_core.runtime.executable import ExecutableNetwork
from hetero_core.testing.models import light_inputs, light_model

if not find_width():
    pytest.skip("no machine code for this processor", allow_module_level=True)


def small_model() -> onnx.ModelProto:
    return onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]> g (float[2, 4] x) => (float[2, 3] y)
        <float[4, 3] w = {1, -2, 3, -4, 5, -6, 7, -8, 9, -10, 11, -12}> { a = MatMul (x, w) b = Relu (a) y = Softmax (b) }""")


MODELS = {
    "small": small_model,
    "shufflenet": lambda: light_model("shufflenet"),
    "squeezenet": lambda: light_model("squeezenet"),
    "vit_tiny": lambda: vit_tiny_model(layers=1),
}


@pytest.fixture(autouse=True)
def fresh_plans() -> None:
    """Here plans of open sizes are stored, and read again."""


@pytest.fixture(autouse=True)
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A private folder without loads; kernels are found where they were."""
    from hetero_cpu.machine import compiler

    compiler._open_folder()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def core() -> Iterator[Core]:
    with Core() as core:
        yield core


def takes_up_plan(network: Any) -> bool:
    """Says whether a network has a plan that was kept."""
    return isinstance(network.executable.source, BlobNetwork)


def write_model(model: onnx.ModelProto, path: Path) -> Path:
    onnx.save(model, path)
    return path


def load(core: Core, path: Path, **config: Any) -> Any:
    return core.load_network(path, "CPU", {"CPU_KERNELS": "JIT", "INFERENCE_NUM_THREADS": 1, **config})


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that were just written are kept, too: none of them changes here."""
    monkeypatch.setattr("hetero_core.blobs.kept_loads._SETTLED", -1_000_000_000)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("threads", [1, 2])
def test_second_load_of_a_file_answers_bit_for_bit_and_says_the_same_of_itself(
    core: Core, name: str, threads: int, tmp_path: Path
) -> None:
    model = MODELS[name]()
    path, inputs = write_model(model, tmp_path / "m.onnx"), light_inputs(model)
    first, second = (load(core, path, INFERENCE_NUM_THREADS=threads) for _ in range(2))
    assert [takes_up_plan(network) for network in (first, second)] == [False, True]
    for _ in range(2):
        for name_of_output, value in first.infer(inputs).items():
            np.testing.assert_array_equal(second.infer(inputs)[name_of_output], value)
    assert (first.inputs, first.outputs, first.name, first.fingerprint) == (
        second.inputs, second.outputs, second.name, second.fingerprint,
    )  # fmt: skip
    graphs = [
        [(node.name, node.op_type, node.inputs, node.outputs) for node in network.get_runtime_model().nodes]
        for network in (first, second)
    ]
    assert graphs[0] == graphs[1]


def test_nothing_is_kept_where_the_user_wants_no_copy(core: Core, tmp_path: Path) -> None:
    path = write_model(small_model(), tmp_path / "m.onnx")
    networks = [load(core, path, CPU_KEEP_LOADS=keeps) for keeps in ("NO", "YES", "YES")]
    assert [takes_up_plan(network) for network in networks] == [False, False, True]


def test_plan_of_auto_is_kept_when_its_kernels_are_there(core: Core, tmp_path: Path) -> None:
    model = small_model()
    path, inputs = write_model(model, tmp_path / "m.onnx"), light_inputs(model)
    expected = load(core, path).infer(inputs)
    first, second = (load(core, path, CPU_KERNELS="AUTO") for _ in range(2))
    assert [takes_up_plan(network) for network in (first, second)] == [False, True]
    for name, value in expected.items():
        np.testing.assert_array_equal(second.infer(inputs)[name], value)


@pytest.mark.parametrize(
    ("text", "config"),
    [
        ("(float[2,2] x) => (float y) { y = Det (x) }", {}),
        ("(float[N] x) => (float[N] y) { y = Relu (x) }", {"CPU_KERNELS": "NUMPY"}),
        ("(float[N] x) => (float[N] y) { y = Relu (x) }", {"WEIGHTS_ONCE": "YES"}),
        ("(float[2] x) => (float[2] y) { y = Relu (x) }", {"CPU_KERNELS": "NUMPY"}),
    ],
)
def test_load_that_plans_or_calls_python_is_not_kept(core: Core, tmp_path: Path, text: str, config: dict[str, Any]) -> None:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {text}')
    path = write_model(model, tmp_path / "m.onnx")
    for _ in range(2):
        assert not takes_up_plan(load(core, path, **config))
    assert not count_entries(tmp_path)


def test_kept_load_without_its_plan_is_planned_from_what_is_kept(core: Core, tmp_path: Path) -> None:
    model = small_model()
    path, inputs = write_model(model, tmp_path / "m.onnx"), light_inputs(model)
    expected = load(core, path).infer(inputs)
    for plan in (tmp_path / "cache" / "hetero" / "cpu-plans").iterdir():
        plan.unlink()
    again = load(core, path)
    assert not takes_up_plan(again)
    for name, value in expected.items():
        np.testing.assert_array_equal(again.infer(inputs)[name], value)
    assert takes_up_plan(load(core, path))


def test_plan_of_too_many_steps_is_not_kept(core: Core, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hetero_cpu.executed.MOST_KEPT_STEPS", 1)
    path = write_model(small_model(), tmp_path / "m.onnx")
    for _ in range(2):
        assert not takes_up_plan(load(core, path))


def test_network_of_open_sizes_and_many_nodes_is_not_kept(core: Core, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hetero_cpu.executed.MOST_KEPT_NODES", 2)
    load(core, write_model(open_model(), tmp_path / "m.onnx"))
    assert not count_entries(tmp_path)


def count_entries(folder: Path) -> int:
    return len(list((folder / "cache" / "hetero" / "loads").glob("*.blob")))


def open_model(outputs: str = "float[N, 3] y") -> onnx.ModelProto:
    return onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]> g (float[N, 4] x) => ({outputs})
        <float[4, 3] w = {{1, -2, 3, -4, 5, -6, 7, -8, 9, -10, 11, -12}}> {{ a = MatMul (x, w) b = Relu (a) y = Softmax (b) }}""")


@pytest.mark.parametrize("kernels", ["JIT", "AUTO"])
def test_network_of_open_sizes_is_kept_and_says_the_same_of_itself(core: Core, kernels: str, tmp_path: Path) -> None:
    path = write_model(open_model(), tmp_path / "m.onnx")
    first = load(core, path, CPU_KERNELS=kernels)
    assert count_entries(tmp_path) == 1
    second = load(core, path, CPU_KERNELS=kernels)
    assert (first.inputs, first.outputs, first.name, first.fingerprint) == (
        second.inputs, second.outputs, second.name, second.fingerprint,
    )  # fmt: skip
    for rows in (5, 1, 40):
        x = np.random.default_rng(rows).standard_normal((rows, 4)).astype(np.float32)
        answers = [network.infer({"x": x})["y"] for network in (first, second)]
        np.testing.assert_array_equal(*answers)
        hidden = np.exp(np.maximum(x @ np.array([[1, -2, 3], [-4, 5, -6], [7, -8, 9], [-10, 11, -12]], np.float32), 0))
        np.testing.assert_allclose(answers[0], hidden / hidden.sum(axis=1, keepdims=True), rtol=1e-4, atol=1e-6)
    graphs = [
        [(node.name, node.op_type, node.inputs, node.outputs) for node in network.get_runtime_model().nodes]
        for network in (first, second)
    ]
    assert graphs[0] == graphs[1]


LATER_PROCESS = """
import sys
import numpy as np
from hetero_core import Core
with Core() as core, core.load_network(sys.argv[1], "CPU", {"CPU_KERNELS": "JIT", "INFERENCE_NUM_THREADS": 1}) as network:
    y = network.infer({"x": np.full((7, 4), 0.5, np.float32)})["y"]
print(y.tobytes().hex(), "onnx" in sys.modules, "hetero_cpu.open.making" in sys.modules)
"""


def test_later_process_reads_no_model_and_plans_nothing_for_open_sizes(tmp_path: Path) -> None:
    path = write_model(open_model(), tmp_path / "m.onnx")
    old = path.stat().st_mtime - 10
    os.utime(path, (old, old))
    time.sleep(max(0.0, path.stat().st_ctime + 0.6 - time.time()))
    command = [sys.executable, "-c", LATER_PROCESS, str(path)]
    runs = [subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout.split() for _ in range(2)]
    assert [run[1:] for run in runs] == [["True", "True"], ["False", "False"]]
    assert runs[0][0] == runs[1][0]


def test_declared_sizes_that_a_run_contradicts_are_told_of_a_kept_load_too(core: Core, tmp_path: Path) -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]> g (float[N] x, bool[N] c) => (float[2] y)
        { a = Relu (x) y = Compress <axis = 0> (a, c) }""")
    path = write_model(model, tmp_path / "m.onnx")
    for count in (0, 1):
        assert count_entries(tmp_path) == count
        network = load(core, path)
        with pytest.warns(NetworkDeclarationWarning, match=r"'y'.*\[2\]"):
            y = network.infer({"x": np.arange(3, dtype=np.float32), "c": np.ones(3, np.bool_)})["y"]
        np.testing.assert_array_equal(y, [0, 1, 2])


def test_model_with_a_declaration_that_is_wrong_is_read_again(core: Core, tmp_path: Path) -> None:
    path = write_model(open_model("float[N, 5] y"), tmp_path / "m.onnx")
    for _ in range(2):
        with pytest.warns(NetworkDeclarationWarning):
            load(core, path)
    assert not count_entries(tmp_path)


@pytest.mark.parametrize("make", [small_model, open_model])
def test_weights_in_other_files_are_not_packed_to_be_kept(
    core: Core, tmp_path: Path, make: Callable[[], onnx.ModelProto], monkeypatch: pytest.MonkeyPatch
) -> None:
    packed: list[str] = []
    pack = ExecutableNetwork.pack
    monkeypatch.setattr(ExecutableNetwork, "pack", lambda network: (packed.append(network.name), pack(network))[1])
    load(core, write_model(make(), tmp_path / "whole.onnx"))
    assert len(packed) == count_entries(tmp_path) == 1
    model = make()
    for initializer in model.graph.initializer:
        initializer.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(initializer), initializer.name))
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0)
    load(core, tmp_path / "m.onnx")
    assert len(packed) == count_entries(tmp_path) == 1
