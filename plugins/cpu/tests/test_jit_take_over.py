"""AUTO: the toolkit answers first, machine code takes over, and pending compilations keep no network alive."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

pytest.importorskip("llvmlite", reason="machine code needs llvmlite")

from hetero_cpu.machine import background as background_module
from hetero_cpu.machine import compiler
from hetero_cpu.machine.background import BACKGROUND, BackgroundCompiler, OrderDroppedError
from hetero_cpu.machine.compiler import Kernel, find_width
from hetero_cpu.operators.weights import PackedWeights
from hetero_cpu.operators.winograd import build_matrices, transform_kernels

from hetero_core import Core
from hetero_core.runtime.executors import IMPORT_SECONDS

if not find_width():
    pytest.skip("no machine code for this processor", allow_module_level=True)

PATIENCE = 120.0

CHILD = """
import json, sys, time
import numpy as np
import onnx
from hetero_core import Core
from hetero_core.runtime.executors import IMPORT_SECONDS
from hetero_cpu.machine import compiler
compiler.find_level = lambda: ""
from hetero_core.conformance.models import run_onnxruntime
from hetero_core.testing.models import light_inputs, residual_model

model = residual_model()
inputs = light_inputs(model)
expected = run_onnxruntime(model, inputs)
with Core() as core:
    network = core.load_network(model, "CPU", {"INFERENCE_NUM_THREADS": 2})
    found = {"steps": [], "ready": [], "differences": [], "is_planned": "hetero_cpu.operators.product_kernel" in sys.modules}
    def ask():
        answers = network.infer(inputs)
        error = max(float(np.abs(answer - value).max() / np.abs(value).max()) for answer, value in zip(answers.values(), expected))
        found["differences"].append(error)
        found["ready"].append(network.get_metric("CPU_KERNELS_READY"))
        found["steps"].append(network.get_metric("CPU_NATIVE_STEPS"))
    ask()
    end = time.monotonic() + 120
    while not network.get_metric("CPU_KERNELS_READY") and time.monotonic() < end:
        ask()
    ask()
    found["llvm"] = "llvmlite" in sys.modules
print(json.dumps(found))
"""


def start(cache: Path) -> Any:
    """Returns the report of a fresh process."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        env={**os.environ, "XDG_CACHE_HOME": str(cache)},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_machine_code_takes_over_and_serves_the_next_process(
    tmp_path: Path,
) -> None:
    tmp_path.chmod(0o700)
    cold = start(tmp_path)
    assert (cold["ready"][0], cold["steps"][0]) == (False, 0)
    # Machine code is not even planned before the toolkit can answer.
    assert not cold["is_planned"]
    assert cold["ready"][-1]
    assert cold["steps"][-1] > 0
    assert max(cold["differences"]) < 1e-5
    # The kernels are there; the plan is made again.
    warm = start(tmp_path)
    assert warm["ready"][-1]
    assert warm["steps"][-1] == cold["steps"][-1]
    assert warm["differences"][-1] == cold["differences"][-1]
    assert not warm["llvm"]


MODEL = '<ir_version: 8, opset_import: ["": 17]> mix (float[1, 16, 12, 12] x) => (float[1, 32, 12, 12] y) { y = Conv (x, w) }'


def make_model() -> Any:
    """Returns a 1x1 convolution."""
    model = onnx.parser.parse_model(MODEL)
    weight = np.linspace(-1, 1, 512, dtype=np.float32).reshape(32, 16, 1, 1)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    return model


