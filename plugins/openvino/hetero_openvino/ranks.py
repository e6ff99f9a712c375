"""Elementwise operations with a constant that has more dimensions than the other operand, of size 1.

    x float[3,5], c float[1,1,5]:    x + c is float[1,3,5];    the engine, which folds c into what computes x, returns float[3,5]

The constant gets the dimensions of the other operand, and an Unsqueeze behind the operation adds those that it had more.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

BINARY: Mapping[str, str] = MappingProxyType(
    {
        "Add": "add",
        "Divide": "divide",
        "FloorMod": "floor_mod",
        "Maximum": "maximum",
        "Minimum": "minimum",
        "Mod": "mod",
        "Multiply": "multiply",
        "Power": "power",
        "SquaredDifference": "squared_difference",
        "Subtract": "subtract",
    }
)
"""The engine's elementwise operations with two operands, and the functions that make them."""


def lower_constant(opset: Any, operation: Any) -> tuple[Any, list[Any]] | None:
    """Returns what takes the place of an elementwise operation, and what stands before it; None where it is right as it is."""
    operands = operation.input_values()
    for index, operand in enumerate(operands):
        constant, rank = operand.get_node(), operands[1 - index].get_partial_shape().rank
        kinds = constant.get_type_name(), operands[1 - index].get_node().get_type_name()
        if kinds[0] != "Constant" or kinds[1] == "Constant" or rank.is_dynamic:
            continue
        more = len(operand.get_shape()) - rank.get_length()
        sizes = list(operand.get_shape())
        if more <= 0 or any(size != 1 for size in sizes[:more]):
            continue
        # The engine folds the Reshape; not every type of element has an array of NumPy.
        lowered = opset.reshape(operand, opset.constant(np.array(sizes[more:], np.int64)), special_zero=False)
        operands[index] = lowered.output(0)
        computed = getattr(opset, BINARY[operation.get_type_name()])(*operands)
        return opset.unsqueeze(computed, opset.constant(np.arange(more, dtype=np.int64))), [lowered, computed]
    return None
