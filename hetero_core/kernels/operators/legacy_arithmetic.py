"""Binary operators before opset 7: shapes are equal unless the attribute `broadcast` lets B align with A from `axis` on."""

from __future__ import annotations

from hetero_core.kernels.operators.arithmetic import div, power
from hetero_core.kernels.operators.binary import Binary, add, and_, greater, less, mul, or_, sub, xor
from hetero_core.kernels.operators.comparison import equal
from hetero_core.kernels.precision import Array, Namespace, normalize_axis
from hetero_core.kernels.registry import BOOL, FLOATS, NUMBERS, Dtypes, kernel

_OPERATORS: tuple[tuple[str, tuple[int, ...], Dtypes, Binary], ...] = (
    ("Add", (1, 6), NUMBERS, add),
    ("Sub", (1, 6), NUMBERS, sub),
    ("Mul", (1, 6), NUMBERS, mul),
    ("Div", (1, 6), NUMBERS, div),
    ("Pow", (1,), FLOATS, power),
    ("And", (1,), BOOL, and_),
    ("Or", (1,), BOOL, or_),
    ("Xor", (1,), BOOL, xor),
    ("Equal", (1,), frozenset({"bool", "int32", "int64"}), equal),
    ("Greater", (1,), FLOATS, greater),
    ("Less", (1,), FLOATS, less),
)


def align(a: Array, b: Array, axis: int | None) -> Array:
    """Returns b with the axes that make it broadcast over a: at `axis`, or at the end. Source: ONNX Add-6."""
    begin = a.ndim - b.ndim if axis is None else normalize_axis(axis, a.ndim)
    return b.reshape((*b.shape, *(1,) * (a.ndim - begin - b.ndim)))


def _register(op_type: str, since: tuple[int, ...], dtypes: Dtypes, compute: Binary) -> None:
    @kernel(op_type, since=since, dtypes=dtypes, choices={"broadcast": (0, 1)})
    def compute_aligned(xp: Namespace, a: Array, b: Array, *, axis: int | None = None, broadcast: int = 0) -> Array:
        if not broadcast and a.shape != b.shape:
            raise ValueError(f"shapes {a.shape} and {b.shape} differ, and broadcast is 0")
        return compute(xp, a, align(a, b, axis) if broadcast else b)


for _row in _OPERATORS:
    _register(*_row)
