"""The bytes that calls write, as boxes of symbols: the functions of `footprints.py` for the numbers of a whole class of sizes.

Each function belongs to one of `footprints.py` and says the same: which bytes all chunks together write, and which numbers must be at
least zero so that every unit of work belongs to one chunk, and none is left out. Only sums and products are made of the numbers, which
are never compared. A quotient has to come out even as an expression, else there is no box.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hetero_cpu.machine import footprints
from hetero_cpu.machine.native import NativeCall
from hetero_cpu.open.boxes import Box, make_box
from hetero_cpu.open.sizes import is_open, make_size, terms_of
from hetero_cpu.open.terms import Terms, add, multiply

Numbers = Mapping[str, Any]
_FLOAT_BYTES, _OFFSET_BYTES = 4, 8


class NoBoxError(Exception):
    """What a call writes is no box of symbols that this file knows."""


@dataclass(frozen=True, slots=True)
class Written:
    """Bytes that a call writes, and numbers that are at least zero where its chunks share its units among them.

    `tables`: the bytes that it reads of small arrays whose elements follow from sizes, by the name of their address.
    """

    boxes: tuple[Box, ...]
    shared: tuple[Any, ...]
    tables: Mapping[str, Any] = field(default_factory=dict)


def find_written(call: NativeCall, width: int) -> Written:
    """Returns what a call writes. Raises: NoBoxError."""
    writes = call.kernel.writes
    own = writes.func if isinstance(writes, partial) else writes
    form = _FORMS.get(own)  # type: ignore[arg-type]  # None is no key
    if form is None:
        raise NoBoxError(f"kernel {call.kernel.name}")
    numbers = {**dict(zip(call.kernel.parameters, call.numbers, strict=False)), "chunks": call.chunks}
    return form(numbers, width, **(writes.keywords if isinstance(writes, partial) else {}))


def divide_evenly(above: Any, below: Any) -> Any:
    """Returns a quotient that is an expression. Raises: NoBoxError where the division does not come out even."""
    rest, divisor = dict(terms_of(above)), terms_of(below)
    if not divisor:
        raise NoBoxError("a division by zero")
    lead = max(divisor, key=_rank)
    quotient: Terms = {}
    while rest:
        product = max(rest, key=_rank)
        left = list(product)
        for number in lead:
            if number not in left:
                raise NoBoxError("a division that does not come out even")
            left.remove(number)
        if rest[product] % divisor[lead]:
            raise NoBoxError("a division that does not come out even")
        part = {tuple(left): rest[product] // divisor[lead]}
        quotient = add(quotient, part)
        rest = dict(add(rest, multiply(part, divisor), -1))
    scope = next((number.scope for number in (above, below) if is_open(number)), None)
    return quotient.get((), 0) if scope is None else make_size(scope, quotient)


def _rank(product: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    return len(product), product


def _is_same(left: Any, right: Any) -> bool:
    return terms_of(left) == terms_of(right)


def _write_rows(p: Numbers, width: int) -> Written:
    outer = divide_evenly(divide_evenly(p["rows"], p["inner"]), p["middle"])
    shared = (p["chunks"] * p["rows_of_chunk"] - p["rows"],)
    axes = [(outer, p["y_outer"]), (p["middle"], p["y_middle"]), (p["inner"], p["y_inner"])]
    if _is_same(p["last"], p["length"]):
        return Written((make_box(p["y"], axes, p["length"] * _FLOAT_BYTES),), shared)
    if not (_is_same(p["inner"], p["rows"]) and _is_same(p["y_inner"], p["length"] * _FLOAT_BYTES)):
        raise NoBoxError("rows of which the last is another one")
    # One piece that was cut into rows.
    return Written((make_box(p["y"], (), (p["rows"] - 1) * p["y_inner"] + p["last"] * _FLOAT_BYTES),), (*shared, p["last"]))


def _write_turned(p: Numbers, width: int) -> Written:
    matrices = divide_evenly(p["units"], p["blocks"])
    outer = divide_evenly(divide_evenly(matrices, p["inner"]), p["middle"])
    axes = [(outer, p["y_outer"]), (p["middle"], p["y_middle"]), (p["inner"], p["y_inner"]), (p["rows"], p["y_row"])]
    shared = p["chunks"] * p["units_of_chunk"] - p["units"]
    return Written((make_box(p["y"], axes, p["columns"] * _FLOAT_BYTES),), (shared,))


def _write_gathered(p: Numbers, width: int) -> Written:
    nbytes = p["length"] * _FLOAT_BYTES
    return Written((make_box(p["y"], [(p["rows"], nbytes)], nbytes),), (p["chunks"] * p["rows_of_chunk"] - p["rows"],))


def _write_staged(p: Numbers, width: int) -> Written:
    images = divide_evenly(p["all_rows"], p["rows"])
    nbytes = (p["left"] + p["width"] + p["right"]) * p["y_pixel"]
    axes = [(images, p["y_image"]), (p["rows"], p["y_row"])]
    return Written((make_box(p["y"], axes, nbytes),), (p["chunks"] * p["rows_of_chunk"] - p["all_rows"],))


def _write_cleared(p: Numbers, width: int) -> Written:
    images = (p["images"], p["y_image"])
    boxes = (
        make_box(p["y"], [images], p["first_bytes"]),
        make_box(p["y"] + p["gap"], [images, (p["gaps"], p["gap_stride"])], p["gap_bytes"]),
        make_box(p["y"] + p["last"], [images], p["last_bytes"]),
    )
    return Written(boxes, (p["chunks"] - p["images"],))


def _count_channel_bytes(p: Numbers, width: int, vectors: int, last_vectors: int, last: Any) -> Any:
    return ((p["blocks"] - 1) * vectors * width + (last_vectors - 1) * width + last) * _FLOAT_BYTES


def _share_blocks(p: Numbers) -> tuple[Any, ...]:
    """Returns what is at least zero where ranges of blocks times ranges of units are the chunks."""
    units = p["unit_chunks"] * p["units_of_chunk"] - p["units"]
    if is_open(p["blocks"]) or is_open(p["blocks_of_chunk"]):
        return units, divide_evenly(p["chunks"], p["unit_chunks"]) * p["blocks_of_chunk"] - p["blocks"]
    return units, p["chunks"] - -(-p["blocks"] // p["blocks_of_chunk"]) * p["unit_chunks"]


def _write_product(
    p: Numbers, width: int, *, pixels: int, has_short_tiles: bool, vectors: int, last_vectors: int, is_masked: bool
) -> Written:
    lines = divide_evenly(p["units"], p["tiles"])
    images = divide_evenly(lines, p["rows"])
    line = p["tiles"] * pixels - (p["tiles"] - p["long_tiles"] if has_short_tiles else 0)
    nbytes = _count_channel_bytes(p, width, vectors, last_vectors, p["last"] if is_masked else width)
    axes = [(images, p["y_image"]), (p["rows"], p["y_row"]), (line, p["y_pixel"])]
    tiles = (p["long_tiles"], p["tiles"] - p["long_tiles"]) if has_short_tiles else ()
    return Written((make_box(p["y"], axes, nbytes),), (*_share_blocks(p), *tiles), {"offsets": p["taps"] * _OFFSET_BYTES})


def _write_grouped(p: Numbers, width: int, **shape: Any) -> Written:
    groups = divide_evenly(p["chunks"], p["chunks_of_group"])
    own = _write_product({**p, "chunks": p["chunks_of_group"]}, width, **shape)
    (box,) = own.boxes
    axes = [(groups, p["y_group"])]
    return Written((Box(box.begin, (*make_box(0, axes, 0).axes, *box.axes), box.nbytes),), own.shared, own.tables)


def _write_winograd(p: Numbers, width: int, *, size: int, vectors: int, last_vectors: int, is_whole: bool) -> Written:
    images = divide_evenly(divide_evenly(p["tiles"], p["down"]), p["right"])
    nbytes = _count_channel_bytes(p, width, vectors, last_vectors, width)
    axes = [(images, p["y_image"]), (p["height"], p["y_row"]), (p["width"], p["y_pixel"])]
    # Tiles reach as far as the image.
    reach = p["down"] * size - p["height"], p["right"] * size - p["width"]
    if is_whole:
        return Written((make_box(p["y"], axes, nbytes),), (*reach, p["chunks"] * p["tiles_of_chunk"] - p["tiles"]))
    return Written((make_box(p["y"], axes, nbytes),), (*reach, p["chunks"] * p["blocks_of_chunk"] - p["blocks"]))


def _write_winograd_inputs(p: Numbers, width: int, *, size: int) -> Written:
    nbytes = p["channels"] * _FLOAT_BYTES
    axes = [((size + 2) ** 2, p["moved_position"])]
    return Written((make_box(p["moved"], axes, p["tiles"] * nbytes),), (p["chunks"] * p["tiles_of_chunk"] - p["tiles"],))


def _write_windows(p: Numbers, width: int, *, rows: int, short_rows: int, pixels: int, has_short_tiles: bool) -> Written:
    images = divide_evenly(p["lines"], p["groups"])
    short = p["groups"] - p["long_groups"] if short_rows else 0
    height = (p["groups"] - short) * rows + short * short_rows
    line = p["tiles"] * pixels - (p["tiles"] - p["long_tiles"] if has_short_tiles else 0)
    axes = [(images, p["y_image"]), (height, p["y_row"]), (line, p["y_pixel"])]
    tiles = (p["long_tiles"], p["tiles"] - p["long_tiles"]) if has_short_tiles else ()
    groups = (p["long_groups"], p["groups"] - p["long_groups"]) if short_rows else ()
    shared = p["chunks"] * p["lines_of_chunk"] - p["lines"]
    tables = {"row_counts": height * _FLOAT_BYTES, "column_counts": line * _FLOAT_BYTES}
    return Written((make_box(p["y"], axes, p["channel_bytes"] + p["last"] * _FLOAT_BYTES),), (shared, *tiles, *groups), tables)


def _write_global(p: Numbers, width: int, *, block: int) -> Written:
    images = divide_evenly(p["units"], p["blocks"])
    nbytes = (p["vectors"] * width + p["last"]) * _FLOAT_BYTES
    # The blocks have all channels, and none begins behind them.
    blocks = p["blocks"] * block * width * _FLOAT_BYTES - nbytes, nbytes - (p["blocks"] - 1) * block * width * _FLOAT_BYTES
    shared = p["chunks"] * p["units_of_chunk"] - p["units"]
    return Written((make_box(p["y"], [(images, p["y_image"])], nbytes),), (shared, *blocks))


def _write_batched(p: Numbers, width: int, *, vectors: int) -> Written:
    matrices = divide_evenly(p["units"], p["blocks"])
    outer = divide_evenly(divide_evenly(matrices, p["inner"]), p["middle"])
    axes = [(outer, p["y_outer"]), (p["middle"], p["y_middle"]), (p["inner"], p["y_inner"]), (p["rows"], p["y_step"])]
    blocks = p["blocks"] * vectors * width - p["columns"], p["columns"] - (p["blocks"] - 1) * vectors * width
    shared = p["chunks"] * p["units_of_chunk"] - p["units"]
    return Written((make_box(p["y"], axes, p["columns"] * _FLOAT_BYTES),), (shared, *blocks))


def _write_attention(p: Numbers, width: int, *, vectors: int, last_rows: int, appends: bool) -> Written:
    lines = divide_evenly(p["units"], p["blocks"])
    batch = divide_evenly(lines, p["heads"])
    queries = (p["blocks"] - 1) * vectors * width + (last_rows or p["last_rows"])
    axes = [(batch, p["y_batch"]), (p["heads"], p["y_head"]), (queries, p["y_step"])]
    boxes = [make_box(p["y"], axes, p["value_size"] * _FLOAT_BYTES)]
    for key in "kv" if appends else "":
        copied, added = (p[f"{source}_{key}_rows"] * p[f"{source}_{key}_row_bytes"] for source in ("past", "new"))
        begin = p[key] + p[f"past_{key}_bytes"] - copied
        axes = [(divide_evenly(p["units"], p["heads"]), p[f"{key}_batch"]), (p["heads"], p[f"{key}_head"])]
        boxes.append(make_box(begin, axes, copied + added))
    return Written(tuple(boxes), (p["chunks"] * p["units_of_chunk"] - p["units"],))


def _write_shuffled(p: Numbers, width: int, *, groups: int) -> Written:
    axes = [(divide_evenly(p["lines"], p["rows"]), p["y_image"]), (p["rows"], p["y_row"]), (p["pixels"], p["y_pixel"])]
    shared = p["chunks"] * p["lines_of_chunk"] - p["lines"]
    return Written((make_box(p["y"], axes, p["own"] * groups * _FLOAT_BYTES),), (shared,))


def _write_resampled(p: Numbers, width: int, *, taps: int) -> Written:
    axes = [(divide_evenly(p["lines"], p["rows"]), p["y_image"]), (p["rows"], p["y_row"]), (p["pixels"], p["y_pixel"])]
    shared = p["chunks"] * p["lines_of_chunk"] - p["lines"]
    parts = (("offsets", _OFFSET_BYTES), ("weights", _FLOAT_BYTES))
    tables = {
        f"{axis}_{part}": p[size] * taps * nbytes
        for axis, size in (("row", "rows"), ("column", "pixels"))
        for part, nbytes in parts
    }
    return Written((make_box(p["y"], axes, p["channels"] * _FLOAT_BYTES),), (shared,), tables)


_FORMS: Mapping[Callable[..., footprints.Spans], Callable[..., Written]] = {
    footprints.list_row_writes: _write_rows,
    footprints.list_turn_writes: _write_turned,
    footprints.list_gather_writes: _write_gathered,
    footprints.list_stage_writes: _write_staged,
    footprints.list_clear_writes: _write_cleared,
    footprints.list_product_writes: _write_product,
    footprints.list_grouped_writes: _write_grouped,
    footprints.list_winograd_writes: _write_winograd,
    footprints.list_winograd_inputs: _write_winograd_inputs,
    footprints.list_window_writes: _write_windows,
    footprints.list_global_writes: _write_global,
    footprints.list_batched_writes: _write_batched,
    footprints.list_attention_writes: _write_attention,
    footprints.list_interleave_writes: _write_shuffled,
    footprints.list_resampled_writes: _write_resampled,
}
