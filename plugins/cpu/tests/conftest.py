"""Fixtures for native steps: the site of a node over arrays in any memory layout, and its calls, run chunk by chunk."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hetero_cpu.operators.groups import Extra, Group
from hetero_cpu.operators.recipe import NO_HALO, Halo, Recipe, Site
from hetero_cpu.operators.weights import PackedWeights
from hetero_cpu.plan import planner
from hetero_cpu.plan.plan import ExecutionPlan
from hetero_cpu.plan.planner import build_plan
from hetero_cpu.run.instance import Instance
from hetero_cpu.symbols.evaluation import Products
from hetero_tests.fixed_plans import fix_plan
from hetero_tests.plan_verifier import verify_plan

from hetero_core import Core
from hetero_core.errors import ConfigValueError
from hetero_core.network.graph import Node
from hetero_core.network.types import TensorType


@pytest.fixture
def core() -> Iterator[Core]:
    with Core() as opened:
        yield opened


@pytest.fixture(autouse=True)
def verified_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verifies each plan of a test before it runs; the plan of a class is verified for each set of sizes that the test runs."""

    def build_verified_plan(*arguments: Any, **settings: Any) -> ExecutionPlan:
        plan = build_plan(*arguments, **settings)
        faults = verify_plan(plan)
        assert not faults, "\n".join(map(str, faults))
        return plan

    monkeypatch.setattr(planner, "build_plan", build_verified_plan)
    run_open = Instance.run
    bound: dict[tuple[int, Products], Instance] = {}

    def run_verified(instance: Instance, products: Products, inputs: Any, *rest: Any) -> Any:
        key = id(instance._plan), products
        if key not in bound and not instance._plan.sizes.is_single:
            faults = verify_plan(fix_plan(instance._plan, tuple(array.shape for array in inputs)))
            assert not faults, "\n".join(map(str, faults))
            bound[key] = instance
        return run_open(instance, products, inputs, *rest)

    monkeypatch.setattr(Instance, "run", run_verified)


@dataclass(frozen=True, slots=True)
class Lay:
    """The memory layout of an image: foreign channels before and after it, a halo of zeros, and unused elements between rows."""

    before: int = 0
    after: int = 0
    halo: Halo = NO_HALO
    gap: int = 0

    def place(self, array: Any) -> tuple[Any, Any]:
        """Returns the memory, and the image in it as (batch, channels, height, width); NaN fills all but the image and its halo."""
        batch, channels, height, width = array.shape
        halo = self.halo
        tall, wide = halo.top + height + halo.bottom, halo.left + width + halo.right
        memory = np.full((batch, tall, wide + self.gap, self.before + channels + self.after), np.nan, np.float32)
        own = memory[:, :, :wide, self.before : self.before + channels]
        own[...] = 0
        image = own[:, halo.top : halo.top + height, halo.left : halo.left + width].transpose(0, 3, 1, 2)
        image[...] = array
        return memory, image


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Skips a test that needs machine code on a processor without support for it; the reason is the message of CPU."""
    from hetero_cpu.machine.compiler import find_width

    try:
        return (yield)
    except ConfigValueError as error:
        if find_width() or "CPU_KERNELS" not in str(error):
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="module", params=["NUMPY", "JIT"])
def kernels(request: pytest.FixtureRequest) -> str:
    """The value of CPU_KERNELS: NUMPY, then JIT, which is skipped on a processor without machine code."""
    if request.param == "JIT":
        pytest.importorskip("llvmlite", reason="machine code is made by llvmlite")
        from hetero_cpu.machine.compiler import find_width

        if not find_width():
            pytest.skip("no machine code is made for this processor")
    return str(request.param)


@dataclass
class NativeRun:
    """Plans and runs a single native step with vectors of `width` elements."""

    width: int

    def make_site(
        self,
        nodes: Sequence[Node],
        images: Mapping[str, Any],
        constants: Mapping[str, Any],
        shape: tuple[int, ...],
        *,
        halos: Mapping[str, Halo] | None = None,
        output_halo: Halo = NO_HALO,
        workers: int = 2,
        readers: tuple[str, ...] = (),
    ) -> Site:
        """Returns the site of the first node, fused with its followers; each follower reads the result before it, and perhaps an image."""
        extras = tuple(Extra(node, next((name for name in node.inputs if name in images), "")) for node in nodes[1:])
        types = {name: TensorType("float32", array.shape) for name, array in {**images, **constants}.items()}
        types.update({node.outputs[0]: TensorType("float32", shape) for node in nodes})
        return Site(
            Group(nodes[0], extras),
            types,
            constants,
            {**constants, **images},
            PackedWeights(),
            readers,
            halos or {},
            output_halo,
            workers,
        )

    def run(self, recipe: Recipe, arrays: Mapping[str, Any], y: Any, *outputs: Any) -> int:
        """Computes y and any further outputs, the last chunks first; returns the number of chunks."""
        from .trial import run_calls

        scratch = np.zeros(recipe.scratch, np.uint8)
        calls = recipe.bind([arrays[name] for name in recipe.reads], [y, *outputs], scratch)
        run_calls(calls, self.width)
        assert {call.kernel for call in calls} <= set(recipe.kernels)
        return sum(call.chunks for call in calls)


@pytest.fixture(params=[16, 8], ids=["AVX-512", "AVX2"])
def native(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> NativeRun:
    """Native steps, planned and compiled as on a processor with vectors of each width in turn."""
    pytest.importorskip("llvmlite", reason="machine code is made by llvmlite")
    import hetero_cpu.machine.compiler as compiler
    from hetero_cpu.operators import steps as providers

    if compiler.find_width() < request.param:
        pytest.skip(f"the processor has no vectors of {request.param} elements")
    for folder, *_ in providers.NATIVE_STEPS:
        importlib.import_module(f"hetero_cpu.operators.{folder}")
    find_width: Callable[[], int] = lambda: request.param  # noqa: E731  # a stand-in for a function of this name
    for name, module in list(sys.modules.items()):
        if name.startswith("hetero_cpu.") and name != "hetero_cpu.machine.compiler" and hasattr(module, "find_width"):
            monkeypatch.setattr(module, "find_width", find_width)
    return NativeRun(request.param)


def use_products(monkeypatch: pytest.MonkeyPatch, find: Any, name: str, hidden: str) -> Iterator[str]:
    """Has a processor's flags that match `hidden` overlooked, so that `find` of the compiler finds the products `name`; skips if not."""
    import hetero_cpu.machine.compiler as compiler

    whole = compiler._describe_processor()
    caches = (find, compiler.find_width, compiler.describe_environment)
    for cached in caches:
        cached.cache_clear()
    monkeypatch.setattr(compiler, "_describe_processor", lambda: re.sub(hidden, "", whole))
    # Kernels of the same name have other code for vectors of another width.
    monkeypatch.setattr(compiler.COMPILER, "_addresses", {})
    try:
        if not compiler.find_width():
            pytest.skip("no machine code is made for this processor")
        if find() != name:
            pytest.skip(f"the processor does not have the products '{name}'")
        yield name
    finally:
        for cached in caches:
            cached.cache_clear()
