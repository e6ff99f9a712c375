"""Machine code for LSTM, GRU and RNN, against their formulas in float64, and for the quantized LSTM against the toolkit.

Source: ONNX LSTM-22, GRU-22, RNN-22.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from hetero_core import Core

pytest.importorskip("llvmlite", reason="machine code is made by llvmlite")

from hetero_cpu.machine.compiler import find_byte_products, find_width

from ..conftest import use_products

if not find_width():
    pytest.skip("no machine code for this processor", allow_module_level=True)

GATES = {"GRU": 3, "GRU of reset states": 3, "LSTM": 4, "RNN": 1}
OUTPUTS = {"GRU": ["y", "h"], "GRU of reset states": ["y", "h"], "LSTM": ["y", "h", "c"], "RNN": ["y", "h"]}


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def walk(kind: str, x: Any, w: Any, r: Any, b: Any, h: Any, c: Any, *, backward: bool) -> tuple[Any, Any, Any]:
    """Returns all hidden states of a direction, the last one, and the last cell."""
    of_input, of_state = np.split(b, 2)
    hidden, outputs = r.shape[1], np.zeros((*x.shape[:2], r.shape[1]))
    for step in range(len(x))[:: -1 if backward else 1]:
        left = np.split(x[step] @ w.T + of_input, GATES[kind], axis=1)
        right = np.split(h @ r.T + of_state, GATES[kind], axis=1)
        if kind == "LSTM":
            i, o, f, g = (one + other for one, other in zip(left, right, strict=True))
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
        elif kind == "GRU":
            z, gate = sigmoid(left[0] + right[0]), sigmoid(left[1] + right[1])
            h = (1 - z) * np.tanh(left[2] + gate * right[2]) + z * h
        elif kind == "GRU of reset states":
            z, gate = sigmoid(left[0] + right[0]), sigmoid(left[1] + right[1])
            of_reset = (gate * h) @ r.T[:, 2 * hidden :] + of_state[2 * hidden :]
            h = (1 - z) * np.tanh(left[2] + of_reset) + z * h
        else:
            h = np.tanh(left[0] + right[0])
        outputs[step] = h
    assert h.shape[1] == hidden
    return outputs, h, c


def make_model(kind: str, direction: str, weights: dict[str, Any], outputs: list[str], starts: list[str]) -> Any:
    hidden, features = weights["r"].shape[2], weights["w"].shape[2]
    attributes = {"linear_before_reset": 1} if kind == "GRU" else {}
    inputs = ["x", "w", "r", "b" if "b" in weights else "", "", *starts]
    node = helper.make_node(kind.split()[0], inputs, outputs, hidden_size=hidden, direction=direction, **attributes)
    directions = len(weights["w"])
    sizes = {"x": ["steps", "batch", features], **{start: [directions, "batch", hidden] for start in starts}}
    graph = helper.make_graph(
        [node],
        kind,
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, size) for name, size in sizes.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs if name],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("kind", sorted(GATES))
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("hidden", [5, 16, 33])
@pytest.mark.parametrize("threads", [1, 2])
def test_recurrence_of_open_sizes_equals_the_formula(kind: str, direction: str, hidden: int, threads: int) -> None:
    rng, directions, features = np.random.default_rng([hidden, threads]), 1 + (direction == "bidirectional"), 7
    has_start, columns = hidden != 16, GATES[kind] * hidden
    weights = {
        "w": rng.standard_normal((directions, columns, features)),
        "r": rng.standard_normal((directions, columns, hidden)) / 3,
    }
    weights["b"] = rng.standard_normal((directions, 2 * columns))
    weights = {name: array.astype(np.float32) for name, array in weights.items()}
    starts = ["first_h", "first_c"][: 1 + (kind == "LSTM")] if has_start else []
    model = make_model(kind, direction, weights, OUTPUTS[kind], starts)
    with Core() as core:
        loaded = core.load_network(model, "CPU", {"CPU_KERNELS": "JIT", "INFERENCE_NUM_THREADS": threads})
        for steps, batch in ((3, 1), (7, 2), (2, 6), (5, 13), (1, 4)):
            x = rng.standard_normal((steps, batch, features)).astype(np.float32)
            feeds = {name: rng.standard_normal((directions, batch, hidden)).astype(np.float32) for name in starts}
            nothing = np.zeros((directions, batch, hidden))
            actual = loaded.infer({"x": x, **feeds})
            assert loaded.get_metric("CPU_FOREIGN_STEPS") == 0
            for place in range(directions):
                parts = [weights[name][place].astype(np.float64) for name in ("w", "r", "b")]
                begin = [feeds.get(name, nothing)[place].astype(np.float64) for name in ("first_h", "first_c")]
                backward = direction == "reverse" or place == 1
                exact = walk(kind, x.astype(np.float64), *parts, *begin, backward=backward)
                for name, expected in zip(OUTPUTS[kind], exact, strict=False):
                    found = actual[name][:, place] if name == "y" else actual[name][place]
                    np.testing.assert_allclose(found, expected, atol=2e-5, rtol=0)


def test_recurrence_writes_its_last_state_alone_and_needs_no_bias() -> None:
    rng, hidden = np.random.default_rng(1), 9
    weights = {"w": rng.standard_normal((1, 4 * hidden, 3)), "r": rng.standard_normal((1, 4 * hidden, hidden)) / 3}
    weights = {name: array.astype(np.float32) for name, array in weights.items()}
    x = rng.standard_normal((4, 3, 3)).astype(np.float32)
    with Core() as core:
        loaded = core.load_network(make_model("LSTM", "forward", weights, ["", "h"], []), "CPU", {"CPU_KERNELS": "JIT"})
        (actual,) = loaded.infer({"x": x}).values()
        assert loaded.get_metric("CPU_FOREIGN_STEPS") == 0
    nothing = np.zeros((3, hidden))
    _, exact, _ = walk(
        "LSTM", x.astype(np.float64), *(weights[name][0].astype(np.float64) for name in "wr"), np.zeros(8 * hidden),
        nothing, nothing, backward=False,
    )  # fmt: skip
    np.testing.assert_allclose(actual[0], exact, atol=2e-5, rtol=0)


@pytest.fixture(
    params=[("amx", ""), ("vnni", r" amx_\w+"), ("vnni", r" (amx_|avx512)\w+"), ("", r" amx_\w+| avx512_vnni| avx_vnni")],
    ids=["amx", "vnni", "vnni with AVX2", "float32"],
)
def products(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The products of bytes in use; skipped if the processor has others alone."""
    yield from use_products(monkeypatch, find_byte_products, *request.param)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(
    ("hidden", "features", "dtype"), [(5, 7, np.int8), (16, 64, np.uint8), (33, 1, np.uint8), (64, 19, np.int8)]
)
@pytest.mark.parametrize("threads", [1, 2])
def test_quantized_lstm_equals_the_toolkit(
    products: str, direction: str, hidden: int, features: int, dtype: type[np.integer[Any]], threads: int
) -> None:
    """A hidden state that differs in its last digit may have the next code, so that further steps differ by some thousandths."""
    rng, directions = np.random.default_rng(hidden), 1 + (direction == "bidirectional")
    sizes, limits = (directions, 4 * hidden) if hidden % 2 else (directions,), np.iinfo(dtype)

    def draw_zeros() -> Any:
        # Codes less such zero points are bytes, or not.
        return np.full(sizes, 0 if dtype is np.int8 else 128 if hidden == 16 else 140, dtype)

    weights = {
        "w": rng.integers(limits.min, limits.max + 1, (directions, features, 4 * hidden)).astype(dtype),
        "r": rng.integers(limits.min, limits.max + 1, (directions, hidden, 4 * hidden)).astype(dtype),
        "b": rng.standard_normal((directions, 8 * hidden)).astype(np.float32),
        "w_scale": rng.uniform(0.001, 0.01, sizes).astype(np.float32), "w_zero": draw_zeros(),
        "r_scale": (rng.uniform(0.001, 0.01, sizes) / np.sqrt(hidden)).astype(np.float32), "r_zero": draw_zeros(),
    }  # fmt: skip
    starts = ["h", "c"] if hidden != 16 else ["", ""]
    node = helper.make_node(
        "DynamicQuantizeLSTM", ["x", "w", "r", "b", "", *starts, "", "w_scale", "w_zero", "r_scale", "r_zero"], ["y"],
        domain="com.microsoft", hidden_size=hidden, direction=direction,
    )  # fmt: skip
    shapes = {"x": ["steps", "batch", features], **{start: [directions, "batch", hidden] for start in starts if start}}
    graph = helper.make_graph(
        [node],
        "quantized",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    with Core() as core:
        loaded = core.load_network(model, "CPU", {"CPU_KERNELS": "JIT", "INFERENCE_NUM_THREADS": threads})
        toolkit = core.load_network(model, "CPU", {"CPU_KERNELS": "NUMPY"})
        for steps, batch, kind in ((1, 1, ""), (1, 7, ""), (4, 2, ""), (3, 13, "positive"), (2, 6, "zeros"), (2, 2, "nan")):
            x = rng.standard_normal((steps, batch, features)).astype(np.float32)
            x = {"": x, "positive": np.abs(x), "zeros": 0 * x, "nan": np.where(x == x.max(), np.float32(np.nan), x)}[kind]
            feeds = {name: rng.standard_normal((directions, batch, hidden)).astype(np.float32) for name in starts if name}
            actual, expected = (each.infer({"x": x, **feeds})["y"] for each in (loaded, toolkit))
            assert loaded.get_metric("CPU_FOREIGN_STEPS") == 0
            np.testing.assert_allclose(actual, expected, atol=2e-6 if steps == 1 else 5e-3, rtol=0)
