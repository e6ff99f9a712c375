"""Draws small networks of the kinds that OpenVINO was once wrong about, and compares its answers with the NumPy kernels of CPU.

`python -m hetero_tests.openvino_neighbours --count 1000 --seed 0` runs them in a child process;
a crash or a hang counts as a wrong network.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from hetero_core import Core
from hetero_core.errors import HeteroError
from hetero_core.testing.compare import describe_first_mismatch

Array = np.ndarray[Any, Any]
Feed = dict[str, Array]


@dataclass
class Draft:
    """A network under construction: nodes, constants, inputs and one feed for each run."""

    rng: np.random.Generator
    feeds: list[Feed]
    opset: int = 17
    nodes: list[Any] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)
    open_axes: dict[str, set[int]] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    rtol: float = 1e-3
    bodies: bool = True
    formula: Callable[[Feed], Array] | None = None
    """Computes the only output exactly; None if CPU's kernels do."""

    def pick(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def constant(self, array: Any, dtype: int | None = None) -> str:
        name = f"c{len(self.constants)}"
        array = np.asarray(array)
        if dtype is None:
            self.constants[name] = numpy_helper.from_array(array, name)
        else:
            self.constants[name] = helper.make_tensor(name, dtype, array.shape, array.reshape(-1).tolist())
        return name

    def node(self, op_type: str, *inputs: str, outputs: int = 1, domain: str = "", **attributes: Any) -> Any:
        names = [f"v{len(self.nodes)}_{index}" for index in range(outputs)]
        self.nodes.append(helper.make_node(op_type, inputs, names, domain=domain, **attributes))
        return names[0] if outputs == 1 else names

    def normal(self, *shape: int) -> Array:
        return self.rng.standard_normal(shape).astype(np.float32)

    def build(self) -> Any:
        inputs = []
        for name, array in self.feeds[0].items():
            shapes = {feed[name].shape for feed in self.feeds}
            differs = [len({shape[axis] for shape in shapes}) > 1 for axis in range(array.ndim)]
            opened = self.open_axes.get(name, set())
            sizes = [f"{name}_{axis}" if differs[axis] or axis in opened else size for axis, size in enumerate(array.shape)]
            inputs.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), sizes))
        results = [helper.make_empty_tensor_value_info(name) for name in self.outputs]
        graph = helper.make_graph(self.nodes, "g", inputs, results, list(self.constants.values()))
        domains = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=domains, ir_version=10)


def place_in_branch(draft: Draft) -> None:
    """Moves all nodes into both branches of an If whose condition comes with the run."""
    branches = []
    for prefix in ("t", "e"):
        made = {name: f"{prefix}_{name}" for node in draft.nodes for name in node.output}
        inner = []
        for node in draft.nodes:
            copy = type(node)()
            copy.CopyFrom(node)
            copy.input[:] = [made.get(name, name) for name in node.input]
            copy.output[:] = [made[name] for name in node.output]
            copy.name = ""
            inner.append(copy)
        results = [helper.make_empty_tensor_value_info(made[name]) for name in draft.outputs]
        branches.append(helper.make_graph(inner, prefix, [], results))
    names = [f"if_{name}" for name in draft.outputs]
    for index, feed in enumerate(draft.feeds):
        feed["cond"] = np.array(index % 2 == 0)
    draft.nodes = [helper.make_node("If", ["cond"], names, then_branch=branches[0], else_branch=branches[1])]
    draft.outputs = names


def feed_runs(draft: Draft, name: str, *arrays: Array) -> str:
    for index, array in enumerate(arrays):
        while len(draft.feeds) <= index:
            draft.feeds.append({})
        draft.feeds[index][name] = array
    return name


def open_some(draft: Draft, name: str, chance: float = 0.4) -> str:
    rank = draft.feeds[0][name].ndim
    draft.open_axes[name] = {axis for axis in range(rank) if draft.rng.random() < chance}
    return name


# --- kinds -----------------------------------------------------------------------------------------------------------------------


def draw_dft(d: Draft) -> None:
    d.opset = d.pick(17, 20)
    size, parts = int(d.rng.integers(1, 6)), d.pick(1, 2)
    x = open_some(d, feed_runs(d, "x", *[d.normal(d.pick(1, 2), d.pick(size, size, 0), parts) for _ in range(2)]))
    attributes: dict[str, Any] = {"inverse": d.pick(0, 0, 1)} if parts == 2 else {}
    inputs = [x]
    if d.rng.random() < 0.8:
        lengths = [np.array(d.pick(0, 1, 3, size), np.int64) for _ in d.feeds]
        inputs.append(feed_runs(d, "n", *lengths) if d.rng.random() < 0.6 else d.constant(lengths[0]))
    if d.opset == 17:
        attributes["axis"] = 1
    d.outputs = [d.node("DFT", *inputs, **attributes)]


