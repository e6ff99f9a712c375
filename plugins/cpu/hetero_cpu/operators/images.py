"""Shared parts of the ways of computing a convolution: its geometry and its packed weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from math import prod
from typing import Any

import numpy as np

from hetero_core.kernels.windows import AUTO_PADS, Windows, lay_windows
from hetero_cpu.machine.calls import Array, NativeCall, address_of, list_strides
from hetero_cpu.machine.code import FLOAT_BYTES, HALF_BYTES, Code
from hetero_cpu.machine.compiler import Kernel
from hetero_cpu.machine.memory import align
from hetero_cpu.machine.terms import Floats, Mask, Number
from hetero_cpu.operators.layout import interleave
from hetero_cpu.operators.recipe import NO_HALO, Halo, Site
from hetero_cpu.operators.rows import make_unit_kernel
from hetero_cpu.operators.weights import LazyArray
from hetero_cpu.symbols.arrays import lay_table
from hetero_cpu.symbols.sizes import is_open, is_same

_ATTRIBUTES = {"auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"}


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution of two or three spatial axes, without its weights: a recipe must not keep them.

    A volume is convolved plane by plane, each an image whose filters have further taps in other planes: `windows` are those of the
    planes, `depths` those along the depth. A volume whose planes are convolved by themselves and lie at equal distances `is_joined`: the
    planes of the whole batch are images.
    """

    site: Site
    windows: Windows
    channels: int
    outputs: int
    group: int
    batch: int
    depths: Windows | None = None
    is_joined: bool = False

    @property
    def source(self) -> str:
        """The value that is convolved."""
        return self.site.node.inputs[0]

    @property
    def has_planes_alone(self) -> bool:
        """Whether each result is made of a single image, or of a single plane of a volume."""
        return self.depths is None or self.depths.is_pointwise

    @property
    def planes(self) -> tuple[int, int]:
        """The images of an array of `list_planes`, and those of its result."""
        if self.depths is None:
            return self.batch, self.batch
        return (self.batch * self.depths.sizes[0],) * 2 if self.is_joined else (self.depths.sizes[0], self.depths.outputs[0])

    def count_lines(self, *, is_flat: bool) -> tuple[int, int]:
        """Returns the lines that the pixels of the results are, and the pixels of each: rows or, if it `is_flat`, whole images or all."""
        (rows, columns), images = self.windows.outputs, self.planes[1]
        if not is_flat:
            return images * rows, columns
        # Planes that are convolved together are lines of their own.
        return (1, images * rows * columns) if self.has_planes_alone else (images, rows * columns)

    @property
    def depth_halo(self) -> tuple[int, int]:
        """The planes of zeros that windows read before and behind those of a volume."""
        return (0, 0) if self.depths is None else (max(self.depths.pads[0][0], 0), _find_end(self.depths, 0))

    @property
    def depth_taps(self) -> range:
        """The taps along the depth."""
        return range(1 if self.depths is None else self.depths.kernel[0])

    def list_planes(self, array: Array) -> list[Array]:
        """Returns an array of source or result as images, (planes, channels, height, width): those that are computed together."""
        if self.depths is None:
            return [array]
        return [join_planes(array)] if self.is_joined else [array[index].transpose(1, 0, 2, 3) for index in range(array.shape[0])]

    def stage(self, halo: Halo, kernel: Kernel, numbers: int, dtype: type[np.generic] = np.float32) -> Staging:
        """Returns the staging of the source with a halo, by so many numbers of a pixel."""
        (height, width), (front, back) = self.windows.sizes, self.depth_halo
        shape = (front + self.planes[0] + back, halo.top + height + halo.bottom, halo.left + width + halo.right, numbers)
        return Staging(halo, front, shape, kernel, dtype)

    def bind_planes(self, arrays: Sequence[Array], bind: Callable[..., list[NativeCall]]) -> list[NativeCall]:
        """Returns the calls that `bind` returns for the images of source, result and addend that are computed together."""
        planes = map(self.list_planes, arrays)
        return [call for images in zip(*planes, strict=True) for call in bind(*images)]

    def pick_planes(self, images: Array, tap: int = 0) -> Array:
        """Returns the images of the source, its `depth_halo` included, that a tap of the depth reads: an image for each result."""
        if self.depths is None or self.has_planes_alone:
            return images
        begin = tap * self.depths.dilations[0] - min(self.depths.pads[0][0], 0)
        return images[begin :: self.depths.strides[0]][: self.depths.outputs[0]]

    @property
    def weight(self) -> Array:
        """The weights (outputs, channels / group, [depth,] height, width), there while the network is planned."""
        weight = self.site.constant(1)
        assert weight is not None
        return weight

    def pack_lazily(self, purpose: tuple[object, ...], make: Callable[..., Array]) -> LazyArray:
        """Returns the promise of the weights in another form."""
        return self.site.weights.pack_lazily((self.weight,), purpose, make)


