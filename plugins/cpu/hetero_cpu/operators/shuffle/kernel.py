"""The kernel of channel shuffles: in each pixel, the first elements of all groups of channels, then the second ones, and so on."""

from __future__ import annotations

from hetero_cpu.machine.code import FLOAT_BYTES, Code, begin_kernel
from hetero_cpu.machine.compiler import Kernel
from hetero_cpu.machine.terms import Floats, Mask, Number

INTERLEAVE_PARAMETERS = (
    "x", "x_image", "x_row", "x_pixel", "x_group", "y", "y_image", "y_row", "y_pixel", "rows", "pixels", "lines", "lines_of_chunk", "own",
)  # fmt: skip
"""Numbers of a row, in order: addresses and strides in bytes; `rows` of an image, `pixels` of a row, `lines`: rows of all images; `own`:
the channels of a group."""


def make_interleave(groups: int) -> Kernel:
    """Returns the kernel y[pixel, k * groups + g] = x[pixel, g, k]."""
    return Kernel(f"interleave_{groups}", lambda name, width: _emit(name, width, groups))


def _emit(name: str, width: int, groups: int) -> Code:
    code, p, chunk, _ = begin_kernel(name, width, INTERLEAVE_PARAMETERS)
    full = p["own"] - p["own"] % width
    rest = p["own"] - full
    with code.visit_chunk(chunk, p["lines_of_chunk"], p["lines"]) as line:
        image, place = line // p["rows"], line % p["rows"]
        x_line = p["x"] + image * p["x_image"] + place * p["x_row"]
        y_line = p["y"] + image * p["y_image"] + place * p["y_row"]
        with code.loop(0, p["pixels"]) as pixel:
            x, y = x_line + pixel * p["x_pixel"], y_line + pixel * p["y_pixel"]

            def move(channel: Number, count: Number | int, mask: Mask | None) -> None:
                read = [code.load(x + channel * FLOAT_BYTES + p["x_group"] * group, mask=mask) for group in range(groups)]
                for v, vector in enumerate(_interleave(read)):
                    place = y + channel * (groups * FLOAT_BYTES)
                    guard = None if mask is None else code.mask_first(count * groups - v * width)
                    code.store(place, vector, v * width * FLOAT_BYTES, mask=guard)

            with code.loop(0, full, width) as channel:
                move(channel, width, None)
            with code.when(rest > 0):
                move(full, rest, code.mask_first(rest))
    return code.finish()


def _interleave(vectors: list[Floats]) -> list[Floats]:
    """Returns the elements of all vectors in turn, as many vectors as there are."""
    count = len(vectors)
    if count == 1:
        return vectors
    if count % 2 == 0:
        # Elements of even and of odd vectors take turns.
        pairs = zip(_interleave(vectors[::2]), _interleave(vectors[1::2]), strict=True)
        return [half for even, odd in pairs for half in _zip(even, odd)]
    width = vectors[0].width
    interleaved = []
    for v in range(count):
        mixed = vectors[0]
        for index, vector in enumerate(vectors):
            lanes = [divmod(v * width + e, count) for e in range(width)]
            mixed = mixed.shuffle(vector, [width + k if g == index else (k if index == 0 else e) for e, (k, g) in enumerate(lanes)])
        interleaved.append(mixed)
    return interleaved


def _zip(first: Floats, second: Floats) -> tuple[Floats, Floats]:
    width = first.width
    order = [e // 2 + width * (e % 2) for e in range(2 * width)]
    return first.shuffle(second, order[:width]), first.shuffle(second, order[width:])
