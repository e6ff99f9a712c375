"""The inner kernel of products of two computed operands: a tile that stays in registers, of operands with strides of their own.

y[m, n] = finish(start[m, n] + sum over k of x[m, k] * w[k, n])

for `pixels` values of m and `vectors` vectors of n. The n of one k lie side by side in w, and those of one m in y; of x either the k
of one m do, or the m of one k.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from hetero_cpu.machine.arithmetic import Activation, emit_activations
from hetero_cpu.machine.code import FLOAT_BYTES, Code
from hetero_cpu.machine.pointers import PixelPointers
from hetero_cpu.machine.terms import Floats, Mask, Number

_UNROLLED = 4


@dataclass(frozen=True, slots=True)
class StridedTile:
    """The part of a tile that is fixed when it is compiled. A masked tile reads and writes only existing elements of its last vector."""

    pixels: int
    vectors: int
    is_turned: bool = False
    """Whether the m of one k lie side by side in x."""
    is_masked: bool = False
    start: str = ""
    """The initial value of the sums: nothing, one "number" for each m, or as many as there are in the result, in "vectors"."""
    finish: str = ""
    """The operation at the end: nothing, a "factor" for each m, or the largest result of each n is kept as "maximum"."""
    activations: tuple[Activation, ...] = ()

    @property
    def name(self) -> str:
        """The kernel's name, which no kernel of other parameters has."""
        flags = "t" * self.is_turned + "m" * self.is_masked
        parts = (self.start, self.finish, *(activation.name for activation in self.activations))
        return f"{self.pixels}x{self.vectors}{flags}" + "".join(f"_{part}" for part in parts if part)


PARAMETERS = ("x", "x_step", "depth", "w", "w_step", "y", "y_step", "start", "start_step", "edge", "last")
"""Addresses, strides in bytes and counts. `x_step`: from m to m, or from k to k where x is turned; `start_step` and `y_step`: from m to m;
`edge`: one number for each m, or for each n, as `finish` has it; `last`: the elements of the last vector."""


def call_strided_tile(code: Code, tile: StridedTile, **arguments: Number | int) -> None:
    """Calls a tile, which is emitted when it is first called, with its PARAMETERS by name; what is not given is 0."""
    function = code.find_inner(f"strided_{tile.name}", len(PARAMETERS), partial(_emit_tile, tile=tile))
    code.call(function, *(arguments.get(name, 0) for name in PARAMETERS))


def _emit_tile(code: Code, *, tile: StridedTile) -> None:
    p = dict(zip(PARAMETERS, code.parameters, strict=True))
    vector_bytes = code.width * FLOAT_BYTES
    guards = [code.mask_first(p["last"]) if tile.is_masked and j == tile.vectors - 1 else None for j in range(tile.vectors)]
    sums = []
    for m in range(tile.pixels):
        here = p["start"] + p["start_step"] * m
        if tile.start == "number":
            firsts = [code.spread(code.load_scalar(here))] * tile.vectors
        elif tile.start == "vectors":
            firsts = [code.load(here, j * vector_bytes, mask=guards[j]) for j in range(tile.vectors)]
        else:
            firsts = [code.constant(0.0)] * tile.vectors
        sums.append([code.variable(first) for first in firsts])
    weights = code.variable(p["w"])
    pixels = PixelPointers(code, p["x_step"], 1 if tile.is_turned else tile.pixels)
    pixels.begin(p["x"])

    def advance(count: int) -> None:
        here = weights.get()
        bases = pixels.read()
        for k in range(count):
            rows = [code.load(here, j * vector_bytes, mask=guards[j]) for j in range(tile.vectors)]
            here = here + p["w_step"]
            for m in range(tile.pixels):
                # Beside each other where x is turned, else a stride apart.
                place, offset = (bases[0], m) if tile.is_turned else (pixels.find(bases, m), k)
                spread = code.spread(code.load_scalar(place, offset * FLOAT_BYTES))
                for j in range(tile.vectors):
                    sums[m][j].set(code.multiply_add(spread, rows[j], sums[m][j].get()))
            if tile.is_turned:
                bases = [bases[0] + p["x_step"]]
        weights.set(here)
        pixels.move(bases, 0 if tile.is_turned else count * FLOAT_BYTES)

    even = p["depth"] - p["depth"] % _UNROLLED
    with code.loop(0, even, _UNROLLED):
        advance(_UNROLLED)
    with code.loop(even, p["depth"]):
        advance(1)
    _emit_finish(code, tile, p, [[total.get() for total in row] for row in sums], guards)
    code.finish()


def _emit_finish(
    code: Code, tile: StridedTile, p: dict[str, Number], results: list[list[Floats]], guards: list[Mask | None]
) -> None:
    vector_bytes = code.width * FLOAT_BYTES
    for m, row in enumerate(results):
        factor = code.spread(code.load_scalar(p["edge"], m * FLOAT_BYTES)) if tile.finish == "factor" else None
        for j, total in enumerate(row):
            result = total if factor is None else total * factor
            result = emit_activations(code, tile.activations, result)
            code.store(p["y"] + p["y_step"] * m, result, j * vector_bytes, mask=guards[j])
    if tile.finish == "maximum":
        for j in range(tile.vectors):
            column = [row[j] for row in results]
            while len(column) > 1:
                pairs = [column[k].at_least(column[k + 1]) for k in range(0, len(column) - 1, 2)]
                column = pairs + column[len(pairs) * 2 :]
            edge = code.load(p["edge"], j * vector_bytes)
            code.store(p["edge"], column[0].at_least(edge), j * vector_bytes)
