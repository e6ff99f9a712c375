"""MatMul and Gemm through BLAS. Constant weights stay as they are: BLAS reads them transposed as fast."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod

import numpy as np

from hetero_cpu.operators.elementwise.bare_calls import bind_product
from hetero_cpu.operators.product.epilogue import arrange_added, plan_epilogue
from hetero_cpu.planning.recipe import Array, Call, Choice, Recipe, Site, step
from hetero_cpu.planning.scratch import cut_scratch, measure_scratch


@step("MatMul")
def plan_mat_mul(site: Site) -> Choice | None:
    """Returns the recipe of a matrix product; the rows of all matrices on the left are one matrix where the right side is one."""
    left, right = site.node.inputs
    if not site.is_float32(left, right) or min(len(site.shape(left)), len(site.shape(right))) < 2:
        return None
    epilogue = plan_epilogue(site, None)
    if epilogue is None:
        return None
    is_one = len(site.shape(right)) == 2
    sizes = site.output_shape()
    spare = [sizes] if epilogue.needs_spare else []

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[Call]:
        a, b, y = reads[0], reads[1], writes[0]
        added = arrange_added(epilogue.values, reads[2:], sizes, channels_last=False)
        spares = cut_scratch(scratch, spare)
        calls = [_bind_product(a, b, y, is_one=is_one)]
        return calls + epilogue.bind(y, added, spares[0] if spares else y)

    return Recipe((left, right, *epilogue.values), bind, measure_scratch(spare))


def _bind_product(a: Array, b: Array, y: Array, *, is_one: bool) -> Call:
    if is_one and a.ndim > 2:
        rows, product = a.reshape(-1, a.shape[-1]), y.reshape(-1, y.shape[-1])
        if np.may_share_memory(rows, a) and np.may_share_memory(product, y):
            return bind_product(rows, b, product)
    return bind_product(a, b, y)


@step("Gemm")
def plan_gemm(site: Site) -> Choice | None:
    """Returns the recipe of alpha * A @ B + beta * C. Source: ONNX Gemm-13."""
    node = site.node
    a, b = node.inputs[:2]
    if not site.is_float32(*node.inputs[: 3 if site.has_input(2) else 2]) or node.since_version < 7 or 0 in site.shape(a):
        return None
    alpha, beta = (np.float32(node.attributes.get(name, 1.0)) for name in ("alpha", "beta"))
    bias = site.constant(2)
    if site.has_input(2) and bias is None:
        return None
    if bias is not None and beta != 1:
        bias = site.weights.pack((bias,), ("times", float(beta)), lambda array: array * beta)
    # A bias of one number for each row, or one for all, is added as it broadcasts.
    epilogue = plan_epilogue(site, None)
    if epilogue is None:
        return None
    sizes = site.output_shape()
    spare = [sizes] if epilogue.needs_spare else []
    flags = (bool(node.attributes.get("transA", 0)), bool(node.attributes.get("transB", 0)))

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[Call]:
        left, right = (array.T if is_turned else array for array, is_turned in zip(reads[:2], flags, strict=True))
        y = writes[0]
        calls: list[Call] = [bind_product(left, right, y)]
        if alpha != 1:
            calls.append(partial(np.multiply, y, alpha, y))
        if bias is not None:
            calls.append(partial(np.add, y, bias, y))
        spares = cut_scratch(scratch, spare)
        added = arrange_added(epilogue.values, reads[2:], sizes, channels_last=False)
        return calls + epilogue.bind(y, added, spares[0] if spares else y)

    return Recipe((a, b, *epilogue.values), bind, measure_scratch(spare)) if prod(sizes) else None
