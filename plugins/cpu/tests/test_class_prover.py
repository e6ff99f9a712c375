"""What the prover of a class's claims proves holds for drawn sizes; boxes of calls are the bytes that their footprints count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from hetero_cpu.open.boxes import Box, find_runs, list_ways_apart, list_ways_inside, list_ways_same, make_box
from hetero_cpu.open.evaluation import Evaluator
from hetero_cpu.open.plan import OpenPlan
from hetero_cpu.open.prover import Prover
from hetero_cpu.open.size_class import ClassForm, SizeClass, Symbol
from hetero_cpu.open.sizes import Scope, largest, least, terms_of
from hetero_cpu.open.terms import evaluate
from hetero_cpu.planning.byte_runs import intersect, join_all, subtract

LONGEST = 60


def make_prover(scope: Scope, count: int) -> Prover:
    """Returns the prover of a class whose symbols are the first atoms, at most LONGEST each."""
    kinds = (scope.at_least_zero, scope.equal_zero, scope.not_zero)
    guards = [dict(key) for kind in kinds for key in kind]
    evaluator = Evaluator(scope, tuple(range(count)), guards)
    symbols = tuple(Symbol(atom, 0, atom, scope.bounds[atom][0], min(scope.bounds[atom][1], LONGEST)) for atom in range(count))
    shapes = (tuple((atom,) for atom in range(count)),)
    least_count = len(scope.at_least_zero)
    form = ClassForm(
        symbols, shapes, evaluator.derivation, evaluator.tabulate(guards), least_count, least_count + len(scope.equal_zero)
    )
    return Prover(scope, SizeClass(form))


def draw_numbers(rng: np.random.Generator, numbers: list[Any], *, asks: bool) -> list[Any]:
    """Returns numbers that follow from others, some of which are compared where `asks`, which leaves guards."""
    numbers = list(numbers)
    for _ in range(10):
        a, b = (numbers[int(rng.integers(len(numbers)))] for _ in range(2))
        constant = int(rng.integers(1, 20))
        match int(rng.integers(7)):
            case 0:
                numbers.append(a + b)
            case 1:
                numbers.append(a * constant)
            case 2:
                numbers.append(-(-a // constant))
            case 3:
                numbers.append(largest(a, b, constant))
            case 4:
                numbers.append(least(a, constant) + b)
            case 5:
                numbers.append(a * numbers[0])
            case _ if asks:
                assert (a < b) is not None
    return numbers


@pytest.mark.parametrize("seed", range(40))
def test_what_is_proven_holds_for_drawn_sizes(seed: int) -> None:
    rng, scope = np.random.default_rng(seed), Scope()
    symbols = [scope.open_size(name, int(rng.integers(2, 40))) for name in "abc"]
    numbers = draw_numbers(rng, symbols, asks=True)
    pairs = [(numbers[int(i)], numbers[int(j)]) for i, j in rng.integers(0, len(numbers), (60, 2))]
    sums = [terms_of(number) for a, b in pairs for number in (a - b, largest(a, b) * 3 - a - 2 * b)]
    prover = make_prover(scope, 3)
    proven = [terms for terms in sums if prover.is_at_least_zero(terms)]
    tried = 0
    for sizes in rng.integers(2, LONGEST + 1, (400, 3)).tolist():
        values = scope.evaluate_atoms(dict(enumerate(sizes)))
        if _is_of_class(scope, values):
            tried += 1
            assert all(evaluate(terms, values) >= 0 for terms in proven), sizes
    assert proven
    assert tried


def _is_of_class(scope: Scope, values: list[int]) -> bool:
    return (
        all(evaluate(dict(key), values) >= 0 for key in scope.at_least_zero)
        and not any(evaluate(dict(key), values) for key in scope.equal_zero)
        and all(evaluate(dict(key), values) for key in scope.not_zero)
    )


@pytest.mark.parametrize(
    "compute",
    [
        lambda n, m: largest(n * 3, m) - m,
        lambda n, m: largest(n, largest(m, 3 * n) + 5) - 3 * n - 5,
        lambda n, m: -(-n // 64) * 64 - n,
        lambda n, m: n - 5 * (-(-n // 6)),
        lambda n, m: -(-n // -(-n // m)) * -(-n // m) - n,
        lambda n, m: n - n // 2 - (n + 1) // 2,
        lambda n, m: n * m - n - m,
        lambda n, m: least(n, m) * -1 + n,
    ],
)
def test_the_forms_that_plans_have_are_proven(compute: Callable[[Any, Any], Any]) -> None:
    scope = Scope()
    n, m = scope.open_size("n", 40), scope.open_size("m", 9)
    assert n >= 25
    number = compute(n, m)
    prover = make_prover(scope, 2)
    assert prover.proves([[terms_of(number)]])
    lowest = min(evaluate(terms_of(number), values) for values in prover.samples)
    assert not prover.proves([[terms_of(number - lowest - 1)]])


@pytest.mark.parametrize("seed", range(40))
def test_what_is_proven_of_boxes_holds_for_drawn_sizes(seed: int) -> None:
    rng, scope = np.random.default_rng(seed), Scope()
    n, m = scope.open_size("n", 7), scope.open_size("m", 5)
    stretches = [4, 16, 4 * m, 4 * m + 8]
    boxes: list[Box] = []
    for _ in range(8):
        stretch = stretches[int(rng.integers(4))]
        stride = stretch + [0, 8, 4 * n, 4 * m][int(rng.integers(4))]
        begin = [0, 16, 4 * m, stretch, n * stride, n * m * 16][int(rng.integers(6))]
        boxes.append(make_box(begin, [(m, n * stride), (n, stride)][int(rng.integers(2)) :], stretch))
    prover = make_prover(scope, 2)
    samples = [scope.evaluate_atoms({0: a, 1: b}) for a, b in rng.integers(2, 20, (20, 2)).tolist()]
    count = 0
    for first in boxes:
        for second in boxes:
            for list_ways in (list_ways_apart, list_ways_inside, list_ways_same):
                if prover.proves(tuple(list_ways(prover, first, second))):
                    count += 1
                    assert all(_holds(list_ways, first, second, values) for values in samples)
    assert count > len(boxes)


def _holds(list_ways: Any, first: Box, second: Box, values: list[int]) -> bool:
    one, other = find_runs(first, values), find_runs(second, values)
    assert one is not None
    assert other is not None
    if list_ways is list_ways_apart:
        return intersect(one, other).count == 0
    is_inside = subtract(one, other).count == 0
    return is_inside if list_ways is list_ways_inside else is_inside and subtract(other, one).count == 0


GRAPHS = {
    "images": """g (float[N, 16, H, W] x) => (float[n, c, h, v] y) {
        a = Conv <pads = [1, 1, 1, 1], group = 16> (x, e)
        b = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (a)
        c = Conv <pads = [1, 1, 1, 1]> (b, k)
        d = Conv <pads = [2, 2, 2, 2], dilations = [2, 2]> (c, k)
        f = Conv <group = 4> (d, o)
        i = Resize <mode = "linear"> (f, , twice)
        j = GlobalAveragePool (i)
        y = Mul (i, j)
    }""",
    "rows": """g (float[N, L, 16] x, int64[N, L] ids) => (float[n, l, c] y) {
        a = MatMul (x, w)
        t = Transpose <perm = [0, 2, 1]> (a)
        s = MatMul (x, t)
        p = Softmax (s)
        q = MatMul (p, a)
        i = Gather (table, ids)
        h = Concat <axis = 1> (q, i)
        u = Transpose <perm = [0, 2, 1]> (h)
        y = Exp (u)
    }""",
}
SHAPES = {"images": ((2, 16, 41, 38),), "rows": ((3, 33, 16), (3, 33))}
CONSTANTS = {"e": (16, 1, 3, 3), "k": (16, 16, 3, 3), "o": (16, 4, 1, 1), "w": (16, 16), "table": (9, 16), "twice": (4,)}


@pytest.mark.parametrize("graph", sorted(GRAPHS))
def test_boxes_of_calls_are_the_bytes_that_footprints_count(graph: str) -> None:
    pytest.importorskip("llvmlite", reason="plans of classes are of machine code")
    from hetero_cpu.machine.compiler import find_width
    from hetero_cpu.machine.native import NativeCall
    from hetero_cpu.open.written_boxes import find_written
    from hetero_cpu.planning.call_verifier import list_spans

    opened = open_graph(graph)
    assert opened.origin is not None
    prover = Prover(opened.origin.scope, opened.sizes)
    seen = set()
    for values in prover.samples[:6]:
        for call in opened.origin.calls:
            numbers = tuple(evaluate(terms_of(number), values) for number in call.numbers)
            spans = list_spans(NativeCall(call.kernel, numbers, evaluate(terms_of(call.chunks), values)))
            if spans is None:
                continue
            seen.add(getattr(call.kernel.writes, "func", call.kernel.writes))
            written = find_written(call, find_width())
            runs = [find_runs(box, values) for box in written.boxes]
            joined = join_all([own for own in runs if own is not None])
            counted = join_all([make_runs(begin, nbytes) for begin, nbytes in zip(spans.begins, spans.nbytes, strict=True)])
            assert not subtract(joined, counted).count, call.kernel.name
            assert not subtract(counted, joined).count, call.kernel.name
            assert all(evaluate(terms_of(number), values) >= 0 for number in written.shared), call.kernel.name
    assert len(seen) >= 5


def make_runs(begin: int, nbytes: int) -> Any:
    from hetero_cpu.planning.byte_runs import list_runs

    return list_runs(int(begin), (int(nbytes),), (1,), 1)


def open_graph(graph: str) -> OpenPlan:
    from hetero_cpu.passes import transform_network
    from hetero_cpu.planning.specialization import specialize_network
    from hetero_cpu.planning.weights import PackedWeights

    from hetero_core.kernels.single_nodes import evaluate_node
    from hetero_core.network.reader import read_network

    from .trial import make_open_plan

    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {GRAPHS[graph]}')
    rng = np.random.default_rng(3)
    for name, shape in CONSTANTS.items():
        if any(name in node.input for node in model.graph.node):
            array = np.array([1, 1, 2, 2], np.float32) if name == "twice" else rng.standard_normal(shape).astype(np.float32)
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    network = transform_network(read_network(model))
    example = specialize_network(network, SHAPES[graph], evaluate_node)
    opened = make_open_plan(network, SHAPES[graph], example, weights=PackedWeights(), extensions={}, workers=2)
    assert opened is not None
    return opened
