"""The kernel of images that are resized: each pixel of the result is one pixel of the image, or four of them with their weights."""

from __future__ import annotations

from hetero_cpu.machine.code import FLOAT_BYTES, Code, begin_kernel
from hetero_cpu.machine.compiler import Kernel
from hetero_cpu.machine.terms import Floats, Mask, Number
from hetero_cpu.operators.convolution.staging import emit_copy

PARAMETERS = (
    "x", "x_image", "y", "y_image", "y_row", "y_pixel", "rows", "pixels", "row_offsets", "row_weights", "column_offsets",
    "column_weights", "lines", "lines_of_chunk", "channels",
)  # fmt: skip
"""Numbers of a row, in order: addresses and strides in bytes; `rows` of an image of y, `pixels` of a row, `lines`: rows of all images.
Offsets, in bytes, and weights: of each row and each column of y, one for a tap."""


def make_resampling(taps: int) -> Kernel:
    """Returns the kernel y[r, c, k] = sum over i, j < taps of row_weights[r, i] * column_weights[c, j] * x[rows[r, i], columns[c, j], k].

    With one tap, elements are copied, whatever their weights.
    """
    return Kernel(f"resample_{taps}", lambda name, width: _emit(name, width, taps))


def _emit(name: str, width: int, taps: int) -> Code:
    code, p, chunk, _ = begin_kernel(name, width, PARAMETERS)
    with code.visit_chunk(chunk, p["lines_of_chunk"], p["lines"]) as line:
        image, place = line // p["rows"], line % p["rows"]
        x, y = p["x"] + image * p["x_image"], p["y"] + image * p["y_image"] + place * p["y_row"]
        lines = [x + code.load_number(p["row_offsets"] + place * (8 * taps), 8 * i) for i in range(taps)]
        downs = [code.load_scalar(p["row_weights"] + place * (FLOAT_BYTES * taps), FLOAT_BYTES * i) for i in range(taps)]
        with code.loop(0, p["pixels"]) as pixel:
            target = y + pixel * p["y_pixel"]
            columns = [code.load_number(p["column_offsets"] + pixel * (8 * taps), 8 * j) for j in range(taps)]
            weights = p["column_weights"] + pixel * (FLOAT_BYTES * taps)
            rights = [code.load_scalar(weights, FLOAT_BYTES * j) for j in range(taps)]
            sources = [start + column for start in lines for column in columns]
            if taps == 1:
                emit_copy(code, target, sources[0], p["channels"] * FLOAT_BYTES)
            else:
                factors = [code.spread(down * right) for down in downs for right in rights]
                _emit_sums(code, target, list(zip(sources, factors, strict=True)), p["channels"])
    return code.finish()


def _emit_sums(code: Code, target: Number, sources: list[tuple[Number, Floats]], channels: Number) -> None:
    """Writes the weighted sum of pixels."""

    def add(channel: Number, mask: Mask | None) -> None:
        total: Floats | None = None
        for source, weight in sources:
            read = code.load(source + channel * FLOAT_BYTES, mask=mask)
            total = read * weight if total is None else code.multiply_add(read, weight, total)
        assert total is not None
        code.store(target + channel * FLOAT_BYTES, total, mask=mask)

    code.visit_vectors(channels, add)