def read_convolution(site: Site, *, of_bytes: bool = False) -> Convolution | None:
    """Returns the geometry of a Conv node; None if it has not two or three dimensions, its weights are computed, or it is not float32.

    `of_bytes`: whether the image may be held as bytes.
    """
    node, weight = site.node, site.constant(1)
    if weight is None or weight.ndim not in (4, 5) or weight.dtype != np.float32 or not set(node.attributes) <= _ATTRIBUTES:
        return None
    bias, holds_numbers = site.constant(2), site.holds_numbers if of_bytes else site.is_float32
    if not holds_numbers(node.inputs[0]) or (site.has_input(2) and (bias is None or bias.dtype != weight.dtype)):
        return None
    shape, group = site.shape(node.inputs[0]), int(node.attributes.get("group", 1))
    geometry = {name: node.attributes[name] for name in ("auto_pad", "pads", "strides", "dilations") if name in node.attributes}
    if len(shape) != weight.ndim or shape[1] != weight.shape[1] * group or geometry.get("auto_pad", "NOTSET") not in AUTO_PADS:
        return None
    windows = lay_windows(shape[2:], weight.shape[2:], **geometry)
    expected = site.types[site.group.outputs[0]].shape
    if expected != (shape[0], weight.shape[0], *windows.outputs) or 0 in expected or weight.shape[0] % group:
        return None
    convolution = Convolution(site, windows, shape[1], int(weight.shape[0]), group, shape[0])
    if weight.ndim == 4:
        return convolution
    depths, windows = pick_axes(windows, slice(0, 1)), pick_axes(windows, slice(1, 3))
    # In C order the last plane of a volume and the first plane of the next are not a plane apart.
    values = (node.inputs[0], *(extra.value for extra in site.group.epilogue if extra.value and extra.value not in site.constants))
    is_joined = depths.is_pointwise and all(may_join(site.prototypes[value]) for value in values)
    return replace(convolution, windows=windows, depths=depths, is_joined=is_joined)


def pick_axes(windows: Windows, axes: slice) -> Windows:
    """Returns the windows along some of the spatial axes alone."""
    return Windows(*(field[axes] for field in _list_fields(windows)))


def stack_axes(first: Windows, second: Windows) -> Windows:
    """Returns the windows along the axes of both."""
    return Windows(*(own + other for own, other in zip(_list_fields(first), _list_fields(second), strict=True)))


def _list_fields(windows: Windows) -> tuple[tuple[Any, ...], ...]:
    # `astuple` copies, and a size that is a symbol must stay itself.
    return tuple(getattr(windows, field.name) for field in fields(windows))


def join_planes(array: Array) -> Array:
    """Returns volumes (batch, channels, depth, height, width) as images (batch * depth, channels, height, width); images as they are."""
    if array.ndim == 4:
        return array
    _, channels, _, height, width = array.shape
    return array.transpose(0, 2, 1, 3, 4).reshape(-1, channels, height, width)


def join_rows(array: Array) -> Array:
    """Returns the planes of volumes below each other, (batch, channels, depth * height, width); images as they are."""
    return array if array.ndim == 4 else array.reshape(*array.shape[:2], -1, array.shape[4])


def join_pixels(array: Array) -> Array:
    """Returns volumes with a row for each plane: (batch, channels, depth, height * width)."""
    return array.reshape(*array.shape[:3], -1)


def may_join(array: Array) -> bool:
    """Says whether volumes lie in memory so that all of their planes are images at equal distances."""
    return array.ndim == 5 and bool(np.may_share_memory(join_planes(array), array))


def has_channel_vectors(array: Array, *, of_bytes: bool = False) -> bool:
    """Says whether the channels of each pixel of images or volumes, of float32 or `of_bytes`, lie side by side."""
    dtype = np.uint8 if of_bytes else np.float32
    return array.ndim in (4, 5) and array.dtype == dtype and (array.strides[1] == array.itemsize or array.shape[1] == 1)


def is_whole(array: Array) -> bool:
    """Says whether an array has whole numbers alone; reads few elements of most other arrays."""
    first = array.reshape(-1)[:64]
    return bool(np.array_equal(first, np.rint(first)) and np.array_equal(array, np.rint(array)))


