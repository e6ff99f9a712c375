"""Memory of a loaded network: each weight is held only in the form in which kernels read it."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any
from weakref import ref

import numpy as np
import onnx.parser
import pytest
from hetero_cpu import executable as executable_module
from hetero_cpu.executable import CpuExecutable
from hetero_cpu.operators.weights import PackedWeights
from hetero_cpu.plan import passes as passes_module
from hetero_cpu.plan.passes import strip_network, transform_network
from hetero_cpu.plan.planner import build_plan

from hetero_core import Core, Network
from hetero_core.conformance.models import run_onnxruntime
from hetero_core.contract import RunContext
from hetero_core.errors import MemoryLimitError
from hetero_core.limits import RunLimits
from hetero_core.network.initializers import Initializer
from hetero_core.network.reader import read_network

CONVOLUTIONS = (
    "g (float[1, 64, 14, 14] x) => (float[1, 10] y) {"
    " a = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, w0)"
    " b = BatchNormalization(a, scale, bias, mean, variance)  c = Relu(b)"
    " d = Conv <kernel_shape = [1, 1]> (c, w1)"
    " e = Conv <kernel_shape = [3, 3], group = 4> (d, w2)"
    " f = Conv <kernel_shape = [5, 5], strides = [2, 2]> (e, w3)"
    " h = GlobalAveragePool(f)  i = Flatten(h)  y = Gemm <transB = 1> (i, w4, w5) }"
)
SHAPES = {
    "w0": (128, 64, 3, 3),
    "w1": (256, 128, 1, 1),
    "w2": (256, 64, 3, 3),
    "w3": (64, 256, 5, 5),
    "w4": (10, 64),
    "w5": (10,),
    **dict.fromkeys(("scale", "bias", "mean", "variance"), (128,)),
}
LARGE = ("w0", "w1", "w2", "w3")
WORDS = (
    "g (int64[1, 6] x) => (float[1, 6, 500] y) {"
    " a = Gather(table, x)  b = MatMul(a, w0)  c = Tanh(b)  d = MatMul(c, w1)  t = Transpose <perm = [1, 0]> (table)  y = MatMul(d, t) }"
)


class Weights:
    """Makes the array of a constant anew for each request, and tracks the arrays that are alive."""

    def __init__(self, text: str, shapes: dict[str, tuple[int, ...]]) -> None:
        model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}')
        for name, shape in shapes.items():
            model.graph.initializer.append(onnx.numpy_helper.from_array(self.make(name, shape), name))
        self.made: dict[str, list[ref[Any]]] = {name: [] for name in shapes}
        network = read_network(model)
        constants = {
            name: Initializer("float32", shape, self._maker(name, shape), is_renewable=True) for name, shape in shapes.items()
        }
        self.network: Network = replace(network, initializers=MappingProxyType(constants))
        self.model = model

    @staticmethod
    def make(name: str, shape: tuple[int, ...]) -> Any:
        """Returns random numbers that depend only on name and shape."""
        rng = np.random.default_rng(list(name.encode()))
        low, high = (0.5, 1.5) if name in ("scale", "variance") else (-0.1, 0.1)
        return rng.uniform(low, high, shape).astype(np.float32)

    def _maker(self, name: str, shape: tuple[int, ...]) -> Callable[[], Any]:
        def load() -> Any:
            array = self.make(name, shape)
            self.made[name].append(ref(array))
            return array

        return load

    def list_alive(self) -> list[str]:
        """Returns the names of the constants with a live array."""
        gc.collect()
        return [name for name, arrays in self.made.items() if any(array() is not None for array in arrays)]


def run(executable: CpuExecutable, x: Any) -> Any:
    (y,) = executable.run((x,), RunContext())
    return y


@pytest.fixture(scope="module")
def core() -> Iterator[Core]:
    with Core() as core:
        yield core


@pytest.fixture
def machine_code() -> None:
    """Skips a test on a processor without machine code."""
    pytest.importorskip("llvmlite", reason="machine code is made by llvmlite")
    from hetero_cpu.machine.compiler import find_width

    if not find_width():
        pytest.skip("no machine code is made for this processor")


@pytest.fixture
def images() -> Any:
    return np.random.default_rng(1).standard_normal((1, 64, 14, 14)).astype(np.float32)


@pytest.mark.usefixtures("machine_code")
def test_packed_weights_are_released_and_the_answer_is_right(images: Any, core: Core) -> None:
    weights = Weights(CONVOLUTIONS, SHAPES)
    executable = CpuExecutable(transform_network(strip_network(weights.network)), {}, kernels="JIT")
    assert not set(LARGE) & set(weights.list_alive())
    expected = run_onnxruntime(weights.model, {"x": images})[0]
    np.testing.assert_allclose(run(executable, images), expected, rtol=1e-4, atol=1e-5)
    assert not set(LARGE) & set(weights.list_alive())


@pytest.mark.usefixtures("machine_code")
def test_toolkit_lets_go_of_a_large_file_before_it_is_packed(images: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executable_module, "_LARGE_FILE", 1)
    # Kernels of an earlier test need no toolkit.
    monkeypatch.setattr(executable_module, "load_plan", lambda planning: None)
    weights, pack_all, alive = Weights(CONVOLUTIONS, SHAPES), PackedWeights.pack_all, list[list[str]]()

    def note(packed: PackedWeights, workers: int) -> None:
        alive.append(weights.list_alive())
        pack_all(packed, workers)

    monkeypatch.setattr(PackedWeights, "pack_all", note)
    executable = CpuExecutable(transform_network(strip_network(weights.network)), {}, kernels="AUTO")

    class Turn(threading.Condition):
        """The thread of the run goes on when packing has begun."""

        def __exit__(self, *raised: Any) -> None:
            super().__exit__(*raised)
            latest = time.monotonic() + 60
            while (
                is_over.is_set()
                and threading.current_thread() is threading.main_thread()
                and not alive
                and time.monotonic() < latest
            ):
                time.sleep(0.01)

        def notify_all(self) -> None:
            is_over.set()
            super().notify_all()

    is_over, executable._turn = threading.Event(), Turn()
    by_node = run(executable, images)
    while not executable.metrics()["CPU_KERNELS_READY"]():
        time.sleep(0.01)
    assert [set(LARGE) & set(names) for names in alive] == [set()]
    np.testing.assert_allclose(run(executable, images), by_node, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("machine_code")
def test_each_weight_is_made_once_for_a_plan() -> None:
    weights = Weights(CONVOLUTIONS, SHAPES)
    CpuExecutable(transform_network(weights.network), {}, kernels="JIT")
    assert {name: len(arrays) for name, arrays in weights.made.items()} == dict.fromkeys(SHAPES, 1)


def test_network_that_let_go_of_its_weights_can_be_exported(images: Any, core: Core, kernels: str, tmp_path: Path) -> None:
    loaded = core.load_network(Weights(CONVOLUTIONS, SHAPES).network, "CPU", {"CPU_KERNELS": kernels})
    loaded.export_network(tmp_path / "g.blob")
    imported = core.import_network(tmp_path / "g.blob", "CPU")
    assert np.array_equal(imported.infer({"x": images})["y"], loaded.infer({"x": images})["y"])
    assert imported.fingerprint == core.read_network(Weights(CONVOLUTIONS, SHAPES).model).fingerprint


@pytest.mark.usefixtures("machine_code")
def test_network_without_weights_runs_by_node_if_memory_is_short(images: Any, core: Core) -> None:
    weights = Weights(CONVOLUTIONS, SHAPES)
    executable = CpuExecutable(transform_network(weights.network), {}, kernels="JIT")
    context = RunContext(limits=RunLimits("g", memory_limit=executable.metrics()["CPU_ARENA_BYTES"]() - 1))
    expected = run_onnxruntime(weights.model, {"x": images})[0]
    np.testing.assert_allclose(executable.run((images,), context)[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("machine_code")
def test_table_stays_and_its_product_makes_no_second_copy() -> None:
    weights = Weights(WORDS, {"table": (500, 96), "w0": (96, 384), "w1": (384, 96)})
    executable = CpuExecutable(transform_network(weights.network), {}, kernels="JIT")
    alive = weights.list_alive()
    metrics = {name: ask() for name, ask in executable.metrics().items()}
    assert alive == ["table"]
    table, packed = 500 * 96 * 4, 2 * 384 * 96 * 4
    assert metrics["CPU_CONSTANT_BYTES"] == table
    assert metrics["CPU_WEIGHT_BYTES"] <= 1.1 * (table + packed)


def test_weight_is_released_before_the_next_weight_is_packed() -> None:
    weights = Weights(CONVOLUTIONS, SHAPES)
    constants = weights.network.initializers
    packed = PackedWeights(releases=True).serve(constants)
    packed.pack((constants["w0"].array,), ("doubled",), lambda w: w * 2)
    assert set(LARGE) & set(weights.list_alive()) == {"w1", "w2", "w3"}
    assert packed.nbytes == np.prod(SHAPES["w0"]) * 4


def test_packed_weight_is_made_again_for_a_further_plan() -> None:
    weights = Weights(CONVOLUTIONS, SHAPES)
    constants = weights.network.initializers
    packed = PackedWeights()
    first = packed.serve(constants).pack((constants["w0"].array,), ("doubled",), lambda w: w * 2)
    assert set(weights.list_alive()) == set(SHAPES) - {"w0"}
    assert packed.serve(constants).pack((constants["w0"].array,), ("doubled",), lambda w: w * 2) is first


def test_plan_that_waits_for_its_kernels_holds_no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("llvmlite", reason="machine code is made by llvmlite")
    from hetero_cpu.machine.background import BACKGROUND
    from hetero_cpu.machine.compiler import COMPILER, find_width

    if not find_width():
        pytest.skip("no machine code is made for this processor")
    ordered: list[Iterator[Any]] = []
    monkeypatch.setattr(COMPILER, "load_stored", lambda kernel: False)
    monkeypatch.setattr(BACKGROUND, "order", lambda kernels, done, **_: ordered.append(kernels))
    weights = Weights(CONVOLUTIONS, SHAPES)
    executable = CpuExecutable(transform_network(weights.network), {}, kernels="AUTO")
    assert not set(LARGE) & set(weights.list_alive())
    # The plan is made when its first kernel is requested.
    next(ordered[0])
    assert not set(LARGE) & set(weights.list_alive())
    executable.close()


@pytest.mark.usefixtures("machine_code")
def test_few_large_weights_are_held_at_a_time(images: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes_module, "_MANY_BYTES", 1)
    weights, most = Weights(CONVOLUTIONS, SHAPES), list[int]()
    network = transform_network(strip_network(weights.network))
    make = weights.make

    def note(name: str, shape: tuple[int, ...]) -> Any:
        most.append(len(set(LARGE) & set(weights.list_alive())))
        return make(name, shape)

    monkeypatch.setattr(weights, "make", note)
    program = passes_module.compile_toolkit(network, {}, renews=True)
    program.run((images,))
    build_plan(network, PackedWeights(releases=True), {})
    assert max(most) <= 1


def test_constant_that_a_step_makes_counts_for_the_memory_limit() -> None:
    weights = Weights(
        "g (float[514, 600] x, int64[4] pads) => (float[514, 600] y) { a = Pad(w, pads)  y = Add(x, a) }", {"w": (512, 598)}
    )
    network, x = transform_network(weights.network), np.ones((514, 600), np.float32)
    program = passes_module.compile_toolkit(network, {}, renews=True)
    (y,) = program.run((x, np.ones(4, np.int64)), limits=RunLimits("g", memory_limit=1 << 24))
    np.testing.assert_array_equal(y, np.pad(weights.make("w", (512, 598)), 1) + 1)
    assert weights.list_alive() == []
    with pytest.raises(MemoryLimitError, match="Pad"):
        program.run((x, np.full(4, 1 << 40)), limits=RunLimits("g", memory_limit=1 << 24))
