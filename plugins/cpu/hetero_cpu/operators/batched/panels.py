"""Panels: parts of a computed matrix that are copied together, so that a tile reads them in one stream."""

from __future__ import annotations

from hetero_cpu.machine.code import FLOAT_BYTES, Code
from hetero_cpu.machine.terms import Floats, Number
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
    factor: Floats | None = None,
) -> None:
    """Copies columns of a turned matrix, times a factor: panel[k, n] = source[n, k] for k below `rows` and n below `columns`, else 0.

    The k of one n lie side by side, `step` bytes after those of the n before.
    """
    width = code.width
    row_bytes = vectors * width * FLOAT_BYTES
    full = rows - rows % width

    def turn(k: Number, j: int, mask_rows: Number | None) -> None:
        left = columns - j * width
        vectors = []
        for n in range(width):
            begin = source + step * (j * width + n) + k * FLOAT_BYTES
            # A column that is not there is read nowhere.
            count = (left > n).choose(code.number(width) if mask_rows is None else mask_rows, code.number(0))
            vector = code.load(begin, mask=code.mask_first(count))
            vectors.append(vector if factor is None else vector * factor)
        target = panel + k * row_bytes
        for position, vector in enumerate(turn_vectors(vectors)):
            place = position * row_bytes + j * width * FLOAT_BYTES
            if mask_rows is None:
                code.store(target, vector, place)
            else:
                with code.when(mask_rows > position):
                    code.store(target, vector, place)

    for j in range(vectors):
        with code.loop(0, full, width) as k:
            turn(k, j, None)
        with code.when(full < rows):
            turn(full, j, rows - full)
