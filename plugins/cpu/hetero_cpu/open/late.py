"""Late constants by a function that is written when the plan is read: NumPy's calls in order, without the toolkit's walk.

Within a run of a decoder nine nodes take 145 us by the toolkit and a third of that so. Only nodes of a few operators are written, as
the toolkit computes them; where one is of another operator, and where a call raises, the toolkit runs all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_core.network.types import TensorType

if TYPE_CHECKING:
    from hetero_core.kernels.execution import Program, Step

Array = np.ndarray[Any, Any]
Compute = Callable[..., tuple[Array, ...]]
"""Of arrays of int64, and of plain integers in the place of those without axes."""

_COMPARISONS = {
    "Equal": "equal",
    "Greater": "greater",
    "GreaterOrEqual": "greater_equal",
    "Less": "less",
    "LessOrEqual": "less_equal",
}


def write_late(program: Program) -> Compute | None:
    """Returns a function of the inputs that returns the outputs as `program.run` does; None if a node is of another operator."""
    ranks = {}
    for slot, spec in zip(program.input_slots, program.inputs, strict=True):
        if not isinstance(spec.type, TensorType) or spec.type.shape is None:
            return None
        ranks[slot] = len(spec.type.shape)
    names: dict[str, Any] = {name: getattr(np, name) for name in ("arange", "where", *_COMPARISONS.values())}
    for slot, value in enumerate(program.values):
        if isinstance(value, np.ndarray):
            ranks[slot], names[f"v{slot}"] = value.ndim, value
    integers = {f"v{slot}" for slot in program.input_slots}
    integers |= {name for name, value in names.items() if isinstance(value, np.ndarray) and value.dtype == np.int64}
    # NumPy makes a range of plain integers in a third of the time.
    names |= {name: int(names[name]) for name in integers if name in names and not names[name].ndim}
    lines = []
    for step in program.steps:
        if step.bodies or step.value or len(step.targets) != 1 or any(slot not in ranks for slot in step.sources):
            return None
        written = _write_step(step, ranks, names, integers)
        if written is None:
            return None
        (target,) = step.targets
        expression, ranks[target] = written
        lines.append(f"    v{target} = {expression}")
    parameters = ", ".join(f"v{slot}" for slot in program.input_slots)
    outputs = "".join(f"v{slot}, " for slot in program.output_slots)
    exec("\n".join([f"def compute({parameters}):", *lines, f"    return ({outputs})"]), names)
    compute: Compute = names["compute"]
    return compute


def add_toolkit(written: Compute | None, program: Program) -> Compute:
    """Returns a function that returns what `program.run` does, by a function that was written of it where there is one."""

    def compute(*inputs: Array | int) -> tuple[Array, ...]:
        if written is not None:
            try:
                return written(*inputs)
            except (IndexError, ValueError, TypeError, MemoryError):
                pass  # the toolkit says what is wrong
        return program.run(tuple([np.asarray(value, np.int64) for value in inputs]))

    return compute


def _write_step(step: Step, ranks: Mapping[int, int], names: Mapping[str, Any], integers: set[str]) -> tuple[str, int] | None:
    """Returns what a node computes, and the number of axes of the result; None if it is not one of those that are known."""
    node, operands = step.node, [f"v{slot}" for slot in step.sources]
    own = [ranks[slot] for slot in step.sources]
    constants = [names.get(operand) for operand in operands]
    if node.domain:
        return None
    match node.op_type:
        case "Range" if own == [0, 0, 0] and all(operand in integers for operand in operands):
            return f"arange({', '.join(operands)})", 1
        case "Unsqueeze" if len(operands) == 2 and constants[1] is not None:
            rank = own[0] + constants[1].size
            axes = {int(axis) % rank for axis in constants[1].reshape(-1)}
            return f"{operands[0]}[{', '.join('None' if axis in axes else ':' for axis in range(rank))}]", rank
        case "Where" if max(own):
            return f"where({', '.join(operands)})", max(own)
        case "Gather" if node.attributes.get("axis", 0) == 0 and own[0] and own[0] + own[1] > 1:
            return f"{operands[0]}.take({operands[1]}, 0)", own[0] - 1 + own[1]
        # NumPy makes scalars of arrays without axes.
        case comparison if comparison in _COMPARISONS and max(own):
            return f"{_COMPARISONS[comparison]}({', '.join(operands)})", max(own)
    return None
