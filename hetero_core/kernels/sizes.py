"""Estimates how many bytes a node is about to make, and asks the limits of the run for them before the kernel is called.

The bytes follow from the types of the inputs and the values of inputs on the host, by type inference. A kernel declares `count_bytes` if
texts or intermediate results decide. Operators of ONNX with a single input and without attributes make
at most as many elements as they read, so they are not asked. Results are counted after each node, also within each trip of a Loop.
Inputs that do not fit together count nothing: the kernel, called next, reports the error.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from hetero_core.dtypes import DTYPES, dtype_of_numpy, numpy_dtype
from hetero_core.kernels.registry import TOOLKIT
from hetero_core.kernels.tables import KernelTable
from hetero_core.limits import RunLimits
from hetero_core.network.graph import Node
from hetero_core.network.initializers import Initializer
from hetero_core.network.types import TensorType, ValueType, sizes_of

_MOST_ELEMENTS = 64
_VIEWING = frozenset(("Dropout", "Expand", "Flatten", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"))
"""Operators with results that are mostly views: they run however little memory the machine has, and a copy counts afterwards."""
_MISFITS = (ValueError, TypeError, IndexError, KeyError, AttributeError, ArithmeticError)


def estimate_bytes(node: Node, inputs: Sequence[Any], *, table: KernelTable = TOOLKIT, asks_all: bool = False) -> int:
    """Returns the bytes that a node is about to make; 0 for inputs that do not fit together, and without `asks_all` if its inputs bound
    them.
    """
    record = table.find(node)
    try:
        if record is not None and record.count_bytes is not None:
            return max(int(record.count_bytes(*inputs, **node.attributes)), 0)
    except _MISFITS:
        return 0
    host = () if record is None else range(len(inputs)) if record.runs_on_host else record.host
    is_bounded = node.since_version and sum(hasattr(x, "shape") for x in inputs) < 2 and not node.attributes and not host
    if node.bodies or (is_bounded and not asks_all):
        return 0
    values = tuple(_read_value(x) if index in host else None for index, x in enumerate(inputs))
    return _infer_bytes(node, tuple(_type_of(x) for x in inputs), values)


def _read_value(x: Any) -> tuple[Any, ...] | None:
    """Returns the element type, the shape and the elements of a small array that decides sizes."""
    if not isinstance(x, np.ndarray) or x.size > _MOST_ELEMENTS or x.dtype.kind not in "iuf":
        return None
    return x.dtype.name, x.shape, x.tobytes()


def _type_of(x: Any) -> TensorType | None:
    if not hasattr(x, "shape"):
        return None
    # Array libraries spell element types as ONNX does: "torch.float32".
    name = str(x.dtype).rpartition(".")[2]
    return TensorType(name if name in DTYPES else dtype_of_numpy(x.dtype), tuple(map(int, x.shape)))


@lru_cache(1024)
def _infer_bytes(node: Node, input_types: tuple[TensorType | None, ...], values: tuple[tuple[Any, ...] | None, ...]) -> int:
    if not node.since_version:
        from hetero_core.network.inference import infer_contrib  # many rules, and asked for only if a limit is set

        return sum(map(_count_bytes, infer_contrib(node, input_types, lambda value: None).values()))
    from hetero_core.network.onnx_types import ask_onnx  # imports onnx

    types = {name: known for name, known in zip(node.inputs, input_types, strict=False) if name and known is not None}
    constants = {
        name: Initializer.of_array(np.frombuffer(value[2], value[0]).reshape(value[1]))
        for name, value in zip(node.inputs, values, strict=False)
        if name and value is not None
    }
    # Of inputs that do not fit together nothing is told.
    return sum(map(_count_bytes, ask_onnx(node, types, constants, {}, {})[1].values()))


def _count_bytes(value_type: ValueType | None) -> int:
    sizes = sizes_of(value_type)
    if sizes is None or not isinstance(value_type, TensorType) or value_type.dtype is None:
        return 0
    return prod(sizes) * numpy_dtype(value_type.dtype).itemsize


def require_room(limits: RunLimits, node: Node, inputs: Sequence[Any], *, table: KernelTable = TOOLKIT) -> None:
    """Records that a node begins and asks for the room of its results; called before each node of a run that has limits.

    `table` has the kernel that runs the node.

    Raises: MemoryLimitError that names the node.
    """
    limits.enter(node.label)
    if limits.memory_limit is not None and not (limits.is_of_machine and node.op_type in _VIEWING):
        limits.require(estimate_bytes(node, inputs, table=table, asks_all=limits.is_of_machine))
