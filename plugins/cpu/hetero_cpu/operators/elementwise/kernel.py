"""The kernel of whole expressions of elements: one pass over memory for any number of functions and arithmetic.

An operand is of one of three kinds, by how it lies along the fastest axis of the result: "v" has an element for each, "r" one number for
a row, "s" one number for all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hetero_cpu.machine.arithmetic import EMITTERS, Activation
from hetero_cpu.machine.code import FLOAT_BYTES, Code
from hetero_cpu.machine.compiler import Kernel
from hetero_cpu.machine.row_walk import RowWalk
from hetero_cpu.machine.terms import Floats, Mask, Number

# Vectors of a row that are loaded before one is written; fewer of what takes many instructions, which would be long to compile.
_UNROLLED = 4
_UNROLLED_LONG = 2
_LONG = frozenset({"Celu", "Elu", "Erf", "Exp", "Gelu", "GeluTanh", "Log", "Mish", "Selu", "Sigmoid", "Softplus", "Swish", "Tanh"})


@dataclass(frozen=True, slots=True)
class Instruction:
    """One function of earlier values: operand k of 0 or more is the k-th operand of the expression, -1 - k the result of instruction k."""

    operator: str
    operands: tuple[int, ...]
    numbers: tuple[float, ...] = ()

    @property
    def name(self) -> str:
        """The kernel's name, which no kernel of other parameters has."""
        operands = "".join(f"o{operand}" if operand >= 0 else f"t{-1 - operand}" for operand in self.operands)
        return f"{Activation(self.operator, self.numbers).name}{operands}"


@dataclass(frozen=True, slots=True)
class Expression:
    """Instructions, the last of which is the result, and the kind of each operand; without instructions it is the first operand."""

    kinds: str
    instructions: tuple[Instruction, ...]

    @property
    def name(self) -> str:
        """The kernel's name, which no kernel of other parameters has."""
        return f"{self.kinds}_{'_'.join(instruction.name for instruction in self.instructions)}"


def _choose_extreme(a: Floats, b: Floats, picked: Floats) -> Floats:
    # A NaN of either side stays.
    return b.is_nan().choose(b, picked)


COMBINERS: Mapping[str, Callable[..., Floats]] = {
    "Add": lambda code, a, b: a + b,
    "Sub": lambda code, a, b: a - b,
    "Mul": lambda code, a, b: a * b,
    "Div": lambda code, a, b: a / b,
    "Max": lambda code, a, b: _choose_extreme(a, b, a.at_least(b)),
    "Min": lambda code, a, b: _choose_extreme(a, b, a.at_most(b)),
    "PRelu": lambda code, a, b: (a < 0.0).choose(a * b, a),
    "MultiplyAdd": lambda code, a, b, c: code.multiply_add(a, b, c),
}
"""Functions of two or three vectors."""


def make_elementwise(expression: Expression) -> Kernel:
    """Returns the kernel of an expression; its row is that of `row_walk`, with the result before the operands."""
    return Kernel(f"elementwise_{expression.name}", lambda name, width: _emit(name, width, expression))


def _emit(name: str, width: int, expression: Expression) -> Code:
    code = Code(name, 3, width)
    walk = RowWalk(code, len(expression.kinds) + 1)
    constants = {
        index: code.spread(code.load_scalar(walk.address(index + 1))) for index, kind in enumerate(expression.kinds) if kind == "s"
    }
    with walk.visit([0, *(index + 1 for index, kind in enumerate(expression.kinds) if kind != "s")]) as (addresses, length):
        _emit_row(code, expression, addresses, constants, length)
    return code.finish()


def _emit_row(
    code: Code, expression: Expression, addresses: Mapping[int, Number], constants: Mapping[int, Floats], length: Number
) -> None:
    """Emits one row: `addresses` are those of the result (0) and of operand k (k + 1)."""
    of_row = {
        index: code.spread(code.load_scalar(addresses[index + 1])) for index, kind in enumerate(expression.kinds) if kind == "r"
    }
    fixed = {**constants, **of_row}

    def compute(start: Number, vectors: int, mask: Mask | None) -> None:
        loaded = [
            {
                index: code.load(addresses[index + 1] + start, vector * code.width * FLOAT_BYTES, mask=mask)
                for index, kind in enumerate(expression.kinds)
                if kind == "v"
            }
            for vector in range(vectors)
        ]
        results = [emit_expression(code, expression, {**fixed, **operands}) for operands in loaded]
        for vector, result in enumerate(results):
            code.store(addresses[0] + start, result, vector * code.width * FLOAT_BYTES, mask=mask)

    long = sum(instruction.operator in _LONG for instruction in expression.instructions)
    together = _UNROLLED if long == 0 else _UNROLLED_LONG if long < _UNROLLED else 1
    wide = code.width * together
    unrolled, full = length - length % wide, length - length % code.width
    with code.loop(0, unrolled, wide) as i:
        compute(i * FLOAT_BYTES, together, None)
    with code.loop(unrolled, full, code.width) as i:
        compute(i * FLOAT_BYTES, 1, None)
    with code.when(full < length):
        compute(full * FLOAT_BYTES, 1, code.mask_first(length - full))


def emit_expression(code: Code, expression: Expression, operands: Mapping[int, Floats]) -> Floats:
    """Returns the result of an expression for one vector of each operand."""
    results: list[Floats] = []
    for instruction in expression.instructions:
        values = [operands[operand] if operand >= 0 else results[-1 - operand] for operand in instruction.operands]
        function = COMBINERS[instruction.operator] if instruction.operator in COMBINERS else EMITTERS[instruction.operator]
        results.append(function(code, *values, *instruction.numbers))
    return results[-1] if results else operands[0]
