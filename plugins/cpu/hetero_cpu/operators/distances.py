"""Distances of rows to constant points by machine code: nearest neighbors, and kernels of Gaussian processes.

The points lie turned, a feature after another, so that a vector has the same feature of neighboring points.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from hetero_cpu.machine.calls import Array, NativeCall, address_of
from hetero_cpu.machine.code import FLOAT_BYTES, Code, begin_kernel
from hetero_cpu.machine.compiler import Kernel
from hetero_cpu.machine.terms import Mask, Number
from hetero_cpu.operators.recipe import Recipe, Site
from hetero_cpu.operators.scores import ROWS_OF_CHUNK, list_rows_at_once
from hetero_cpu.symbols.sizes import is_open

_PARAMETERS = ("x", "points", "y", "rows", "features", "count")


def plan_distances(site: Site) -> Recipe | None:
    """Returns the recipe of the distances of rows of float32 to constant points. Source: ONNX Runtime's CDist-1."""
    value, points = site.node.inputs[0], site.constant(1)
    if points is None or not site.is_float32(value) or points.dtype != np.float32 or site.weights.is_shared or site.group.epilogue:
        return None
    x, (count, features) = site.prototypes[value], points.shape
    if x.ndim != 2 or not x.flags.c_contiguous or is_open(x.shape[1]) or x.shape[1] != features or 0 in points.shape:
        return None
    kernel, rows = _make_distances(site.node.attributes.get("metric", "sqeuclidean")), x.shape[0]
    turned = site.weights.pack_lazily((points,), ("distances",), lambda array: np.ascontiguousarray(array.T))

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        numbers = (address_of(reads[0]), turned.address, address_of(writes[0]), rows, features, count)
        return [NativeCall(kernel, numbers, -(-rows // ROWS_OF_CHUNK), (*reads, *writes))]

    return Recipe((value,), bind, kernels=(kernel,))


@cache
def _make_distances(metric: str) -> Kernel:
    def emit(name: str, width: int) -> Code:
        code, p, chunk, _ = begin_kernel(name, width, _PARAMETERS)
        begin = chunk * ROWS_OF_CHUNK
        end, line_bytes = (begin + ROWS_OF_CHUNK).at_most(p["rows"]), p["count"] * FLOAT_BYTES
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
