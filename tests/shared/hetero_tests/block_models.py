"""Weights in blocks of a few bits, drawn and restored in float64, and networks of a table and products with such weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
_MICROSOFT = "com.microsoft"


def pack_codes(codes: Array, bits: int) -> Array:
    """Returns codes as bytes along the last axis, the first in the lowest bits; a byte is filled up with the largest codes."""
    count = 8 // bits
    filled = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, -codes.shape[-1] % count)], constant_values=2**bits - 1)
    parts = filled.reshape((*codes.shape[:-1], -1, count)).astype(np.int64) << (np.arange(count) * bits)
    return np.asarray(parts.sum(-1).astype(np.uint8))


class Blocks:
    """Weights (columns, depth) in blocks along the depth, as a MatMulNBits reads them and, restored in float64, as `weights`."""

    def __init__(self, rng: np.random.Generator, columns: int, depth: int, *, bits: int, block: int, zeros: str = "none") -> None:
        """`zeros`: "none", "least", "largest", "drawn", or "floats" for zero points that are no codes."""
        blocks, top = -(-depth // block), 2**bits - 1
        codes = rng.integers(0, top + 1, (columns, blocks, block))
        points = {
            "none": np.full((columns, blocks), 2.0 ** (bits - 1)),
            "least": np.zeros((columns, blocks)),
            "largest": np.full((columns, blocks), float(top)),
            "drawn": rng.integers(0, top + 1, (columns, blocks)).astype(np.float64),
            "floats": rng.uniform(-3, top, (columns, blocks)).astype(np.float32).astype(np.float64),
        }[zeros]
        scales = (rng.random((columns, blocks)) + 0.5) * rng.choice([-1, 1], (columns, blocks)) / (2**bits * depth**0.5)
        self.codes, self.scales = pack_codes(codes, bits), scales.astype(np.float16).astype(np.float32)
        self.zeros = None if zeros == "none" else points.astype(np.float32) if zeros == "floats" else pack_codes(points, bits)
        numbers, spread = codes.reshape(columns, -1)[:, :depth], [points, self.scales.astype(np.float64)]
        points, factors = (np.repeat(array, block, axis=1)[:, :depth] for array in spread)
        self.weights = (numbers - points) * factors
        self.sizes = (numbers + abs(points)) * abs(factors)
        """The numbers that the sums of a kernel may have."""
        self.attributes = {"bits": bits, "block_size": block}


class BlockNetwork:
    """h = the rows of a table; for each layer h = Relu(h @ up) @ down + h. The number of rows is open."""

    def __init__(self, width: int, inner: int, layers: int, *, vocabulary: int = 100, float_type: int = 1, **form: Any) -> None:
        """`form`: that of `Blocks`."""
        self.float_type, self.layers, self.width, rng = float_type, layers, width, np.random.default_rng(0)
        form = {"bits": 4, "block": 32, **form}
        self.table = Blocks(rng, vocabulary, width, **form)
        sizes = [(inner, width), (width, inner)] * layers
        self.products = [Blocks(rng, *size, **form) for size in sizes]

    def make(self) -> onnx.ModelProto:
        """Returns the model: input "tokens" (1, rows), output "y" (1, rows, width)."""
        constants: list[onnx.TensorProto] = []

        def hold(blocks: Blocks, codes: Array, name: str) -> list[str]:
            scales = blocks.scales.astype(helper.tensor_dtype_to_np_dtype(self.float_type))
            arrays = {f"{name}c": codes, f"{name}s": scales, **({} if blocks.zeros is None else {f"{name}z": blocks.zeros})}
            constants.extend(numpy_helper.from_array(array, key) for key, array in arrays.items())
            return list(arrays)

        def multiply(x: str, place: int, y: str) -> onnx.NodeProto:
            blocks = self.products[place]
            columns, depth = blocks.weights.shape
            sizes = {"K": depth, "N": columns, "accuracy_level": 4, **blocks.attributes}
            return helper.make_node("MatMulNBits", [x, *hold(blocks, blocks.codes, y)], [y], domain=_MICROSOFT, **sizes)

        codes, *rest = hold(self.table, self.table.codes.reshape(len(self.table.codes), -1), "table")
        axes = {"gather_axis": 0, "quantize_axis": 1, **self.table.attributes}
        nodes = [helper.make_node("GatherBlockQuantized", [codes, "tokens", *rest], ["h0"], domain=_MICROSOFT, **axes)]
        for layer in range(self.layers):
            h, up, relu, down = (f"{name}{layer}" for name in ("h", "up", "relu", "down"))
            nodes += [multiply(h, 2 * layer, up), helper.make_node("Relu", [up], [relu]), multiply(relu, 2 * layer + 1, down)]
            nodes.append(helper.make_node("Add", [down, h], ["y" if layer == self.layers - 1 else f"h{layer + 1}"]))
        tokens = helper.make_tensor_value_info("tokens", TensorProto.INT64, [1, "rows"])
        y = helper.make_tensor_value_info("y", self.float_type, [1, "rows", self.width])
        graph = helper.make_graph(nodes, "blocks", [tokens], [y], constants)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid(_MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def evaluate(self, tokens: Sequence[int]) -> Array:
        """Returns y of (1, rows, width) in float64."""
        h = self.table.weights[np.asarray(tokens)]
        for up, down in zip(self.products[::2], self.products[1::2], strict=True):
            h = h + np.maximum(h @ up.weights.T, 0) @ down.weights.T
        return np.asarray(h[None])