def is_even(array: Array) -> bool:
    """Says whether the pixels of all images, or of all volumes, lie at equal distances."""
    if array.ndim == 5:
        return may_join(array) and is_even(join_planes(array))
    batch, _, height, width = array.shape
    image, _, row, pixel = array.strides
    return bool((height == 1 or row == width * pixel) and (batch == 1 or image == height * width * pixel))


def lay_offsets(windows: Windows, row: int, pixel: int, columns: int, depths: Sequence[int] = (0,)) -> Array:
    """Returns how far the taps of a window lie behind its first one, in bytes: those of all rows and the first columns of the kernel, in
    each of the planes that are `depths` behind the first."""
    down, right = windows.dilations
    places = list(np.ndindex(windows.kernel[0], columns))
    offsets: Array = lay_table(_make_offsets, [depth + i * down * row + j * right * pixel for depth in depths for i, j in places])
    return offsets


def _make_offsets(*offsets: int) -> Array:
    return np.array(offsets, np.int64)


def find_overhang(windows: Windows, size: int = 0) -> Halo:
    """Returns the pixels beyond each side of the image that windows read, or Winograd's tiles of `size` x `size` results."""
    (top, _), (left, _) = windows.pads
    bottom, right = (_find_end_of_tiles(windows, axis, size) if size else _find_end(windows, axis) for axis in (0, 1))
    return Halo(max(top, 0), max(left, 0), bottom, right)


