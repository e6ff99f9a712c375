"""The verifier of plans finds each kind of planted fault and names its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx.parser
import pytest
from hetero_cpu.operators.recipe import Recipe
from hetero_cpu.operators.weights import PackedWeights
from hetero_cpu.plan import planner
from hetero_cpu.plan.passes import join_network, specialize_network, transform_network
from hetero_cpu.plan.plan import Derived, ExecutionPlan, External, PlannedStep
from hetero_cpu.plan.planner import Lifetime, build_plan, place_blocks
from hetero_cpu.symbols.evaluation import read_static_signature
from hetero_tests.plan_verifier import verify_plan

from hetero_core.network.reader import read_network


def make_plan(text: str, **constants: Any) -> ExecutionPlan:
    """Returns the plan of a graph with known shapes."""
    pytest.importorskip("llvmlite", reason="machine code is made by llvmlite")
    from hetero_cpu.machine.compiler import find_width

    if not find_width():
        pytest.skip("no machine code is made for this processor")
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}')
    for name, array in constants.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    network = transform_network(read_network(model))
    signature = read_static_signature(network.inputs)
    assert signature is not None
    special = join_network(specialize_network(network, signature))
    return build_plan(special, PackedWeights(), {}, workers=2)


def draw_array(*shape: int) -> Any:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


def list_problems(plan: ExecutionPlan) -> str:
    """Returns all faults, a line for each."""
    return "\n".join(map(str, verify_plan(plan)))


def change_steps(plan: ExecutionPlan, change: Callable[[list[PlannedStep]], object]) -> ExecutionPlan:
    """Returns the plan with its list of steps changed."""
    steps = list(plan.steps)
    change(steps)
    return replace(plan, steps=tuple(steps))


def change_recipe(step: PlannedStep, **changes: Any) -> PlannedStep:
    assert isinstance(step.work, Recipe)
    return replace(step, work=replace(step.work, **changes))


# Products keep arrays apart: no step can run in place.
PRODUCTS = """g (float[8, 16] x) => (float[8, 16] y) {
    a = MatMul (x, w)
    b = MatMul (a, w)
    c = MatMul (b, w)
    y = Sub (c, a)
}"""
WEIGHT = {"w": draw_array(16, 16)}
JOINED = """g (float[2, 16, 6, 6] x) => (float[2, 48, 6, 6] y) {
    a = Conv <pads = [1, 1, 1, 1]> (x, k)
    b = Conv (x, p)
    c = Conv (a, p)
    y = Concat <axis = 1> (a, b, c)
}"""
FILTERS = {"k": draw_array(16, 16, 3, 3), "p": draw_array(16, 16, 1, 1)}
STACKED = "g (float[2, 16, 6, 6] x) => (float[2, 16, 6, 6] y) { a = Conv (x, p) y = Conv <pads = [1, 1, 1, 1]> (a, k) }"
LARGE = "g (float[512, 64] x) => (float[512, 64] y) { a = Sigmoid (x) b = MatMul (a, w) y = Neg (b) }"


@pytest.mark.parametrize(("text", "constants"), [(PRODUCTS, WEIGHT), (JOINED, FILTERS), (STACKED, FILTERS)])
def test_plan_as_it_is_made_has_no_faults(text: str, constants: Mapping[str, Any]) -> None:
    assert list_problems(make_plan(text, **constants)) == ""


def test_moved_offset_is_found_at_the_reader_of_the_lost_value() -> None:
    plan = make_plan(PRODUCTS, **WEIGHT)
    moved = replace(plan, offsets={**plan.offsets, "c": plan.offsets["a"]})
    assert "step 'Sub_3' (Sub-14), value 'a', bytes" in list_problems(moved)
    assert "was written by value 'c', not as value 'a'" in list_problems(moved)


def test_lifetime_that_ends_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def place_cut(lifetimes: Any) -> Any:
        # A value with its last reader two steps later is treated as dead after the first step.
        return place_blocks([Lifetime(own.nbytes, own.begin, min(own.end, own.begin + 1)) for own in lifetimes])

    monkeypatch.setattr(planner, "place_blocks", place_cut)
    problems = list_problems(make_plan(PRODUCTS, **WEIGHT))
    assert "step 'Sub_3' (Sub-14), value 'a'" in problems
    assert "not as value 'a'" in problems


def test_halo_that_is_not_cleared_is_found() -> None:
    plan = make_plan(STACKED, **FILTERS)
    uncleared = change_steps(plan, lambda steps: steps.__setitem__(0, replace(steps[0], clears=())))
    assert plan.steps[0].clears == ("a",)
    assert "value 'a'" in list_problems(uncleared)
    assert "was written by nobody in this run, not as the zeros around 'a'" in list_problems(uncleared)


IN_PLACE = "g (float[8, 16] x) => (float[8, 16] y, float[8, 16] z) { a = MatMul (x, w) z = Exp (a) y = Relu (a) }"


def test_reader_after_the_step_that_overwrites_is_found() -> None:
    plan = make_plan(IN_PLACE, **WEIGHT)
    assert isinstance(plan.places["y"], Derived)
    swapped = change_steps(plan, lambda steps: steps.insert(1, steps.pop(2)))
    assert "step 'Exp_1' (Exp-13), value 'a'" in list_problems(swapped)
    assert "was written by value 'y', not as value 'a'" in list_problems(swapped)


def test_step_in_place_that_does_not_state_its_order_is_found() -> None:
    plan = make_plan(IN_PLACE, **WEIGHT)
    unstated = change_steps(plan, lambda steps: steps.__setitem__(2, change_recipe(steps[2], overwrites=())))
    assert "the step reads it and writes 'y' over it" in list_problems(unstated)


def test_input_of_the_caller_that_is_written_over_is_found() -> None:
    plan = make_plan(LARGE, w=draw_array(64, 64))
    assert plan.external == External(("x",), {"y": plan.external.outputs["y"]})
    over = replace(plan, places={**plan.places, "a": Derived("x", lambda array: array)})
    assert "value 'a'" in list_problems(over)
    assert "it is written over the input 'x', which is the caller's" in list_problems(over)
