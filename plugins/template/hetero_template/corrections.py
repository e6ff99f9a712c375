"""Operators that `onnx.reference` 1.23 computes wrongly, written again. Each names its fault; it can go when onnx has mended it.

Softmax, LogSoftmax, Hardmax before opset 13 work on the input flattened to two dimensions at `axis`, whose default is 1; the
evaluator knows only the later meaning. BatchNormalization 7 to 13 normalises with the stored statistics; the evaluator uses those of
the batch (9 to 13) or fails (7, 8). LRN goes over the channels; the evaluator goes over as many channels as the batch has images.
RegexFullMatch has expressions of RE2, which takes time linear in the text; the evaluator has Python's.
"""

from __future__ import annotations

from math import ceil, floor, prod
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

from hetero_core.kernels.expressions import compile_match

Array = np.ndarray[Any, Any]


def find_corrections(opset: int) -> tuple[type[OpRun], ...]:
    """Returns the operators that replace the evaluator's own in a graph of this opset of the default domain."""
    found: list[type[OpRun]] = [LRN, RegexFullMatch]
    if opset < 13:
        found += [Softmax, LogSoftmax, Hardmax]
    if 7 <= opset < 14:
        found.append(BatchNormalization)
    return tuple(found)


class RegexFullMatch(OpRun):
    """Source: ONNX RegexFullMatch-20, whose patterns are RE2's; the evaluator takes them for Python's."""

    op_domain = ""

    def _run(self, x: Array, pattern: str = "") -> tuple[Array]:
        matches = compile_match(pattern)
        return (np.array([matches(str(text)) for text in x.reshape(-1)], dtype=bool).reshape(x.shape),)


class LRN(OpRun):
    """Source: ONNX LRN-1, LRN-13: x / (bias + alpha / size * sum of squares over the neighbouring channels) ** beta."""

    op_domain = ""

    def _run(self, x: Array, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0, size: int = 1) -> tuple[Array]:
        channels = x.shape[1]
        squares = np.square(x)
        total = np.empty_like(x)
        for channel in range(channels):
            first = max(0, channel - floor((size - 1) / 2))
            last = min(channels - 1, channel + ceil((size - 1) / 2))
            total[:, channel] = squares[:, first : last + 1].sum(axis=1)
        return ((x / (bias + alpha / size * total) ** beta).astype(x.dtype),)


def _flatten(x: Array, axis: int) -> Array:
    axis = axis + x.ndim if axis < 0 else axis
    return x.reshape(prod(x.shape[:axis]), -1) if x.size else x.reshape(prod(x.shape[:axis]), prod(x.shape[axis:]))


class Softmax(OpRun):
    """Source: ONNX Softmax-1, Softmax-11."""

    op_domain = ""

    def _run(self, x: Array, axis: int = 1) -> tuple[Array]:
        flat = _flatten(x, axis)
        if not flat.size:
            return (x,)
        exponential = np.exp(flat - flat.max(axis=1, keepdims=True))
        return ((exponential / exponential.sum(axis=1, keepdims=True)).astype(x.dtype).reshape(x.shape),)


class LogSoftmax(OpRun):
    """Source: ONNX LogSoftmax-1, LogSoftmax-11."""

    op_domain = ""

    def _run(self, x: Array, axis: int = 1) -> tuple[Array]:
        flat = _flatten(x, axis)
        if not flat.size:
            return (x,)
        shifted = flat - flat.max(axis=1, keepdims=True)
        return ((shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))).astype(x.dtype).reshape(x.shape),)


class Hardmax(OpRun):
    """Source: ONNX Hardmax-1, Hardmax-11: one at the first greatest element, zero elsewhere."""

    op_domain = ""

    def _run(self, x: Array, axis: int = 1) -> tuple[Array]:
        flat = _flatten(x, axis)
        result = np.zeros_like(flat)
        if flat.size:
            result[np.arange(len(flat)), flat.argmax(axis=1)] = 1
        return (result.reshape(x.shape),)


class BatchNormalization(OpRun):
    """Source: ONNX BatchNormalization-7, BatchNormalization-9: inference, scale * (x - mean) / sqrt(var + epsilon) + bias."""

    op_domain = ""

    def _run(
        self,
        x: Array,
        scale: Array,
        bias: Array,
        mean: Array,
        var: Array,
        epsilon: float = 1e-5,
        momentum: float = 0.9,
        spatial: int = 1,
        training_mode: int = 0,
    ) -> tuple[Array]:
        # With spatial = 0 the statistics have the shape of one image; `evaluator` refuses it, and training outputs. The evaluator adds
        # training_mode from the newest version of the operator; here it is always 0.
        shape = (1, -1) + (1,) * (x.ndim - 2)
        scale, bias, mean, var = (value.reshape(shape) for value in (scale, bias, mean, var))
        return ((scale * (x - mean) / np.sqrt(var + epsilon) + bias).astype(x.dtype),)
