"""Networks of a table and products with weights in blocks of a few bits, and their evaluation in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
_MICROSOFT = "com.microsoft"


@dataclass
class BlockNetwork:
    """y = layers of h = Relu(h @ w) + h @ v of the rows of a table; the number of rows is open."""

    width: int
    inner: int
    layers: int
    vocabulary: int = 100
    bits: int = 4
    block: int = 32
    has_zeros: bool = False
    float_type: int = TensorProto.FLOAT
    seed: int = 0
    weights: dict[str, Array] = field(default_factory=dict)
    """The restored weights, (columns, depth) in float64."""
    constants: list[onnx.TensorProto] = field(default_factory=list)

    def make(self) -> onnx.ModelProto:
        """Returns the model: input "tokens" (1, rows), output "y" (1, rows, width)."""
        rng = np.random.default_rng(self.seed)
        table = {"block_size": self.block, "gather_axis": 0, "quantize_axis": 1, "bits": self.bits}
        names = self._draw(rng, "table", self.vocabulary, self.width)
        inputs = [names[0], "tokens", *names[1:]]
        nodes = [helper.make_node("GatherBlockQuantized", inputs, ["h0"], domain=_MICROSOFT, **table)]
        for layer in range(self.layers):
            up, down = f"up{layer}", f"down{layer}"
            nodes += [
                self._multiply(rng, f"h{layer}", up, self.inner, self.width),
                helper.make_node("Relu", [up], [f"relu{layer}"]),
                self._multiply(rng, f"relu{layer}", down, self.width, self.inner),
                helper.make_node("Add", [down, f"h{layer}"], [f"h{layer + 1}"]),
            ]
        nodes[-1].output[0] = "y"
        tokens = helper.make_tensor_value_info("tokens", TensorProto.INT64, [1, "rows"])
        y = helper.make_tensor_value_info("y", self.float_type, [1, "rows", self.width])
        graph = helper.make_graph(nodes, "blocks", [tokens], [y], self.constants)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid(_MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def evaluate(self, tokens: Sequence[int]) -> Array:
        """Returns y of (1, rows, width) in float64."""
        h = self.weights["table"][np.asarray(tokens)]
        for layer in range(self.layers):
            h = h + np.maximum(h @ self.weights[f"up{layer}"].T, 0) @ self.weights[f"down{layer}"].T
        return h[None]

    def _multiply(self, rng: np.random.Generator, x: str, y: str, columns: int, depth: int) -> onnx.NodeProto:
        codes, *rest = self._draw(rng, y, columns, depth)
        sizes = {"K": depth, "N": columns, "bits": self.bits, "block_size": self.block, "accuracy_level": 4}
        return helper.make_node("MatMulNBits", [x, codes, *rest], [y], domain=_MICROSOFT, **sizes)

    def _draw(self, rng: np.random.Generator, name: str, columns: int, depth: int) -> list[str]:
        blocks, count = -(-depth // self.block), 8 // self.bits
        shape = (columns, depth // count) if name == "table" else (columns, blocks, self.block // count)
        codes = rng.integers(0, 256, shape, np.uint8)
        scales = ((rng.random((columns, blocks)) + 0.5) / (2**self.bits * depth**0.5)).astype(np.float16).astype(np.float32)
        zeros = rng.integers(0, 256, (columns, -(-blocks // count)), np.uint8)
        points = self._unpack(zeros)[:, :blocks] if self.has_zeros else np.full((columns, blocks), 2 ** (self.bits - 1))
        spread = [np.repeat(array, self.block, axis=1)[:, :depth] for array in (points, scales.astype(np.float64))]
        self.weights[name] = (self._unpack(codes)[:, :depth] - spread[0]) * spread[1]
        half = helper.tensor_dtype_to_np_dtype(self.float_type)
        arrays = {f"{name}_codes": codes, f"{name}_scales": scales.astype(half), **({f"{name}_zeros": zeros} if self.has_zeros else {})}
        self.constants += [numpy_helper.from_array(array, key) for key, array in arrays.items()]
        return list(arrays)

    def _unpack(self, packed: Array) -> Array:
        shifts = np.arange(0, 8, self.bits)
        return (packed.reshape(len(packed), -1, 1).astype(np.int64) >> shifts & 2**self.bits - 1).reshape(len(packed), -1)
