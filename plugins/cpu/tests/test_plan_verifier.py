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
from hetero_cpu.plan.arena import Lifetime, place_blocks
from hetero_cpu.plan.passes import join_network, specialize_network, transform_network
from hetero_cpu.plan.plan import Derived, ExecutionPlan, External, PlannedStep
from hetero_cpu.plan.planner import build_plan
from hetero_cpu.symbols.size_class import read_static_signature
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


def find_step(plan: ExecutionPlan, value: str) -> int:
    """Returns the position of the step that writes a value."""
    return next(index for index, step in enumerate(plan.steps) if value in step.writes)


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


def test_offset_by_half_a_line_is_found() -> None:
    plan = make_plan(PRODUCTS, **WEIGHT)
    assert "its block is not aligned to 64 bytes" in list_problems(
        replace(plan, offsets={**plan.offsets, "c": plan.offsets["c"] + 32})
    )


def test_block_beyond_the_arena_is_found() -> None:
    plan = make_plan(PRODUCTS, **WEIGHT)
    assert "its block ends beyond the arena, which has" in list_problems(replace(plan, arena_bytes=plan.arena_bytes - 64))


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


def test_halo_that_is_smaller_than_the_reach_is_found() -> None:
    plan = make_plan(STACKED, **FILTERS)
    block = plan.places["a"]
    cut = replace(plan, places={**plan.places, "a": replace(block, halo=replace(block.halo, top=0))})
    assert "the step reads beyond the block in which it lies" in list_problems(cut)


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


def test_result_over_a_value_that_is_read_again_is_found() -> None:
    plan = make_plan("g (float[8, 16] x) => (float[8, 16] y) { a = MatMul (x, w) y = Sub (a, x) }", **WEIGHT)
    index = find_step(plan, "y")
    thrice = change_recipe(plan.steps[index], reads=("a", "x", "a"), overwrites=(0, 1))
    problems = list_problems(change_steps(plan, lambda steps: steps.__setitem__(index, thrice)))
    assert "value 'a'" in problems
    assert "the step reads it and writes 'y' over it" in problems


def test_moved_piece_at_a_wrong_slice_is_found() -> None:
    plan = make_plan(JOINED, **FILTERS)
    assert all(piece.is_moved for piece in plan.joins["y"][1:])
    b, c = (plan.places[value] for value in "bc")
    assert "value 'b'" in (problems := list_problems(replace(plan, places={**plan.places, "b": c, "c": b})))
    assert "it is a piece of 'y' and does not lie in its slice of it" in problems


def test_view_beyond_its_block_is_found() -> None:
    plan = make_plan("g (float[8, 16] x) => (float[128] y) { a = MatMul (x, w) s = Reshape (a, shape) y = Exp (s) }",
                     shape=np.array([128]), **WEIGHT)  # fmt: skip
    strided = Derived("a", lambda array: np.lib.stride_tricks.as_strided(array, (128,), (8,)))
    problems = list_problems(replace(plan, places={**plan.places, "s": strided}))
    assert "value 's'" in problems
    assert "it lies outside the block of 'a', of which it is a view" in problems


def test_piece_without_a_copy_is_found_in_the_output() -> None:
    plan = make_plan("g (float[4, 8] x, float[4, 8] z) => (float[4, 24] y) { y = Concat <axis = 1> (x, z, x) }")
    (step,) = plan.steps
    assert isinstance(step.work, Recipe)
    less = change_steps(plan, lambda steps: steps.__setitem__(0, change_recipe(step, parts=step.work.parts[:-1])))
    assert "the end of the run, value 'y', bytes" in list_problems(less)
    assert "was written by nobody in this run, not as value 'y'" in list_problems(less)


def test_output_that_no_step_makes_is_found() -> None:
    plan = make_plan(PRODUCTS, **WEIGHT)
    assert "the end of the run, value 'y'" in list_problems(change_steps(plan, lambda steps: steps.pop()))


def test_working_memory_over_a_value_that_is_needed_is_found() -> None:
    text = "g (float[8, 8] x, float[8, 8] z) => (float[8, 8] y) { a = Exp (x) t = Transpose (z) y = MatMul (a, t) }"
    plan = make_plan(text)
    index = find_step(plan, "y")
    step = plan.steps[index]
    assert isinstance(step.work, Recipe)
    assert step.work.scratch
    moved = change_steps(plan, lambda steps: steps.__setitem__(index, replace(step, scratch_offset=plan.offsets["x"])))
    assert "the step reads it and writes 'its working memory' over it" in list_problems(moved)
    beyond = change_steps(plan, lambda steps: steps.__setitem__(index, replace(step, scratch_offset=plan.arena_bytes)))
    assert "its working memory ends beyond the arena" in list_problems(beyond)


def test_value_that_is_read_before_it_is_written_is_found() -> None:
    plan = make_plan(PRODUCTS, **WEIGHT)
    early = change_steps(plan, lambda steps: steps.insert(0, steps.pop(find_step(plan, "c"))))
    assert "step 'MatMul_2' (MatMul-13), value 'b', bytes" in list_problems(early)


def test_early_read_of_a_toolkit_result_is_found() -> None:
    plan = make_plan("g (float[4, 4] x) => (int64[k, 2] y) { i = NonZero (x) y = Transpose (i) }")
    assert "y" not in plan.places
    swapped = change_steps(plan, lambda steps: steps.reverse())
    assert "value 'i': it is read and no step before makes it" in list_problems(swapped)


def test_input_of_the_caller_that_is_written_over_is_found() -> None:
    plan = make_plan(LARGE, w=draw_array(64, 64))
    assert plan.external == External(("x",), {"y": plan.external.outputs["y"]})
    over = replace(plan, places={**plan.places, "a": Derived("x", lambda array: array)})
    assert "value 'a'" in list_problems(over)
    assert "it is written over the input 'x', which is the caller's" in list_problems(over)


def test_input_in_the_memory_of_an_output_of_the_caller_is_found() -> None:
    plan = make_plan(LARGE, w=draw_array(64, 64))
    root = plan.external.outputs["y"]
    inside = replace(plan, places={**plan.places, "x": Derived(root, lambda array: array)}, external=External((), {"y": root}))
    assert "the begin of the run, value 'x'" in list_problems(inside)
    assert f"it is copied in the arena, and calls go to where '{root}' lies outside of it" in list_problems(inside)


def test_function_on_memory_of_the_caller_is_found() -> None:
    plan = make_plan(LARGE, w=draw_array(64, 64))
    bound = change_steps(plan, lambda steps: steps.__setitem__(0, change_recipe(steps[0], calls_functions=True)))
    assert "value 'x'" in list_problems(bound)
    assert "a function keeps to the arena and 'x' lies outside of it in a run" in list_problems(bound)


def test_step_with_strides_unlike_its_plan_is_found() -> None:
    plan = make_plan(STACKED, **FILTERS)
    index = find_step(plan, "y")
    # Strides of C order for images that lie channels last.
    strides = (4 * 16 * 36, 4 * 36, 4 * 6, 4)
    changed = change_steps(plan, lambda steps: steps.__setitem__(index, replace(steps[index], strides={"a": strides})))
    assert f"the step was planned for strides of {strides} bytes and meets" in list_problems(changed)


def test_join_without_its_pieces_reads_their_memory() -> None:
    plan = make_plan(JOINED, **FILTERS)
    unstated = replace(plan, joins={"y": plan.joins["y"][:1]})
    assert "the end of the run, value 'y'" in list_problems(unstated)
