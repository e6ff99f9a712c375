"""Symbolic sizes compute as integers do and record their comparisons as guards; a layout is valid for all sizes of its class."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hetero_cpu.operators.weights import PackedWeights
from hetero_cpu.plan import planner as layout
from hetero_cpu.plan.open_plan import OpenPlan
from hetero_cpu.plan.passes import specialize_network, transform_network
from hetero_cpu.plan.planner import Lifetime
from hetero_cpu.symbols.arrays import OpenArray, broadcast, lay_open
from hetero_cpu.symbols.evaluation import Evaluator, SizeClass, compile_sums
from hetero_cpu.symbols.sizes import NotOpenError, Scope, evaluate, is_open, largest, least, terms_of
from hetero_tests.fixed_plans import evaluate_atoms, fix_plan
from hetero_tests.open_models import make_encoder
from hetero_tests.plan_verifier import verify_plan

from hetero_core.network.reader import read_network

from .trial import make_open_plan


def _holds(scope: Scope, values: list[int]) -> bool:
    def evaluate_all(kind: Any) -> list[int]:
        return [evaluate(dict(key), values) for key in kind]

    return (
        all(number >= 0 for number in evaluate_all(scope.guards[">= 0"]))
        and not any(evaluate_all(scope.guards["== 0"]))
        and all(evaluate_all(scope.guards["!= 0"]))
        and all(low <= value <= high for (low, high), value in zip(scope.bounds, values, strict=True))
    )


def _compute(rng: np.random.Generator, numbers: list[Any]) -> list[Any]:
    """Returns numbers and answers of random arithmetic, the same for the same generator."""
    numbers_so_far = list(numbers)
    answers: list[Any] = []
    for _ in range(14):
        a, b = (numbers_so_far[int(rng.integers(len(numbers_so_far)))] for _ in range(2))
        constant = int(rng.integers(1, 70))
        match int(rng.integers(9)):
            case 0:
                numbers_so_far.append(a + b)
            case 1:
                numbers_so_far.append(a - b)
            case 2:
                numbers_so_far.append(a * constant)
            case 3:
                numbers_so_far.append(a // constant)
            case 4:
                numbers_so_far.append(-(-a // constant) * constant)
            case 5:
                numbers_so_far.append(largest(a, b))
            case 6:
                numbers_so_far.append(least(a, constant))
            case 7:
                answers.append(bool(a < b))
            case 8:
                answers.append(bool(a % constant == 0))
    return [*numbers_so_far, *answers]


@pytest.mark.parametrize("seed", range(60))
def test_symbolic_results_hold_for_all_sizes_within_the_guards(seed: int) -> None:
    scope = Scope()
    example = [int(number) for number in np.random.default_rng(seed).integers(2, 40, 3)]
    symbols = [scope.open_size(name, size) for name, size in zip("abc", example, strict=True)]
    results = _compute(np.random.default_rng(1000 + seed), symbols)
    guards = [dict(key) for keys in scope.guards.values() for key in keys]
    evaluator = Evaluator(scope, [*(terms_of(number) for number in results if not isinstance(number, bool)), *guards])
    own = SizeClass(scope, [symbols], evaluator)
    table = evaluator.tabulate([terms_of(number) for number in results])
    sums = compile_sums(table, np.arange(len(results)))
    rng, covered = np.random.default_rng(2000 + seed), 0
    for sizes in [example, *(rng.integers(2, 60, 3).tolist() for _ in range(200))]:
        values = evaluate_atoms(scope, dict(enumerate(sizes)))
        products = own.match((tuple(sizes),))
        assert (products is not None) == _holds(scope, values)
        if products is None:
            continue
        covered += 1
        expected = _compute(np.random.default_rng(1000 + seed), list(sizes))
        assert [evaluate(terms_of(number), values) for number in results] == [int(number) for number in expected]
        assert sums(products).tolist() == [int(number) for number in expected]
    assert covered


def test_a_number_that_leaves_is_pinned() -> None:
    for leave in (int, hash, str, float, range, lambda size: np.zeros(size), lambda size: [0] * size, lambda size: f"{size}"):
        scope = Scope()
        leave(scope.open_size("a", 5))
        assert scope.guards["== 0"], leave


def test_an_address_is_never_asked_for_its_value() -> None:
    scope = Scope()
    with pytest.raises(NotOpenError):
        int(scope.open_base("arena"))


@pytest.mark.parametrize("seed", range(40))
def test_arrays_lie_as_those_of_numpy_do(seed: int) -> None:
    """Views of random shapes: at the example's sizes, strides and offsets equal NumPy's, or both copy."""
    rng = np.random.default_rng(seed)
    shape = [int(size) for size in rng.integers(1, 6, int(rng.integers(1, 5)))]
    scope = Scope()
    plain: Any = np.zeros(shape, np.float32)
    laid: Any = lay_open(tuple(scope.open_size(f"s{axis}", size) for axis, size in enumerate(shape)), np.float32)
    begin = plain.ctypes.data
    for _ in range(6):
        match int(rng.integers(5)):
            case 0:
                order = rng.permutation(plain.ndim).tolist()
                plain, laid = plain.transpose(order), laid.transpose(order)
            case 1:
                axis = int(rng.integers(plain.ndim))
                first, last = sorted(int(place) for place in rng.integers(0, plain.shape[axis] + 1, 2))
                cut = (slice(None),) * axis + (slice(first, max(last, first + 1)),)
                if plain[cut].size == 0:
                    continue
                plain, laid = plain[cut], laid[cut]
            case 2:
                plain, laid = plain.reshape(1, -1, *plain.shape[1:]), laid.reshape(1, -1, *laid.shape[1:])
            case 3:
                sizes = (-1, plain.shape[-1])
                reshaped, relaid = plain.reshape(sizes), laid.reshape((-1, laid.shape[-1]))
                shares = np.may_share_memory(reshaped, plain)
                assert shares == np.may_share_memory(relaid, laid)
                if not shares:
                    continue
                plain, laid = reshaped, relaid
            case 4:
                if plain.ndim < 5:
                    wide = (3, *plain.shape)
                    assert _strides(broadcast(laid, (3, *laid.shape)), scope) == _strides(np.broadcast_to(plain, wide), scope)
        assert isinstance(laid, OpenArray)
        assert tuple(_fix(scope, size) for size in laid.shape) == plain.shape
        assert _strides(laid, scope) == _strides(plain, scope)
        assert _fix(scope, laid.address) == plain.ctypes.data - begin
        assert laid.flags.c_contiguous == plain.flags.c_contiguous


def _fix(scope: Scope, number: Any) -> int:
    return evaluate(terms_of(number), scope.values)


def _strides(array: Any, scope: Scope) -> list[int]:
    """Returns the strides of the axes with more than one element."""
    pairs = zip(array.shape, array.strides, strict=True)
    return [_fix(scope, stride) for size, stride in pairs if _fix(scope, size) > 1]


@pytest.mark.parametrize("seed", range(30))
def test_blocks_with_overlapping_lifetimes_are_disjoint(seed: int) -> None:
    rng, scope = np.random.default_rng(seed), Scope()
    a, b = scope.open_size("a", int(rng.integers(2, 50))), scope.open_size("b", int(rng.integers(2, 50)))
    lifetimes = []
    for _ in range(14):
        begin = int(rng.integers(0, 12))
        factors = (int(rng.integers(0, 9)) * a + int(rng.integers(1, 5)) * b) if rng.integers(3) else a * b
        lifetimes.append(Lifetime(factors * 4, begin, begin + int(rng.integers(0, 5))))
    offsets, total = layout.place_open(scope, lifetimes)
    for sizes in rng.integers(2, 300, (20, 2)).tolist():
        values = evaluate_atoms(scope, dict(enumerate(sizes)))
        spans = [
            (evaluate(terms_of(offset), values), evaluate(terms_of(block.nbytes), values))
            for offset, block in zip(offsets, lifetimes, strict=True)
        ]
        for index, (begin, nbytes) in enumerate(spans):
            assert begin % 64 == 0
            assert begin + nbytes <= evaluate(terms_of(total), values)
            for earlier in range(index):
                together = lifetimes[index].begin <= lifetimes[earlier].end and lifetimes[earlier].begin <= lifetimes[index].end
                assert not together or begin + nbytes <= spans[earlier][0] or sum(spans[earlier]) <= begin
    assert not scope.guards[">= 0"]
    assert not scope.guards["== 0"]
    assert not scope.guards["!= 0"]


def _open_encoder() -> OpenPlan | None:
    network = transform_network(read_network(make_encoder(layers=1, width=64)))
    signature = ((3, 37), (3, 37))
    example = specialize_network(network, signature)
    return make_open_plan(network, signature, example, weights=PackedWeights(), extensions={}, workers=2)


def test_wrong_class_layout_is_refused_beyond_the_example_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("llvmlite")
    right = _open_encoder()
    assert right is not None
    assert right.match(((4, 41), (4, 41))) is not None
    assert not verify_plan(fix_plan(right, ((4, 41), (4, 41))))

    def place_like_example(scope: Scope, lifetimes: Any) -> Any:
        offsets, total = place_open(scope, lifetimes)
        # Correct for the example alone.
        return tuple(_fix(scope, offset) for offset in offsets), total

    place_open = layout.place_open
    monkeypatch.setattr("hetero_cpu.plan.planner.place_open", place_like_example)
    wrong = _open_encoder()
    assert wrong is not None
    assert not verify_plan(fix_plan(wrong, ((3, 37), (3, 37))))
    assert verify_plan(fix_plan(wrong, ((4, 41), (4, 41))))


def test_is_open_tells_symbols_from_integers() -> None:
    size = Scope().open_size("a", 7)
    assert is_open(size)
    assert isinstance(size, int)
    assert not is_open(7)
