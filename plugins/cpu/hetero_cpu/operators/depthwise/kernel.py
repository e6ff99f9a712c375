"""The kernel of depthwise convolutions: each channel has a window of weights of its own.

y[r, c, k] = activation(bias[k] + sum over i, j of x[r * stride + i * dilation - pad, c * stride + j * dilation - pad, k] * w[i, j, k]
             + added[r, c, k])
"""

from __future__ import annotations

from math import prod

from hetero_cpu.machine.arithmetic import Activation, emit_activations
from hetero_cpu.machine.code import FLOAT_BYTES
from hetero_cpu.machine.compiler import Kernel
from hetero_cpu.machine.terms import Floats
from hetero_cpu.operators.windows.walk import TileCode, WindowBody, WindowShape, make_window_kernel

# Weights that stay in registers while a vector of channels is computed; more are read where they are used.
_HELD_WEIGHTS = 9


def make_depthwise(shape: WindowShape, activations: tuple[Activation, ...], *, adds: bool) -> Kernel:
    """Returns the kernel. Its weights are, for each vector of channels, the window, row by row, a vector each; whole vectors of bias."""
    name = "_".join(("depthwise", *(activation.name for activation in activations))) + "_a" * adds
    taps = prod(shape.kernel)
    body = WindowBody(name, taps, _emit_sums, adds=adds, finish=lambda code, x: emit_activations(code, activations, x))
    return make_window_kernel(shape, body)


def _emit_sums(at: TileCode) -> list[list[Floats]]:
    code, tile = at.code, at.tile
    vector_bytes = code.width * FLOAT_BYTES
    down, right = tile.shape.kernel

    def load_weight(i: int, j: int) -> Floats:
        return code.load(at.weights, (i * right + j) * vector_bytes)

    bias = code.load(at.bias)
    is_held = down * right <= _HELD_WEIGHTS
    held = {(i, j): load_weight(i, j) for i in range(down) for j in range(right)} if is_held else {}
    sums = [[bias] * tile.pixels for _ in range(tile.rows)]
    for y, row in enumerate(tile.list_positions(0)):
        for x, column in enumerate(tile.list_positions(1)):
            pixel = at.load(y, x)
            for r, i in tile.list_uses(0, row):
                for t, j in tile.list_uses(1, column):
                    sums[r][t] = code.multiply_add(pixel, held[i, j] if is_held else load_weight(i, j), sums[r][t])
    return sums
