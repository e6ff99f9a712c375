"""Channel shuffles of channels-last images: Reshape to groups, Transpose of groups and their channels, Reshape back.

Written so by exporters, it would bring the image into C order twice. Here the Transpose is a view, and the Reshape after it permutes
the channels of each pixel.
"""

from __future__ import annotations

from collections.abc import Sequence

from hetero_cpu.machine.chunks import choose_chunk_size
from hetero_cpu.machine.compiler import find_width
from hetero_cpu.machine.native import Array, NativeCall, address_of, list_strides, native_step
from hetero_cpu.open.sizes import value_of
from hetero_cpu.operators.shuffle.kernel import INTERLEAVE_PARAMETERS, make_interleave
from hetero_cpu.operators.windows.window_plan import count_chunks
from hetero_cpu.planning.recipe import Recipe, Site, Views

_MOST_GROUPS = 8
_PERM = (0, 2, 1, 3, 4)


@native_step("Transpose")
def plan_turned_groups(site: Site) -> Views | None:
    """Returns a view of (batch, groups, channels, height, width) with both axes of channels turned, where only a Reshape reads it."""
    (value,) = site.node.inputs
    if tuple(site.node.attributes.get("perm", ())) != _PERM or site.readers != ("Reshape",) or value in site.constants:
        return None
    return Views(value, (lambda array: array.transpose(_PERM),)) if _is_turned(site.prototypes[value].transpose(_PERM)) else None


@native_step("Reshape")
def plan_shuffle(site: Site) -> Recipe | None:
    """Returns the recipe of the second Reshape of a shuffle, which gives the groups' channels in turn."""
    value = site.node.inputs[0]
    x = site.prototypes[value]
    if not site.is_float32(value) or value in site.constants or not _is_turned(x) or find_width() == 0:
        return None
    batch, own, groups, height, width = x.shape
    if site.types[site.node.outputs[0]].shape != (batch, own * groups, height, width):
        return None
    kernel = make_interleave(groups)

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        x, y = reads[0], writes[0]
        lines = batch * height
        # A load, a permutation or two, and a store for each vector.
        lines_of_chunk = choose_chunk_size(
            lines, count_chunks(lines, value_of(x.size) / find_width() * 4, site.workers), site.workers
        )
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
