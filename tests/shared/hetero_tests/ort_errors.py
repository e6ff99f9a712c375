"""Draws neighbours of ONNX Runtime's known errors and compares the plugin's answers with exact integers and float64.

The models run in a child process, since the engine may end it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper

from hetero_core import Core
from hetero_core.errors import UnsupportedNodesError
from hetero_tests.openvino_neighbours import Worker

Array = np.ndarray[Any, Any]
Arrays = dict[str, Any]
"""Name of a value -> its array or NumPy scalar."""


@dataclass
class Case:
    """A model as text with constants, the arrays of a run and the expected outputs in order. Integers are compared exactly."""

    title: str
    inputs: str
    body: str
    feeds: Arrays
    expected: list[Array]
    outputs: str = "y"
    constants: Arrays = field(default_factory=dict)
    opset: int = 17
    tolerance: float = 1e-3

    def build(self, in_body: bool) -> onnx.ModelProto:
        """Returns the model; `in_body` puts the nodes into a branch of an If."""
        header = f'<ir_version: 10, opset_import: ["": {self.opset}, "com.microsoft": 1]>'
        names = self.outputs.split(", ")
        model = onnx.parser.parse_model(f"{header} g ({self.inputs}) => ({self.outputs}) {{ {self.body} }}")
        if in_body:
            model = _move_into_branch(model, names, [array.dtype for array in self.expected])
        constants = [numpy_helper.from_array(array, name) for name, array in self.constants.items()]
        model.graph.initializer.extend(constants)
        return model


def _move_into_branch(model: onnx.ModelProto, names: list[str], dtypes: list[np.dtype[Any]]) -> onnx.ModelProto:
    helper = onnx.helper
    kinds = [helper.np_dtype_to_tensor_dtype(dtype) for dtype in dtypes]
    branches = {}
    for side in ("then_branch", "else_branch"):
        nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in model.graph.node]
        for node in nodes:
            node.output[:] = [f"{side}_{name}" if name else "" for name in node.output]
            made = {name for other in model.graph.node for name in other.output}
            node.input[:] = [f"{side}_{name}" if name in made else name for name in node.input]
        results = [helper.make_tensor_value_info(f"{side}_{name}", kind, None) for name, kind in zip(names, kinds, strict=True)]
        branches[side] = helper.make_graph(nodes, side, [], results)
    condition = helper.make_tensor_value_info("condition", onnx.TensorProto.BOOL, [])
    outputs = [helper.make_tensor_value_info(name, kind, None) for name, kind in zip(names, kinds, strict=True)]
    graph = helper.make_graph(
        [helper.make_node("If", ["condition"], names, **branches)], "g", [*model.graph.input, condition], outputs
    )
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)


def draw_case(rng: np.random.Generator, index: int) -> Case:
    """Returns a case of the kind that an index stands for."""
    return KINDS[index % len(KINDS)](rng)


def _draw_bytes(rng: np.random.Generator, dtype: type[Any], shape: tuple[int, ...]) -> Array:
    info = np.iinfo(dtype)
    drawn = rng.integers(info.min, info.max + 1, shape).astype(dtype)
    # Large values of one sign are those that saturate.
    return drawn if rng.random() < 0.3 else np.full(shape, info.max, dtype)


def _write_shape(rng: np.random.Generator, shape: tuple[int, ...], stem: str) -> str:
    return ",".join(f"{stem}{axis}" if rng.random() < 0.4 else str(size) for axis, size in enumerate(shape))


_TYPE = {np.uint8: "uint8", np.int8: "int8", np.int32: "int32", np.int64: "int64", np.float32: "float"}


@dataclass
class _Product:
    """Two operands of a product with their zero points; those that are constants are not among the inputs."""

    left: Array
    right: Array
    points: tuple[Array, Array]
    is_constant: bool
    exact: Array


def _draw_product(rng: np.random.Generator, *, left: type[Any] | None = None) -> _Product:
    kinds = (np.uint8, np.int8)
    types = left or kinds[rng.integers(2)], kinds[rng.integers(2)]
    rows, depth, columns = (int(size) for size in rng.integers(1, 40, 3))
    a, b = _draw_bytes(rng, types[0], (rows, depth)), _draw_bytes(rng, types[1], (depth, columns))
    per_column = rng.random() < 0.3
    point_of_b = rng.integers(0, 9, columns if per_column else ()).astype(types[1])
    points = np.asarray(rng.integers(0, 9), types[0]), np.asarray(point_of_b)
    exact = (a.astype(np.int64) - int(points[0])) @ (b.astype(np.int64) - points[1].astype(np.int64))
    return _Product(a, b, points, bool(rng.random() < 0.5), exact)


def _state_product(rng: np.random.Generator, product: _Product) -> tuple[str, Arrays, Arrays]:
    """Returns the text of the inputs, the arrays of the run and the constants."""
    shape = _write_shape(rng, product.left.shape, "r")
    # The depth stays known on one side: a product over an open depth is refused.
    inputs = f"{_TYPE[product.left.dtype.type]}[{shape}] a"
    feeds, constants = {"a": product.left}, {"za": product.points[0], "zb": product.points[1]}
    if product.is_constant:
        constants["b"] = product.right
    else:
        inputs += f", {_TYPE[product.right.dtype.type]}[{product.right.shape[0]},{product.right.shape[1]}] b"
        feeds["b"] = product.right
    return inputs, feeds, constants


def draw_integer_product(rng: np.random.Generator) -> Case:
    """MatMulInteger."""
    product = _draw_product(rng)
    inputs, feeds, constants = _state_product(rng, product)
    return Case(
        "MatMulInteger",
        inputs,
        "y = MatMulInteger(a, b, za, zb)",
        feeds,
        [product.exact.astype(np.int32)],
        constants=constants,
        opset=int(rng.choice([10, 13, 17, 21])),
    )


def draw_scaled_product(rng: np.random.Generator) -> Case:
    """QLinearMatMul, MatMulIntegerToFloat, QGemm, or dequantized operands of MatMul and Gemm."""
    node = str(rng.choice(["QLinearMatMul", "MatMulIntegerToFloat", "QGemm", "MatMul", "Gemm"]))
    product = _draw_product(rng)
    inputs, feeds, constants = _state_product(rng, product)
    scale = np.float32(0.5)
    constants |= {"s": scale, "sb": np.full(product.points[1].shape, scale, np.float32)}
    real = product.exact * 0.25
    if node in ("QLinearMatMul", "QGemm") and product.left.dtype != product.right.dtype and product.left.dtype == np.int8:
        node = "MatMulIntegerToFloat"
    if node == "QLinearMatMul":
        step = max(float(np.abs(real).max()) / 100, 1e-3)
        constants |= {"sy": np.float32(step), "zy": np.array(3, product.left.dtype)}
        info = np.iinfo(product.left.dtype)
        quantized = np.clip(np.rint(real / float(np.float32(step))) + 3, info.min, info.max).astype(product.left.dtype)
        text = "y = QLinearMatMul(a, s, za, b, sb, zb, sy, zy)"
        return Case(node, inputs, text, feeds, [quantized], constants=constants, opset=int(rng.choice([10, 17, 21])), tolerance=-1)
    text = {
        "MatMulIntegerToFloat": "y = com.microsoft.MatMulIntegerToFloat(a, b, s, sb, za, zb)",
        "QGemm": "y = com.microsoft.QGemm(a, s, za, b, sb, zb)",
    }.get(node, f"d = DequantizeLinear(a, s, za) e = DequantizeLinear<axis = 1>(b, sb, zb) y = {node}(d, e)")
    return Case(node, inputs, text, feeds, [real.astype(np.float32)], constants=constants, opset=int(rng.choice([13, 17, 21])))


def draw_quantized_float(rng: np.random.Generator) -> Case:
    """A MatMul of a quantized value and dequantized weights, which the engine fuses, with or without a quantized result."""
    product = _draw_product(rng)
    point = int(product.points[0])
    x = (product.left.astype(np.float32) - point) * np.float32(0.5)
    scales = np.full(product.points[1].shape, 0.5, np.float32)
    constants = {"s": np.float32(0.5), "za": product.points[0], "sb": scales, "zb": product.points[1]}
    inputs = f"float[{_write_shape(rng, x.shape, 'r')}] x"
    feeds = {"x": x}
    kind = "quantized" if rng.random() < 0.3 else "stored"
    right = ""
    if kind == "quantized":
        # Weights in float that are quantized in the model, as training with quantization leaves them.
        constants["w"] = ((product.right.astype(np.float32) - product.points[1].astype(np.float32)) * np.float32(0.5)).astype(
            np.float32
        )
        right = "b = QuantizeLinear<axis = 1>(w, sb, zb) "
    elif product.is_constant:
        constants["b"] = product.right
    else:
        inputs += f", {_TYPE[product.right.dtype.type]}[{product.right.shape[0]},{product.right.shape[1]}] b"
        feeds["b"] = product.right
    text = f"q = QuantizeLinear(x, s, za) d = DequantizeLinear(q, s, za) {right}e = DequantizeLinear<axis = 1>(b, sb, zb) y = MatMul(d, e)"
    return Case(f"QDQ {kind}", inputs, text, feeds, [(product.exact * 0.25).astype(np.float32)], constants=constants, opset=17)


def draw_convolution(rng: np.random.Generator) -> Case:
    """ConvInteger, QLinearConv, or a convolution of dequantized values, in groups or not."""
    node = str(rng.choice(["ConvInteger", "QLinearConv", "Conv"]))
    kinds = (np.uint8, np.int8)
    types = kinds[rng.integers(2)], kinds[rng.integers(2)]
    if node == "QLinearConv" and types == (np.int8, np.uint8):
        types = (np.uint8, np.int8)
    group, channels, kernel = int(rng.choice([1, 2, 4])), 4, int(rng.choice([1, 3]))
    a, w = _draw_bytes(rng, types[0], (1, channels, 5, 5)), _draw_bytes(rng, types[1], (8, channels // group, kernel, kernel))
    points = np.asarray(rng.integers(0, 9), types[0]), np.asarray(rng.integers(0, 9), types[1])
    x, f = a.astype(np.int64) - int(points[0]), w.astype(np.int64) - int(points[1])
    windows = np.lib.stride_tricks.sliding_window_view(x, (kernel, kernel), axis=(2, 3))
    size, width = channels // group, 8 // group
    exact = np.stack(
        [np.einsum("nchwij,cij->nhw", windows[:, k // width * size : (k // width + 1) * size], f[k]) for k in range(8)], axis=1
    )
    is_constant = rng.random() < 0.6
    inputs = f"{_TYPE[types[0]]}[n,{channels},h,5] a"
    feeds, constants = {"a": a}, {"za": points[0], "zb": points[1], "s": np.float32(0.5)}
    if is_constant:
        constants["w"] = w
    else:
        inputs += f", {_TYPE[types[1]]}[8,{size},{kernel},{kernel}] w"
        feeds["w"] = w
    attributes = f"<group = {group}>"
    if node == "ConvInteger":
        text = f"y = ConvInteger{attributes}(a, w, za, zb)"
        return Case(node, inputs, text, feeds, [exact.astype(np.int32)], constants=constants)
    real = exact * 0.25
    if node == "Conv":
        text = f"d = DequantizeLinear(a, s, za) e = DequantizeLinear(w, s, zb) y = Conv{attributes}(d, e)"
        return Case(node, inputs, text, feeds, [real.astype(np.float32)], constants=constants)
    step = np.float32(max(float(np.abs(real).max()) / 100, 1e-3))
    constants |= {"sy": step, "zy": np.array(3, types[0])}
    info = np.iinfo(types[0])
    quantized = np.clip(np.rint(real / float(step)) + 3, info.min, info.max).astype(types[0])
    return Case(
        node,
        inputs,
        f"y = QLinearConv{attributes}(a, s, za, w, s, zb, sy, zy)",
        feeds,
        [quantized],
        constants=constants,
        tolerance=-1,
    )


def draw_division(rng: np.random.Generator) -> Case:
    """Div and Mod of integers, among them the least one by -1, and 1 / i * j."""
    dtype = (np.int32, np.int64)[rng.integers(2)]
    least = np.iinfo(dtype).min
    shapes = [((4,), (4,)), ((2, 3), (3,)), ((), (3,)), ((3, 1), (1, 2))][rng.integers(4)]
    pick = np.array([least, least + 1, 7, -7, 1, 0], dtype)
    a, b = (
        rng.choice(pick, shapes[0]).astype(dtype),
        rng.choice(np.array([-1, -1, 2, -3, 1, least], dtype), shapes[1]).astype(dtype),
    )
    a, b = np.asarray(a, dtype), np.asarray(b, dtype)
    inputs: list[str] = []
    feeds: Arrays = {}
    constants: Arrays = {}
    for name, array in (("a", a), ("b", b)):
        if rng.random() < 0.3 and not constants:
            constants[name] = array
        else:
            shape = _write_shape(rng, array.shape, name)
            inputs.append(f"{_TYPE[dtype]}[{shape}] {name}" if array.shape else f"{_TYPE[dtype]} {name}")
            feeds[name] = array
    quotient = _divide(a, b, dtype)
    title, text, expected = "Div", "y = Div(a, b)", quotient
    if rng.random() < 0.3:
        title, text = "Div and Mul", "r = Div(one, b) y = Mul(r, a)"
        constants["one"] = np.array(1, dtype)
        with np.errstate(over="ignore"):
            expected = (_divide(np.array(1, dtype), b, dtype) * a).astype(dtype)
    elif rng.random() < 0.3:
        title, text = "Mod", "y = Mod(a, b)"
        expected = np.array([int(p) % int(q) for p, q in np.broadcast(a, b)], dtype).reshape(np.broadcast(a, b).shape)
    return Case(title, ", ".join(inputs), text, feeds, [expected], constants=constants, opset=int(rng.choice([11, 13, 17])))


def _divide(a: Array, b: Array, dtype: type[Any]) -> Array:
    """Returns the quotients of exact integers, cut towards zero and wrapped around."""
    bits = np.iinfo(dtype).bits
    pairs = [(int(p), int(q)) for p, q in np.broadcast(a, b)]
    quotients = [abs(p) // abs(q) * (1 if (p < 0) == (q < 0) else -1) for p, q in pairs]
    return np.array([_wrap(value, bits) for value in quotients], dtype).reshape(np.broadcast(a, b).shape)


def _wrap(value: int, bits: int) -> int:
    return (value + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))


def draw_reduction(rng: np.random.Generator) -> Case:
    """A reduction of integers that may overflow, over some axes, with axes as attribute or as input."""
    dtype = (np.int32, np.int64)[rng.integers(2)]
    node = str(rng.choice(["ReduceSum", "ReduceL1", "ReduceSumSquare", "ReduceProd"]))
    shape = tuple(int(size) for size in rng.integers(1, 5, rng.integers(1, 4)))
    info = np.iinfo(dtype)
    x = (
        rng.integers(info.min, info.max, shape, dtype, endpoint=True)
        if rng.random() < 0.6
        else rng.integers(-9, 9, shape).astype(dtype)
    )
    axes = tuple(int(axis) for axis in rng.choice(len(shape), rng.integers(1, len(shape) + 1), replace=False))
    keeps = int(rng.integers(2))
    exact = x.astype(object)
    if node == "ReduceProd":
        total = exact.prod(axis=axes, keepdims=bool(keeps))
    else:
        total = {"ReduceSum": exact, "ReduceL1": abs(exact), "ReduceSumSquare": exact * exact}[node].sum(
            axis=axes, keepdims=bool(keeps)
        )
    total = np.asarray(total, object)
    expected = np.array([_wrap(int(value), info.bits) for value in total.reshape(-1)], dtype).reshape(total.shape)
    opset = int(rng.choice([11, 13, 18, 21]))
    as_input = opset >= 18 or (opset >= 13 and node == "ReduceSum")
    listed = "" if as_input else f", axes = [{','.join(map(str, axes))}]"
    text = f"y = {node}<keepdims = {keeps}{listed}>(x{', axes' if as_input else ''})"
    constants = {"axes": np.array(axes, np.int64)} if as_input else {}
    inputs = f"{_TYPE[dtype]}[{_write_shape(rng, shape, 'd')}] x"
    return Case(node, inputs, text, {"x": x}, [expected], constants=constants, opset=opset)


def draw_layer(rng: np.random.Generator) -> Case:
    """A recurrent layer with zero weights but for the input, with 0, 1 or more steps and sequences."""
    node = str(rng.choice(["LSTM", "GRU", "RNN"]))
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[node]
    directions = int(rng.choice([1, 2]))
    steps, batch, width, hidden = int(rng.integers(0, 3)), int(rng.integers(0, 3)), 3, 2
    x = rng.standard_normal((steps, batch, width)).astype(np.float32)
    constants = {
        "w": np.zeros((directions, gates * hidden, width), np.float32),
        "r": np.zeros((directions, gates * hidden, hidden), np.float32),
    }
    state = rng.standard_normal((directions, batch, hidden)).astype(np.float32)
    # All gates are sigmoid(0) = 1/2, and the new value is tanh(0) = 0.
    factor = {"LSTM": 0.5, "GRU": 0.5, "RNN": 0.0}[node]
    has_state = rng.random() < 0.6
    initial = state.astype(np.float64) if has_state else np.zeros(state.shape)
    inputs = f"float[{_write_shape(rng, x.shape[:2], 'x')},{width}] x"
    feeds = {"x": x}
    cells = np.zeros((steps, directions, batch, hidden))
    last = initial
    if node == "LSTM":
        memory = np.zeros(initial.shape)
        for step in range(steps):
            memory = memory * 0.5
            cells[step] = 0.5 * np.tanh(memory)
        last = cells[-1] if steps else initial
    else:
        for step in range(steps):
            cells[step] = initial * factor ** (step + 1)
        if directions == 2:
            cells[:, 1] = cells[::-1, 1]
        last = initial * factor**steps if steps else initial
    extra = ""
    if has_state:
        inputs += f", float[{directions},{_write_shape(rng, (batch,), 'b')},{hidden}] h"
        feeds["h"] = state
        extra = ', "", "", h'
    direction = "bidirectional" if directions == 2 else str(rng.choice(["forward", "reverse"]))
    if direction == "reverse":
        cells = cells[::-1]
    text = f'y, z = {node}<hidden_size = {hidden}, direction = "{direction}">(x, w, r{extra})'
    expected = [cells.astype(np.float32), last.astype(np.float32)]
    return Case(
        node,
        inputs,
        text,
        feeds,
        expected,
        outputs="y, z",
        constants=constants,
        opset=int(rng.choice([7, 11, 17, 23])),
        tolerance=1e-5,
    )


def draw_normalization(rng: np.random.Generator) -> Case:
    """GroupNormalization of values around a large mean, or a BatchNormalization that trains."""
    mean = float(rng.choice([0.0, 10.0, 1000.0]))
    x = (rng.standard_normal((2, 4, 5, 3)) + mean).astype(np.float32)
    wide = x.astype(np.float64)
    scale, bias = rng.standard_normal(4).astype(np.float32), rng.standard_normal(4).astype(np.float32)
    sides = [side.astype(np.float64).reshape(1, 4, 1, 1) for side in (scale, bias)]
    inputs = f"float[{_write_shape(rng, x.shape, 'd')}] x"
    if rng.random() < 0.5:
        axes = (0, 2, 3)
        normal = (wide - wide.mean(axes, keepdims=True)) / np.sqrt(wide.var(axes, keepdims=True) + 1e-5)
        constants = {"s": scale, "b": bias, "m": np.zeros(4, np.float32), "v": np.ones(4, np.float32)}
        text = "y, rm, rv = BatchNormalization<training_mode = 1>(x, s, b, m, v)"
        expected = (normal * sides[0] + sides[1]).astype(np.float32)
        return Case("BatchNormalization", inputs, text, {"x": x}, [expected], constants=constants, opset=15)
    groups = int(rng.choice([1, 2, 4]))
    parts = wide.reshape(2, groups, -1)
    normal = ((parts - parts.mean(2, keepdims=True)) / np.sqrt(parts.var(2, keepdims=True) + 1e-5)).reshape(x.shape)
    text = f"y = GroupNormalization<num_groups = {groups}>(x, s, b)"
    expected = (normal * sides[0] + sides[1]).astype(np.float32)
    return Case("GroupNormalization", inputs, text, {"x": x}, [expected], constants={"s": scale, "b": bias}, opset=21)


def draw_scaled_layer(rng: np.random.Generator) -> Case:
    """LayerNormalization, behind an Add or not, whose scale broadcasts to the value."""
    x, k = (rng.standard_normal((2, 4, 8)).astype(np.float32) for _ in range(2))
    shapes = [(8,), (1, 8), (4, 8), (4, 1), (1,), (), (2, 4, 8), (2, 1, 8)]
    scale = np.asarray(rng.standard_normal(shapes[rng.integers(len(shapes))]), np.float32)
    has_sum = rng.random() < 0.6
    wide = x.astype(np.float64) + (k if has_sum else 0)
    centred = wide - wide.mean(-1, keepdims=True)
    expected = centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + 1e-5) * scale
    shape = _write_shape(rng, x.shape, "d")
    inputs, feeds = f"float[{shape}] x", {"x": x}
    if has_sum:
        inputs += f", float[{shape}] k"
        feeds["k"] = k
    text = "z = Add(x, k) y = LayerNormalization(z, s)" if has_sum else "y = LayerNormalization(x, s)"
    return Case("LayerNormalization", inputs, text, feeds, [expected.astype(np.float32)], constants={"s": scale})


def draw_neutral_factor(rng: np.random.Generator) -> Case:
    """A product with a 1 that folding makes, behind a node that the engine removes."""
    before = str(rng.choice(["Identity", "Cast<to = 1>", "Dropout", "Neg"]))
    factor = str(rng.choice(["Div(one, one)", "Sub(two, one)", "Identity(one)", "Sqrt(one)"]))
    order = "mid, k" if rng.random() < 0.5 else "k, mid"
    text = f"mid = {before}(x) k = {factor} y = Mul({order})"
    x = rng.standard_normal((3, 2)).astype(np.float32)
    constants = {"one": np.float32(1), "two": np.float32(2)}
    expected = -x if before == "Neg" else x
    return Case("neutral factor", f"float[{_write_shape(rng, x.shape, 'd')}] x", text, {"x": x}, [expected], constants=constants)


def draw_nothing(rng: np.random.Generator) -> Case:
    """A product, a reduction, Unique or Scan over an axis of length 0."""
    node = str(rng.choice(["MatMulInteger", "MatMul", "QDQ", "Unique", "Scan", "ReduceSum", "Conv"]))
    rows, columns = (int(size) for size in rng.integers(1, 9, 2))
    depth = "k" if rng.random() < 0.6 else "0"
    zeros = np.zeros((rows, columns))
    if node == "Unique":
        x = np.zeros((rows, 0), np.float32)
        return Case(node, f"float[{rows},{depth}] x", "y = Unique<axis = 0>(x)", {"x": x}, [x[:1]])
    if node == "Scan":
        body = "b (float[2] a, float[2] e) => (float[2] c, float[2] d) { c = Add(a, e) d = Neg(e) }"
        text = f"y, s = Scan<num_scan_inputs = 1, body = {body}>(z, x)"
        feeds = {"x": np.zeros((0, 2), np.float32), "z": np.ones(2, np.float32)}
        return Case(node, f"float[{depth},2] x, float[2] z", text, feeds, [feeds["z"]])
    if node == "ReduceSum":
        x = np.zeros((rows, 0), np.int64)
        constants = {"axes": np.array([1], np.int64)}
        text = "y = ReduceSum<keepdims = 0>(x, axes)"
        return Case(node, f"int64[{rows},{depth}] x", text, {"x": x}, [np.zeros(rows, np.int64)], constants=constants)
    if node == "Conv":
        feeds = {"x": np.zeros((1, 0, 4), np.float32), "w": np.zeros((2, 0, 3), np.float32)}
        return Case(node, f"float[1,{depth},4] x, float[2,{depth},3] w", "y = Conv(x, w)", feeds, [np.zeros((1, 2, 2), np.float32)])
    kind, dtype = ("float", np.float32) if node == "MatMul" else ("uint8", np.uint8)
    inputs = f"{kind}[{rows},{depth}] a, {kind}[{depth},{columns}] b"
    feeds = {"a": np.zeros((rows, 0), dtype), "b": np.zeros((0, columns), dtype)}
    if node == "QDQ":
        text = "d = DequantizeLinear(a, s, z) e = DequantizeLinear(b, s, z) t = MatMul(d, e) y = QuantizeLinear(t, s, z)"
        scales: Arrays = {"s": np.float32(1), "z": np.array(5, np.uint8)}
        return Case(node, inputs, text, feeds, [np.full((rows, columns), 5, np.uint8)], constants=scales)
    return Case(node, inputs, f"y = {node}(a, b)", feeds, [zeros.astype(np.float32 if node == "MatMul" else np.int32)])


KINDS: tuple[Callable[[np.random.Generator], Case], ...] = (
    draw_integer_product,
    draw_scaled_product,
    draw_quantized_float,
    draw_convolution,
    draw_division,
    draw_reduction,
    draw_layer,
    draw_normalization,
    draw_scaled_layer,
    draw_neutral_factor,
    draw_nothing,
)


def run_case(core: Core, case: Case, device: str, in_body: bool) -> str:
    """Returns "right", "refused", or what is wrong."""
    model = case.build(in_body)
    feeds = case.feeds | ({"condition": np.array(True)} if in_body else {})
    try:
        outputs = core.load_network(model, device).infer(feeds)
    except UnsupportedNodesError:
        return "refused"
    except Exception as error:  # noqa: BLE001  # any other error is a finding
        return f"{type(error).__name__}: {error}"[:300]
    for name, expected in zip(case.outputs.split(", "), case.expected, strict=True):
        y = outputs[name]
        if y.shape != expected.shape or y.dtype != expected.dtype:
            return f"{name} is {y.dtype}{y.shape}; expected {expected.dtype}{expected.shape}"
        # A quantized result may be one step away; other integers are exact.
        step = (
            1
            if case.tolerance < 0
            else 0
            if expected.dtype.kind in "iu"
            else case.tolerance * max(1.0, float(np.abs(expected).max(initial=0)))
        )
        distance = np.abs(
            y.astype(object if step in (0, 1) else np.float64) - expected.astype(object if step in (0, 1) else np.float64)
        )
        if distance.size and not distance.max() <= step:
            return f"{name} is {y.reshape(-1)[:4].tolist()}; expected {expected.reshape(-1)[:4].tolist()}"
    return "right"


def judge_case(core: Core, seed: int, index: int, device: str) -> tuple[str, str]:
    """Returns the title and the outcome of a case."""
    rng = np.random.default_rng((seed, index))
    case = draw_case(rng, index)
    in_body = rng.random() < 0.25 and case.title != "Scan"
    return case.title + (" in a body" if in_body else ""), run_case(core, case, device, in_body)


def run_range(seed: int, indices: range, device: str) -> dict[int, tuple[str, str]]:
    """Returns the title and the outcome of each case, run in a child process."""
    worker = Worker(judge_case, 120)
    try:
        return {index: worker.judge(seed, index, device) for index in indices}
    finally:
        worker.close()