@pytest.fixture(name="empty_folder")
def fixture_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty kernel cache, on disk and in the process."""
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compiler, "find_level", lambda: "")
    monkeypatch.setattr(compiler.COMPILER, "_addresses", {})


@pytest.mark.usefixtures("empty_folder")
def test_network_waiting_for_kernels_is_collected_with_its_order() -> None:
    with Core() as core:
        network = core.load_network(make_model(), "CPU")
        assert not network.get_metric("CPU_KERNELS_READY")
        seen = weakref.ref(network)
        network.close()
        del network
        gc.collect()
        assert seen() is None


@pytest.mark.usefixtures("empty_folder")
def test_toolkit_program_is_freed_after_the_take_over() -> None:
    with Core() as core:
        network = core.load_network(make_model(), "CPU")
        answer = network.infer({"x": np.ones((1, 16, 12, 12), np.float32)})["y"]
        wait_until_ready(network)
        assert network.executable._program is None  # type: ignore[attr-defined]  # of CpuExecutable
        again = network.infer({"x": np.ones((1, 16, 12, 12), np.float32)})["y"]
        np.testing.assert_allclose(again, answer, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("empty_folder")
@pytest.mark.parametrize("batch", ["1", "batch"], ids=["known-sizes", "open-sizes"])
def test_uncompilable_kernels_warn_and_the_toolkit_answers(
    batch: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(kernels: Iterable[Kernel], before: Any = None) -> None:
        raise OSError("no space")

    monkeypatch.setattr(compiler.COMPILER, "compile_all", refuse)
    text = f'<ir_version: 8, opset_import: ["": 17]> mix (float[{batch}, 8] x) => (float[{batch}, 8] y) {{ y = Softmax (x) }}'
    inputs = {"x": np.zeros((4 if batch == "batch" else 1, 8), np.float32)}
    with Core() as core:
        network = core.load_network(onnx.parser.parse_model(text), "CPU", {"CPU_KERNELS": "AUTO"})
        for _ in range(2):
            np.testing.assert_allclose(network.infer(inputs)["y"], np.full_like(inputs["x"], 0.125), rtol=1e-6)
            wait_until_ready(network)
        assert network.get_metric("CPU_NATIVE_STEPS") == 0
    assert "network 'mix' goes on node by node: its kernels could not be compiled: no space" in caplog.text


def wait_until_ready(network: Any) -> None:
    tick = threading.Event()
    for _ in range(int(PATIENCE / 0.01)):
        if network.get_metric("CPU_KERNELS_READY"):
            return
        tick.wait(0.01)
    pytest.fail("the kernels were not compiled")


def test_dropped_order_compiles_nothing_and_says_so() -> None:
    background, told, done = BackgroundCompiler(), list[BaseException | None](), threading.Event()

    def note(_: Any, error: BaseException | None) -> None:
        told.append(error)
        done.set()

    kernel = Kernel("never_wanted", lambda name, width: pytest.fail("it was emitted"))
    background.order([kernel], note, is_wanted=lambda: False)
    assert done.wait(PATIENCE)
    background.close()
    assert [str(error) for error in told if isinstance(error, OrderDroppedError)] == ["nobody wants these kernels"]


def test_kernels_that_cannot_be_listed_are_an_error_of_the_order() -> None:
    background, told, done = BackgroundCompiler(), list[BaseException | None](), threading.Event()

    def list_kernels() -> Iterator[Kernel]:
        raise ValueError("no plan can be made")
        yield

    def note(_: Any, error: BaseException | None) -> None:
        told.append(error)
        done.set()

    background.order(list_kernels(), note)
    assert done.wait(PATIENCE)
    background.close()
    assert [str(error) for error in told] == ["no plan can be made"]


def test_order_begins_when_the_first_run_has_ended() -> None:
    background, begin, done = BackgroundCompiler(), threading.Event(), threading.Event()
    asked: list[bool] = []

    def is_wanted() -> bool:
        asked.append(begin.is_set())
        return False

    background.order([Kernel("never_emitted", lambda name, width: None)], lambda *_: done.set(), is_wanted=is_wanted, begin=begin)
    begin.set()
    assert done.wait(PATIENCE)
    background.close()
    assert asked == [True]


def test_order_waits_for_the_first_run_of_another_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_module, "LONGEST_DELAY", PATIENCE)
    background, own, other, done = BackgroundCompiler(), threading.Event(), threading.Event(), threading.Event()
    asked: list[bool] = []

    def is_wanted() -> bool:
        asked.append(other.is_set())
        return False

    kernel = Kernel("never_emitted", lambda name, width: None)
    background.order([kernel], lambda *_: None, is_wanted=is_wanted, begin=own)
    background.order([kernel], lambda *_: done.set(), is_wanted=is_wanted, begin=other)
    own.set()
    other.set()
    assert done.wait(PATIENCE)
    background.close()
    assert asked == [True, True]


def test_order_begins_beside_a_first_run_that_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_module, "LONGEST_DELAY", 0.01)
    background, done = BackgroundCompiler(), threading.Event()
    kernel = Kernel("never_emitted", lambda name, width: None)
    background.order([kernel], lambda *_: done.set(), is_wanted=lambda: False, begin=threading.Event())
    assert done.wait(PATIENCE)
    background.close()


def test_closing_ends_the_wait_for_a_first_run() -> None:
    background = BackgroundCompiler()
    background.order([], lambda *_: pytest.fail("it is over"), begin=threading.Event())
    background.close()
    assert all(thread.name != "hetero-cpu-compiler" or thread is not background._thread for thread in threading.enumerate())


def test_packed_weights_are_made_lazily_and_once() -> None:
    weights, calls = PackedWeights(), list[str]()
    constant = np.arange(6.0)

    def double(array: Any) -> Any:
        calls.append("double")
        return array * 2

    lazy = weights.pack_lazily((constant,), ("double",), double)
    assert (calls, weights.nbytes) == ([], 0)
    weights.pack_all(2)
    weights.pack_all(1)
    assert weights.pack((constant,), ("double",), double) is lazy.get()
    assert calls == ["double"]
    assert not lazy.get().flags.writeable
    assert weights.nbytes == 48
    np.testing.assert_array_equal(lazy.get(), [0, 2, 4, 6, 8, 10])


def test_errors_of_packing_come_out_of_all_workers() -> None:
    weights = PackedWeights()
    for purpose in range(3):
        weights.pack_lazily((np.zeros(1),), (purpose,), lambda array: array.reshape(2))
    with pytest.raises(ValueError, match="cannot reshape array of size 1"):
        weights.pack_all(2)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(("outputs", "channels"), [(1, 1), (17, 49), (33, 100)])
def test_transformed_kernels_are_the_formula_rounded_once(size: int, outputs: int, channels: int) -> None:
    random = np.random.default_rng(outputs)
    w = random.standard_normal((outputs, channels, 3, 3)).astype(np.float32)
    kernel = build_matrices(size)[1]
    moved = np.full(((size + 2) ** 2, channels, outputs), np.nan, np.float32)
    transform_kernels(w, size, moved)
    expected = np.einsum("ai,ocij,bj->abco", kernel, w.astype(np.float64), kernel).reshape(moved.shape)
    np.testing.assert_allclose(moved, expected, rtol=1e-7 * 1.2, atol=1e-12)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_fork_waits_for_an_import_of_planning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, is_over, name = threading.Event(), threading.Event(), "imported_while_planning"
    monkeypatch.setattr(background_module, "events", (begun, is_over), raising=False)
    body = "from hetero_cpu.machine.background import events\nevents[0].set()\nevents[1].wait(10)\n"
    (tmp_path / f"{name}.py").write_text(body)
    monkeypatch.syspath_prepend(tmp_path)

    def plan() -> Iterator[Kernel]:
        import_module(name)
        yield from ()

    BACKGROUND.order(plan(), lambda *_: None)
    assert begun.wait(IMPORT_SECONDS)
    threading.Timer(0.2, is_over.set).start()
    child = os.fork()
    if child == 0:
        signal.alarm(int(IMPORT_SECONDS))
        import_module(name)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
