"""The plan of a class takes over from NumPy's plan: it is ordered once, with packed weights, and a later NumPy plan does not hide it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from time import monotonic, sleep
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import onnx.parser
import pytest

pytest.importorskip("llvmlite", reason="machine code needs llvmlite")

from hetero_cpu import executable
from hetero_cpu.executable import CpuExecutable
from hetero_cpu.machine import compiler
from hetero_cpu.machine.background import BACKGROUND
from hetero_cpu.plan.passes import transform_network
from hetero_cpu.run.plans import compile_plan

from hetero_core.contract import RunContext
from hetero_core.network.reader import read_network

if not compiler.find_width():
    pytest.skip("no machine code for this processor", allow_module_level=True)

WEIGHT = np.random.default_rng(0).standard_normal((32, 48)).astype(np.float32)


class Orders:
    """A queue of kernel orders, which no thread compiles before `finish`."""

    def __init__(self) -> None:
        self._orders: list[tuple[Any, Callable[..., None]]] = []

    def __len__(self) -> int:
        return len(self._orders)

    def add(self, planning: Any, take_over: Callable[..., None], **_: Any) -> None:
        self._orders.append((planning, take_over))

    def finish(self) -> None:
        """Compiles the first order, as the compiling thread does."""
        planning, take_over = self._orders.pop(0)
        take_over(compile_plan(planning), None)


@pytest.fixture(name="orders")
def fixture_orders(monkeypatch: pytest.MonkeyPatch) -> Orders:
    """A queue in place of the compiling thread: the network has no compiled plan until `finish`."""
    orders = Orders()
    monkeypatch.setattr(BACKGROUND, "order", orders.add)
    return orders


@pytest.fixture(name="network")
def fixture_network(orders: Orders) -> CpuExecutable:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> product (float[rows, 32] x) => (float[rows, 48] y) { y = MatMul (x, w) }'
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(WEIGHT, "w"))
    assert not orders
    return CpuExecutable(transform_network(read_network(model)), {}, kernels="AUTO")


def check(network: CpuExecutable, rows: int) -> None:
    """Compares the answer of a run with the product in float64."""
    x = np.random.default_rng(rows).standard_normal((rows, 32)).astype(np.float32)
    (y,) = network.run((x,), RunContext())
    np.testing.assert_allclose(y, x.astype(np.float64) @ WEIGHT.astype(np.float64), rtol=1e-4, atol=1e-4)


def test_two_first_runs_at_once_order_one_class(network: CpuExecutable, orders: Orders) -> None:
    threads = [threading.Thread(target=check, args=(network, rows)) for rows in (5, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(orders) == 1


def test_a_class_takes_over_with_packed_weights(network: CpuExecutable, orders: Orders) -> None:
    check(network, 5)
    assert network.native_weights.nbytes == 0
    orders.finish()
    packed = network.native_weights.nbytes
    assert packed >= WEIGHT.nbytes
    check(network, 7)
    assert network.native_weights.nbytes == packed


def test_toolkit_answers_all_sizes_until_the_class_is_compiled(network: CpuExecutable, orders: Orders) -> None:
    for rows in (5, 7, 7, 9):
        check(network, rows)
    assert network.metrics()["CPU_PLANS"]()[0] == 0
    assert len(orders) == 1
    orders.finish()
    check(network, 7)
    assert [bool(own.plan.kernels) for own in network._list_plans()] == [True]
    assert not orders


def test_loop_of_short_runs_releases_the_interpreter_lock(orders: Orders, monkeypatch: pytest.MonkeyPatch) -> None:
    """By itself such a run never does: its arrays are small, and BLAS has a single thread."""
    monkeypatch.setattr(executable, "needs_limit", lambda: False)
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> negative (float[rows] x) => (float[rows] y) { y = Neg (x) }'
    )
    network, x = CpuExecutable(transform_network(read_network(model)), {}, kernels="AUTO"), np.ones(3, np.float32)
    network.run((x,), RunContext())
    turns, is_over = [0], threading.Event()

    def plan() -> None:
        while not is_over.is_set():
            turns[0] += 1
            sleep(0)

    interval, thread = sys.getswitchinterval(), threading.Thread(target=plan)
    sys.setswitchinterval(1000)
    try:
        thread.start()
        begin, latest = turns[0], monotonic() + 10
        while turns[0] < begin + 5 and monotonic() < latest:
            network.run((x,), RunContext())
    finally:
        sys.setswitchinterval(interval)
        is_over.set()
        thread.join()
    assert len(orders) == 1
    assert turns[0] >= begin + 5
