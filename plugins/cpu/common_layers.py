"""The kernels that a wheel of hetero-cpu brings along: those of common layers, compiled for a level of x86-64.

    python common_layers.py x86-64-v4 FOLDER

Plans each network below for the sizes at its side, once with open sizes and once with these alone, and compiles each kernel that the plans
name. Nothing is run, so that any x86-64 compiles for every level. A network is many layers side by side that read the same input.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Model = tuple[onnx.ModelProto, list[dict[str, tuple[int, ...]]]]
"""A network, and the shapes of its inputs for which it is planned."""

OUTPUTS = (16, 32, 48, 64, 96, 128, 256)
"""Outputs of layers: their tiles serve all others that have as many vectors in a block."""
ODD_OUTPUTS = (1, 3, 8, 24, 72, 1000)
IMAGES: list[dict[str, tuple[int, ...]]] = [{"x": (1, 3, size, size)} for size in (7, 14, 28, 56, 112, 224)]
"""The sizes that images have in most networks, on both sides of the limits from which on other kernels pay."""
LENGTHS = (1, 3, 9, 40, 200)
DEPTH = 64


class Layers:
    """A network of layers side by side, each an output. Methods that add something return the name of the new value."""

    def __init__(self, **inputs: list[Any]) -> None:
        self._inputs, self._nodes, self._weights, self._ends = inputs, [], [], []  # type: ignore[var-annotated]  # lists of protos

    def weight(self, *shape: int) -> str:
        """Adds a matrix or vector of fractions: convolutions with whole numbers are those of quantized networks."""
        return self.constant(np.full(shape, 1.5, np.float32))

    def constant(self, array: Any) -> str:
        """Adds a constant."""
        self._weights.append(numpy_helper.from_array(np.asarray(array), f"w{len(self._weights)}"))
        return str(self._weights[-1].name)

    def add(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Adds a node with one output."""
        output = f"v{len(self._nodes)}"
        self._nodes.append(helper.make_node(op_type, inputs, [output], **attributes))
        return output

    def end(self, *values: str) -> None:
        """Makes values outputs."""
        self._ends.extend(values)

    def finish(self) -> onnx.ModelProto:
        """Returns the network."""
        floats = partial(helper.make_tensor_value_info, elem_type=TensorProto.FLOAT)
        inputs = [floats(name, shape=shape) for name, shape in self._inputs.items()]
        graph = helper.make_graph(self._nodes, "layers", inputs, [floats(name, shape=None) for name in self._ends], self._weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    def convolve(self, x: str, inputs: int, outputs: int, kernel: int, stride: int = 1, group: int = 1) -> str:
        """Adds a convolution whose windows have the pixel in their middle."""
        weight = self.weight(outputs, inputs // group, kernel, kernel)
        return self.add("Conv", x, weight, self.weight(outputs), pads=[kernel // 2] * 4, strides=[stride] * 2, group=group)

    def activate(self, kind: str, x: str) -> str:
        """Adds an activation."""
        match kind:
            case "":
                return x
            case "Clip":
                return self.add("Clip", x, self.constant(np.float32(0)), self.constant(np.float32(6)))
            case "Swish":
                return self.add("Mul", x, self.add("Sigmoid", x))
            case "Gelu":
                erf = self.add("Erf", self.add("Div", x, self.constant(np.float32(np.sqrt(2)))))
                halves = self.add("Mul", x, self.add("Add", erf, self.constant(np.float32(1))))
                return self.add("Mul", halves, self.constant(np.float32(0.5)))
            case "LeakyRelu":
                return self.add("LeakyRelu", x, alpha=0.1)
        return self.add(kind, x)


def make_convolutions(activation: str, outputs: tuple[int, ...]) -> Model:
    """Convolutions with an activation, alone and behind a residual sum, and depthwise ones."""
    layers, channels = Layers(x=["batch", 3, "height", "width"]), 32
    activate = partial(layers.activate, activation)
    layers.end(activate(layers.convolve("x", 3, 64, 7, 2)), activate(layers.convolve("x", 3, channels, 3, 2)))
    x = layers.add("Relu", layers.convolve("x", 3, channels, 3))
    # Weights that outgrow a cache are fetched ahead.
    wide = layers.add("Relu", layers.convolve(x, channels, 512, 1))
    usual = [
        (x, channels, count, kernel, stride) for kernel, stride in ((1, 1), (1, 2), (3, 1), (3, 2), (5, 1)) for count in outputs
    ]
    for source, depth, count, kernel, stride in [*usual, *((wide, 512, count, 1, 1) for count in (128, 512, 2048))]:
        layers.end(activate(layers.convolve(source, depth, count, kernel, stride)))
        other = layers.add("Relu", layers.convolve(source, depth, count, 1, stride))
        layers.end(activate(layers.add("Add", layers.convolve(source, depth, count, kernel, stride), other)))
    for kernel, stride in product((3, 5), (1, 2)):
        layers.end(activate(layers.convolve(x, channels, channels, kernel, stride, channels)))
    return layers.finish(), IMAGES


def make_others() -> Model:
    """Poolings, resizes, sums, gates and what else stands between convolutions."""
    layers, channels = Layers(x=["batch", 3, "height", "width"]), 32
    x = layers.add("Relu", layers.convolve("x", 3, channels, 3))
    y = layers.add("Relu", layers.convolve("x", 3, channels, 1))
    for kernel, stride in ((2, 2), (3, 2), (3, 1), (5, 1)):
        layers.end(layers.add("MaxPool", x, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[(kernel - 1) // 2] * 4))
    layers.end(layers.add("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2]))
    pooled = layers.add("GlobalAveragePool", x)
    layers.end(layers.add("Gemm", layers.add("Flatten", pooled), layers.weight(channels, 1000), layers.weight(1000)))
    for gate in ("Sigmoid", "HardSigmoid"):
        squeezed = layers.add("Relu", layers.convolve(pooled, channels, 8, 1))
        layers.end(layers.add("Mul", x, layers.add(gate, layers.convolve(squeezed, 8, channels, 1))))
    twice = layers.add("Resize", x, "", layers.constant(np.array([1, 1, 2, 2], np.float32)), mode="nearest")
    grown = layers.add("ConvTranspose", x, layers.weight(channels, channels, 2, 2), layers.weight(channels), strides=[2, 2])
    joined = layers.add("Concat", twice, grown, axis=1)
    layers.end(layers.add("Relu", layers.convolve(joined, 2 * channels, channels, 3)))
    normed = layers.add("InstanceNormalization", layers.convolve(x, channels, channels, 3), *[layers.weight(channels)] * 2)
    layers.end(layers.add("Relu", normed), layers.add("Relu", layers.add("Add", x, y)), layers.add("Add", pooled, pooled))
    for half in (TensorProto.FLOAT16, TensorProto.BFLOAT16):
        layers.end(layers.add("Cast", layers.add("Cast", "x", to=half), to=TensorProto.FLOAT))
    return layers.finish(), IMAGES


def make_products(activation: str) -> Model:
    """Products of rows, as transformers have them: behind a normalization, with an activation, or with a residual sum."""
    layers = Layers(x=["batch", "length", DEPTH])
    x = layers.add("LayerNormalization", "x", layers.weight(DEPTH), layers.weight(DEPTH), axis=-1)
    for count in (*OUTPUTS, 384, 512, 768, *ODD_OUTPUTS):
        product = layers.add("Add", layers.add("MatMul", x, layers.weight(DEPTH, count)), layers.weight(count))
        other = layers.add("MatMul", x, layers.weight(DEPTH, count))
        layers.end(layers.activate(activation, product), layers.add("Add", product, other), other, layers.add("Softmax", other))
    return layers.finish(), [{"x": (1, length, DEPTH)} for length in LENGTHS]


def make_attention(depth: int, group: int, *, is_cached: bool) -> Model:
    """Attention of heads of `depth`, `group` of which share keys and values; with caches that grow, only keys up to each query count."""
    key_heads, heads = 2, 2 * group
    width = heads * depth
    caches = {name: ["batch", key_heads, "past", depth] for name in ("k", "v")} if is_cached else {}
    layers = Layers(x=["batch", "length", width], **caches)

    def split(count: int) -> str:
        product = layers.add("MatMul", "x", layers.weight(width, count * depth))
        parted = layers.add("Reshape", product, layers.constant([0, 0, count, depth]))
        return layers.add("Transpose", parted, perm=[0, 2, 1, 3])

    query, key, value = split(heads), split(key_heads), split(key_heads)
    if is_cached:
        key, value = (layers.add("Concat", name, new, axis=2) for name, new in (("k", key), ("v", value)))
        layers.end(key, value)
    if group > 1:
        for_each = layers.constant([1, 1, group, 1, 1])
        shape = layers.constant([0, heads, -1, depth])
        wide = [layers.add("Tile", layers.add("Unsqueeze", part, layers.constant([2])), for_each) for part in (key, value)]
        key, value = (layers.add("Reshape", part, shape) for part in wide)
    scores = layers.add("MatMul", query, layers.add("Transpose", key, perm=[0, 1, 3, 2]))
    scores = layers.add("Mul", scores, layers.constant(np.float32(depth**-0.5)))
    if is_cached:
        begin, end = (
            layers.add("Squeeze", layers.add("Gather", layers.add("Shape", part), layers.constant([2])), layers.constant([0]))
            for part in ("k", key)
        )
        zero, one = layers.constant(0), layers.constant(1)
        queries, keys = layers.add("Range", begin, end, one), layers.add("Range", zero, end, one)
        is_seen = layers.add("LessOrEqual", keys, layers.add("Unsqueeze", queries, layers.constant([1])))
        nothing, hidden = layers.constant(np.float32(0)), layers.constant(np.float32(-1e9))
        scores = layers.add("Add", scores, layers.add("Where", is_seen, nothing, hidden))
    mixed = layers.add("Transpose", layers.add("MatMul", layers.add("Softmax", scores, axis=-1), value), perm=[0, 2, 1, 3])
    layers.end(layers.add("Reshape", mixed, layers.constant([0, 0, width])))
    sizes = [(0, 20), (20, 1), (100, 4), (4000, 1)] if is_cached else [(0, length) for length in LENGTHS]
    return layers.finish(), [
        {"x": (1, length, width), **dict.fromkeys(caches, (1, key_heads, past, depth))} for past, length in sizes
    ]


def list_models() -> Iterator[Model]:
    """Yields all networks."""
    for activation in ("", "Relu", "Clip", "Swish", "HardSwish", "Sigmoid", "LeakyRelu"):
        yield make_convolutions(activation, (*OUTPUTS, *ODD_OUTPUTS) if activation in ("", "Relu", "Sigmoid") else OUTPUTS)
    yield make_others()
    for activation in ("", "Relu", "Gelu", "Swish"):
        yield make_products(activation)
    for depth in (32, 64, 80, 128):
        yield make_attention(depth, 1, is_cached=False)
        for group in (1, 2, 4):
            yield make_attention(depth, group, is_cached=True)


def list_texts(level: str) -> dict[str, str]:
    """Returns the text of each kernel that a processor of a level needs for the networks, by its name.

    Call it once in a process, which then plans as such a processor does.
    """
    from hetero_cpu.machine import compiler

    compiler._describe_processor = lambda: " ".join(sorted(compiler.FLAGS[level]))  # type: ignore[assignment]  # has a cache
    from hetero_cpu.machine.interpreter import list_interpreters
    from hetero_cpu.operators.weights import PackedWeights
    from hetero_cpu.plan.open_plan import make_open_plan
    from hetero_cpu.plan.passes import join_network, specialize_network, transform_network
    from hetero_cpu.plan.planner import build_plan

    from hetero_core.network.reader import read_network

    kernels = dict.fromkeys(list_interpreters(2))
    for model, examples in list_models():
        network, weights = transform_network(read_network(model)), PackedWeights()
        for example in examples:
            signature = tuple(example[spec.name] for spec in network.inputs)
            special = specialize_network(network, signature)
            # More workers get the same kernels.
            opened = _finish(make_open_plan(network, signature, special, weights=weights, extensions={}, workers=1))
            fixed = build_plan(join_network(special), weights, {}, workers=1)
            kernels |= dict.fromkeys([*(opened.plan.kernels if opened else ()), *fixed.kernels])
    return {kernel.name: kernel.emit(kernel.name, compiler.find_width()).take_text() for kernel in kernels}


def _finish(planning: Any) -> Any:
    """Returns the result of a generator, whose kernels are not compiled here."""
    while True:
        try:
            next(planning)
        except StopIteration as stop:
            return stop.value


def main() -> int:
    """Returns the exit code."""
    level, folder = sys.argv[1:]
    texts = list_texts(level)
    from hetero_cpu.machine import compiler, translation

    from hetero_core.blobs.store import write_entry

    for text in texts.values():
        write_entry(os.path.join(folder, compiler.name_brought(text, level)), translation.translate(text, level))
    sys.stdout.write(f"{level}: {len(texts)} kernels\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
