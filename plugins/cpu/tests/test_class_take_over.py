"""The plan of a class takes over from NumPy's: ordered once, with its weights packed, and hidden by no plan that came late."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import onnx.parser
import pytest

pytest.importorskip("llvmlite", reason="machine code needs llvmlite")

from hetero_cpu import executable as module
from hetero_cpu import open_plans
from hetero_cpu.executable import CpuExecutable
from hetero_cpu.machine import compiler
from hetero_cpu.machine.interpreter import list_interpreters
from hetero_cpu.open_plans import RUNS_WITHOUT_PLAN
from hetero_cpu.sources import NetworkSource

from hetero_core.contract import RunContext
from hetero_core.network.reader import read_network

if not compiler.find_width():
    pytest.skip("no machine code for this processor", allow_module_level=True)

WEIGHT = np.random.default_rng(0).standard_normal((32, 48)).astype(np.float32)


class Orders:
    """Orders of kernels that nobody works on before `finish`."""

    def __init__(self) -> None:
        self._orders: list[tuple[Callable[[], Any], Callable[..., None]]] = []

    def __len__(self) -> int:
        return len(self._orders)

    def add(self, prepare: Callable[[], Any], take_over: Callable[..., None], **_: Any) -> None:
        self._orders.append((prepare, take_over))

    def finish(self) -> None:
        """Does the first order, as the compiling thread does."""
        prepare, take_over = self._orders.pop(0)
        plan = prepare()
        for kernel in plan.plan.kernels:
            compiler.COMPILER.compile(kernel)
        take_over(plan, None)


@pytest.fixture(name="orders")
def fixture_orders(monkeypatch: pytest.MonkeyPatch) -> Orders:
    """The network finds nothing compiled until `finish`."""
    orders = Orders()
    monkeypatch.setattr(open_plans, "order_kernels", orders.add)
    monkeypatch.setattr(open_plans, "has_interpreters", lambda _: False)
    return orders


@pytest.fixture(name="network")
def fixture_network(orders: Orders) -> CpuExecutable:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> product (float[rows, 32] x) => (float[rows, 48] y) { y = MatMul (x, w) }'
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(WEIGHT, "w"))
    assert not orders
    return CpuExecutable(NetworkSource(read_network(model)), {}, kernels="AUTO")


def check(network: CpuExecutable, rows: int) -> None:
    """Compares a run with the product in float64."""
    x = np.random.default_rng(rows).standard_normal((rows, 32)).astype(np.float32)
    (y,) = network.run((x,), RunContext())
    np.testing.assert_allclose(y, x.astype(np.float64) @ WEIGHT.astype(np.float64), rtol=1e-4, atol=1e-4)


def test_two_first_runs_at_once_order_one_class(network: CpuExecutable, orders: Orders, monkeypatch: pytest.MonkeyPatch) -> None:
    both_have_asked = threading.Barrier(2, timeout=900)

    def have_asked(_: int) -> bool:
        both_have_asked.wait()
        return False

    monkeypatch.setattr(open_plans, "has_interpreters", have_asked)
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


def test_kernels_that_are_at_hand_answer_until_the_others_are_compiled(
    orders: Orders, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    # A product is at hand; one with this activation behind it is not.
    product = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> product (float[rows, 32] x) => (float[rows, 48] y) { y = MatMul (x, w) }'
    )
    product.graph.initializer.append(onnx.numpy_helper.from_array(WEIGHT, "w"))
    CpuExecutable(NetworkSource(read_network(product)), {}, kernels="JIT").run((np.ones((50, 32), np.float32),), RunContext())
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        active (float[rows, 32] x) => (float[rows, 48] z) { y = MatMul (x, w) z = Elu <alpha = 0.375> (y) }""")
    model.graph.initializer.append(onnx.numpy_helper.from_array(WEIGHT, "w"))
    monkeypatch.setattr(open_plans, "has_interpreters", lambda workers: compiler.COMPILER.load_stored(list_interpreters(workers)))
    network = CpuExecutable(NetworkSource(read_network(model)), {}, kernels="AUTO")

    def check_active(rows: int) -> None:
        x = np.random.default_rng(rows).standard_normal((rows, 32)).astype(np.float32)
        (z,) = network.run((x,), RunContext())
        y = x.astype(np.float64) @ WEIGHT.astype(np.float64)
        np.testing.assert_allclose(z, np.where(y > 0, y, 0.375 * np.expm1(y)), rtol=1e-4, atol=1e-4)

    check_active(50)
    (interim,) = network._open_plans.plans
    assert interim.is_interim
    names = [kernel.name for kernel in interim.plan.kernels]
    assert any(name.startswith("product_") for name in names)
    assert not any("Elu" in name for name in names)
    check_active(70)
    assert len(orders) == 1
    orders.finish()
    (whole,) = network._open_plans.plans
    assert not whole.is_interim
    assert any("Elu" in kernel.name for kernel in whole.plan.kernels)
    check_active(70)
    check_active(90)


def test_numpys_plan_that_comes_after_the_class_does_not_hide_it(
    network: CpuExecutable, orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(network, 5)
    for _ in range(RUNS_WITHOUT_PLAN):
        check(network, 7)
    assert network.metrics()["CPU_PLANS"]()[0] == 0, "sizes that come for the first times are run without a plan"
    build_plan = module.build_plan

    def build_while_the_class_takes_over(*arguments: Any, **settings: Any) -> Any:
        plan = build_plan(*arguments, **settings)
        if orders and settings.get("is_interim"):
            orders.finish()
        return plan

    monkeypatch.setattr(module, "build_plan", build_while_the_class_takes_over)
    check(network, 7)
    assert not orders
    assert [plan.kernels for plan in network._list_plans()] != []
    assert all(plan.kernels for plan in network._list_plans())
    check(network, 7)
