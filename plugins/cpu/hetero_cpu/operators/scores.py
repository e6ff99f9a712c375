"""Linear models of ai.onnx.ml by machine code, and the end of all models of rows, forests as well.

```text
sums (float64) ── base values ──> scores ── greatest, the first of equals ──> label (int64)
                                    └── rounded ──> float32 ── Sigmoid or softmax ──> y
```
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from hetero_core.kernels.registry import TOOLKIT, prepare_node
from hetero_cpu.machine.arithmetic import EMITTERS, emit_double_exponential, emit_exponential_of_negative
from hetero_cpu.machine.calls import Array, NativeCall, address_of
from hetero_cpu.machine.code import ELEMENTS, FLOAT_BYTES, Code, begin_kernel
from hetero_cpu.machine.compiler import Kernel
from hetero_cpu.machine.terms import Floats, Mask, Number
from hetero_cpu.operators.recipe import Recipe, Site
from hetero_cpu.symbols.sizes import is_open

DOUBLE_BYTES = 8
ROWS_OF_CHUNK, ROWS_AT_ONCE = 64, 4
LARGEST = 1e30
"""Sums of numbers up to this size are finite in float32, too."""
SCORE_PARAMETERS = ("y", "label", "labels", "targets", "base", "rows", "sums")
TRANSFORMS = ("NONE", "LOGISTIC", "SOFTMAX")
Ending = tuple[str, bool]
"""The transform of a model, and whether it has labels."""


NUMBERS = ("float32", "float64", "int32", "int64")


def reads_rows(site: Site, types: tuple[str, ...] = ("float32",)) -> bool:
    """Says whether a node reads rows of one of these types, and its scores are asked for, in float32."""
    outputs = site.node.outputs
    x, count = site.prototypes[site.node.inputs[0]], 2 if site.node.op_type.endswith("Classifier") else 1
    if x.dtype.name not in types or x.ndim != 2 or not x.flags.c_contiguous or site.group.epilogue:
        return False
    return len(outputs) == count and bool(outputs[-1]) and site.types[outputs[-1]].dtype == "float32"


def prepare_model(site: Site) -> Any:
    """Returns the model of a node as the toolkit's kernel prepares it. Raises: ValueError for attributes that make no model."""
    record = TOOLKIT.find(site.node)
    assert record is not None
    return prepare_node(site.node, record, (site.types.get(site.node.inputs[0]),))


def measure_sums(targets: int, workers: int) -> int:
    """Returns the bytes of the sums of all workers."""
    return ROWS_OF_CHUNK * targets * DOUBLE_BYTES * workers


