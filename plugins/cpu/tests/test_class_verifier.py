"""The verifier of plans over a class of sizes: plans as they are made are proven, faults that the example does not show are found."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from hetero_cpu.open import layout
from hetero_cpu.open.arrays import OpenArray
from hetero_cpu.open.check import fix_plan
from hetero_cpu.open.class_verifier import ClassReport, verify_class
from hetero_cpu.open.plan import OpenPlan
from hetero_cpu.open.sizes import Scope, is_open, value_of
from hetero_cpu.open.terms import evaluate
from hetero_cpu.passes import transform_network
from hetero_cpu.planning.plan import Block, Joined, PlannedStep
from hetero_cpu.planning.plan_verifier import verify_plan
from hetero_cpu.planning.recipe import Halo
from hetero_cpu.planning.specialization import specialize_network
from hetero_cpu.planning.weights import PackedWeights
from hetero_tests.open_models import make_decoder, make_detector, make_encoder

from hetero_core.kernels.arena import Lifetime
from hetero_core.kernels.single_nodes import evaluate_node
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
    example = specialize_network(network, signature, evaluate_node)
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


def change(opened: OpenPlan, *, plan: dict[str, Any] | None = None, origin: dict[str, Any] | None = None) -> OpenPlan:
    """Returns the plan of a class with parts of its plan, or of what it was made of, replaced."""
    changed = copy.copy(opened)
    assert opened.origin is not None
    changed.plan = replace(opened.plan, **(plan or {}))
    changed.origin = replace(opened.origin, **(origin or {}))
    return changed


def find_call(opened: OpenPlan, kernel: str) -> int:
    assert opened.origin is not None
    return next(index for index, call in enumerate(opened.origin.calls) if kernel in call.kernel.name)


def change_call(opened: OpenPlan, index: int, parameter: str, turn: Callable[[Any], Any]) -> OpenPlan:
    """Returns the plan with one number of a call replaced."""
    assert opened.origin is not None
    calls = list(opened.origin.calls)
    numbers = list(calls[index].numbers)
    place = calls[index].kernel.parameters.index(parameter)
    numbers[place] = turn(numbers[place])
    calls[index] = replace(calls[index], numbers=tuple(numbers))
    return change(opened, origin={"calls": tuple(calls)})


def change_chunks(opened: OpenPlan, index: int, turn: Callable[[Any], Any]) -> OpenPlan:
    assert opened.origin is not None
    calls = list(opened.origin.calls)
    calls[index] = replace(calls[index], chunks=turn(calls[index].chunks))
    return change(opened, origin={"calls": tuple(calls)})


def change_array(opened: OpenPlan, value: str, **parts: Any) -> OpenPlan:
    assert opened.origin is not None
    array = opened.origin.arrays[value]
    fields = {name: getattr(array, name) for name in ("shape", "strides", "dtype", "address", "memory")}
    return change(opened, origin={"arrays": {**opened.origin.arrays, value: OpenArray(**{**fields, **parts})}})


def change_steps(opened: OpenPlan, turn: Callable[[PlannedStep], PlannedStep]) -> OpenPlan:
    return change(opened, plan={"steps": tuple(map(turn, opened.plan.steps))})


def find_symbol(opened: OpenPlan, axis: int) -> Any:
    """Returns the symbol of an axis of the first input."""
    assert opened.origin is not None
    return opened.origin.arrays["x"].shape[axis]


def grow(opened: OpenPlan, axis: int) -> Any:
    """Returns by how much an axis of the first input is longer than in the example."""
    size = find_symbol(opened, axis)
    return size - value_of(size)


def plant_offset(monkeypatch: pytest.MonkeyPatch) -> OpenPlan:
    """One block lies where it lies in the example."""

    def place(scope: Scope, lifetimes: Any) -> Any:
        offsets, total = place_open(scope, lifetimes)
        moved = next(index for index in reversed(range(len(offsets))) if is_open(offsets[index]))
        return (*offsets[:moved], value_of(offsets[moved]), *offsets[moved + 1 :]), total

    place_open = layout.place_open
    monkeypatch.setattr("hetero_cpu.planning.arena_layout.place_open", place)
    return open_plan(CONVOLUTIONS, IMAGES)


def plant_maximum(monkeypatch: pytest.MonkeyPatch) -> OpenPlan:
    """A block lies behind that one of the blocks below it that ends last in the example."""

    def place(scope: Scope, lifetimes: Any) -> Any:
        # Two blocks of other sizes beside each other, and one above both.
        with monkeypatch.context() as patch:
            patch.setattr(Scope, "find_largest", lambda _, sizes: max(sizes, key=value_of))
            return place_open(scope, lifetimes)

    place_open = layout.place_open
    monkeypatch.setattr("hetero_cpu.planning.arena_layout.place_open", place)
    return open_plan(TWO_SIZES, ((8, 16), (9, 16)))


def plant_lifetime(monkeypatch: pytest.MonkeyPatch) -> OpenPlan:
    """A value is thought dead one step early."""

    def place(scope: Scope, lifetimes: Any) -> Any:
        longest = max(range(len(lifetimes)), key=lambda index: lifetimes[index].end - lifetimes[index].begin if index else -1)
        cut = [
            Lifetime(block.nbytes, block.begin, block.end - (index == longest and block.end > block.begin))
            for index, block in enumerate(lifetimes)
        ]
        return place_open(scope, cut)

    place_open = layout.place_open
    monkeypatch.setattr("hetero_cpu.planning.arena_layout.place_open", place)
    return open_plan(CONVOLUTIONS, IMAGES)


def plant_chunks(_: pytest.MonkeyPatch) -> OpenPlan:
    """A call has as many chunks as the example needs."""
    opened = open_plan(PRODUCTS, ROWS)
    return change_chunks(opened, find_call(opened, "product"), value_of)


def plant_chunk_less(_: pytest.MonkeyPatch) -> OpenPlan:
    """A call has a chunk less than it needs."""
    opened = open_plan(CONVOLUTIONS, IMAGES)
    return change_chunks(opened, 2, lambda chunks: chunks - 1)


def plant_stride(_: pytest.MonkeyPatch) -> OpenPlan:
    """Rows of an image are as far apart as its height says: it is as wide as high in the example."""
    opened = open_plan(CONVOLUTIONS, IMAGES)
    height, width = find_symbol(opened, 2), find_symbol(opened, 3)
    return change_call(opened, find_call(opened, "winograd"), "y_row", lambda stride: stride + (height - width) * 64)


def plant_address(_: pytest.MonkeyPatch) -> OpenPlan:
    """A call writes as far behind its place as there are rows more than in the example."""
    opened = open_plan(PRODUCTS, ROWS)
    return change_call(opened, 0, "y", lambda address: address + grow(opened, 0) * 64)


def plant_tiles(_: pytest.MonkeyPatch) -> OpenPlan:
    """A product has as many long tiles as in the example."""
    opened = open_plan(PRODUCTS, ROWS)
    return change_call(opened, find_call(opened, "product"), "long_tiles", value_of)


def plant_halo(_: pytest.MonkeyPatch) -> OpenPlan:
    """A step reads one row of zeros for each 40 of the image."""
    opened = open_plan(CONVOLUTIONS, IMAGES)

    def reach(step: PlannedStep) -> PlannedStep:
        halos = tuple(
            Halo(own.top, own.left, own.bottom + grow(opened, 2), own.right) if own.bottom else own for own in step.work.reaches
        )
        return replace(step, work=replace(step.work, reaches=halos))

    return change_steps(opened, reach)


def plant_zeros(_: pytest.MonkeyPatch) -> OpenPlan:
    """The zeros between rows are written for as many rows as the example has."""
    opened = open_plan(CONVOLUTIONS, IMAGES)
    return change_call(opened, find_call(opened, "clear_halo"), "gaps", value_of)


def plant_piece(_: pytest.MonkeyPatch) -> OpenPlan:
    """The second piece of a concatenation begins at the row at which it begins in the example."""
    opened = open_plan(JOINED, IMAGES)
    ((output, joined),) = opened.plan.joins.items()
    first, second = joined.pieces
    start = second.cut[2].start
    cut = (*second.cut[:2], slice(value_of(start), second.cut[2].stop - start + value_of(start)), *second.cut[3:])
    return change(opened, plan={"joins": {output: Joined((first, replace(second, cut=cut)))}})


def plant_arena(_: pytest.MonkeyPatch) -> OpenPlan:
    """The arena has as many bytes as the example needs."""
    opened = open_plan(CONVOLUTIONS, IMAGES)
    return change(opened, plan={"arena_bytes": value_of(opened.plan.arena_bytes)})


def plant_scratch(_: pytest.MonkeyPatch) -> OpenPlan:
    """A step has as much working memory as in the example."""
    opened = open_plan(CONVOLUTIONS, IMAGES)
    return change_steps(opened, lambda step: replace(step, work=replace(step.work, scratch=value_of(step.work.scratch))))


def plant_slot(_: pytest.MonkeyPatch) -> OpenPlan:
    """A piece of a concatenation lies a channel farther for each row more than in the example."""
    opened = open_plan(BESIDE, IMAGES)
    assert opened.origin is not None
    piece = next(piece for joined in opened.plan.joins.values() for piece in joined.pieces if piece.is_moved)
    return change_array(opened, piece.source, address=opened.origin.arrays[piece.source].address + grow(opened, 2) * 4)


def plant_array(_: pytest.MonkeyPatch) -> OpenPlan:
    """An array has twice as many rows more than in the example as its block."""
    opened = open_plan(PRODUCTS, ROWS)
    assert opened.origin is not None
    value = opened.plan.steps[1].writes[0]
    shape = opened.origin.arrays[value].shape
    return change_array(opened, value, shape=(shape[0] + grow(opened, 0), *shape[1:]))


def plant_pair(_: pytest.MonkeyPatch) -> OpenPlan:
    """A step writes over what it reads, a few rows behind it where there are more than in the example."""
    opened = open_plan(PRODUCTS, ROWS)
    assert opened.origin is not None
    written = next(value for value, place in opened.plan.places.items() if not isinstance(place, Block) and place.is_computed)
    array = opened.origin.arrays[written]
    return change_array(opened, written, address=array.address + grow(opened, 0) * 64)


def plant_bound_strides(_: pytest.MonkeyPatch) -> OpenPlan:
    """A step was planned for images that lie as far apart as those of the example."""
    opened = open_plan(CONVOLUTIONS, IMAGES)

    def fix(step: PlannedStep) -> PlannedStep:
        return replace(step, strides={value: tuple(map(value_of, strides)) for value, strides in step.strides.items()})

    return change_steps(opened, fix)


def plant_table(_: pytest.MonkeyPatch) -> OpenPlan:
    """A table has as many elements as the example needs."""
    opened = open_model(make_detector(width=8, depth=2), ((1, 3, 100, 77),))
    assert opened.origin is not None
    scope = copy.copy(opened.origin.scope)
    index = next(
        place for place, (make, _) in enumerate(scope.tables) if "_make_offsets" in repr(make) and isinstance(make, partial)
    )
    keys = list(scope.tables)
    make, numbers = keys[index]
    count = len(make(*(evaluate(dict(number), scope.values) for number in numbers)))
    keys[index] = (lambda *sizes: make(*sizes)[:count]), numbers
    scope.tables = dict(zip(keys, scope.tables.values(), strict=True))
    return change(opened, origin={"scope": scope})


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
FAULTS: dict[Callable[[pytest.MonkeyPatch], OpenPlan], str] = {
    plant_offset: "while both are alive",
    plant_maximum: "while both are alive",
    plant_chunks: "its chunks do not share its work",
    plant_stride: "writes what the step does not state",
    plant_address: "writes what the step does not state",
    plant_tiles: "its chunks do not share its work",
    plant_halo: "reads more zeros around it",
    plant_zeros: "not all zeros around it are written",
    plant_piece: "does not begin where the one before it ends",
    plant_arena: "its block ends beyond the arena",
    plant_scratch: "writes what the step does not state",
    plant_slot: "does not lie in its slice",
    plant_array: "it lies outside",
    plant_pair: "in other places",
    plant_table: "reads more of a table than there is",
    plant_bound_strides: "planned for other strides",
}


@pytest.mark.parametrize(("plant", "problem"), FAULTS.items(), ids=lambda part: getattr(part, "__name__", ""))
def test_a_fault_that_the_example_does_not_have_is_found(
    plant: Callable[[pytest.MonkeyPatch], OpenPlan], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hetero_cpu.planning.call_verifier import verify_calls  # LLVM

    opened = plant(monkeypatch)
    assert opened.origin is not None
    example = opened.sizes.write_signature([value_of_symbol(opened, symbol.atom) for symbol in opened.sizes.form.symbols])
    fixed = fix_plan(opened, example)
    assert not verify_plan(fixed)
    assert not verify_calls(fixed)
    faults = [str(fault) for fault in verify_class(opened).faults]
    assert any(problem in fault and "with inputs of ((" in fault for fault in faults), faults


def value_of_symbol(opened: OpenPlan, atom: int) -> int:
    assert opened.origin is not None
    return opened.origin.scope.values[atom]


@pytest.mark.parametrize("plant", [plant_lifetime, plant_chunk_less])
def test_a_fault_that_the_example_has_is_found(
    plant: Callable[[pytest.MonkeyPatch], OpenPlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert verify_class(plant(monkeypatch)).faults


@pytest.mark.parametrize(
    "opened",
    [
        lambda: open_plan(CONVOLUTIONS, IMAGES),
        lambda: open_plan(JOINED, IMAGES),
        lambda: open_plan(BESIDE, IMAGES),
        lambda: open_plan(PRODUCTS, ROWS),
        lambda: open_plan(TWO_SIZES, ((8, 16), (9, 16))),
        # An image of more elements than there are runs that are looked at.
        lambda: open_plan(CONVOLUTIONS, ((1, 16, 256, 264),)),
        lambda: open_model(make_encoder(layers=1, width=64), ((3, 37), (3, 37))),
        lambda: open_model(make_detector(width=8, depth=2), ((1, 3, 100, 77),)),
        lambda: open_model(make_decoder(layers=1, width=64, heads=4, key_heads=2), ((1, 1), (1, 2, 20, 16), (1, 2, 20, 16))),
    ],
)
def test_plans_as_they_are_made_are_proven_for_all_sizes(opened: Callable[[], OpenPlan]) -> None:
    report = verify_class(opened())
    assert report == ClassReport(report.proven, (), (), report.tables)
    assert report.proven > 10


def test_a_plan_whose_example_has_too_many_runs_to_look_at_is_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hetero_cpu.open.boxes._MOST_RUNS", SIDE * SIDE - 1)
    report = verify_class(open_plan(BESIDE, IMAGES))
    assert report == ClassReport(report.proven, (), (), report.tables)
