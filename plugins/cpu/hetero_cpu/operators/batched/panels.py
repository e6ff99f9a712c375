"""Panels: parts of a computed matrix that are copied together, so that a tile reads them in one stream."""

from __future__ import annotations

from functools import partial

from hetero_cpu.machine.code import FLOAT_BYTES, Code
from hetero_cpu.machine.terms import Number
from hetero_cpu.operators.layout.copies import turn_vectors


def emit_panel(code: Code, source: Number, step: Number, rows: Number, columns: Number, panel: Number, vectors: int) -> None:
    """Copies `rows` rows of at most `vectors` vectors into a panel; `columns` of them are there, zeros follow.

    The elements of a row lie side by side, `step` bytes after those of the row before.
    """
    vector_bytes = code.width * FLOAT_BYTES
    masks = [code.mask_first(columns - j * code.width) for j in range(vectors)]
    with code.loop(0, rows) as row:
        for j, mask in enumerate(masks):
            elements = code.load(source + row * step, j * vector_bytes, mask=mask)
            code.store(panel + row * (vectors * vector_bytes), elements, j * vector_bytes)


def emit_turned_panel(
    code: Code,
    source: Number,
    step: Number,
    rows: Number,
    columns: Number,
    panel: Number,
    vectors: int,
    factor: Number | None = None,
) -> None:
    """Copies columns of a turned matrix, times a factor: panel[k, n] = source[n, k] for k below `rows` and n below `columns`, else 0.

    The k of one n lie side by side, `step` bytes after those of the n before. `factor`: the bits of a float32.
    """
    row_bytes = vectors * code.width * FLOAT_BYTES
    name = "turn" if factor is None else "turn_and_multiply"
    emit = partial(_emit_turn, has_factor=factor is not None)
    turn = code.find_inner(name, len(_TURN_PARAMETERS), emit)
    bits = code.number(0) if factor is None else factor
    for j in range(vectors):
        begin, place = source + step * (j * code.width), panel + j * code.width * FLOAT_BYTES
        with code.loop(0, rows, code.width) as k:
            code.call(
                turn, begin + k * FLOAT_BYTES, step, rows - k, columns - j * code.width, place + k * row_bytes, row_bytes, bits
            )


_TURN_PARAMETERS = ("source", "step", "rows", "columns", "target", "target_step", "factor")
"""Addresses, strides in bytes and counts, of which those beyond a vector's elements are the same; the bits of the factor."""


def _emit_turn(code: Code, *, has_factor: bool) -> None:
    """Emits a function that turns a square of as many rows and columns as a vector has elements."""
    source, step, rows, columns, target, target_step, factor = code.parameters
    width = code.width
    full, empty = code.number(width), code.number(0)
    there = rows.at_most(width)
    factors = code.spread(code.float_of(factor)) if has_factor else None
    vectors = []
    for n in range(width):
        # A column that is not there is read nowhere.
        vector = code.load(source + step * n, mask=code.mask_first((columns > n).choose(there, empty)))
        vectors.append(vector if factors is None else vector * factors)
    turned = turn_vectors(vectors)
    with code.either(there < full) as (some, every):
        with some:
            for position, vector in enumerate(turned):
                with code.when(there > position):
                    code.store(target + target_step * position, vector)
        with every:
            for position, vector in enumerate(turned):
                code.store(target + target_step * position, vector)
    code.finish()
