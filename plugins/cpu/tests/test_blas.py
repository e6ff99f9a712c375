"""The number of BLAS threads that an operator sees during a run, and the number after the run."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx.parser
import pytest
from hetero_cpu.run import blas
from threadpoolctl import threadpool_info, threadpool_limits

from hetero_core import Core, Extension

MODEL = '<ir_version: 8, opset_import: ["": 17, "test": 1]> g (float[1] x) => (float[1] y) { y = test.Look(x) }'
X = np.ones(1, np.float32)


def count_blas_threads() -> list[int]:
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


class Looking:
    """A custom operator that calls `before`, then records the number of BLAS threads."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []
        self.before: Callable[[], object] = lambda: None

    def __call__(self, x: Any) -> Any:
        self.before()
        self.seen.append(count_blas_threads())
        return x


@pytest.fixture
def looking(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Core, Looking]]:
    """A simulated machine of four processors with four BLAS threads: a Core with the operator `Looking`."""
    for count in ("hetero_core.devices.device.count_processors", "hetero_cpu.run.blas.count_affinity"):
        monkeypatch.setattr(count, lambda: 4)
    operator = Looking()
    with threadpool_limits(4, user_api="blas"), Core() as core:
        core.add_extension(Extension("test", "Look", 1, operator, lambda types, _: types), "CPU")
        yield core, operator


def test_run_has_one_thread_of_blas_and_leaves_no_limit_behind(looking: tuple[Core, Looking]) -> None:
    core, operator = looking
    for config in ({}, {"INFERENCE_NUM_THREADS": 2}, {"NUM_STREAMS": 2}, {"PERFORMANCE_HINT": "THROUGHPUT"}):
        core.load_network(onnx.parser.parse_model(MODEL), "CPU", config).infer({"x": X})
        assert count_blas_threads() == [4]
    assert operator.seen == [[1]] * 4


def test_process_with_one_processor_never_touches_blas(looking: tuple[Core, Looking], monkeypatch: pytest.MonkeyPatch) -> None:
    core, operator = looking
    monkeypatch.setattr("hetero_cpu.run.blas.count_affinity", lambda: 1)
    monkeypatch.setattr(blas._blas, "enter", None)
    network = core.load_network(onnx.parser.parse_model(MODEL), "CPU")
    network.infer({"x": X})
    assert operator.seen == [[4]]


@pytest.mark.parametrize(
    ("nodes", "size", "is_limited"),
    [
        *[("a = Relu(x) y = MatMul(a, x)", size, False) for size in ("2", "N")],
        *[("y = Det(x)", size, True) for size in ("2", "N")],
        ("s = Shape(x) c = ConstantOfShape(s) y = Add(x, c)", "N", False),
        ("s = Shape(x) c = ConstantOfShape(s) m = MatMul(c, c) y = Add(x, m)", "N", True),
    ],
)
def test_plan_of_machine_code_alone_leaves_blas_alone(
    looking: tuple[Core, Looking], monkeypatch: pytest.MonkeyPatch, nodes: str, size: str, is_limited: bool
) -> None:
    """With open shapes, the first run makes a plan, which may call BLAS."""
    pytest.importorskip("llvmlite", reason="machine code is made by llvmlite")
    from hetero_cpu.machine.compiler import find_width

    if not find_width():
        pytest.skip("no machine code is made for this processor")
    core, _ = looking
    shape = "" if "Det" in nodes else f"[{size},{size}]"
    text = f'<ir_version: 8, opset_import: ["": 17]> g (float[{size},{size}] x) => (float{shape} y) {{ {nodes} }}'
    network = core.load_network(onnx.parser.parse_model(text), "CPU", {"INFERENCE_NUM_THREADS": 2, "CPU_KERNELS": "JIT"})
    entered: list[int] = []
    monkeypatch.setattr(blas._blas, "enter", lambda: entered.append(1))
    monkeypatch.setattr(blas._blas, "leave", lambda: None)
    for _ in range(2):
        entered.clear()
        network.infer({"x": np.ones((2, 2), np.float32)})
        assert entered == [1] * is_limited


def test_limit_leaves_a_number_of_one_alone(looking: tuple[Core, Looking]) -> None:
    core, operator = looking
    network = core.load_network(onnx.parser.parse_model(MODEL), "CPU")
    with threadpool_limits(1, user_api="blas"):
        network.infer({"x": X})
        assert count_blas_threads() == [1]
    assert operator.seen == [[1]]


def test_error_in_a_run_leaves_no_limit(looking: tuple[Core, Looking]) -> None:
    core, operator = looking
    network = core.load_network(onnx.parser.parse_model(MODEL), "CPU", {"INFERENCE_NUM_THREADS": 1})
    operator.before = lambda: 1 // 0
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        network.infer({"x": X})
    assert count_blas_threads() == [4]


def test_limit_ends_with_the_last_run_under_way(looking: tuple[Core, Looking]) -> None:
    core, operator = looking
    model = onnx.parser.parse_model(MODEL)
    outer, inner = (core.load_network(model, "CPU") for _ in range(2))
    inside = threading.local()

    def nest() -> None:
        if not getattr(inside, "is_nested", False):
            inside.is_nested = True
            inner.infer({"x": X})

    operator.before = nest
    outer.infer({"x": X})
    # Recorded by the nested run, then by the run around it.
    assert operator.seen == [[1], [1]]
    assert count_blas_threads() == [4]


def test_limit_holds_in_every_thread_that_runs(looking: tuple[Core, Looking]) -> None:
    """threadpoolctl 3.7 lets only its first calling thread set the number of OpenBLAS threads, as long as that thread lives."""
    core, operator = looking
    network = core.load_network(onnx.parser.parse_model(MODEL), "CPU", {"INFERENCE_NUM_THREADS": 2})
    network.infer({"x": X})
    thread = threading.Thread(target=network.infer, args=({"x": X},))
    thread.start()
    thread.join()
    assert operator.seen == [[1], [1]]
    assert count_blas_threads() == [4]


FORK = """
import os, warnings
from hetero_cpu.run.blas import share_products
from threadpoolctl import threadpool_info, threadpool_limits

warnings.simplefilter("ignore", DeprecationWarning)  # a fork with threads, from Python 3.12 on
count = lambda: [one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"]
import numpy
threadpool_limits(3, user_api="blas")
with share_products(None):
    child = os.fork()
    if child == 0:
        seen = count()
        with share_products(None):
            seen += count()
        os._exit(0 if seen + count() == [3, 1, 3] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert count() == [1]
assert count() == [3]
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_forked_child_has_no_limit_of_its_parents_runs() -> None:
    ended = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, check=False, timeout=900)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_environment_is_as_it_was_after_a_limit() -> None:
    # Runs in a process of its own, since a process imports threadpoolctl only once.
    code = """import os
from hetero_cpu.run.blas import import_threadpoolctl
before = dict(os.environ)
import_threadpoolctl()
assert dict(os.environ) == before"""
    environment = {name: value for name, value in os.environ.items() if name != "KMP_DUPLICATE_LIB_OK"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
