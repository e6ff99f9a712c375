"""The inner kernel of every product: a tile of pixels and output channels that stays in registers.

y[m, n] = activation(bias[n] + sum over t, k of x[m, offset[t] + k] * w[t, k, n] + added[m, n])

for `pixels` values of m and `vectors` vectors of n. A convolution is the sum over its taps t, each of which reads `depth` channels at
its own offset; a matrix product has one tap. The elements of one m lie side by side in x; w is packed so that the n of one (t, k) do.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from hetero_cpu.machine.arithmetic import Activation, emit_activations
from hetero_cpu.machine.code import FLOAT_BYTES, Code
from hetero_cpu.machine.pointers import PixelPointers
from hetero_cpu.machine.terms import Number

_UNROLLED = 4
_CACHE_LINE = 64
# How far ahead weights are asked for that are read once, in one stream; more pixels leave the processor's own fetching less to go by.
_STREAM_BYTES, _STREAM_BYTES_OF_ONE_PIXEL = 4096, 512


@dataclass(frozen=True, slots=True)
class Tile:
    """The part of a tile that is fixed when it is compiled. A masked tile writes only the existing elements of its last vector."""

    pixels: int
    vectors: int
    prefetches: int = 0
    """Cache lines that are fetched ahead in each step of the inner loop: of the weights that come next, a part with each tile."""
    is_masked: bool = False
    adds: bool = False
    activations: tuple[Activation, ...] = ()
    streams: bool = False
    """Whether it asks for its own weights ahead: where no other tile uses them, they are what it waits for."""

    @property
    def name(self) -> str:
        """The kernel's name, which no kernel of other parameters has."""
        activations = "".join(f"_{activation.name}" for activation in self.activations)
        flags = f"p{self.prefetches}" * (self.prefetches > 0) + "m" * self.is_masked + "a" * self.adds + "r" * self.streams
        return f"{self.pixels}x{self.vectors}{flags}{activations}"


PARAMETERS = ("x", "x_pixel", "offsets", "taps", "depth", "w", "bias", "y", "y_pixel", "added", "added_pixel", "last", "ahead")
"""Addresses, strides in bytes and counts; `last` is the number of elements of the last vector, `ahead` what is fetched ahead."""


def _emit_tile(code: Code, *, tile: Tile) -> None:
    """Emits a function of PARAMETERS."""
    x, x_pixel, offsets, taps, depth, w, bias, y, y_pixel, added, added_pixel, last, ahead = code.parameters
    vector_bytes = code.width * FLOAT_BYTES
    step = tile.vectors * vector_bytes
    sums = [[code.variable(code.load(bias, j * vector_bytes)) for j in range(tile.vectors)] for _ in range(tile.pixels)]
    weights = code.variable(w)
    even = depth - depth % _UNROLLED
    fetched = code.variable(ahead)
    stream_bytes = _STREAM_BYTES_OF_ONE_PIXEL if tile.pixels == 1 else _STREAM_BYTES
    pixels = PixelPointers(code, x_pixel, tile.pixels)
    with code.loop(0, taps) as tap:
        start = x + code.load_number(offsets + tap * 8)
        pixels.begin(start)

        def advance(count: int) -> None:
            here = weights.get()
            bases = pixels.read()
            for k in range(count):
                rows = []
                for j in range(tile.vectors):
                    if tile.streams:
                        code.prefetch(here, k * step + j * vector_bytes + stream_bytes)
                    rows.append(code.load(here, k * step + j * vector_bytes))
                for m in range(tile.pixels):
                    scalar = code.spread(code.load_scalar(pixels.find(bases, m), k * FLOAT_BYTES))
                    for j in range(tile.vectors):
                        sums[m][j].set(code.multiply_add(scalar, rows[j], sums[m][j].get()))
            weights.set(here + count * step)
            pixels.move(bases, count * FLOAT_BYTES)

        with code.loop(0, even, _UNROLLED):
            if tile.prefetches:
                line = fetched.get()
                for number in range(tile.prefetches):
                    code.prefetch(line, number * _CACHE_LINE)
                fetched.set(line + tile.prefetches * _CACHE_LINE)
            advance(_UNROLLED)
        with code.loop(even, depth):
            advance(1)
    mask = code.mask_first(last) if tile.is_masked else None
    for m in range(tile.pixels):
        for j in range(tile.vectors):
            guard = mask if j == tile.vectors - 1 else None
            result = sums[m][j].get()
            if tile.adds:
                result = result + code.load(added + added_pixel * m, j * vector_bytes, mask=guard)
            result = emit_activations(code, tile.activations, result)
            code.store(y + y_pixel * m, result, j * vector_bytes, mask=guard)
    code.finish()


def call_tile(code: Code, tile: Tile, **arguments: Number | int) -> None:
    """Calls a tile, which is emitted when it is first called, with its PARAMETERS by name; what is not given is 0."""
    function = code.find_inner(f"tile_{tile.name}", len(PARAMETERS), partial(_emit_tile, tile=tile))
    code.call(function, *(arguments.get(name, 0) for name in PARAMETERS))
