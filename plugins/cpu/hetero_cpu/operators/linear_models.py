"""Linear models and normalizers of ai.onnx.ml by machine code: sums of each row in float64, then scores and labels, or quotients."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from hetero_cpu.machine.calls import Array, NativeCall, address_of
from hetero_cpu.machine.code import FLOAT_BYTES, Code, begin_kernel
from hetero_cpu.machine.compiler import Kernel
from hetero_cpu.operators.recipe import Recipe, Site
from hetero_cpu.operators.scores import (
    DOUBLE_BYTES,
    LARGEST,
    ROWS_OF_CHUNK,
    SCORE_PARAMETERS,
    ScoreForm,
    emit_scores,
    find_sums,
    list_scores,
    measure_sums,
    prepare_model,
    reads_rows,
)
from hetero_cpu.symbols.sizes import is_open

_PARAMETERS = ("x", "features", "coefficients", *SCORE_PARAMETERS)
_MOST_COEFFICIENTS = 1 << 14
"""Products of more are the toolkit's, that is BLAS's."""


def plan_linear_model(site: Site) -> Recipe | None:
    """Returns the recipe of a small linear model over rows of float32. Sources: ONNX-ML LinearClassifier-1, LinearRegressor-1."""
    value = site.node.inputs[0]
    x = site.prototypes[value]
    if not reads_rows(site):
        return None
    model = prepare_model(site)
    features, targets = model.coefficients.shape
    has_label = len(site.node.outputs) > 1
    form = ScoreForm("", model.post_transform, has_label)
    numbers = np.abs(np.concatenate([model.coefficients.reshape(-1), model.intercepts]))
    if (
        not form.is_supported
        or is_open(x.shape[1])
        or x.shape[1] != features
        or model.coefficients.size > _MOST_COEFFICIENTS
        or not numbers.max() <= LARGEST
    ):
        return None
    if has_label and model.labels.dtype != np.int64:
        return None
    labels = np.ascontiguousarray(model.labels) if has_label else np.zeros(1, np.int64)
    coefficients = np.ascontiguousarray(model.coefficients, np.float64)
    base, divisor = np.ascontiguousarray(model.intercepts, np.float64), np.ones(1)
    rows, kernel = x.shape[0], _make_kernel(form)

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        numbers = {
            "x": address_of(reads[0]), "features": features, "coefficients": address_of(coefficients),
            **list_scores((writes[-1], writes[0] if has_label else None), labels, base, divisor, rows, scratch),
        }  # fmt: skip
        keep = (coefficients, labels, base, divisor, scratch, *reads, *writes)
        return [NativeCall(kernel, tuple(numbers[name] for name in _PARAMETERS), -(-rows // ROWS_OF_CHUNK), keep)]

    return Recipe((value,), bind, measure_sums(targets, site.workers), kernels=(kernel,))


@cache
def _make_kernel(form: ScoreForm) -> Kernel:
    def emit(name: str, width: int) -> Code:
        code, p, chunk, worker = begin_kernel(name, width, _PARAMETERS)
        begin = chunk * ROWS_OF_CHUNK
        end = (begin + ROWS_OF_CHUNK).at_most(p["rows"])
        sums, targets = find_sums(p, worker), p["targets"]
        with code.loop(0, end - begin) as row, code.loop(0, targets) as target:
            line, column = p["x"] + (begin + row) * (p["features"] * FLOAT_BYTES), p["coefficients"] + target * DOUBLE_BYTES
            total = code.variable(code.widen(code.constant(0.0, 1)))
            with code.loop(0, p["features"]) as feature:
                x = code.widen(code.load_scalar(line + feature * FLOAT_BYTES))
                total.set(total.get() + x * code.load_double(column + feature * (targets * DOUBLE_BYTES)))
            code.store_double(sums + (row * targets + target) * DOUBLE_BYTES, total.get())
        emit_scores(code, p, form, sums, begin, end)
        return code.finish()

    return Kernel(f"linear_{form.name}", emit)


_NORM_PARAMETERS = ("x", "features", "y", "rows")


def plan_normalizer(site: Site) -> Recipe | None:
    """Returns the recipe of the quotients of rows of float32 by their L1 or L2 norm. Source: ONNX-ML Normalizer-1."""
    value, norm = site.node.inputs[0], site.node.attributes.get("norm", "MAX")
    x = site.prototypes[value]
    if norm not in ("L1", "L2") or not reads_rows(site) or is_open(x.shape[1]):
        return None
    rows, features = x.shape
    kernel = _make_normalizer(norm)

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        numbers = (address_of(reads[0]), features, address_of(writes[0]), rows)
        return [NativeCall(kernel, numbers, -(-rows // ROWS_OF_CHUNK), (*reads, *writes))]

    return Recipe((value,), bind, kernels=(kernel,))


@cache
def _make_normalizer(norm: str) -> Kernel:
    def emit(name: str, width: int) -> Code:
        code, p, chunk, _ = begin_kernel(name, width, _NORM_PARAMETERS)
        zero, one = (code.widen(code.constant(number, 1)) for number in (0.0, 1.0))
        with code.visit_chunk(chunk, code.number(ROWS_OF_CHUNK), p["rows"]) as row:
            line, y = (p[key] + row * (p["features"] * FLOAT_BYTES) for key in ("x", "y"))
            total = code.variable(zero)
            with code.loop(0, p["features"]) as feature:
                x = code.widen(code.load_scalar(line + feature * FLOAT_BYTES))
                total.set(total.get() + (x * x if norm == "L2" else (x < zero).choose(-x, x)))
            size = code.call_intrinsic("sqrt", code.narrow(total.get())) if norm == "L2" else code.narrow(total.get())
            # A row of norm zero stays.
            divisor = (size > 0.0).choose(size, size.is_nan().choose(size, code.narrow(one)))
            with code.loop(0, p["features"]) as feature:
                code.store(y + feature * FLOAT_BYTES, code.load_scalar(line + feature * FLOAT_BYTES) / divisor)
        return code.finish()

    return Kernel(f"normalize_rows_{norm.lower()}", emit)
