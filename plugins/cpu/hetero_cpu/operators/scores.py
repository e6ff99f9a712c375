"""Models of rows by machine code: linear models and tree ensembles of ai.onnx.ml, their ends, and distances to constant points.

```text
sums (float64) ── base values ──> scores ── greatest, the first of equals ──> label (int64)
                                    └── rounded ──> float32 ── Sigmoid or softmax ──> y
```

Nodes of trees have 16 bytes:

```text
nodes:  threshold (float32) │ feature in bytes, + 1 if NaN is true │ place if x <= threshold │ place if not   (int32)
leaves: place of the weights (int32) │ 0 │ the leaf itself │ the leaf itself
```
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hetero_cpu.machine.arithmetic import EMITTERS, emit_double_exponential, emit_exponential_of_negative
from hetero_cpu.machine.calls import Array, NativeCall, address_of
from hetero_cpu.machine.code import ELEMENTS, FLOAT_BYTES, Code, Variable, begin_kernel
from hetero_cpu.machine.compiler import Kernel
from hetero_cpu.machine.terms import Floats, Mask, Number
from hetero_cpu.operators.recipe import Recipe, Site
from hetero_cpu.operators.rows import ROWS_OF_CHUNK, make_unit_kernel, plan_call
from hetero_cpu.symbols.sizes import is_open

DOUBLE_BYTES = 8
ROWS_AT_ONCE = 4
LARGEST = 1e30
"""Sums of numbers up to this size are finite in float32, too."""
SCORE_PARAMETERS = ("y", "label", "labels", "targets", "base", "rows", "sums")
TRANSFORMS = ("NONE", "LOGISTIC", "SOFTMAX")
Ending = tuple[str, bool]
"""The transform of a model, and whether it has labels."""


def _reads_rows(site: Site) -> bool:
    """Says whether a node reads rows of numbers, and its scores are asked for, in float32."""
    outputs = site.node.outputs
    x, count = site.prototypes[site.node.inputs[0]], 2 if site.node.op_type.endswith("Classifier") else 1
    if x.dtype.name not in ("float32", "float64", "int32", "int64") or x.ndim != 2 or not x.flags.c_contiguous:
        return False
    return len(outputs) == count and bool(outputs[-1]) and site.types[outputs[-1]].dtype == "float32"


def _find_rows(p: dict[str, Number], chunk: Number) -> tuple[Number, Number]:
    """Returns the first row of a chunk, and the row behind its last."""
    begin = chunk * ROWS_OF_CHUNK
    return begin, (begin + ROWS_OF_CHUNK).at_most(p["rows"])


def measure_sums(targets: int, workers: int) -> int:
    """Returns the bytes of the sums of all workers."""
    return ROWS_OF_CHUNK * targets * DOUBLE_BYTES * workers


def list_scores(arrays: Sequence[Array], labels: Array, base: Array, rows: int) -> tuple[int, ...]:
    """Returns the SCORE_PARAMETERS of a call; `arrays`: the labels if there are any, the scores, and the working memory."""
    label, y, sums = (address_of(array) for array in (arrays[0], *arrays[-2:]))
    return (y, label, address_of(labels), len(base), address_of(base), rows, sums)


def find_sums(p: dict[str, Number], worker: Number) -> Number:
    """Returns the address of a worker's sums, float64 (ROWS_OF_CHUNK, targets)."""
    return p["sums"] + worker * (p["targets"] * (ROWS_OF_CHUNK * DOUBLE_BYTES))


def list_rows_at_once(first: Number, end: Number) -> list[Number]:
    """Returns rows whose sums are computed at once, as a single sum would wait for itself; beyond the last row this row again."""
    return [(first + lane).at_most(end - 1) for lane in range(ROWS_AT_ONCE)]


