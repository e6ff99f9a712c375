"""The operators that the card has kernels of its own for: products by GEMM, convolution as columns and GEMM, rows in one kernel.

`take_operators` gives such nodes the plugin's domain, where their types are known to fit; all others run the toolkit. Sums are float32
whatever the elements are, and each result is rounded once. Where a card compiles nothing, formulas of the toolkit stand in for the
hand-made kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from hetero_core.kernels.operators.convolution import convolve
from hetero_core.kernels.operators.normalization import layer_normalization
from hetero_core.kernels.operators.reductions import softmax_of
from hetero_core.kernels.precision import Array, Namespace, narrow, widen
from hetero_core.kernels.windows import Windows, lay_windows
from hetero_core.network.graph import Network, Node
from hetero_core.transforms.rewrite import Replacement, replace_nodes
from hetero_cupy.kernel_texts import (
    THREADS,
    CudaText,
    Geometry,
    write_columns,
    write_depthwise,
    write_layer_normalization,
    write_softmax,
)
from hetero_cupy.runtime import Card, Launch
from hetero_cupy.value_types import find_shaped_type, name_dtype

DOMAIN = "hetero.gpu"
"""The domain of nodes that this plugin makes; no model can bring one that runs, since it has no schema."""

_ELEMENTS = frozenset({"float32", "float16", "bfloat16"})
_MOST_BLOCKS = 1 << 16
_COLUMN_BYTES = 1 << 30
"""Bytes that the columns of a convolution may take at once; more images are computed in turns."""


def take_operators(network: Network) -> Network:
    """Returns the network with the nodes in the plugin's domain for which the card has an operator of its own."""

    def find(node: Node) -> Replacement | None:
        types = [find_shaped_type(network, value) for value in node.inputs if value]
        known = [value_type for value_type in types if value_type is not None and value_type.dtype in _ELEMENTS]
        if node.domain or node.op_type not in _FITS or len(known) != len(types) or not known:
            return None
        if not _FITS[node.op_type](node, [len(value_type.shape or ()) for value_type in known]):
            return None
        # Only the parameters of a normalization may be of another type than the rest.
        if node.op_type != "LayerNormalization" and len({value_type.dtype for value_type in known}) != 1:
            return None
        return Replacement((replace(node, domain=DOMAIN),))

    return replace_nodes(network, find)


_FITS: Mapping[str, Callable[[Node, list[int]], bool]] = {
    "Conv": lambda node, ranks: ranks[:2] in ([3, 3], [4, 4]),
    "Gemm": lambda node, ranks: node.since_version >= 7,
    "LayerNormalization": lambda node, ranks: (
        node.attributes.get("axis", -1) in (-1, ranks[0] - 1)
        and node.attributes.get("stash_type", 1) == 1
        and len(node.writes) == 1
        and len(ranks) == 3
        and ranks[1:] == [1, 1]
    ),
    "MatMul": lambda node, ranks: min(ranks) >= 2,
    "Softmax": lambda node, ranks: (
        node.since_version >= 13 and node.attributes.get("axis", -1) in (-1, ranks[0] - 1) and ranks[0] > 0
    ),
}


@dataclass(frozen=True, slots=True)
class CardOperator:
    """An operator as the toolkit calls those that it does not have."""

    function: Callable[..., Any]