def list_scores(writes: Sequence[Array], labels: Array, base: Array, rows: int, scratch: Array) -> dict[str, int]:
    """Returns the numbers of a call; `writes`: the labels if there are any, and the scores."""
    return {
        "y": address_of(writes[-1]), "label": address_of(writes[0]), "labels": address_of(labels), "targets": len(base),
        "base": address_of(base), "rows": rows, "sums": address_of(scratch),
    }  # fmt: skip


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
                code.store_number(p["label"] + each * 8, code.load_number(p["labels"] + position * 8))
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
    if not reads_rows(site, NUMBERS):
        return None
    model = prepare_model(site)
    features, targets = model.coefficients.shape
    has_label = len(site.node.outputs) > 1 and bool(site.node.outputs[0])
    numbers = np.abs(np.concatenate([model.coefficients.reshape(-1), model.intercepts]))
    if is_open(x.shape[1]) or x.shape[1] != features or numbers.size > _MOST_COEFFICIENTS or not numbers.max() <= LARGEST:
        return None
    if model.post_transform not in TRANSFORMS:
        return None
    if has_label and model.labels.dtype != np.int64:
        return None
    labels = np.ascontiguousarray(model.labels) if has_label else np.zeros(1, np.int64)
    coefficients = np.ascontiguousarray(model.coefficients.T, np.float64)
    base = np.ascontiguousarray(model.intercepts, np.float64)
    rows, kernel = x.shape[0], _make_linear((model.post_transform, has_label), x.dtype.name, _count_at_once(targets))

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        numbers = {
            "x": address_of(reads[0]), "features": features, "coefficients": address_of(coefficients),
            **list_scores(writes, labels, base, rows, scratch),
        }  # fmt: skip
        keep = (coefficients, labels, base, scratch, *reads, *writes)
        return [NativeCall(kernel, tuple(numbers[name] for name in _LINEAR_PARAMETERS), -(-rows // ROWS_OF_CHUNK), keep)]

    return Recipe((value,), bind, measure_sums(targets, site.workers), kernels=(kernel,))


@cache
def _make_linear(ending: Ending, dtype: str, at_once: int) -> Kernel:
    def emit(name: str, width: int) -> Code:
        code, p, chunk, worker = begin_kernel(name, width, _LINEAR_PARAMETERS)
        begin = chunk * ROWS_OF_CHUNK
        end = (begin + ROWS_OF_CHUNK).at_most(p["rows"])
        sums = find_sums(p, worker)

        def store(row: Number, target: Number, total: Any) -> None:
            score = total + code.load_double(p["base"] + target * DOUBLE_BYTES)
            code.store_double(sums + ((row - begin) * p["targets"] + target) * DOUBLE_BYTES, score)

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
    nbytes, features = ELEMENTS[dtype][1], p["features"]
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
    coefficients, rows, kernel = np.ascontiguousarray(matrix.T), x.shape[0], _make_double_product(_count_at_once(targets))

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        numbers = (address_of(reads[0]), features, address_of(coefficients), address_of(writes[0]), targets, rows)
        return [NativeCall(kernel, numbers, -(-rows // ROWS_OF_CHUNK), (coefficients, *reads, *writes))]

    return Recipe((value,), bind, kernels=(kernel,))


@cache
def _make_double_product(at_once: int) -> Kernel:
    def emit(name: str, width: int) -> Code:
        code, p, chunk, _ = begin_kernel(name, width, ("x", "features", "coefficients", "y", "targets", "rows"))
        begin = chunk * ROWS_OF_CHUNK

        def store(row: Number, target: Number, total: Any) -> None:
            code.store_double(p["y"] + (row * p["targets"] + target) * DOUBLE_BYTES, total)

        _emit_products(code, p, "float64", at_once, begin, (begin + ROWS_OF_CHUNK).at_most(p["rows"]), store)
        return code.finish()

    return Kernel(f"double_product_{at_once}", emit)


_MOST_CLASSES = 32
"""Of coupled pairs: their matrix lies on the stack."""


def plan_coupling(site: Site) -> Recipe | None:
    """Returns the recipe of a support vector machine's probabilities. Source: Wu, Lin & Weng 2004, algorithm 2, as in libsvm."""
    value, classes = site.node.inputs[0], int(site.node.attributes["classes"])
    x = site.prototypes[value]
    if classes > _MOST_CLASSES or not x.flags.c_contiguous or site.group.epilogue:
        return None
    kernel, rows = _make_coupling(classes), x.shape[0]

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        numbers = (address_of(reads[0]), address_of(writes[0]), rows)
        return [NativeCall(kernel, numbers, -(-rows // ROWS_OF_CHUNK), (*reads, *writes))]

    return Recipe((value,), bind, kernels=(kernel,))


@cache
def _make_coupling(classes: int) -> Kernel:
    def emit(name: str, width: int) -> Code:
        code, p, chunk, _ = begin_kernel(name, width, ("x", "y", "rows"))
        q, shares, products = (code.reserve(count) for count in (classes * classes, classes, classes))
        zero = code.widen(code.constant(0.0, 1))
        pairs, diagonal = classes * (classes - 1) // 2, (classes + 1) * DOUBLE_BYTES

        def sum_up(left: Number, right: Number) -> Any:
            total = code.variable(zero)
            with code.loop(0, classes) as place:
                total.set(total.get() + code.load_double(left + place * 8) * code.load_double(right + place * 8))
            return total.get()

        def add(place: Number, number: Any) -> None:
            code.store_double(place, code.load_double(place) + number)

        def fill(row: Number) -> None:
            with code.loop(0, classes) as first:
                code.store_double(q + first * diagonal, zero)
                code.store_double(shares + first * 8, zero.constant(1 / classes))
            pair = code.variable(p["x"] + row * (pairs * FLOAT_BYTES))
            with code.loop(0, classes) as first, code.loop(first + 1, classes) as second:
                odds = 1.0 / (1.0 + emit_double_exponential(code, code.widen(code.load_scalar(pair.get()))))
                odds = odds.at_least(1e-7).at_most(1 - 1e-7)
                others = 1.0 - odds
                for place in (first * classes + second, second * classes + first):
                    code.store_double(q + place * 8, -odds * others)
                add(q + first * diagonal, others * others)
                add(q + second * diagonal, odds * odds)
                pair.set(pair.get() + FLOAT_BYTES)

        def improve(index: Number, total: Any) -> None:
            share, line = shares + index * 8, q + index * (classes * 8)
            step = (total.get() - code.load_double(products + index * 8)) / code.load_double(q + index * diagonal)
            scale = 1.0 / (1.0 + step)
            add(share, step)
            with code.loop(0, classes) as place:
                own, product = shares + place * 8, products + place * 8
                code.store_double(own, code.load_double(own) * scale)
                code.store_double(product, (code.load_double(product) + step * code.load_double(line + place * 8)) * scale)
            total.set(sum_up(shares, products))

        with code.visit_chunk(chunk, code.number(ROWS_OF_CHUNK), p["rows"]) as row:
            fill(row)
            trips, total, error = code.variable(code.number(0)), code.variable(zero), code.variable(zero)
            with code.repeat() as leave_if:
                with code.loop(0, classes) as index:
                    code.store_double(products + index * 8, sum_up(q + index * (classes * 8), shares))
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
        return code.finish()

    return Kernel(f"couple_pairs_{classes}", emit)
