"""The audit of plans compares the declared reads and writes of steps with the actual accesses; it finds each planted lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from hetero_cpu.operators.recipe import Recipe
from hetero_cpu.operators.weights import PackedWeights
from hetero_cpu.plan.passes import join_network, specialize_network, transform_network
from hetero_cpu.plan.plan import ExecutionPlan
from hetero_cpu.plan.planner import build_plan
from hetero_cpu.symbols.evaluation import read_static_signature
from hetero_tests.larger_models import bert_model, u_net_model
from hetero_tests.plan_audit import audit_plan
from hetero_tests.plan_verifier import verify_plan

from hetero_core.network.reader import read_network
from hetero_core.testing.models import light_inputs

OPERATORS = """g (float[2, 16, 9, 9] x, float[2, 24, 6] q) => (float[2, 32, 9, 9] y, float[2, 24, 24] s, float[2, 16, 1, 1] m) {
    a = Conv <pads = [1, 1, 1, 1]> (x, k)
    b = Conv <pads = [1, 1, 1, 1], group = 16> (a, d)
    c = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (a)
    e = Conv <group = 4> (c, h)
    f = AveragePool <kernel_shape = [2, 2], pads = [0, 0, 1, 1]> (e)
    n = Sigmoid (f)
    p = Add (b, n)
    m = GlobalAveragePool (p)
    l = LRN <size = 5> (p)
    y = Concat <axis = 1> (l, c)
    t = Transpose <perm = [0, 2, 1]> (q)
    u = MatMul (q, t)
    s = Softmax (u)
}"""
CACHES = """g (float[2, 3, 4, 16] q, float[2, 3, 4, 16] k, float[2, 3, 4, 8] v, float[2, 3, 5, 16] m, float[2, 3, 5, 8] n)
        => (float[2, 3, 4, 8] y, float[2, 3, 9, 16] r, float[2, 3, 9, 8] s) {
    y, r, s = Attention (q, k, v, , m, n)
}"""
DEEP = "g (float[3, 8] x) => (float[3, 8] y) { a = MatMul (x, w) b = Exp (a) y = Sub (b, x) }"


def draw_array(*shape: int) -> Any:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


def parse(text: str, *, opset: int = 21, **constants: Any) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]> {text}')
    for name, array in constants.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def make_operators() -> onnx.ModelProto:
    filters = {"k": draw_array(16, 16, 3, 3), "d": draw_array(16, 1, 3, 3), "h": draw_array(16, 4, 1, 1)}
    return parse(OPERATORS, **filters)


def make_plan(model: onnx.ModelProto) -> tuple[ExecutionPlan, list[Any]]:
    """Returns the plan of a model with known shapes, and inputs for it."""
    pytest.importorskip("llvmlite", reason="machine code is made by llvmlite")
    from hetero_cpu.machine.compiler import find_width

    if not find_width():
        pytest.skip("no machine code is made for this processor")
    network = transform_network(read_network(model))
    signature = read_static_signature(network.inputs)
    assert signature is not None
    special = join_network(specialize_network(network, signature))
    plan = build_plan(special, PackedWeights(), {}, workers=2)
    inputs = light_inputs(model)
    return plan, [inputs[value] for value in plan.inputs]


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "operators": make_operators,
    "u_net": lambda: u_net_model(size=16, width=8),
    "encoder": lambda: bert_model(layers=1, length=9),
    "caches": lambda: parse(CACHES, opset=24),
}


@pytest.mark.parametrize("name", MODELS)
def test_steps_access_only_their_stated_memory(name: str) -> None:
    plan, inputs = make_plan(MODELS[name]())
    assert verify_plan(plan) == ()
    assert audit_plan(plan, inputs) == ()


def bind_lie(
    plan: ExecutionPlan, index: int, change: Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], Sequence[Any]]
) -> ExecutionPlan:
    """Returns the plan with changed calls of a step: `change` gets the calls and the arrays that the step reads and writes."""
    step = plan.steps[index]
    work = step.work
    assert isinstance(work, Recipe)

    def bind(reads: Sequence[Any], writes: Sequence[Any], scratch: Any) -> Sequence[Any]:
        return change(work.bind(reads, writes, scratch), reads, writes)

    steps = [*plan.steps]
    steps[index] = replace(step, work=replace(work, bind=bind))
    return replace(plan, steps=tuple(steps))


def test_write_that_is_not_stated_is_found() -> None:
    plan, inputs = make_plan(parse(DEEP, w=draw_array(8, 8)))

    def write_before(calls: Sequence[Any], reads: Sequence[Any], writes: Sequence[Any]) -> Sequence[Any]:
        # The cache line after the result, which may belong to any value.
        beyond = np.lib.stride_tricks.as_strided(writes[0], (4, 8), writes[0].strides)[3]
        return [*calls, lambda: beyond.fill(1.0)]

    assert audit_plan(bind_lie(plan, 0, write_before), inputs)[0].endswith("32 bytes are written that it does not state")


def test_read_that_is_not_stated_is_found() -> None:
    plan, inputs = make_plan(parse(DEEP, w=draw_array(8, 8)))

    def read_beyond(calls: Sequence[Any], reads: Sequence[Any], writes: Sequence[Any]) -> Sequence[Any]:
        beyond = np.lib.stride_tricks.as_strided(reads[0], (4, 8), reads[0].strides)[3]
        return [*calls, lambda: np.add(writes[0], beyond, writes[0])]

    problems = audit_plan(bind_lie(plan, 0, read_beyond), inputs)
    assert (
        problems[0] == "step 'MatMul_0' (MatMul-13): the result depends on bytes that it does not state to read, or is not written"
    )


def test_chunks_that_overlap_are_found() -> None:
    plan, inputs = make_plan(parse("g (float[64, 5000] x) => (float[64, 5000] y) { y = Exp (x) }"))

    def overlap(calls: Sequence[Any], reads: Sequence[Any], writes: Sequence[Any]) -> Sequence[Any]:
        (call,) = calls
        assert call.chunks > 1
        # In the arguments of a walk over rows, the fourth is the rows of a chunk, the tenth the stride of y along them.
        numbers = list(call.numbers)
        numbers[9] -= 4
        return [replace(call, numbers=tuple(numbers))]

    problems = audit_plan(bind_lie(plan, 0, overlap), inputs)
    assert any("chunks of call 0 write the same 4 bytes" in problem for problem in problems), problems