class CardOperators:
    """The operators of one network on a card; compiles each text once."""

    def __init__(self, card: Card, *, uses_tf32: bool) -> None:
        self._card = card
        self._xp: Namespace = card.xp
        self.uses_tf32 = uses_tf32
        self._compiled: dict[str, Launch | None] = {}

    def list_extensions(self) -> dict[tuple[str, str], CardOperator]:
        """Returns what a compiled program calls, by domain and operator."""
        functions: dict[str, Callable[..., Any]] = {
            "Conv": self.convolve,
            "Gemm": self.compute_gemm,
            "LayerNormalization": self.normalize_rows,
            "MatMul": self.multiply,
            "Softmax": self.compute_softmax,
        }
        return {(DOMAIN, name): CardOperator(function) for name, function in functions.items()}

    def multiply(self, a: Array, b: Array) -> Array:
        """Returns the product of the last two axes, the others broadcast. Source: ONNX MatMul-13."""
        return self._card.multiply(a, b, uses_tf32=self.uses_tf32)

    def compute_gemm(
        self,
        a: Array,
        b: Array,
        c: Array | None = None,
        *,
        alpha: float = 1.0,
        beta: float = 1.0,
        transA: int = 0,  # noqa: N803  # ONNX's name
        transB: int = 0,  # noqa: N803  # ONNX's name
    ) -> Array:
        """Returns alpha * A @ B + beta * C. Source: ONNX Gemm-13."""
        y = self.multiply(a.T if transA else a, b.T if transB else b)
        if alpha != 1:
            y = narrow(widen(y) * alpha, a.dtype)
        if c is None or beta == 0:
            return y
        return y + (c if beta == 1 else narrow(widen(c) * beta, a.dtype))

    def convolve(
        self,
        x: Array,
        w: Array,
        b: Array | None = None,
        *,
        group: int = 1,
        kernel_shape: tuple[int, ...] | None = None,
        **geometry: Any,
    ) -> Array:
        """Returns the cross-correlation of x with w, plus b for each output channel. Source: ONNX Conv-22."""
        windows = lay_windows(x.shape[2:], w.shape[2:], **geometry)
        y = self._convolve(x, w, windows, group)
        return y if b is None else y + b.reshape((-1, *(1,) * len(windows.sizes)))

    def _convolve(self, x: Array, w: Array, windows: Windows, group: int) -> Array:
        (batch, channels), outputs = x.shape[:2], w.shape[0]
        if not x.size or not w.size:
            return narrow(convolve(self._xp, widen(x), widen(w), windows, group), x.dtype)
        if group == channels == outputs and not windows.is_pointwise:
            return self._convolve_depthwise(x, w, windows)
        filters = w.reshape(group, outputs // group, -1)
        if windows.is_pointwise:
            y = self._multiply_groups(filters, x.reshape(batch, group, channels // group, -1))
            return y.reshape((batch, outputs, *windows.outputs))
        image_bytes = channels * prod(windows.kernel) * prod(windows.outputs) * x.dtype.itemsize
        images = max(_COLUMN_BYTES // max(image_bytes, 1), 1)
        parts = [
            self._multiply_groups(filters, self._lay_columns(x[begin : begin + images], windows, group))
            for begin in range(0, batch, images)
        ]
        y = parts[0] if len(parts) == 1 else self._xp.concatenate(parts)
        return y.reshape((batch, outputs, *windows.outputs))

    def _multiply_groups(self, filters: Array, columns: Array) -> Array:
        """Returns (batch, group, outputs / group, positions). One GEMM for each group, batched over the images."""
        if filters.shape[0] == 1:
            return self.multiply(filters[0], columns[:, 0])
        parts = [self.multiply(filters[index], columns[:, index]) for index in range(filters.shape[0])]
        return self._xp.stack(parts, axis=1)

    def _lay_columns(self, x: Array, windows: Windows, group: int) -> Array:
        """Returns (images, group, channels / group * taps, positions)."""
        images, channels = x.shape[:2]
        shape = (images, group, channels // group * prod(windows.kernel), prod(windows.outputs))
        launch = self._compile(write_columns(name_dtype(x), _describe(windows)))
        if launch is not None:
            columns = self._xp.empty(shape, dtype=x.dtype)
            _launch_each(launch, (self._lay_out(x), columns), columns.size, channels, windows)
            return columns
        taps = self._xp.empty((images, channels, prod(windows.kernel), *windows.outputs), dtype=x.dtype)
        padded = windows.pad(self._xp, x, 0)
        for index, (_, picked) in enumerate(windows.slices()):
            taps[:, :, index] = padded[(slice(None), slice(None), *picked)]
        return taps.reshape(shape)

    def _convolve_depthwise(self, x: Array, w: Array, windows: Windows) -> Array:
        launch = self._compile(write_depthwise(name_dtype(x), _describe(windows)))
        if launch is None:
            return narrow(convolve(self._xp, widen(x), widen(w), windows, x.shape[1]), x.dtype)
        y = self._xp.empty((*x.shape[:2], *windows.outputs), dtype=x.dtype)
        _launch_each(launch, (self._lay_out(x), self._lay_out(w), y), y.size, x.shape[1], windows)
        return y

    def compute_softmax(self, x: Array, *, axis: int = -1) -> Array:
        """Returns exp(x - max(x)) / sum(exp(x - max(x))) over the last axis. Source: ONNX Softmax-13."""
        if not x.size:
            return x
        launch = self._compile(write_softmax(name_dtype(x)))
        if launch is None:
            return narrow(softmax_of(self._xp, widen(x), -1), x.dtype)
        y = self._xp.empty(x.shape, dtype=x.dtype)
        rows, width = x.size // x.shape[-1], x.shape[-1]
        launch(min(rows, _MOST_BLOCKS), THREADS, (self._lay_out(x), y, np.int64(rows), np.int32(width)))
        return y

    def normalize_rows(
        self, x: Array, scale: Array, bias: Array, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
    ) -> Array:
        """Returns x normalized over the last axis. Source: ONNX LayerNormalization-17."""
        fits = scale.dtype == bias.dtype and scale.shape == bias.shape == x.shape[-1:]
        launch = self._compile(write_layer_normalization(name_dtype(x), name_dtype(scale))) if x.size and fits else None
        if launch is None:
            return layer_normalization(self._xp, x, scale, bias, axis=axis, epsilon=epsilon, stash_type=stash_type)[0]
        y = self._xp.empty(x.shape, dtype=x.dtype)
        rows, width = x.size // x.shape[-1], x.shape[-1]
        arrays = (self._lay_out(x), self._lay_out(scale), self._lay_out(bias), y)
        launch(min(rows, _MOST_BLOCKS), THREADS, (*arrays, np.int64(rows), np.int32(width), np.float32(epsilon)))
        return y

    def _lay_out(self, x: Array) -> Array:
        return x if x.flags.c_contiguous else self._xp.ascontiguousarray(x)

    def _compile(self, text: CudaText) -> Launch | None:
        if text.name not in self._compiled:
            self._compiled[text.name] = self._card.compile_kernel(text.name, text.source)
        return self._compiled[text.name]


def _describe(windows: Windows) -> Geometry:
    """Returns the windows of one or two axes as windows of two axes."""

    def pair(sizes: tuple[int, ...], filler: int) -> tuple[int, int]:
        return (filler, sizes[0]) if len(sizes) == 1 else (sizes[0], sizes[1])

    begins = tuple(begin for begin, _ in windows.pads)
    return Geometry(pair(windows.kernel, 1), pair(windows.strides, 1), pair(windows.dilations, 1), pair(begins, 0))


def _launch_each(launch: Launch, arrays: tuple[Array, ...], count: int, channels: int, windows: Windows) -> None:
    """Launches a kernel with a thread for each element of its result, in turns where these are too many."""
    height, width = (1, *windows.sizes) if len(windows.sizes) == 1 else windows.sizes
    out_height, out_width = (1, *windows.outputs) if len(windows.outputs) == 1 else windows.outputs
    sizes = (np.int32(size) for size in (channels, height, width, out_height, out_width))
    launch(min(-(-count // THREADS), _MOST_BLOCKS), THREADS, (*arrays, np.int64(count), *sizes))
