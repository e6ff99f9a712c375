"""The kernel of whole expressions of elements: one pass over memory for any number of functions and arithmetic.

An operand is of one of three kinds, by how it lies along the fastest axis of the result: "v" has an element for each, "r" one number for
a row, "s" one number for all. The result is a range of rows of one length, in three nested axes with strides of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hetero_cpu.jit.arithmetic import EMITTERS, Activation
from hetero_cpu.jit.code import FLOAT_BYTES, Code, Floats, Mask, Number
from hetero_cpu.jit.compiler import Kernel

PARAMETERS = ("middle", "inner", "rows", "rows_of_chunk", "length", "last")
"""Sizes of the second and the third axis of rows, rows in all and of one chunk, elements of a row and of the very last one."""
OPERAND_PARAMETERS = ("address", "outer_bytes", "middle_bytes", "inner_bytes")
"""What follows for the result and for each operand: an address, and strides in bytes along the three axes of rows."""
# Vectors of a row that are loaded before one is written.
_UNROLLED = 4


@dataclass(frozen=True, slots=True)
class Instruction:
    """One function of earlier values: operand k of 0 or more is the k-th operand of the expression, -1 - k the result of instruction k."""

    operator: str
    operands: tuple[int, ...]
    numbers: tuple[float, ...] = ()

    @property
    def name(self) -> str:
        """What tells it apart."""
        operands = "".join(f"o{operand}" if operand >= 0 else f"t{-1 - operand}" for operand in self.operands)
        return f"{Activation(self.operator, self.numbers).name}{operands}"


@dataclass(frozen=True, slots=True)
class Expression:
    """Instructions, the last of which is the result, and the kind of each operand."""

    kinds: str
    instructions: tuple[Instruction, ...]

    @property
    def name(self) -> str:
        """What tells it apart."""
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
    """Returns the kernel of an expression; its row holds PARAMETERS and OPERAND_PARAMETERS for the result and each operand."""
    return Kernel(f"elementwise_{expression.name}", lambda name, width: _emit(name, width, expression))


def _emit(name: str, width: int, expression: Expression) -> Code:
    code = Code(name, 3, width)
    row, chunk, _ = code.parameters
    p = {key: code.load_number(row, 8 * position) for position, key in enumerate(PARAMETERS)}
    places = [
        {
            key: code.load_number(row, 8 * (len(PARAMETERS) + index * len(OPERAND_PARAMETERS) + position))
            for position, key in enumerate(OPERAND_PARAMETERS)
        }
        for index in range(len(expression.kinds) + 1)
    ]
    constants = {
        index: code.spread(code.load_scalar(places[index + 1]["address"]))
        for index, kind in enumerate(expression.kinds)
        if kind == "s"
    }
    moving = [0, *(index + 1 for index, kind in enumerate(expression.kinds) if kind != "s")]
    position = code.variable(chunk * p["rows_of_chunk"])
    end = ((chunk + 1) * p["rows_of_chunk"]).at_most(p["rows"])
    with code.repeat() as leave_if:
        current = position.get()
        leave_if(current >= end)
        # Rows that follow one another along the innermost axis are reached by one stride.
        line, first = current // p["inner"], current % p["inner"]
        count = (p["inner"] - first).at_most(end - current)
        outer, middle = line // p["middle"], line % p["middle"]
        pointers = {
            index: code.variable(
                places[index]["address"]
                + outer * places[index]["outer_bytes"]
                + middle * places[index]["middle_bytes"]
                + first * places[index]["inner_bytes"]
            )
            for index in moving
        }
        with code.loop(current, current + count) as here:
            length = here.equals(p["rows"] - 1).choose(p["last"], p["length"])
            _emit_row(code, expression, {index: pointer.get() for index, pointer in pointers.items()}, constants, length)
            for index, pointer in pointers.items():
                pointer.set(pointer.get() + places[index]["inner_bytes"])
        position.set(current + count)
    code.finish()
    return code


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

    wide = code.width * _UNROLLED
    unrolled, full = length - length % wide, length - length % code.width
    with code.loop(0, unrolled, wide) as i:
        compute(i * FLOAT_BYTES, _UNROLLED, None)
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
    return results[-1]