def draw_loop(d: Draft) -> None:
    width = d.pick(1, 2, 3)
    counts = [d.pick(3, 1), d.pick(-1, 0, -5, 0, 2), d.pick(0, 2)]
    open_some(d, feed_runs(d, "x", *[d.normal(width) for _ in counts]))
    count_dtype = np.int64
    count = d.pick(None, "input", "input", "input", "constant", "computed", "captured")
    loop_inputs = [""]
    shape = d.pick((), (1,))
    if count in ("input", "captured"):
        loop_inputs[0] = feed_runs(d, "n", *[np.full(shape, value, count_dtype) for value in counts])
    elif count == "constant":
        loop_inputs[0] = d.constant(np.full(shape, counts[1], count_dtype))
    elif count == "computed":
        feed_runs(d, "n", *[np.array(value, count_dtype) for value in counts])
        loop_inputs[0] = d.node("Sub", "n", d.constant(np.array(d.pick(0, 1), count_dtype)))
    condition = d.pick("", "input", "constant") if count is not None else d.pick("input", "stops")
    if condition == "input":
        condition = feed_runs(d, "go", *[np.array(d.pick(True, True, False)) for _ in counts])
    elif condition == "constant":
        condition = d.constant(np.array(d.pick(True, True, False)))
    else:
        condition = ""
    scans = d.pick(0, 1, 2)
    carried = d.pick(1, 1, 2)
    body = [helper.make_node("Add", ["a0", "x"], ["r0"])]
    if carried == 2:
        body.append(helper.make_node("Sub", ["a1", "a0"], ["r1"]))
    body.append(helper.make_node("Neg", ["a0"], ["s0"]))
    body.append(helper.make_node("ReduceSum", ["r0"], ["s1"], keepdims=0))
    body.append(
        helper.make_node("Less", ["i", "most"], ["go_on"])
        if count is None or d.rng.random() < 0.5
        else helper.make_node("Identity", ["go_in"], ["go_on"])
    )
    d.constants["most"] = numpy_helper.from_array(np.array(2, np.int64), "most")
    results = ["go_on", *(f"r{index}" for index in range(carried)), *(f"s{index}" for index in range(scans))]
    infos = [
        helper.make_tensor_value_info("i", TensorProto.INT64, []),
        helper.make_tensor_value_info("go_in", TensorProto.BOOL, []),
        *(helper.make_tensor_value_info(f"a{index}", TensorProto.FLOAT, [width]) for index in range(carried)),
    ]
    graph = helper.make_graph(body, "b", infos, [helper.make_empty_tensor_value_info(name) for name in results])
    outputs = d.node("Loop", *loop_inputs, condition, *["x"] * carried, outputs=carried + scans, body=graph)
    d.outputs = [outputs] if isinstance(outputs, str) else outputs
    d.bodies = False


def draw_scan(d: Draft) -> None:
    width, lengths = 2, d.pick((3, 0), (0, 2), (2, 3), (0, 0), (3, 3), (1, 1))
    feed_runs(d, "x", *[d.normal(length, width) for length in lengths])
    feed_runs(d, "z", *[d.normal(width) for _ in lengths])
    open_some(d, "x", 0.2)
    body = [helper.make_node("Add", ["a", "b"], ["r"]), helper.make_node("Neg", ["r"], ["s"])]
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [width]) for name in ("a", "b")]
    graph = helper.make_graph(body, "b", infos, [helper.make_empty_tensor_value_info(name) for name in ("r", "s")])
    d.outputs = d.node("Scan", "z", "x", outputs=2, body=graph, num_scan_inputs=1, scan_input_directions=[d.pick(0, 1)])
    d.bodies = False


CODES: dict[str, tuple[int, int, int]] = {
    "int8": (TensorProto.INT8, -100, 100),
    "uint8": (TensorProto.UINT8, 0, 200),
    "int4": (TensorProto.INT4, -8, 7),
    "uint4": (TensorProto.UINT4, 0, 15),
}


