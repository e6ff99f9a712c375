"""Channel shuffles of channels-last images: Reshape to groups, Transpose of groups and their channels, Reshape back.

Written so by exporters, it would bring the image into C order twice. Here the Transpose is a view, and the Reshape after it permutes
the channels of each pixel.
"""

from __future__ import annotations

from collections.abc import Sequence

from hetero_cpu.machine.calls import Array, NativeCall, address_of, list_strides
from hetero_cpu.machine.code import FLOAT_BYTES, Code, begin_kernel
from hetero_cpu.machine.compiler import Kernel, find_width
from hetero_cpu.machine.terms import Floats, Mask, Number
from hetero_cpu.operators.recipe import Recipe, Site, Views
from hetero_cpu.operators.rows import cut_lines
from hetero_cpu.symbols.sizes import value_of

INTERLEAVE_PARAMETERS = (
    "x", "x_image", "x_row", "x_pixel", "x_group", "y", "y_image", "y_row", "y_pixel", "rows", "pixels", "lines", "lines_of_chunk", "own",
)  # fmt: skip
"""Numbers of a row, in order: addresses and strides in bytes; `rows` of an image, `pixels` of a row, `lines`: rows of all images; `own`:
the channels of a group."""


def _emit(name: str, width: int, groups: int) -> Code:
    """Emits y[pixel, k * groups + g] = x[pixel, g, k]."""
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


_MOST_GROUPS = 8
_PERM = (0, 2, 1, 3, 4)


def plan_turned_groups(site: Site) -> Views | None:
    """Returns a view of (batch, groups, channels, height, width) with both axes of channels turned, if only a Reshape reads it."""
    (value,) = site.node.inputs
    if tuple(site.node.attributes.get("perm", ())) != _PERM or site.readers != ("Reshape",) or value in site.constants:
        return None
    return Views(value, (lambda array: array.transpose(_PERM),)) if _is_turned(site.prototypes[value].transpose(_PERM)) else None


def plan_shuffle(site: Site) -> Recipe | None:
    """Returns the recipe of the second Reshape of a shuffle, which gives the groups' channels in turn."""
    value = site.node.inputs[0]
    x = site.prototypes[value]
    if not site.is_float32(value) or value in site.constants or not _is_turned(x) or find_width() == 0:
        return None
    batch, own, groups, height, width = x.shape
    if site.types[site.node.outputs[0]].shape != (batch, own * groups, height, width):
        return None
    kernel = Kernel(f"interleave_{groups}", lambda name, width: _emit(name, width, groups))

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        x, y = reads[0], writes[0]
        lines = batch * height
        # A load, a permutation or two, and a store for each vector.
        lines_of_chunk = cut_lines(lines, value_of(x.size) / find_width() * 4, site.workers)
        numbers = {
            "x": address_of(x), "x_image": x.strides[0], "x_row": x.strides[3], "x_pixel": x.strides[4], "x_group": x.strides[2],
            **list_strides("y", y), "rows": height, "pixels": width, "lines": lines, "lines_of_chunk": lines_of_chunk, "own": own,
        }  # fmt: skip
        row = tuple(numbers[key] for key in INTERLEAVE_PARAMETERS)
        return [NativeCall(kernel, row, -(-lines // lines_of_chunk), (x, y))]

    return Recipe((value,), bind, is_channels_last=True, kernels=(kernel,))


def _is_turned(array: Array) -> bool:
    """Says whether an array of (batch, channels, groups, height, width) has the channels of each group side by side in a pixel."""
    if array.ndim != 5 or array.itemsize != 4 or not 2 <= array.shape[2] <= _MOST_GROUPS or array.shape[1] < 2:
        return False
    _, channel, group, row, pixel = array.strides
    return channel == 4 and group >= 4 * array.shape[1] and min(row, pixel) >= 4 * array.shape[1] * array.shape[2]