def emit_scores(code: Code, p: dict[str, Number], ending: Ending, scores: Number, begin: Number, end: Number) -> None:
    """Writes the results and labels of rows `begin` to `end` - 1, whose scores are at `scores`."""
    transform, has_label = ending
    columns, lanes = p["targets"], code.width // 2
    first, count = p["y"] + begin * (columns * FLOAT_BYTES), (end - begin) * columns
    full = count - count % lanes
    for start, stop, step in ((code.number(0), full, lanes), (full, count, 1)):
        with code.loop(start, stop, step) as element:
            score = code.load_element(scores + element * DOUBLE_BYTES, "float64", step)
            code.store_element(first + element * FLOAT_BYTES, code.convert_element(score, "float32"), "float32")
    if has_label:
        with code.loop(begin, end, ROWS_AT_ONCE) as row:
            rows = list_rows_at_once(row, end)
            lines = [scores + (each - begin) * (columns * DOUBLE_BYTES) for each in rows]
            for each, position in zip(rows, _find_greatest(code, lines, columns), strict=True):
                code.store(p["label"] + each * 8, code.load_number(p["labels"] + position * 8))
    if transform == "SOFTMAX":
        with code.loop(begin, end) as row:
            _emit_softmax(code, p["y"] + row * (columns * FLOAT_BYTES), columns)
    if transform == "LOGISTIC":

        def compute(element: Number, mask: Mask | None) -> None:
            place = first + element * FLOAT_BYTES
            code.store(place, EMITTERS["Sigmoid"](code, code.load(place, mask=mask)), mask=mask)

        code.visit_vectors(count, compute)


def _find_greatest(code: Code, lines: list[Number], columns: Number) -> list[Number]:
    """Returns the positions of the greatest score of each line, the first of equals and of NaN, as in NumPy."""
    best = [(code.variable(code.load_double(line)), code.variable(code.number(0))) for line in lines]
    with code.loop(1, columns) as target:
        for line, (greatest, position) in zip(lines, best, strict=True):
            score, before = code.load_double(line + target * DOUBLE_BYTES), greatest.get()
            stays = (score <= before) | before.is_nan()
            position.set(stays.choose(position.get(), target))
            greatest.set(stays.choose(before, score))
    return [position.get() for _, position in best]


def _emit_softmax(code: Code, y: Number, columns: Number) -> None:
    peak, total = code.variable(code.load_scalar(y)), code.variable(code.constant(0.0, 1))
    with code.loop(1, columns) as column:
        peak.set(peak.get().at_least(code.load_scalar(y + column * FLOAT_BYTES)))
    with code.loop(0, columns) as column:
        place = y + column * FLOAT_BYTES
        part = emit_exponential_of_negative(code, code.load_scalar(place) - peak.get())
        code.store(place, part)
        total.set(total.get() + part)
    with code.loop(0, columns) as column:
        place = y + column * FLOAT_BYTES
        code.store(place, code.load_scalar(place) / total.get())


_LINEAR_PARAMETERS = ("x", "features", "coefficients", *SCORE_PARAMETERS)
_MOST_COEFFICIENTS = 1 << 14
"""Products of more are the toolkit's, that is BLAS's."""


