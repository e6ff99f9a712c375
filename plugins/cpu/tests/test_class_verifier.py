"""Plans of a class of sizes, verified at sampled sizes: the verifier finds faults that do not show at the example's sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from hetero_cpu.operators.weights import PackedWeights
from hetero_cpu.plan import planner as layout
from hetero_cpu.plan.open_plan import OpenPlan
from hetero_cpu.plan.passes import specialize_network, transform_network
from hetero_cpu.symbols.evaluation import Signature
from hetero_cpu.symbols.sizes import Scope, is_open, value_of
from hetero_tests.fixed_plans import fix_plan, write_signature
from hetero_tests.open_models import make_decoder, make_detector, make_encoder
from hetero_tests.plan_verifier import verify_plan

from hetero_core.network.reader import read_network

from .trial import make_open_plan

pytest.importorskip("llvmlite", reason="plans of classes are of machine code")

SIDE = 40
IMAGES = ((2, 16, SIDE, SIDE),)
ROWS = ((96, 16),)
CONVOLUTIONS = """g (float[N, 16, H, W] x) => (float[N, 16, H, W] y) {
    a = Conv <pads = [1, 1, 1, 1]> (x, k)
    b = Conv <pads = [1, 1, 1, 1]> (a, k)
    c = Conv <pads = [1, 1, 1, 1]> (b, k)
    y = Add (c, a)
}"""
JOINED = """g (float[N, 16, H, W] x) => (float[N, 16, R, W] y) {
    a = Conv (x, p)
    b = Relu (a)
    c = Conv (x, p)
    d = Sigmoid (c)
    e = Concat <axis = 2> (b, d)
    y = Conv (e, p)
}"""
PRODUCTS = """g (float[N, 16] x) => (float[N, 16] y) {
    a = MatMul (x, w)
    b = MatMul (a, w)
    c = MatMul (b, w)
    d = Sigmoid (c)
    y = Sub (d, a)
}"""


def draw_array(*shape: int) -> Any:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


def open_model(model: onnx.ModelProto, signature: tuple[tuple[int, ...], ...]) -> OpenPlan:
    network = transform_network(read_network(model))
    example = specialize_network(network, signature)
    opened = make_open_plan(network, signature, example, weights=PackedWeights(), extensions={}, workers=2)
    assert opened is not None
    return opened


def open_plan(text: str, signature: tuple[tuple[int, ...], ...]) -> OpenPlan:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}')
    for name, array in (
        ("k", draw_array(16, 16, 3, 3)),
        ("p", draw_array(16, 16, 1, 1)),
        ("w", draw_array(16, 16)),
        ("v", draw_array(16, 32, 1, 1)),
    ):
        if any(name in node.input for node in model.graph.node):
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return open_model(model, signature)


def plant_offset(monkeypatch: pytest.MonkeyPatch) -> OpenPlan:
    """A block keeps its offset from the example at all sizes."""

    def place(scope: Scope, lifetimes: Any) -> Any:
        offsets, total = place_open(scope, lifetimes)
        moved = next(index for index in reversed(range(len(offsets))) if is_open(offsets[index]))
        return (*offsets[:moved], value_of(offsets[moved]), *offsets[moved + 1 :]), total

    place_open = layout.place_open
    monkeypatch.setattr("hetero_cpu.plan.planner.place_open", place)
    return open_plan(CONVOLUTIONS, IMAGES)


TWO_SIZES = """g (float[N, 16] x, float[M, 16] z) => (float[N, 16] y, float[M, 16] u) {
    a = MatMul (x, w)
    b = MatMul (z, w)
    c = MatMul (a, w)
    d = MatMul (b, w)
    e = MatMul (c, w)
    f = MatMul (d, w)
    y = Sub (e, c)
    u = Sub (f, d)
}"""
BESIDE = """g (float[N, 16, H, W] x) => (float[N, 16, H, W] y) {
    a = Conv <pads = [1, 1, 1, 1]> (x, k)
    b = Conv (x, p)
    c = Concat <axis = 1> (a, b)
    y = Conv (c, v)
}"""
SIZES = {
    "images": [((batch, 16, height, width),) for batch in (1, 3) for height in (37, 40, 48, 90) for width in (38, 44, 80)],
    "rows": [((rows, 16),) for rows in (60, 97, 112, 150, 300)],
    "two": [((first, 16), (second, 16)) for first, second in ((8, 40), (40, 8), (9, 12), (12, 9), (64, 16), (16, 64))],
}
"""Sets of sizes; a plan is bound to those of its class and verified."""


def list_faults(opened: OpenPlan, signature: Signature) -> list[str]:
    """Returns the faults of the class plan bound to one set of sizes."""
    return [str(fault) for fault in verify_plan(fix_plan(opened, signature))]


def read_example(opened: OpenPlan) -> Signature:
    """Returns the sizes of the example from which the plan was made."""
    return write_signature(opened, [opened.scope.values[atom] for atom in opened.sizes.place_of_symbol])


def test_fault_that_the_example_lacks_is_found_at_other_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = plant_offset(monkeypatch)
    assert not list_faults(opened, read_example(opened))
    own = [signature for signature in SIZES["images"] if opened.match(signature) is not None]
    faults = [fault for signature in own for fault in list_faults(opened, signature)]
    assert any("the step reads it and writes" in fault for fault in faults), faults


@pytest.mark.parametrize(
    ("opened", "signatures"),
    [
        (lambda: open_plan(CONVOLUTIONS, IMAGES), SIZES["images"]),
        (lambda: open_plan(JOINED, IMAGES), SIZES["images"]),
        (lambda: open_plan(BESIDE, IMAGES), SIZES["images"]),
        (lambda: open_plan(PRODUCTS, ROWS), SIZES["rows"]),
        (lambda: open_plan(TWO_SIZES, ((8, 16), (9, 16))), SIZES["two"]),
        (lambda: open_model(make_encoder(layers=1, width=64), ((3, 37), (3, 37))), [((2, 50), (2, 50)), ((5, 9), (5, 9))]),
        (lambda: open_model(make_detector(width=8, depth=2), ((1, 3, 100, 77),)), [((1, 3, 60, 90),), ((1, 3, 128, 64),)]),
        (
            lambda: open_model(make_decoder(layers=1, width=64, heads=4, key_heads=2), ((1, 1), (1, 2, 20, 16), (1, 2, 20, 16))),
            [((1, 1), (1, 2, 21, 16), (1, 2, 21, 16)), ((1, 1), (1, 2, 100, 16), (1, 2, 100, 16))],
        ),
    ],
)
def test_plan_of_a_class_has_no_faults_at_sampled_sizes(opened: Callable[[], OpenPlan], signatures: list[Signature]) -> None:
    plan = opened()
    for signature in (read_example(plan), *signatures):
        if plan.match(signature) is not None:
            assert list_faults(plan, signature) == []
    assert any(plan.match(signature) is not None for signature in signatures)
