"""An instance rebound to several sets of sizes has the numbers of its symbols, computed separately in integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from hetero_cpu.machine.compiler import find_width
from hetero_cpu.operators.weights import PackedWeights
from hetero_cpu.plan.open_plan import OpenPlan
from hetero_cpu.plan.passes import specialize_network, transform_network
from hetero_cpu.run.instance import Instance
from hetero_cpu.symbols.arrays import OpenArray
from hetero_cpu.symbols.evaluation import Table, compile_sums
from hetero_cpu.symbols.sizes import evaluate, is_open, terms_of
from hetero_tests.fixed_plans import evaluate_atoms, list_numbers, read_sizes, write_signature
from hetero_tests.open_models import make_decoder, make_detector, make_encoder

from hetero_core.network.reader import read_network

from .trial import make_open_plan


def make_small_decoder() -> onnx.ModelProto:
    return make_decoder(layers=1, width=64, heads=4, key_heads=2)


MODELS: dict[str, tuple[Callable[[], onnx.ModelProto], tuple[tuple[int, ...], ...]]] = {
    "token": (make_small_decoder, ((1, 1), (1, 2, 200, 16), (1, 2, 200, 16))),
    "prompt": (make_small_decoder, ((1, 40), (1, 2, 0, 16), (1, 2, 0, 16))),
    "encoder": (lambda: make_encoder(layers=1, width=64), ((3, 37), (3, 37))),
    "detector": (lambda: make_detector(width=8, depth=2), ((1, 3, 70, 90),)),
}


def open_model(name: str) -> OpenPlan:
    make, signature = MODELS[name]
    network = transform_network(read_network(make()))
    example = specialize_network(network, signature)
    plan = make_open_plan(network, signature, example, weights=PackedWeights(), extensions={}, workers=2)
    assert plan is not None
    return plan


def draw_sizes(plan: OpenPlan, rng: np.random.Generator, count: int) -> list[tuple[tuple[int, ...] | None, ...]]:
    """Returns input shapes of the class: adjacent shapes, distant shapes, and some shapes twice."""
    drawn: list[list[int]] = []
    for _ in range(4000):
        if len(drawn) >= count:
            break
        sizes = [int(rng.integers(low, min(high, 100) + 1)) for low, high in plan.sizes.bounds]
        if plan.match(write_signature(plan, sizes)) is not None:
            drawn.append(sizes)
            longer = [*sizes[:-1], sizes[-1] + 1]
            drawn += [longer] if plan.match(write_signature(plan, longer)) is not None else []
    assert len(drawn) >= min(count, 4)
    return [write_signature(plan, sizes) for sizes in [*drawn[:count], drawn[0]]]


def check(instance: Instance, plan: OpenPlan, signature: Any, roots: list[int]) -> None:
    bound = instance._bound
    assert bound is not None
    assert instance._program is not None
    scope = plan.scope
    begins = [instance._begin, *roots, *(table.ctypes.data for table in bound.tables)]
    bases = zip([*plan.bases.values(), *scope.tables.values()], begins, strict=True)
    atoms = {number: begin for base, begin in bases for (number,) in base.terms}
    values = evaluate_atoms(scope, {**read_sizes(plan, signature), **atoms})

    def fix(number: Any) -> int:
        return evaluate(terms_of(number), values)

    def compare(array: Any, own: Any) -> None:
        if isinstance(own, OpenArray):
            expected = (fix(own.address), tuple(map(fix, own.shape)), tuple(map(fix, own.strides)), own.dtype)
            assert (array.__array_interface__["data"][0], array.shape, array.strides, array.dtype) == expected
        elif is_open(own):
            assert array == fix(own)
        else:
            assert array is own

    assert instance._program.numbers.tolist() == [fix(number) for call in plan.calls for number in call.numbers]
    chunks = [fix(call.chunks) for call in plan.calls]
    assert instance._program._rows[:, 2].tolist() == chunks
    assert [instance._program._has_several(call, call + 1) for call in range(len(chunks))] == [count > 1 for count in chunks]
    assert list_numbers(plan, bound.products)[1].tolist() == chunks
    for table, (make, numbers) in zip(bound.tables, scope.tables, strict=True):
        assert np.array_equal(table, make(*[evaluate(dict(key), values) for key in numbers]))
    for name in plan.inside:
        compare(instance._arrays[name], plan.arrays[name])
    actions = [action for step in plan.steps for action in step.actions if not isinstance(action, range)]
    for action, step in zip(actions, instance._rebound, strict=True):
        for part, own in zip(step.call.args, action.args, strict=True):
            compare(part, own)


@pytest.mark.skipif(not find_width(), reason="no machine code is made for this processor")
@pytest.mark.parametrize("name", MODELS)
def test_numbers_bound_in_sequence_equal_their_symbols(name: str) -> None:
    plan = open_model(name)
    rng = np.random.default_rng(7)
    instance = Instance(plan)
    drawn = draw_sizes(plan, rng, 12)
    for signature in [*drawn, *reversed(drawn)]:
        products = plan.match(signature)
        assert products is not None
        instance._bind(products)
        for _ in range(2):
            roots = [int(begin) for begin in rng.integers(1 << 40, 1 << 46, len(plan.roots))]
            instance._move(roots)
            check(instance, plan, signature, roots)


@pytest.mark.skipif(not find_width(), reason="no machine code is made for this processor")
@pytest.mark.parametrize("name", MODELS)
def test_sizes_are_bound_once_while_the_arena_stays(name: str) -> None:
    plan = open_model(name)
    instance = Instance(plan)
    sizes = sorted(
        {plan.match(signature) or () for signature in draw_sizes(plan, np.random.default_rng(9), 6)},
        key=lambda products: plan.measure_arena(*products),
    )
    # The largest sizes make the arena.
    bound = {products: instance._bind(products) for products in reversed(sizes)}
    assert [instance._bind(products) for products in sizes] == [bound[products] for products in sizes]


@pytest.mark.skipif(not find_width(), reason="no machine code is made for this processor")
@pytest.mark.parametrize(("limit", "kept"), [({"MOST_SIZES": 2}, 2), ({"MOST_SIZES_BYTES": 1}, 1)])
def test_only_sizes_used_last_are_kept(limit: dict[str, int], kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, number in limit.items():
        monkeypatch.setattr(f"hetero_cpu.run.instance.{name}", number)
    plan = open_model("encoder")
    instance = Instance(plan)
    signatures = [((2, length), (2, length)) for length in (40, 39, 38, 40, 37)]
    for signature in signatures:
        products = plan.match(signature)
        assert products is not None
        instance._bind(products)
    assert list(instance._kept) == [plan.match(signature) for signature in signatures[-kept:]]
    assert instance._kept_bytes == sum(bound.nbytes for bound in instance._kept.values())


def test_binding_that_fails_is_made_again_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    if not find_width():
        pytest.skip("no machine code is made for this processor")
    plan = open_model("encoder")
    instance = Instance(plan)
    first, second, *_ = draw_sizes(plan, np.random.default_rng(8), 4)
    products, second_products = plan.match(first), plan.match(second)
    assert products is not None
    assert second_products is not None
    instance._bind(products)
    with monkeypatch.context() as patch:
        patch.setattr(plan, "compute_shape_constants", lambda elements: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            instance._bind(second_products)
    instance._bind(products)
    instance._move([1 << 41] * len(plan.roots))
    check(instance, plan, first, [1 << 41] * len(plan.roots))


@pytest.mark.parametrize("seed", range(20))
def test_sums_are_those_of_plain_integers(seed: int) -> None:
    """Includes rows without a product, and values whose product exceeds float64's integer precision."""
    rng = np.random.default_rng(seed)
    count, products = int(rng.integers(1, 30)), tuple(map(int, rng.integers(0, 1 << 30, int(rng.integers(0, 6)))))
    constants = rng.integers(-(1 << 47), 1 << 47, count)
    matrix = rng.integers(-(1 << 29), 1 << 29, (count, len(products))) * (rng.random((count, len(products))) < 0.3)
    rows, columns = rng.permutation(np.argwhere(matrix)).T if matrix.any() else np.zeros((2, 0), np.int64)
    table = Table(constants, rows, columns, matrix[rows, columns], len(products))
    expected = [
        int(constant) + sum(int(factor) * product for factor, product in zip(row, products, strict=True))
        for constant, row in zip(constants, matrix, strict=True)
    ]
    chosen = np.flatnonzero(rng.random(count) < 0.6)
    assert compile_sums(table, chosen)(products).tolist() == [expected[row] for row in chosen]
    names = {f"p{column}": product for column, product in enumerate(products)}
    assert [eval(text, names) for text in table.write(range(count))] == expected
    assert sorted(set(table.rows.tolist())) == np.flatnonzero(matrix.any(1)).tolist()