def plan_linear_model(site: Site) -> Recipe | None:
    """Returns the recipe of a small linear model over rows of numbers. Sources: ONNX-ML LinearClassifier-1, LinearRegressor-1."""
    value = site.node.inputs[0]
    x = site.prototypes[value]
    if not _reads_rows(site):
        return None
    model = site.prepare_model()
    features, targets = model.coefficients.shape
    has_label = len(site.node.outputs) > 1 and bool(site.node.outputs[0])
    numbers = np.abs(np.concatenate([model.coefficients.reshape(-1), model.intercepts]))
    if is_open(x.shape[1]) or x.shape[1] != features or numbers.size > _MOST_COEFFICIENTS or not numbers.max() <= LARGEST:
        return None
    if model.post_transform not in TRANSFORMS or (has_label and model.labels.dtype != np.int64):
        return None
    labels = np.ascontiguousarray(model.labels) if has_label else np.zeros(1, np.int64)
    coefficients = np.ascontiguousarray(model.coefficients.T, np.float64)
    base = np.ascontiguousarray(model.intercepts, np.float64)
    rows, kernel = x.shape[0], _make_linear((model.post_transform, has_label), x.dtype.name, _count_at_once(targets))

    def list_numbers(x: Array, *writes: Array) -> tuple[int, ...]:
        return (address_of(x), features, address_of(coefficients), *list_scores(writes, labels, base, rows))

    keep = (coefficients, labels, base)
    sums = measure_sums(targets, site.workers)
    return plan_call(kernel, (value,), -(-rows // ROWS_OF_CHUNK), list_numbers, scratch=sums, keep=keep)


def _make_linear(ending: Ending, dtype: str, at_once: int) -> Kernel:
    def emit(name: str, width: int) -> Code:
        code, p, chunk, worker = begin_kernel(name, width, _LINEAR_PARAMETERS)
        begin, end = _find_rows(p, chunk)
        sums = find_sums(p, worker)

        def store(row: Number, target: Number, total: Any) -> None:
            score = total + code.load_double(p["base"] + target * DOUBLE_BYTES)
            code.store(sums + ((row - begin) * p["targets"] + target) * DOUBLE_BYTES, score)

        _emit_products(code, p, dtype, at_once, begin, end, store)
        emit_scores(code, p, ending, sums, begin, end)
        return code.finish()

    return Kernel(f"linear_{dtype}_{ending[0].lower()}" + "_label" * ending[1] + f"_{at_once}", emit)


def _count_at_once(targets: int) -> int:
    """Returns how many targets are computed at once, so that each element of x is read and converted less often."""
    return next(count for count in (3, 2, 1) if targets % count == 0)


def _emit_products(
    code: Code,
    p: dict[str, Number],
    dtype: str,
    at_once: int,
    begin: Number,
    end: Number,
    store: Callable[[Number, Number, Any], None],
) -> None:
    """Computes x @ coefficients.T of rows `begin` to `end` - 1 in float64, and calls `store(row, target, product)` for each."""
    nbytes, features = ELEMENTS[dtype].nbytes, p["features"]
    with code.loop(begin, end, ROWS_AT_ONCE) as first, code.loop(0, p["targets"], at_once) as target:
        rows, targets = list_rows_at_once(first, end), [target + each for each in range(at_once)]
        lines = [p["x"] + row * (features * nbytes) for row in rows]
        columns = [p["coefficients"] + each * (features * DOUBLE_BYTES) for each in targets]

        def add_products(here: Number, stop: Number, lanes: int, firsts: list[Any]) -> list[Any]:
            totals = [code.variable(each) for each in firsts]
            with code.loop(here, stop, lanes) as feature:
                weights = [code.load_element(column + feature * DOUBLE_BYTES, "float64", lanes) for column in columns]
                for position, line in enumerate(lines):
                    x: Any = code.load_element(line + feature * nbytes, dtype, lanes)
                    # Whole numbers are float32 first, as in the toolkit.
                    x = code.convert_element(x if dtype == "float64" else code.convert_element(x, "float32"), "float64")
                    for weight, total in zip(weights, totals[position * at_once :], strict=False):
                        total.set(code.multiply_add(x, weight, total.get()))  # type: ignore[arg-type]  # floats
            return [total.get() for total in totals]

        lanes, here = code.width // 2, code.number(0)
        totals: list[Any] = [code.convert_element(code.constant(0.0, lanes), "float64")] * (ROWS_AT_ONCE * at_once)
        while lanes:
            following = features - features % lanes
            totals = add_products(here, following, lanes, totals)
            totals = [total.halve(Floats.__add__) for total in totals] if lanes > 1 else totals
            lanes, here = lanes // 2, following
        for position, total in enumerate(totals):
            store(rows[position // at_once], targets[position % at_once], total)


_MOST_COLUMNS = 8  # of a product of float64; BLAS computes more of them in less time


def plan_double_product(site: Site) -> Recipe | None:
    """Returns the recipe of rows of float64 by a constant matrix of few columns, as linear models of float64 have it. Source: MatMul-13."""
    value, matrix = site.node.inputs[0], site.constant(1)
    x = site.prototypes[value]
    if matrix is None or matrix.ndim != 2 or matrix.dtype != np.float64 or site.weights.is_shared or site.group.epilogue:
        return None
    if x.dtype != np.float64 or x.ndim != 2 or not x.flags.c_contiguous or is_open(x.shape[1]):
        return None
    features, targets = matrix.shape
    if x.shape[1] != features or not 0 < targets <= _MOST_COLUMNS or not 0 < matrix.size <= _MOST_COEFFICIENTS:
        return None
    coefficients, rows = np.ascontiguousarray(matrix.T), x.shape[0]

    def list_numbers(x: Array, y: Array) -> tuple[int, ...]:
        return (address_of(x), features, address_of(coefficients), address_of(y), targets, rows)

    kernel = _make_double_product(_count_at_once(targets))
    return plan_call(kernel, (value,), -(-rows // ROWS_OF_CHUNK), list_numbers, keep=(coefficients,))


def _make_double_product(at_once: int) -> Kernel:
    def emit(name: str, width: int) -> Code:
        code, p, chunk, _ = begin_kernel(name, width, ("x", "features", "coefficients", "y", "targets", "rows"))

        def store(row: Number, target: Number, total: Any) -> None:
            code.store(p["y"] + (row * p["targets"] + target) * DOUBLE_BYTES, total)

        _emit_products(code, p, "float64", at_once, *_find_rows(p, chunk), store)
        return code.finish()

    return Kernel(f"double_product_{at_once}", emit)


_MOST_CLASSES = 32
"""Of coupled pairs: their matrix lies on the stack."""


def plan_coupling(site: Site) -> Recipe | None:
    """Returns the recipe of a support vector machine's probabilities. Source: Wu, Lin & Weng 2004, algorithm 2, as in libsvm."""
    value, classes = site.node.inputs[0], int(site.node.attributes["classes"])
    x = site.prototypes[value]
    if classes > _MOST_CLASSES or not x.flags.c_contiguous:
        return None
    chunks = -(-x.shape[0] // ROWS_OF_CHUNK)
    return plan_call(_make_coupling(classes), (value,), chunks, lambda x, y: (address_of(x), address_of(y), x.shape[0]))


def _make_coupling(classes: int) -> Kernel:
    def emit(code: Code, p: dict[str, Number], row: Number) -> None:
        q, shares, products = (code.reserve(count) for count in (classes * classes, classes, classes))
        zero = code.widen(code.constant(0.0, 1))
        pairs, diagonal = classes * (classes - 1) // 2, (classes + 1) * DOUBLE_BYTES

        def sum_up(left: Number, right: Number) -> Any:
            total = code.variable(zero)
            with code.loop(0, classes) as place:
                total.set(total.get() + code.load_double(left + place * 8) * code.load_double(right + place * 8))
            return total.get()

        def add(place: Number, number: Any) -> None:
            code.store(place, code.load_double(place) + number)

        def improve(index: Number, total: Any) -> None:
            share, line = shares + index * 8, q + index * (classes * 8)
            step = (total.get() - code.load_double(products + index * 8)) / code.load_double(q + index * diagonal)
            scale = 1.0 / (1.0 + step)
            add(share, step)
            with code.loop(0, classes) as place:
                own, product = shares + place * 8, products + place * 8
                code.store(own, code.load_double(own) * scale)
                code.store(product, (code.load_double(product) + step * code.load_double(line + place * 8)) * scale)
            total.set(sum_up(shares, products))

        with code.loop(0, classes) as first:
            code.store(q + first * diagonal, zero)
            code.store(shares + first * 8, zero.constant(1 / classes))
        pair = code.variable(p["x"] + row * (pairs * FLOAT_BYTES))
        with code.loop(0, classes) as first, code.loop(first + 1, classes) as second:
            odds = 1.0 / (1.0 + emit_double_exponential(code, code.widen(code.load_scalar(pair.get()))))
            odds = odds.at_least(1e-7).at_most(1 - 1e-7)
            others = 1.0 - odds
            for place in (first * classes + second, second * classes + first):
                code.store(q + place * 8, -odds * others)
            add(q + first * diagonal, others * others)
            add(q + second * diagonal, odds * odds)
            pair.set(pair.get() + FLOAT_BYTES)
        trips, total, error = code.variable(code.number(0)), code.variable(zero), code.variable(zero)
        with code.repeat() as leave_if:
            with code.loop(0, classes) as index:
                code.store(products + index * 8, sum_up(q + index * (classes * 8), shares))
            total.set(sum_up(shares, products))
            error.set(zero)
            with code.loop(0, classes) as index:
                gap = code.call_intrinsic("fabs", code.load_double(products + index * 8) - total.get())
                error.set(error.get().at_least(gap))
            leave_if(code.number_of(error.get() >= 0.005 / classes).equals(0))
            leave_if(trips.get() >= max(100, classes))
            trips.set(trips.get() + 1)
            with code.loop(0, classes) as index:
                improve(index, total)
        with code.loop(0, classes) as index:
            place = p["y"] + (row * classes + index) * FLOAT_BYTES
            code.store(place, code.narrow(code.load_double(shares + index * 8)))

    return make_unit_kernel(f"couple_pairs_{classes}", ("x", "y", "rows"), emit, size=ROWS_OF_CHUNK)


_DISTANCE_PARAMETERS = ("x", "points", "y", "rows", "features", "count")
"""The points lie turned, a feature after another, so that a vector has the same feature of neighboring points."""


def plan_distances(site: Site) -> Recipe | None:
    """Returns the recipe of the distances of rows of float32 to constant points. Source: ONNX Runtime's CDist-1."""
    value, points = site.node.inputs[0], site.constant(1)
    if points is None or not site.is_float32(value) or points.dtype != np.float32 or site.weights.is_shared:
        return None
    x, (count, features) = site.prototypes[value], points.shape
    if x.ndim != 2 or not x.flags.c_contiguous or is_open(x.shape[1]) or x.shape[1] != features or 0 in points.shape:
        return None
    kernel, rows = _make_distances(site.node.attributes.get("metric", "sqeuclidean")), x.shape[0]
    turned = site.weights.pack_lazily((points,), ("distances",), lambda array: np.ascontiguousarray(array.T))

    def list_numbers(x: Array, y: Array) -> tuple[int, ...]:
        return (address_of(x), turned.address, address_of(y), rows, features, count)

    return plan_call(kernel, (value,), -(-rows // ROWS_OF_CHUNK), list_numbers)


def _make_distances(metric: str) -> Kernel:
    def emit(name: str, width: int) -> Code:
        code, p, chunk, _ = begin_kernel(name, width, _DISTANCE_PARAMETERS)
        (begin, end), line_bytes = _find_rows(p, chunk), p["count"] * FLOAT_BYTES
        with code.loop(begin, end, 4) as first:
            rows = list_rows_at_once(first, end)
            lines = [p["x"] + row * (p["features"] * FLOAT_BYTES) for row in rows]

            def measure(point: Number, mask: Mask | None) -> None:
                totals = [code.variable(code.constant(0.0, width)) for _ in rows]
                column = p["points"] + point * FLOAT_BYTES
                with code.loop(0, p["features"]) as feature:
                    points = code.load(column + feature * line_bytes, mask=mask)
                    for line, total in zip(lines, totals, strict=True):
                        difference = code.spread(code.load_scalar(line + feature * FLOAT_BYTES)) - points
                        is_sum = metric == "cityblock"
                        total.set(total.get() + (code.call_intrinsic("fabs", difference) if is_sum else difference * difference))
                for row, total in zip(rows, totals, strict=True):
                    distance = code.call_intrinsic("sqrt", total.get()) if metric == "euclidean" else total.get()
                    code.store(p["y"] + row * line_bytes + point * FLOAT_BYTES, distance, mask=mask)

            code.visit_vectors(p["count"], measure)
        return code.finish()

    return Kernel(f"distances_{metric}", emit)


# Tree ensembles: eight walks down at once, of eight rows in the same tree, or of a single row in eight trees. All comparisons become
# `x <= threshold`, which is exact in float32: x < t is x <= the number before t, and the ways of x >= t and x > t change places. Whole
# numbers are rounded to float32 before, as in the toolkit; float64 in the direction that no comparison notices: up for `x <= threshold`,
# down for `x < threshold`, if all thresholds are float32. A walk that has reached its leaf stays there until the other seven have reached
# theirs. Weights are summed in float64, in the order of the trees, as the toolkit sums them.
_TREE_PARAMETERS = ("x", "x_row", "nodes", "weights", "roots", "trees", "divisor", *SCORE_PARAMETERS)
"""roots: the places of the roots in bytes, int64, filled up to a multiple of eight with the leaf at place 0, which weighs nothing."""
_WALKS = 8
_NODE_BYTES = 16
_LEQ, _LT, _GTE, _GT = range(4)
_LARGEST_PLACE = (1 << 31) - 1


def plan_trees(site: Site) -> Recipe | None:
    """Returns the recipe of a forest over rows of numbers with sums or means.

    Sources: ONNX-ML TreeEnsemble-5, TreeEnsembleClassifier-3, TreeEnsembleRegressor-3.
    Modes EQ, NEQ and MEMBER, MIN and MAX, PROBIT and SOFTMAX_ZERO, and weights beyond float32 are the toolkit's.
    """
    value = site.node.inputs[0]
    x = site.prototypes[value]
    if not _reads_rows(site):
        return None
    prepared = site.prepare_model()
    labels, opposite = np.zeros(1, np.int64), ""
    is_classifier = len(site.node.outputs) > 1
    has_label = is_classifier and bool(site.node.outputs[0])
    if is_classifier:
        labels, opposite, prepared = prepared.labels, prepared.opposite, prepared.forest
    if prepared.aggregate not in ("SUM", "AVERAGE") or prepared.post_transform not in TRANSFORMS:
        return None
    weights, base = prepared.weights, prepared.base_values
    if opposite:
        # The score of the first class is the negative of the only score, or 1 less the score.
        weights, base = np.concatenate([-weights, weights], axis=1), np.concatenate([-base, base])
        base[0] += opposite == "complement"
    tables = lay_trees(prepared, weights.shape[1])
    features = x.shape[1]
    rounding = "" if x.dtype == np.float32 else choose_rounding(prepared) if x.dtype == np.float64 else "nearest"
    # A feature that x does not have is an error, which the toolkit's kernel raises.
    if tables is None or rounding is None or is_open(features) or features <= prepared.features.max():
        return None
    # Subtracted from 1, a sum with a base value is rounded otherwise.
    if not np.abs(base).max() <= LARGEST or (opposite == "complement" and base[1] != 0) or (has_label and labels.dtype != np.int64):
        return None
    nodes, roots, has_missing = tables
    targets, rows, trees = weights.shape[1], x.shape[0], len(prepared.roots)
    weights, base, labels = map(np.ascontiguousarray, (weights, base, labels))
    divisor = np.full(1, float(trees) if prepared.aggregate == "AVERAGE" else 1.0)
    kernel = _make_trees((prepared.post_transform, has_label), has_missing, targets == 1)
    rounds = [_make_rounding(x.dtype.name, rounding)] if rounding else []
    sums_bytes, chunks = measure_sums(targets, site.workers), -(-rows // ROWS_OF_CHUNK)

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        own = address_of(scratch) + sums_bytes if rounding else address_of(reads[0])
        calls = [NativeCall(each, (address_of(reads[0]), own, features, rows), chunks, (reads[0], scratch)) for each in rounds]
        forest = (own, features * 4, address_of(nodes), address_of(weights), address_of(roots), trees, address_of(divisor))
        numbers = (*forest, *list_scores((*writes, scratch), labels, base, rows))
        return [
            *calls,
            NativeCall(kernel, numbers, chunks, (nodes, weights, roots, labels, base, divisor, scratch, *reads, *writes)),
        ]

    rounded_bytes = rows * features * FLOAT_BYTES if rounding else 0
    return Recipe((value,), bind, sums_bytes + rounded_bytes, kernels=(*rounds, kernel))


def choose_rounding(forest: Any) -> str | None:
    """Returns how float64 is rounded to float32 for the comparisons of a forest, "up" or "down"; None if neither way keeps them all."""
    inner = ~_find_leaves(forest)
    splits, modes = forest.splits[inner], set(forest.modes[inner].tolist())
    with np.errstate(over="ignore"):
        is_exact = np.isnan(splits) | (splits == splits.astype(np.float32))
    return None if not is_exact.all() else "up" if modes <= {_LEQ, _GT} else "down" if modes <= {_LT, _GTE} else None


def _make_rounding(dtype: str, direction: str) -> Kernel:
    nbytes, way = ELEMENTS[dtype].nbytes, 1 if direction == "up" else -1

    def emit(name: str, width: int) -> Code:
        code, p, chunk, _ = begin_kernel(name, width, ("x", "y", "features", "rows"))
        begin, end = _find_rows(p, chunk)
        with code.loop(begin * p["features"], end * p["features"]) as element:
            x: Any = code.load_element(p["x"] + element * nbytes, dtype)
            y = p["y"] + element * FLOAT_BYTES
            code.store_element(y, code.convert_element(x, "float32"), "float32")
            if direction != "nearest":
                nearest, bits = code.widen(code.load_scalar(y)), code.load_short(y)
                # The next float32 away from zero has the next bits.
                step = (bits >= 0).choose(code.number(way), code.number(-way))
                is_behind = nearest < x if direction == "up" else nearest > x
                code.store_element(y, bits + is_behind.choose(step, code.number(0)), "int32")
        return code.finish()

    return Kernel(f"round_{dtype}_{direction}", emit)


def lay_trees(forest: Any, targets: int) -> tuple[Array, Array, bool] | None:
    """Returns the nodes and the roots of a `Forest` of the toolkit, and whether a NaN may be true; None if no kernel has its modes,
    weights and sizes."""
    if not len(forest.roots) or not set(forest.modes_used) <= {_LEQ, _LT, _GTE, _GT}:
        return None
    if not np.abs(forest.weights).max(initial=0.0) <= LARGEST:
        return None
    true_places, false_places = forest.true_places, forest.false_places
    places, leaf_bytes = _sort_places(forest), targets * DOUBLE_BYTES
    if max((len(places) + 1) * _NODE_BYTES, len(forest.weights) * leaf_bytes) > _LARGEST_PLACE:
        return None
    new_place = np.zeros(len(true_places), np.int64)
    new_place[places] = (np.arange(len(places)) + 1) * _NODE_BYTES
    is_leaf = _find_leaves(forest)
    thresholds, turns, missing = _as_limits(forest)
    yes, no = np.where(turns, false_places, true_places), np.where(turns, true_places, false_places)
    nodes = np.zeros((len(places) + 1, 4), np.int32)
    limits = thresholds.view(np.int32)
    nodes[1:, 0] = np.where(is_leaf, forest.weight_rows * leaf_bytes, limits)[places]
    nodes[1:, 1] = np.where(is_leaf, 0, forest.features * 4 + missing)[places]
    nodes[1:, 2], nodes[1:, 3] = new_place[yes[places]], new_place[no[places]]
    inner = ~is_leaf[places]
    own = np.arange(1, len(places) + 1) * _NODE_BYTES
    # Ways lead forward, so that the sum of all steps is zero only if no walk has moved.
    if (np.minimum(nodes[1:, 2], nodes[1:, 3]) <= own)[inner].any():
        return None
    roots = np.zeros(-(-len(forest.roots) // _WALKS) * _WALKS, np.int64)
    roots[: len(forest.roots)] = new_place[forest.roots]
    return nodes, roots, bool(missing[~is_leaf].any())


def _find_leaves(forest: Any) -> Array:
    leaves: Array = (forest.true_places == np.arange(len(forest.true_places))) & (forest.false_places == forest.true_places)
    return leaves


def _sort_places(forest: Any) -> Array:
    """Returns the places that are reached, tree by tree, each tree level by level."""
    trees = np.full(len(forest.true_places), -1)
    levels = np.zeros(len(trees), np.int64)
    reached = np.unique(forest.roots)
    trees[forest.roots] = np.arange(len(forest.roots))
    level = 0
    while len(reached):
        levels[reached] = level
        children = np.concatenate([forest.true_places[reached], forest.false_places[reached]])
        trees[children] = np.tile(trees[reached], 2)
        reached, level = np.unique(children[children != np.tile(reached, 2)]), level + 1
    order = np.lexsort((levels, trees))
    return order[trees[order] >= 0]


def _as_limits(forest: Any) -> tuple[Array, Array, Array]:
    """Returns float32 t for x <= t in the place of each comparison, whether its ways change places, and whether a NaN is true then."""
    turns = (forest.modes == _GTE) | (forest.modes == _GT)
    # The greatest float32 up to a float64.
    with np.errstate(over="ignore"):
        limits = forest.splits.astype(np.float32)
    before = np.nextafter(limits, np.float32(-np.inf))
    excludes = (forest.modes == _LT) | (forest.modes == _GTE)
    # No number is less than minus infinity.
    before = np.where(np.isneginf(limits), np.float32(np.nan), before)
    limits = np.where((limits > forest.splits) | (excludes & (limits == forest.splits)), before, limits)
    # No comparison with NaN holds.
    limits = np.where(turns & np.isnan(forest.splits), np.float32(np.inf), limits).astype(np.float32)
    return limits, turns, forest.missing_is_true ^ turns


def _make_trees(ending: Ending, has_missing: bool, has_one_target: bool) -> Kernel:
    def emit(name: str, width: int) -> Code:
        code, p, chunk, worker = begin_kernel(name, width, _TREE_PARAMETERS)
        begin, end = _find_rows(p, chunk)
        sums = find_sums(p, worker)
        targets = code.number(1) if has_one_target else p["targets"]
        row_bytes = targets * DOUBLE_BYTES
        zero = code.widen(code.constant(0.0, 1))
        with code.loop(0, (end - begin) * targets) as element:
            code.store(sums + element * DOUBLE_BYTES, zero)

        def add(leaf: Number, total: Number) -> None:
            weights = p["weights"] + code.load_short(leaf)
            with code.loop(0, targets) as target:
                place = total + target * DOUBLE_BYTES
                code.store(place, code.load_double(place) + code.load_double(weights + target * DOUBLE_BYTES))

        full = (end - begin) - (end - begin) % _WALKS
        with code.loop(0, p["trees"]) as tree, code.loop(0, full, _WALKS) as row:
            root = p["nodes"] + code.load_number(p["roots"] + tree * 8)
            lines = [p["x"] + (begin + row + walk) * p["x_row"] for walk in range(_WALKS)]
            for walk, leaf in enumerate(_walk(code, p["nodes"], [root] * _WALKS, lines, has_missing)):
                add(leaf, sums + (row + walk) * row_bytes)
        with code.loop(full, end - begin) as row:
            line = p["x"] + (begin + row) * p["x_row"]
            with code.loop(0, p["trees"], _WALKS) as tree:
                roots = [p["nodes"] + code.load_number(p["roots"] + (tree + walk) * 8) for walk in range(_WALKS)]
                for leaf in _walk(code, p["nodes"], roots, [line] * _WALKS, has_missing):
                    add(leaf, sums + row * row_bytes)
        with code.loop(0, end - begin) as row, code.loop(0, targets) as target:
            place = sums + row * row_bytes + target * DOUBLE_BYTES
            score = code.load_double(place) / code.load_double(p["divisor"]) + code.load_double(p["base"] + target * DOUBLE_BYTES)
            code.store(place, score)
        emit_scores(code, p, ending, sums, begin, end)
        return code.finish()

    parts = ["trees", ending[0].lower(), *["label"] * ending[1], *["missing"] * has_missing, *["single"] * has_one_target]
    return Kernel("_".join(parts), emit)


def _walk(code: Code, nodes: Number, roots: list[Number], lines: list[Number], has_missing: bool) -> list[Number]:
    """Returns the addresses of the leaves that rows reach from roots; a row is the address of its features."""
    walks = [code.variable(root) for root in roots]
    with code.repeat() as leave_if:
        _step(code, nodes, walks, lines, has_missing)
        leave_if(_step(code, nodes, walks, lines, has_missing).equals(0))
    return [walk.get() for walk in walks]


def _step(code: Code, nodes: Number, walks: list[Variable], lines: list[Number], has_missing: bool) -> Number:
    """Has each walk go a step down; returns the sum of the ways, which is 0 if all have ended before."""
    moved = code.number(0)
    for walk, line in zip(walks, lines, strict=True):
        node = walk.get()
        feature = code.load_short(node, 4)
        tracks = feature % 2
        x = code.load_scalar(line + (feature - tracks if has_missing else feature))
        way = (x <= code.load_scalar(node)).choose(code.number(8), code.number(12))
        if has_missing:
            way = x.is_nan().choose(12 - tracks * 4, way)
        following = nodes + code.load_short(node + way)
        walk.set(following)
        moved = moved + (following - node)
    return moved
