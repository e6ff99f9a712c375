"""Casts between float32 and half precision by machine code: one pass over memory, rounded to nearest, ties to even."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hetero_core.dtypes import numpy_dtype
from hetero_cpu.machine.calls import Array, NativeCall
from hetero_cpu.machine.code import FLOAT_BYTES, HALF_BYTES, Code
from hetero_cpu.machine.compiler import Kernel
from hetero_cpu.machine.terms import Number
from hetero_cpu.operators.recipe import Recipe, Site
from hetero_cpu.operators.rows import RowWalk, call_rows, cut_rows, find_kind
from hetero_cpu.symbols.arrays import lay_empty


def plan_cast(site: Site) -> Recipe | None:
    """Returns the recipe of a Cast from or to half precision; the result has the operand's order in memory. Source: ONNX Cast-13."""
    value, target = site.node.inputs[0], site.types[site.group.outputs[0]].dtype or ""
    x, result = site.prototypes[value], np.dtype(numpy_dtype(target))
    kernel = _KERNELS.get((x.dtype.name, result.name))
    if kernel is None or site.group.epilogue:
        return None
    shape, is_last = site.output_shape(), site.is_channels_last(value)
    prototype = lay_empty(shape, result, (0, 2, 3, 1) if is_last else tuple(range(len(shape))))
    if find_kind(x, prototype) not in ("v", "s") or cut_rows(prototype, [x]) is None:
        return None

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        rows = cut_rows(writes[0], reads)
        assert rows is not None
        return [call_rows(kernel, rows, [writes[0], *reads], workers=site.workers)]

    return Recipe((value,), bind, is_channels_last=is_last, kernels=(kernel,))


def _make_cast(half: str, *, widens: bool) -> Kernel:
    """Returns the kernel that widens numbers of the type `half` to float32, or rounds float32 to it."""

    def emit(name: str, width: int) -> Code:
        code = Code(name, 3, width)
        walk = RowWalk(code, 2)
        with walk.visit([0, 1]) as (addresses, length):

            def convert(position: Number, lanes: int) -> None:
                if widens:
                    numbers = code.load_half(addresses[1] + position * HALF_BYTES, half, lanes)
                    code.store(addresses[0] + position * FLOAT_BYTES, numbers)
                else:
                    place = addresses[1] + position * FLOAT_BYTES
                    numbers = code.load_scalar(place) if lanes == 1 else code.load(place)
                    code.store_half(addresses[0] + position * HALF_BYTES, numbers, half)

            full = length - length % width
            with code.loop(0, full, width) as position:
                convert(position, width)
            with code.loop(full, length) as position:
                convert(position, 1)
        return code.finish()

    return Kernel(f"widen_{half}" if widens else f"round_to_{half}", emit)


_KERNELS = {
    key: _make_cast(half, widens=widens)
    for half in ("float16", "bfloat16")
    for key, widens in (((half, "float32"), True), (("float32", half), False))
}