def draw_weight(d: Draft, shape: tuple[int, ...]) -> str:
    """Returns a weight that is dequantized: by DequantizeLinear or by Cast, Sub and Mul."""
    dtype = d.pick("int8", "int8", "uint8", "uint4", "int4")
    code, low, high = CODES[dtype]
    q = d.rng.integers(low, high + 1, shape)
    axis = int(d.rng.integers(len(shape)))
    has_zero = d.rng.random() < 0.5
    form = d.pick("dq", "dq", "blocks", "mul", "div", "both")
    if form in ("dq", "blocks"):
        d.opset = 21
        blocks = form == "blocks" and shape[axis] % 2 == 0
        if blocks:
            sizes: tuple[int, ...] = tuple(size // 2 if index == axis else size for index, size in enumerate(shape))
        else:
            sizes = d.pick((), (shape[axis],), (shape[axis],))
        scale = d.constant((np.abs(d.normal(*sizes)) * 0.02 + 0.001).astype(np.float32))
        inputs = [d.constant(q, code), scale]
        if has_zero:
            inputs.append(d.constant(d.rng.integers(max(low, -5), 6, sizes), code))
        attributes: dict[str, Any] = {"block_size": 2} if blocks else {}
        return str(d.node("DequantizeLinear", *inputs, axis=d.pick(axis, axis - len(shape)), **attributes))
    d.opset = d.pick(17, 21) if dtype.endswith("8") else 21
    value = d.node("Cast", d.constant(q, code), to=1)
    sizes = tuple(size if index == axis or form == "both" else 1 for index, size in enumerate(shape))
    if has_zero:
        value = d.node("Sub", value, d.constant(d.rng.integers(1, 6, d.pick(sizes, (), (1,))).astype(np.float32)))
    scale = d.constant((np.abs(d.normal(*sizes)) + 0.1).astype(np.float32))
    return str(
        d.node(
            "Div" if form == "div" else "Mul",
            *d.pick((value, scale), (value, scale)) if form == "div" else d.pick((value, scale), (scale, value)),
        )
    )


def draw_dequantized(d: Draft) -> None:
    k, n, m = (int(size) for size in d.rng.integers(2, 9, 3))
    op = d.pick("MatMul", "MatMul", "Gemm", "Gemm", "left", "Conv", "ConvTranspose", "Gather", "batched", "behind")
    if op in ("MatMul", "Gemm", "behind"):
        is_transposed = d.rng.random() < 0.5
        weight = draw_weight(d, (n, k) if is_transposed else (k, n))
        if op == "behind":
            weight = d.node(d.pick("Identity", "Relu"), weight)
        lead = d.pick((m,), (m,), (2, m)) if op != "Gemm" else (m,)
        x = open_some(d, feed_runs(d, "x", *[d.normal(*lead, k) for _ in range(2)]))
        if op == "Gemm":
            bias = [d.constant(d.normal(n))] if d.rng.random() < 0.5 else []
            y = d.node("Gemm", x, weight, *bias, transB=int(is_transposed), alpha=d.pick(1.0, 0.5))
        else:
            weight = d.node("Transpose", weight, perm=[1, 0]) if is_transposed else weight
            y = d.node("MatMul", x, weight)
            if d.rng.random() < 0.3:
                y = d.node(d.pick("Add", "Mul"), y, d.constant(d.normal(n)))
    elif op == "left":
        x = open_some(d, feed_runs(d, "x", d.normal(k, n)))
        y = d.node("MatMul", draw_weight(d, (m, k)), x)
    elif op == "batched":
        x = open_some(d, feed_runs(d, "x", d.normal(3, m, k)))
        y = d.node("MatMul", x, draw_weight(d, (3, k, n)))
    elif op == "Gather":
        axis = d.pick(0, 0, 1, -1)
        shape = d.pick((k, n), (k, n), (k, n), (k, n, 3))
        y = d.node("Gather", draw_weight(d, shape), feed_runs(d, "x", d.rng.integers(0, min(shape), (3,))), axis=axis)
    else:
        x = open_some(d, feed_runs(d, "x", d.normal(1, k, 5, 5)), 0.2)
        y = d.node(op, x, draw_weight(d, (n, k, 3, 3) if op == "Conv" else (k, n, 3, 3)))
    d.outputs = [y]


def draw_division(d: Draft) -> None:
    dtype = d.pick(np.int32, np.int64, np.int64, np.int16, np.int8)
    op = d.pick("Div", "Div", "Div", "Mod", "Mod")
    attributes: dict[str, Any] = {"fmod": d.pick(0, 1)} if op == "Mod" else {}
    kind = d.pick("constants", "shape", "one", "one", "run")
    size = 6
    a = d.rng.integers(-9, 10, size).astype(dtype)
    b = d.pick(np.array([2]), np.array([-2]), np.array([3]), d.rng.integers(1, 4, size) * d.rng.choice([-1, 1], size)).astype(dtype)
    if kind == "shape":
        dtype = np.int64
        x = feed_runs(d, "x", d.normal(*(int(s) for s in d.rng.integers(1, 8, 3))))
        open_some(d, x, 0.3)
        value = d.node("Shape", x)
        step = d.pick("Neg", "Sub", "Mul")
        value = d.node("Neg", value) if step == "Neg" else d.node(step, value, d.constant(np.array(d.pick(-7, 9, -1))))
        if d.rng.random() < 0.3:
            value = d.node("Gather", value, d.constant(np.array([1])), axis=0)
        y = d.node(op, value, d.constant(b[:1].astype(np.int64)), **attributes)
    else:
        x = feed_runs(d, "x", *[d.rng.integers(-9, 10, size).astype(dtype) for _ in range(2)])
        left = x if kind == "run" or (kind == "one" and d.rng.random() < 0.7) else d.constant(a)
        if kind == "run":
            right = feed_runs(d, "z", *[(d.rng.integers(1, 4, size) * d.rng.choice([-1, 1], size)).astype(dtype) for _ in range(2)])
        else:
            right = d.constant(b)
        if kind == "constants" and d.rng.random() < 0.3:
            left = d.node("Neg", left)
        y = d.node(op, left, right, **attributes)
        if kind == "constants":
            y = d.node("Add", y, x) if dtype is not np.int8 else d.node("Max", y, x)
    d.outputs = [y]


def draw_emptied(d: Draft) -> None:
    """Results whose size comes with the run, and that hold nothing in a later run."""
    op = d.pick(
        "Unique", "NonZero", "Compress", "NonMaxSuppression", "Range", "Slice", "ConstantOfShape", "Expand", "Tile", "Gather"
    )
    dtype = d.pick(np.float32, np.int64, np.int32)
    if op == "Unique":
        axis = d.pick(None, None, 0)
        sizes = d.pick((4, 0), (0, 3), (3, 5))
        arrays = [d.rng.integers(-2, 3, (size,) if axis is None else (size, 2)).astype(dtype) for size in sizes]
        x = open_some(d, feed_runs(d, "x", *arrays))
        attributes = {} if axis is None else {"axis": axis}
        d.outputs = d.node("Unique", x, outputs=4, sorted=d.pick(0, 1), **attributes)
        d.bodies = False
        return
    if op == "NonZero":
        x = feed_runs(d, "x", *[d.rng.integers(-1, 2, (2, 3)).astype(dtype), np.zeros((2, 3), dtype)])
        y = d.node("NonZero", x)
        if d.rng.random() < 0.5:
            y = d.node("Transpose", y, perm=[1, 0])
    elif op == "Compress":
        x = feed_runs(d, "x", *[d.rng.integers(-1, 2, (3, 2)).astype(dtype) for _ in range(2)])
        mask = feed_runs(d, "m", np.array([True, False, True]), np.zeros(3, bool))
        y = d.node("Compress", x, mask, axis=0)
    elif op == "NonMaxSuppression":
        boxes = feed_runs(d, "x", *[np.sort(d.rng.random((1, 5, 2, 2)), 2).reshape(1, 5, 4).astype(np.float32) for _ in range(2)])
        scores = feed_runs(d, "s", d.rng.random((1, 2, 5)).astype(np.float32), np.zeros((1, 2, 5), np.float32))
        y = d.node(
            "NonMaxSuppression",
            boxes,
            scores,
            d.constant(np.array([3])),
            d.constant(np.array([0.5], np.float32)),
            d.constant(np.array([0.2], np.float32)),
        )
    elif op == "Range":
        y = d.node(
            "Range", d.constant(np.array(0)), feed_runs(d, "x", np.array(4), np.array(d.pick(0, -2))), d.constant(np.array(1))
        )
    elif op == "Slice":
        x = feed_runs(d, "x", *[d.normal(4, 2) for _ in range(2)])
        y = d.node(
            "Slice", x, d.constant(np.array([0])), feed_runs(d, "e", np.array([3]), np.array([0])), d.constant(np.array([0]))
        )
        if d.rng.random() < 0.6:
            y = d.node(d.pick("Neg", "Relu", "Softmax", "Sigmoid"), y)
    elif op in ("ConstantOfShape", "Expand"):
        target = feed_runs(d, "t", np.array([2, 3]), np.array([0, 3]))
        y = (
            d.node("ConstantOfShape", target)
            if op == "ConstantOfShape"
            else d.node("Expand", feed_runs(d, "x", d.normal(1, 3), d.normal(1, 3)), target)
        )
    elif op == "Tile":
        y = d.node("Tile", feed_runs(d, "x", d.normal(1, 3), d.normal(1, 3)), feed_runs(d, "t", np.array([2, 1]), np.array([0, 1])))
    else:
        y = d.node(
            "Gather", d.constant(d.normal(4, 3)), feed_runs(d, "x", d.rng.integers(0, 4, 3), d.rng.integers(0, 4, 0)), axis=0
        )
    d.outputs = [y]


NORMS = (
    *("LayerNormalization", "InstanceNormalization", "GroupNormalization", "MeanVarianceNormalization", "BatchNormalization"),
    *("plain", "var"),
)


def draw_normalization(d: Draft) -> None:
    op = d.pick(*NORMS)
    d.opset = 21
    mean = float(d.pick(0, 100, 1000, 5000, -3000))
    shape = (2, 4, int(d.rng.integers(5, 40)), d.pick(4, 7, 16))
    if op == "LayerNormalization" or op in ("plain", "var"):
        shape = d.pick(shape, shape[1:], (3, shape[2] * 5))
    x = open_some(d, feed_runs(d, "x", *[(d.normal(*shape) + mean).astype(np.float32) for _ in range(2)]), 0.2)
    channels, last = shape[1], shape[-1]
    if op == "LayerNormalization":
        axis = d.pick(-1, -1, len(shape) - 2)
        sizes = shape[axis:]
        y = d.node(
            op, x, d.constant(d.normal(*sizes)), *([d.constant(d.normal(*sizes))] if d.rng.random() < 0.6 else []), axis=axis
        )
    elif op in ("InstanceNormalization", "GroupNormalization"):
        attributes: dict[str, Any] = {"num_groups": d.pick(1, 2, 4)} if op == "GroupNormalization" else {}
        y = d.node(op, x, d.constant(d.normal(channels)), d.constant(d.normal(channels)), **attributes)
    elif op == "MeanVarianceNormalization":
        y = d.node(op, x, **d.pick({}, {"axes": [2, 3]}, {"axes": [1]}, {"axes": [0, 1, 2, 3]}))
    elif op == "BatchNormalization":
        training = d.pick(0, 1)
        sources = [x, d.constant(d.normal(channels)), d.constant(d.normal(channels))]
        sources += [d.constant(np.full(channels, mean, np.float32)), d.constant(np.abs(d.normal(channels)) + 0.1)]
        y = d.node(op, *sources, outputs=3, training_mode=1) if training else d.node(op, *sources)
        y = y[0] if training else y
    else:
        axes = d.constant(np.array(d.pick([-1], [len(shape) - 1], [-2, -1])))
        average = d.node("ReduceMean", x, axes)
        centred = d.node("Sub", x, average)
        square = d.node("Mul", centred, centred) if d.rng.random() < 0.5 else d.node("Pow", centred, d.constant(np.float32(2)))
        variance = d.node("ReduceMean", square, axes)
        y = variance
        if op == "plain":
            root = d.node("Sqrt", d.node("Add", variance, d.constant(np.float32(1e-5))))
            y = d.node("Div", centred, root) if d.rng.random() < 0.7 else d.node("Mul", centred, d.node("Reciprocal", root))
            if d.rng.random() < 0.6:
                y = d.node("Add", d.node("Mul", y, d.constant(d.normal(last))), d.constant(d.normal(last)))
    d.rtol = 5e-3  # a mean of 5,000 is rounded to 0.0002; a variance in one pass would be off by more than 1
    d.outputs = [y]


def draw_bias(d: Draft) -> None:
    op = d.pick("MatMul", "MatMul", "Gemm", "Conv", "Relu", "ReduceSum", "BatchNormalization", "dynamic")
    n = int(d.rng.integers(1, 6))
    if op in ("MatMul", "Gemm", "dynamic"):
        lead = d.pick((3,), (3,), (2, 3), (1,)) if op == "MatMul" else (3,)
        x = open_some(d, feed_runs(d, "x", *[d.normal(*lead, 4) for _ in range(2)]))
        y = d.node(
            "MatMul" if op == "dynamic" else op,
            x,
            feed_runs(d, "w", d.normal(4, n), d.normal(4, n)) if op == "dynamic" else d.constant(d.normal(4, n)),
        )
        rank = len(lead) + 1
    elif op == "Conv":
        n = 4
        x = open_some(d, feed_runs(d, "x", d.normal(1, 2, 5, 6)), 0.2)
        y, rank = d.node("Conv", x, d.constant(d.normal(3, 2, 2, 3))), 4
    else:
        x = open_some(d, feed_runs(d, "x", d.normal(3, n)))
        y = d.node(op, x, *(d.constant(np.abs(d.normal(n)) + 1) for _ in range(4 if op[0] == "B" else 0)))
        y, rank = (y, 2)
        n = 1 if op == "ReduceSum" else n
    if d.rng.random() < 0.3:
        y = d.node(d.pick("Relu", "Neg", "Tanh"), y)
    for _ in range(d.pick(1, 1, 2)):
        more = d.pick(1, 1, 2, 0)
        sizes = d.pick((1,) * (rank + more - 1) + (n,), (1,) * (rank + more), (2,) + (1,) * (rank + more - 2) + (n,))
        b = d.constant((np.abs(d.normal(*sizes)) + 0.5).astype(np.float32))
        second = d.pick("Add", "Add", "Sub", "Mul", "Div", "Max", "Min", "PRelu", "Where", "Sum")
        if second == "PRelu" and len(sizes) > rank:
            second = "Add"
        if second == "Where":
            y = d.node("Where", d.constant(np.ones(sizes, bool)), y, b)
        else:
            y = d.node(second, *(d.pick((y, b), (b, y)) if second != "PRelu" else (y, b)))
        rank = max(rank, len(sizes))
    if d.rng.random() < 0.3:
        y = d.node("Relu", y)
    d.outputs = [y]


def draw_rms(d: Draft) -> None:
    shape = d.pick((2, 3, 8), (2, 8), (1, 2, 3, 8), (1, 1, 8))
    width = shape[-1]
    x = open_some(d, feed_runs(d, "x", *[d.normal(*shape) for _ in range(2)]))
    rank = len(shape)
    sizes = [
        (width,),
        (1, width),
        (1,),
        (),
        (1, 1, width),
        (1,) * rank,
        (1,) * rank + (width,),
        (shape[-2], 1),
        (shape[-2], width),
        shape,
        (shape[0],) + (1,) * (rank - 1),
    ]
    scale = d.constant(d.normal(*d.pick(*sizes)))
    d.opset = d.pick(17, 23)
    if d.opset == 23 and d.rng.random() < 0.5:
        y = d.node("RMSNormalization", x, d.constant(d.normal(*d.pick((width,), (1,), (1, width), ()))), axis=-1)
    else:
        d.opset = 18
        square = d.node("Pow", x, d.constant(np.float32(2))) if d.rng.random() < 0.6 else d.node("Mul", x, x)
        average = d.node("ReduceMean", square, d.constant(np.array([-1])))
        root = d.node("Sqrt", d.node("Add", average, d.constant(d.pick(np.float32(1e-6), np.array([1e-6], np.float32)))))
        form = d.pick("div", "reciprocal", "one")
        if form == "div":
            y = d.node("Div", x, root)
        elif form == "reciprocal":
            y = d.node("Mul", x, d.node("Reciprocal", root))
        else:
            y = d.node("Mul", x, d.node("Div", d.constant(np.float32(1)), root))
        y = d.node("Mul", *d.pick((y, scale), (scale, y)))
    d.outputs = [y]


def draw_recurrent(d: Draft) -> None:
    op = d.pick("LSTM", "GRU", "RNN")
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    lengths, batches = d.pick((0, 0), (3, 0), (2, 3), (1, 0), (0, 2)), d.pick((2, 2), (0, 0), (1, 0), (2, 1))
    direction = d.pick("forward", "reverse", "bidirectional")
    count = 2 if direction == "bidirectional" else 1
    x = open_some(d, feed_runs(d, "x", *[d.normal(*pair, 3) for pair in zip(lengths, batches, strict=True)]), 0.3)
    inputs = [x, d.constant(d.normal(count, gates * 2, 3)), d.constant(d.normal(count, gates * 2, 2))]
    if d.rng.random() < 0.4:
        states = [d.normal(count, batch, 2) for batch in batches]
        inputs += [d.constant(d.normal(count, gates * 4)), "", open_some(d, feed_runs(d, "h", *states), 0.3)]
        if op == "LSTM":
            inputs.append(open_some(d, feed_runs(d, "c", *states), 0.3))
    attributes: dict[str, Any] = {"linear_before_reset": d.pick(0, 1)} if op == "GRU" else {}
    names = d.node(op, *inputs, outputs=3 if op == "LSTM" else 2, hidden_size=2, direction=direction, **attributes)
    d.outputs = names if d.rng.random() < 0.6 else names[:1]


REDUCTIONS = ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceMean", "ReduceProd", "ReduceL2", "ReduceLogSumExp")
OF_EMPTY = (
    *("Relu", "Softmax", "LogSoftmax", "Transpose", "Concat", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceMean", "ReduceProd"),
    *("ArgMax", "Gather", "Pad", "Slice", "Split", "Flatten", "MatMul", "Gemm", "CumSum", "LayerNormalization", "Shape", "Size"),
    *("Conv", "GlobalAveragePool", "GlobalMaxPool", "MaxPool", "AveragePool", "BatchNormalization", "InstanceNormalization"),
    *("Resize", "Einsum", "TopK", "Cast", "Where", "Expand", "Tile", "Squeeze", "OneHot", "ScatterND", "ReduceL2"),
    *("ReduceLogSumExp", "Attention", "MultiHeadAttention", "DepthToSpace", "LRN", "GroupNormalization", "NonZero", "Hardmax"),
    *("Trilu", "IsNaN", "Sum"),
)


def draw_empty(d: Draft) -> None:
    """Operators of a tensor that has an axis of length 0, in all runs or in a later one."""
    shape = d.pick((2, 3, 4), (1, 2, 4, 4), (3, 4))
    axis = int(d.rng.integers(len(shape)))
    emptied = tuple(0 if index == axis else size for index, size in enumerate(shape))
    later = d.rng.random() < 0.6
    runs = (shape, emptied, shape) if later else (emptied, emptied)
    x = open_some(d, feed_runs(d, "x", *[d.normal(*sizes) for sizes in runs]), 0.2)
    other = int(d.rng.integers(len(shape)))
    op = d.pick(*OF_EMPTY)
    d.opset = 23 if op == "Attention" else 18
    y = _apply_to_empty(d, op, x, shape, axis, other)
    if d.rng.random() < 0.2 and op not in ("Shape", "Size", "NonZero", "IsNaN", "ArgMax", "Cast"):
        y = d.node(d.pick("Relu", "Neg"), y)
    d.outputs = [y]


def _apply_to_empty(d: Draft, op: str, x: str, shape: tuple[int, ...], axis: int, other: int) -> Any:
    """Adds the operator, or Neg in its place if it does not fit the shape or its result is open."""
    rank, last = len(shape), shape[-1]
    is_image = rank == 4 and axis != 1
    ints: Callable[..., str] = lambda *numbers: d.constant(np.array(numbers, np.int64))  # noqa: E731  # shorter than a function
    match op:
        case _ if op in REDUCTIONS:
            # The standard leaves the mean of no elements open.
            kind = "ReduceSum" if op == "ReduceMean" and axis == other else op
            return d.node(kind, x, ints(other), keepdims=d.pick(0, 1))
        case "Softmax" | "LogSoftmax" | "ArgMax" | "Hardmax":
            return d.node(op, x, axis=other)
        case "Concat":
            return d.node(op, x, d.constant(d.normal(*shape)) if axis == other else x, axis=other)
        case "Gather":
            return d.node(op, x, d.constant(np.zeros(2 if other != axis else 0, np.int64)), axis=other)
        case "Pad":
            return d.node(op, x, ints(*[1] * (2 * rank)))
        case "Slice":
            return d.node(op, x, ints(0), ints(2), ints(other))
        case "Split" if other != axis and shape[other] % 2 == 0:
            return d.node(op, x, outputs=2, axis=other, num_outputs=2)[0]
        case "MatMul" if axis != rank - 1:
            return d.node(op, x, d.constant(d.normal(last, 2)))
        case "Gemm" if rank == 2 and axis == 0:
            return d.node(op, x, d.constant(d.normal(last, 2)), d.constant(d.normal(2)))
        case "CumSum":
            return d.node(op, x, d.constant(np.array(other)))
        case "LayerNormalization" if axis != rank - 1:
            return d.node(op, x, d.constant(d.normal(last)))
        case "Conv" if is_image:
            return d.node(op, x, d.constant(d.normal(3, shape[1], 1, 1)))
        case "MaxPool" | "AveragePool" if is_image:
            return d.node(op, x, kernel_shape=[1, 1])
        case "LRN" if is_image:
            return d.node(op, x, size=3)
        case "Resize" if is_image:
            scales = d.constant(np.array([1, 1, 2, 2], np.float32))
            return d.node(op, x, "", scales, mode=d.pick("nearest", "linear"), coordinate_transformation_mode="asymmetric")
        case "DepthToSpace" if is_image:
            return d.node(op, x, blocksize=1)
        case "BatchNormalization" | "InstanceNormalization" if is_image:
            count = 4 if op == "BatchNormalization" else 2
            return d.node(op, x, *(d.constant(np.abs(d.normal(shape[1])) + 1) for _ in range(count)))
        case "GroupNormalization" if is_image:
            return d.node(op, x, *(d.constant(np.abs(d.normal(1)) + 1) for _ in range(2)), num_groups=1)
        case "GlobalAveragePool" | "GlobalMaxPool" if axis < 2:
            return d.node(op, x)
        case "Einsum":
            letters = "abcd"[:rank]
            return d.node(op, x, equation=f"{letters}->{letters.replace(letters[other], '')}")
        case "TopK" if other != axis:
            return d.node(op, x, ints(1), outputs=2, axis=other)[0]
        case "Cast":
            return d.node(op, x, to=d.pick(TensorProto.INT32, TensorProto.FLOAT16, TensorProto.INT64))
        case "Where":
            return d.node(op, d.node("Greater", x, d.constant(np.float32(0))), x, d.constant(np.float32(1)))
        case "Expand":
            return d.node(op, x, d.node("Shape", x))
        case "Tile":
            return d.node(op, x, ints(*[1] * (rank - 1), 2))
        case "Squeeze":
            return d.node(op, d.node("Unsqueeze", x, ints(0)), ints(0))
        case "OneHot":
            return d.node(
                op, d.node("Cast", x, to=TensorProto.INT64), d.constant(np.array(3)), d.constant(np.array([0, 1], np.float32))
            )
        case "ScatterND":
            updates = d.node("Slice", d.node("Reshape", x, ints(-1, 2)), ints(0), ints(0), ints(0))
            return d.node(op, d.constant(d.normal(4, 2)), d.constant(np.zeros((0, 1), np.int64)), updates)
        case "Attention" if rank == 4:
            return d.node(op, x, x, x)
        case "MultiHeadAttention" if rank == 3 and axis != 2:
            return d.node(op, x, x, x, domain="com.microsoft", num_heads=2)
        case "Sum":
            return d.node(op, x, d.constant(np.array([1], np.float32)), x)
        case "Relu" | "Transpose" | "Flatten" | "Shape" | "Size" | "NonZero" | "Trilu" | "IsNaN":
            return d.node(op, x)
    return d.node("Neg", x)


def draw_byte_products(d: Draft) -> None:
    k = d.pick(4, 17, 64, 130)
    m, n = d.pick(1, 3, 16), d.pick(1, 5, 16)
    left, right = d.pick(np.uint8, np.uint8, np.int8), d.pick(np.int8, np.int8, np.uint8)

    def extreme(dtype: Any, *shape: int) -> Array:
        info = np.iinfo(dtype)
        array = d.rng.choice([info.max, info.max, info.min, info.max - 1, 3], shape).astype(dtype)
        return array if d.rng.random() < 0.5 else np.full(shape, info.max, dtype)

    is_narrow = d.rng.random() < 0.3
    op = d.pick("MatMulInteger", "ConvInteger", "QLinearMatMul", "QLinearConv", "pairs", "pairs_conv", "MatMulIntegerToFloat")
    scale = np.float32(0.0078125)
    is_constant = d.rng.random() < 0.6
    zero = [d.constant(left(d.pick(0, 3))), d.constant(right(d.pick(0, 3)))]
    conv = op in ("ConvInteger", "QLinearConv", "pairs_conv")
    shapes = ((1, 4, 6, 6), (n, 4, 3, 3)) if conv else ((m, k), (k, n))
    a = open_some(d, feed_runs(d, "a", *[extreme(left, *shapes[0]) for _ in range(2)]), 0.2)
    narrow = d.rng.choice([-64, 64, 64, 63], shapes[1]).astype(np.int8) if d.rng.random() < 0.5 else np.full(shapes[1], 64, np.int8)
    if is_narrow and right is np.int8:
        b = d.constant(narrow)
    else:
        b = (
            d.constant(extreme(right, *shapes[1]))
            if is_constant
            else feed_runs(d, "b", *[extreme(right, *shapes[1]) for _ in range(2)])
        )
    s = d.constant(scale)
    # The result's scale is a power of two that leaves every quotient exact or far from a half.
    total = 36 if conv else k
    t = d.constant(np.float32(2.0 ** np.ceil(np.log2(total * 255 * 255 * scale * scale / 255))))
    result = d.pick(np.uint8, left)
    if op in ("MatMulInteger", "ConvInteger"):
        y = d.node(op, a, b, *(zero if d.rng.random() < 0.5 else []))
    elif op in ("QLinearMatMul", "QLinearConv"):
        y = d.node(op, a, s, zero[0], b, s, d.constant(right(0)) if conv else zero[1], t, d.constant(result(0)))
    elif op == "MatMulIntegerToFloat":
        y = d.node(op, a, b, s, s, domain="com.microsoft")
    else:
        first, second = d.node("DequantizeLinear", a, s, zero[0]), d.node("DequantizeLinear", b, s, zero[1])
        y = d.node("Conv" if conv else "MatMul", first, second)
        if d.rng.random() < 0.3:
            y = d.node("Relu", y)
        d.rtol = 1e-4
    d.outputs = [y]


def draw_nearest(d: Draft) -> None:
    d.opset = 18
    n, k = int(d.rng.integers(1, 30)), int(d.rng.integers(1, 60))
    if d.rng.random() < 0.2:
        k = n * int(d.rng.integers(1, 6))
    x = feed_runs(d, "x", d.normal(1, d.pick(1, 3), d.pick(1, 4), n))
    if d.rng.random() < 0.3:
        open_some(d, x, 0.3)
    attributes = {
        "mode": "nearest",
        "coordinate_transformation_mode": d.pick("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"),
        "nearest_mode": d.pick("floor", "ceil", "round_prefer_floor", "round_prefer_ceil"),
    }
    height = d.feeds[0]["x"].shape[2]
    channels = d.feeds[0]["x"].shape[1]
    if d.rng.random() < 0.5:
        inputs = [x, "", "", d.constant(np.array([1, channels, height, k]))]
    else:
        inputs = [x, "", d.constant(np.array([1, 1, 1, d.pick(k / n, 2, 3, 1.5, 0.5, 1.7)], np.float32))]
    d.outputs = [d.node("Resize", *inputs, **attributes)]
    d.bodies = False
    scale = numpy_helper.to_array(d.constants[inputs[-1]])[-1]
    factor = Fraction(k, n) if scale.dtype == np.int64 else Fraction(float(scale))
    pixels = [find_pixel(index, n, math.floor(n * factor), factor, attributes) for index in range(math.floor(n * factor))]
    d.formula = lambda feed: feed["x"][..., pixels]


def find_pixel(index: int, old: int, new: int, factor: Fraction, attributes: dict[str, Any]) -> int:
    """Returns the pixel that Resize takes, in exact fractions. Source: ONNX Resize-18."""
    half, coordinates = Fraction(1, 2), attributes["coordinate_transformation_mode"]
    place = (index + half) / factor - half
    if coordinates == "asymmetric":
        place = index / factor
    elif coordinates == "align_corners":
        place = Fraction(index * (old - 1), new - 1) if new > 1 else Fraction(0)
    elif coordinates == "pytorch_half_pixel" and new == 1:
        place = Fraction(0)
    rounded = {
        "floor": math.floor(place),
        "ceil": math.ceil(place),
        "round_prefer_floor": math.ceil(place - half),
        "round_prefer_ceil": math.floor(place + half),
    }
    return min(max(rounded[attributes["nearest_mode"]], 0), old - 1)


def draw_long_sum(d: Draft) -> None:
    size = d.pick(3_000_000, 10_000_000, 20_000_000)
    d.opset = 18
    x = feed_runs(
        d, "x", np.ones(d.pick((size,), (1, size), (1, 1, size // 1000, 1000)), np.float32) * np.float32(d.pick(0.1, 1, 0.7))
    )
    rank = d.feeds[0]["x"].ndim
    op = d.pick(
        *("ReduceSum", "ReduceMean", "ReduceL1", "ReduceL2", "ReduceSumSquare", "GlobalAveragePool", "MatMul", "CumSum"),
        *("Einsum", "ReduceLogSum"),
    )
    if op == "GlobalAveragePool" and rank != 4:
        op = "ReduceSum"
    if op == "MatMul":
        d.formula = lambda feed: np.array([[np.square(feed["x"].astype(np.float64)).sum()]], np.float32)
        y = d.node(op, d.node("Reshape", x, d.constant(np.array([1, -1]))), d.node("Reshape", x, d.constant(np.array([-1, 1]))))
    elif op == "CumSum":
        y = d.node("ReduceMax", d.node(op, d.node("Reshape", x, d.constant(np.array([-1]))), d.constant(np.array(0))), keepdims=0)
    elif op == "Einsum":
        y = d.node(op, d.node("Reshape", x, d.constant(np.array([-1]))), equation="a->")
    else:
        y = d.node(op, x) if op == "GlobalAveragePool" else d.node(op, x, keepdims=0)
    d.outputs = [y]
    d.bodies = False


KINDS: dict[str, Callable[[Draft], None]] = {
    "dft": draw_dft,
    "loop": draw_loop,
    "scan": draw_scan,
    "dequantized": draw_dequantized,
    "division": draw_division,
    "emptied": draw_emptied,
    "normalization": draw_normalization,
    "bias": draw_bias,
    "rms": draw_rms,
    "recurrent": draw_recurrent,
    "empty": draw_empty,
    "bytes": draw_byte_products,
    "nearest": draw_nearest,
    "long": draw_long_sum,
}


def draw(kind: str, seed: int) -> Draft:
    """Returns a network of a kind; the same for the same seed."""
    draft = Draft(np.random.default_rng([seed, *kind.encode()]), [])
    KINDS[kind](draft)
    if draft.bodies and draft.rng.random() < 0.2:
        place_in_branch(draft)
    return draft


def judge(core: Core, draft: Draft) -> tuple[str, str]:
    """Returns a verdict and what it rests on: RIGHT, WRONG, ERROR, GUARDED (a run that the plugin refuses), REFUSED, INVALID."""
    model = draft.build()
    try:
        expected = list(run_all(core, model, "CPU", draft.feeds, CPU_KERNELS="NUMPY"))
    except HeteroError as error:
        return "INVALID", str(error)
    refused = core.query_network(model, "OPENVINO").refused
    device = "HETERO:OPENVINO,CPU" if refused else "OPENVINO"
    reason = "; ".join(f"{name}: {reason}" for name, reason in refused.items())
    try:
        answers = run_all(core, model, device, draft.feeds)
    except HeteroError as error:
        text = str(error)
        return ("GUARDED" if "Run the nodes that" in text else "ERROR"), f"{type(error).__name__}: {text} | {reason}"
    if draft.formula is not None and refused:
        return "REFUSED", reason
    if draft.formula is not None:
        expected = [{draft.outputs[0]: draft.formula(feed)} for feed in draft.feeds]
    for index, (answer, right) in enumerate(zip(answers, expected, strict=True)):
        mismatch = describe_first_mismatch(answer, list(right.values()), rtol=draft.rtol)
        if mismatch is not None:
            return "WRONG", f"run {index}: {mismatch} | {reason}"
    return ("REFUSED" if refused else "RIGHT"), reason


def run_all(core: Core, model: Any, device: str, feeds: Sequence[Feed], **config: str) -> list[dict[str, Array]]:
    loaded = core.load_network(model, device, config)
    results = [{name: np.array(value) for name, value in loaded.infer(feed).items()} for feed in feeds]
    loaded.close()
    return results


def judge_drawn(core: Core, kind: str, seed: int) -> tuple[str, str]:
    """Returns the verdict about the network of a kind and a seed."""
    return judge(core, draw(kind, seed))


def _work(connection: Any, judge: Callable[..., tuple[str, str]]) -> None:
    warnings.simplefilter("ignore")
    with Core() as core:
        while True:
            arguments = connection.recv()
            try:
                connection.send(judge(core, *arguments))
            except Exception as error:  # noqa: BLE001  # a fault of the drawing itself
                connection.send(("BROKEN", f"{type(error).__name__}: {error}"))


class Worker:
    """A child process that judges networks by a function; a new one takes its place when it ends or hangs."""

    def __init__(self, judge: Callable[..., tuple[str, str]], seconds: float) -> None:
        self._judge = judge
        self._context = multiprocessing.get_context("spawn")
        self._seconds = seconds
        self._process: Any = None

    def judge(self, *arguments: Any) -> tuple[str, str]:
        """Returns the verdict of the function; CRASH or HANG if the process ends or does not answer."""
        if self._process is None:
            self._connection, other = self._context.Pipe()
            self._process = self._context.Process(target=_work, args=(other, self._judge), daemon=True)
            self._process.start()
            other.close()
        self._connection.send(arguments)
        try:
            if self._connection.poll(self._seconds):
                verdict: tuple[str, str] = self._connection.recv()
                return verdict
            fault = ("HANG", f"no answer in {self._seconds} s")
            self._process.kill()
        except (EOFError, ConnectionResetError):
            self._process.join()
            fault = ("CRASH", f"exit code {self._process.exitcode}")
        self._process.join()
        self._process = None
        return fault

    def close(self) -> None:
        """Ends the child process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()


def main() -> int:
    """Draws and judges; returns 1 if a network is wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default=",".join(kind for kind in KINDS if kind != "long"))
    parser.add_argument("--show", default="WRONG,ERROR,CRASH,HANG,BROKEN,GUARDED")
    options = parser.parse_args()
    kinds = options.kinds.split(",")
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in kinds}
    worker = Worker(judge_drawn, 120)
    for index in range(options.count):
        kind, seed = kinds[index % len(kinds)], options.seed + index // len(kinds)
        verdict, text = worker.judge(kind, seed)
        counts[kind][verdict] += 1
        if verdict in options.show.split(","):
            sys.stdout.write(f"{verdict} {kind} {seed}: {text[:400]}\n")
    worker.close()
    total: Counter[str] = sum(counts.values(), Counter())
    sys.stdout.write(json.dumps({**counts, "all": total}, indent=1) + "\n")
    return int(any(total[verdict] for verdict in ("WRONG", "ERROR", "CRASH", "HANG", "BROKEN")))


if __name__ == "__main__":
    sys.exit(main())