def _find_end_of_tiles(windows: Windows, axis: int, size: int) -> int:
    side = windows.outputs[axis]
    # Of a symbol the last tile reaches as far as any does.
    whole = side + size - 1 if is_open(side) else -(-side // size) * size
    return int(max(whole + 2 - max(windows.pads[axis][0], 0) - windows.sizes[axis], 0))


def _find_end(windows: Windows, axis: int) -> int:
    size, (begin, end), stride = windows.sizes[axis], windows.pads[axis], windows.strides[axis]
    if not is_open(size):
        return max(windows.reach[axis] - begin - size, 0)
    # Of a symbol as far as any reaches: to the end of the pads, or with ceil_mode less than a stride beyond it.
    extent = (windows.kernel[axis] - 1) * windows.dilations[axis] + 1
    is_within = is_same(windows.outputs[axis], (size + begin + end - extent) // stride + 1)
    return int(max(end, 0) if is_within else max(end, 0) + stride - 1)


STAGED_ROWS = 8
# Channels of a plain image.
_MOST_INTERLEAVED = 4

STAGE_PARAMETERS = (
    "x", "x_image", "x_row", "x_pixel", "x_channel", "y", "y_image", "y_row", "y_pixel",
    "front", "images", "rows", "height", "top", "width", "left", "right", "channels", "lines_of_chunk", "lines", "shift",
)  # fmt: skip
"""Addresses and strides in bytes; `images` of x after `front` of zeros; `rows` of an image of y with its halo, of which `height` after
the first `top` are of x; `width` pixels of x after `left` of zeros and before `right`; `shift`: that of bytes, see `narrow_product`."""


@dataclass(frozen=True, slots=True)
class Staging:
    """Images that are copied behind `front` of zeros, with a `halo` around each. shape: (images, height, width, channels) with them."""

    halo: Halo
    front: int
    shape: tuple[int, int, int, int]
    kernel: Kernel
    dtype: type[np.generic] = np.float32
    rows_of_chunk: int = STAGED_ROWS

    @property
    def nbytes(self) -> int:
        """The bytes of the copies."""
        return align(prod(self.shape) * np.dtype(self.dtype).itemsize)


@dataclass(frozen=True, slots=True)
class _Numbers:
    """The numbers of copies: float32, bfloat16, or bytes, as int8 or int16, which are larger by a shift. Those of x may be bytes already,
    with the same shift."""

    dtype: str = "float32"
    of_bytes: bool = False

    @property
    def x_bytes(self) -> int:
        return 1 if self.of_bytes else FLOAT_BYTES

    @property
    def y_bytes(self) -> int:
        return {"float32": FLOAT_BYTES, "int8": 1}.get(self.dtype, HALF_BYTES)

    def store(self, code: Code, p: dict[str, Number], y: Number, values: Floats, mask: Mask | None, *, shifts: bool = True) -> None:
        """Writes values; bytes are shifted first."""
        if self.dtype == "float32":
            code.store(y, values, mask=mask)
        elif self.dtype == "bfloat16":
            code.store_half(y, values, "bfloat16", mask=mask)
        else:
            if shifts:
                shift = code.load_scalar(p["shift"])
                values = values + (shift if values.width == 1 else code.spread(shift))
            code.store_whole(y, values, "bytes" if self.dtype == "int8" else "words", mask=mask)

    def copy(self, code: Code, p: dict[str, Number], x: Number, y: Number, count: Number) -> None:
        """Copies numbers that lie side by side."""

        def copy_vector(element: Number, mask: Mask | None) -> None:
            source = x + element * self.x_bytes
            values = code.load_bytes(source, code.width, mask=mask) if self.of_bytes else code.load(source, mask=mask)
            self.store(code, p, y + element * self.y_bytes, values, mask, shifts=not self.of_bytes)

        if self.of_bytes and self.y_bytes == 1:
            # Bytes are copied four to a float32.
            quick = count - count % (FLOAT_BYTES * code.width)
            with code.loop(0, quick, FLOAT_BYTES * code.width) as place:
                code.store(y + place, code.load(x + place))
            x, y, count = x + quick, y + quick, count - quick
        code.visit_vectors(count, copy_vector)

    def copy_one(self, code: Code, p: dict[str, Number], x: Number, y: Number) -> None:
        """Copies a number."""
        values = code.load_bytes(x, 1) if self.of_bytes else code.load_scalar(x)
        self.store(code, p, y, values, None, shifts=not self.of_bytes)

    def clear(self, code: Code, p: dict[str, Number], y: Number, nbytes: Number) -> None:
        """Writes zeros over so many bytes."""
        zeros = code.constant(0.0)
        code.visit_vectors(nbytes // self.y_bytes, lambda i, mask: self.store(code, p, y + i * self.y_bytes, zeros, mask))

    def fill_up(self, code: Code, p: dict[str, Number], pixel: Number) -> None:
        """Writes zeros behind the channels of a pixel of bfloat16."""
        if self.dtype == "bfloat16":
            end = p["channels"] * self.y_bytes
            self.clear(code, p, pixel + end, p["y_pixel"] - end)


_EmitRow = Callable[[Code, dict[str, Number], Number, Number, _Numbers], None]


def make_stage(x: Array, dtype: str = "float32") -> Kernel:
    """Returns the kernel that copies images like x, (batch, channels, height, width), into the middle of larger images with zeros around,
    as numbers of a type.

    A chunk is a range of rows. Channels that lie side by side are copied as they are; of few, each in C order, vectors are interleaved.
    """
    channels, numbers = x.shape[1], _Numbers(dtype, x.itemsize == 1)
    copy: _EmitRow = _copy_planes
    title = "planes"
    if x.strides[1] == x.itemsize or channels == 1:
        copy, title = _copy_pixels, "pixels"
    elif dtype == "float32" and channels <= _MOST_INTERLEAVED and x.strides[3] == FLOAT_BYTES:
        # Compiled in: a size that is open has this value from here on.
        planes = int(channels)
        copy, title = partial(_interleave_planes, channels=planes), f"{planes}_planes"
    title = f"stage_{title}{f'_{dtype}' * (dtype != 'float32')}{'_of_bytes' * numbers.of_bytes}"
    return make_unit_kernel(title, STAGE_PARAMETERS, partial(_emit_stage, numbers=numbers, copy=copy), unit="line")


def _emit_stage(code: Code, p: dict[str, Number], line: Number, *, numbers: _Numbers, copy: _EmitRow | None) -> None:
    """Emits a row of a staging, which `copy` copies from an address to an address; without it only what lies around is written."""
    number, place = line // p["rows"], line % p["rows"]
    y, image = p["y"] + number * p["y_image"] + place * p["y_row"], number - p["front"]
    inside = (place >= p["top"]) & (place < p["top"] + p["height"]) & (image >= 0) & (image < p["images"])
    with code.either(inside) as (copied, cleared):
        with copied:
            numbers.clear(code, p, y, p["left"] * p["y_pixel"])
            start = y + p["left"] * p["y_pixel"]
            if copy is not None:
                copy(code, p, p["x"] + image * p["x_image"] + (place - p["top"]) * p["x_row"], start, numbers)
            numbers.clear(code, p, start + p["width"] * p["y_pixel"], p["right"] * p["y_pixel"])
        with cleared:
            numbers.clear(code, p, y, (p["left"] + p["width"] + p["right"]) * p["y_pixel"])


def _copy_pixels(code: Code, p: dict[str, Number], x: Number, y: Number, numbers: _Numbers) -> None:
    is_dense = p["x_pixel"].equals(p["channels"] * numbers.x_bytes) & p["y_pixel"].equals(p["channels"] * numbers.y_bytes)
    with code.either(is_dense) as (dense, sparse):
        with dense:
            numbers.copy(code, p, x, y, p["width"] * p["channels"])
        with sparse, code.loop(0, p["width"]) as pixel:
            target = y + pixel * p["y_pixel"]
            numbers.copy(code, p, x + pixel * p["x_pixel"], target, p["channels"])
            numbers.fill_up(code, p, target)


def _interleave_planes(code: Code, p: dict[str, Number], x: Number, y: Number, numbers: _Numbers, *, channels: int) -> None:
    width = code.width
    even = p["width"] - p["width"] % width
    with code.loop(0, even, width) as pixel:
        planes = [code.load(x + pixel * FLOAT_BYTES + p["x_channel"] * channel) for channel in range(channels)]
        for number, vector in enumerate(interleave(planes)):
            code.store(y + pixel * (channels * FLOAT_BYTES), vector, number * width * FLOAT_BYTES)
    _copy_planes(code, p, x, y, numbers, even)


def _copy_planes(code: Code, p: dict[str, Number], x: Number, y: Number, numbers: _Numbers, begin: Number | int = 0) -> None:
    with code.loop(begin, p["width"]) as pixel:
        source, target = x + pixel * p["x_pixel"], y + pixel * p["y_pixel"]
        with code.loop(0, p["channels"]) as channel:
            numbers.copy_one(code, p, source + channel * p["x_channel"], target + channel * numbers.y_bytes)
        numbers.fill_up(code, p, target)


CLEAR = make_unit_kernel("clear_halo", STAGE_PARAMETERS, partial(_emit_stage, numbers=_Numbers(), copy=None), unit="line")
"""The kernel that writes the zeros around the images of an array; a chunk is an image."""


def bind_clear(shape: tuple[int, ...], halo: Halo, memory: Array) -> NativeCall:
    """Returns the call that writes the halo of images in `memory`, channels last. shape: (batch, channels, height, width) with the halo."""
    batch, channels, height, width = shape
    staging = Staging(halo, 0, (batch, height, width, channels), CLEAR, rows_of_chunk=height)
    images = memory[: prod(shape) * FLOAT_BYTES].view(np.float32).reshape(staging.shape)
    inner = images[:, halo.top : height - halo.bottom, halo.left : width - halo.right].transpose(0, 3, 1, 2)
    (call,), _ = bind_staging(staging, inner, memory)
    return call


def emit_copy(code: Code, target: Number, source: Number, nbytes: Number) -> None:
    """Copies so many bytes, a multiple of four; both lie apart."""

    def copy(element: Number, mask: Mask | None) -> None:
        offset = element * FLOAT_BYTES
        code.store(target + offset, code.load(source + offset, mask=mask), mask=mask)

    code.visit_vectors(nbytes // FLOAT_BYTES, copy)


def stage_image(x: Array) -> Staging | None:
    """Returns how images like x, (batch, channels, height, width), are copied channels last; None if they lie so."""
    batch, channels, height, width = x.shape
    return None if has_channel_vectors(x) else Staging(NO_HALO, 0, (batch, height, width, channels), make_stage(x))


def bind_staging(staging: Staging | None, x: Array, scratch: Array, shift: Array | None = None) -> tuple[list[NativeCall], Array]:
    """Returns the call that copies x, if it is staged, and the images (batch, channels, height, width) that are read instead."""
    if staging is None:
        return [], x
    halo, nbytes = staging.halo, prod(staging.shape) * np.dtype(staging.dtype).itemsize
    staged = scratch[:nbytes].view(staging.dtype).reshape(staging.shape)
    inner = staged[:, halo.top : halo.top + x.shape[2], halo.left : halo.left + x.shape[3]].transpose(0, 3, 1, 2)
    images, channels, height, width = x.shape
    rows = staged.shape[0] * staged.shape[1]
    numbers = {
        **list_strides("x", x), "x_channel": x.strides[1],
        "y": address_of(staged), "y_image": staged.strides[0], "y_row": staged.strides[1], "y_pixel": staged.strides[2],
        "front": staging.front, "images": images, "rows": staged.shape[1], "height": height, "top": halo.top, "width": width,
        "left": halo.left, "right": halo.right, "channels": channels, "lines_of_chunk": staging.rows_of_chunk, "lines": rows,
        "shift": 0 if shift is None else address_of(shift),
    }  # fmt: skip
    row = tuple(numbers[key] for key in STAGE_PARAMETERS)
    return [NativeCall(staging.kernel, row, -(-rows // staging.rows_of_chunk), (x, staged, shift))], inner
