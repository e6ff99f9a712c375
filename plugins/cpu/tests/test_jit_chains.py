"""Whole models with chains, normalizations and copies by machine code: shared memory stays correct, and answers equal the engine's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx.numpy_helper
import onnx.parser
import pytest

from hetero_core import Core
from hetero_core.testing.compare import assert_same
from hetero_core.testing.models import light_inputs
from hetero_core.testing.reference_session import open_reference_session

from .trial import WIDTHS

pytestmark = pytest.mark.skipif(not WIDTHS, reason="no kernels are made for this processor, or llvmlite is not installed")
NUMBERS = {"root": 1.4142135, "one": 1.0, "half": 0.5}


@pytest.fixture(scope="module")
def core() -> Iterator[Core]:
    with Core() as opened:
        yield opened


def draw_array(seed: int, *shape: int) -> Any:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


CONSTANTS = {
    "w": draw_array(1, 24, 12, 3, 3) / 10,
    "v": draw_array(2, 12, 24, 1, 1) / 5,
    "row": draw_array(3, 40),
    "scale": draw_array(4, 24),
    "bias": draw_array(5, 24),
    "mean": draw_array(6, 24),
    "variance": np.abs(draw_array(7, 24)) + np.float32(0.1),
    **{name: np.array(value, np.float32) for name, value in NUMBERS.items()},
}
IMAGE, ROWS = "2, 12, 9, 7", "2, 5, 40"


@pytest.mark.parametrize(
    ("shape", "body", "native"),
    [
        (ROWS, "a = Div (x, root) b = Erf (a) c = Add (b, one) d = Mul (x, c) y = Mul (d, half)", 1),
        (ROWS, "s = Sigmoid (x) y = Mul (x, s)", 1),
        (ROWS, "a = Softmax (x) b = Exp (a) c = Add (b, row) y = LayerNormalization (c, row, row)", 3),
        # A value that is read again after its memory could have been overwritten; a sum of two views of the same value.
        (ROWS, "a = Exp (x) b = Neg (a) c = Softmax (a) d = Mul (a, b) y = Add (c, d)", 3),
        (ROWS, "n = Exp (x) a, b = Split <axis = 0, num_outputs = 2> (n) c = Add (n, a) y = Mul (c, b)", 2),
        # Images: a halo around the input of a convolution, batch normalization before a convolution, scales of channels.
        (
            IMAGE,
            """a = Conv <pads = [1, 1, 1, 1]> (x, w) n = BatchNormalization (a, scale, bias, mean, variance)
               t = Tanh (n) y = Add (n, t)""",
            2,
        ),
        (
            IMAGE,
            """a = Conv <pads = [1, 1, 1, 1]> (x, w) r = Relu (a) s = Concat <axis = 1> (a, r, a) t = Neg (a) l = LRN <size = 5> (a)
               g = GlobalAveragePool (t) h = HardSigmoid (g) m = Mul (l, h) y = Sum (m, t, a)""",
            6,
        ),
        (IMAGE, "a = Conv (x, w) b = Softmax <axis = 1> (a) c = Conv (b, v) d = Sigmoid (c) e = Mul (c, d) y = Flatten (e)", 4),
        (IMAGE, "a = Conv (x, w) b = Transpose <perm = [0, 2, 3, 1]> (a) c = Softmax (b) y = Transpose <perm = [0, 3, 1, 2]> (c)", 2),
    ],
)  # fmt: skip
def test_model_with_chains_equals_the_engine(core: Core, shape: str, body: str, native: int) -> None:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> g (float[{shape}] x) => (float y) {{ {body} }}')
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name) for name, array in CONSTANTS.items() if f" {name}," in body or f" {name})" in body
    )
    inputs = light_inputs(model)
    (expected,) = open_reference_session(model.SerializeToString()).run(None, inputs)
    loaded = core.load_network(model, "CPU", {"CPU_KERNELS": "JIT"})
    request = loaded.create_infer_request()
    for _ in range(2):
        assert_same(request.infer(inputs)["y"], expected, rtol=1e-4)
    assert loaded.get_metric("CPU_NATIVE_STEPS") >= native
    assert loaded.get_metric("CPU_FOREIGN_STEPS") == 0


@pytest.mark.parametrize("rows", ["2", "N"])
@pytest.mark.parametrize(
    "body",
    [
        "m = Max (u, c) y = Abs (m)",
        "p = MatMul (x, w) a = Add (p, u) y = Relu (a)",
        "s = Sub (u, x) d = Mul (s, s) y = Sqrt (d)",
    ],
)
def test_size_that_depends_on_elements_meets_a_known_size(core: Core, rows: str, body: str) -> None:
    constants = "<float[3] c = {0.5, 2, 4}, float[3,3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9}>"
    text = f"g (float[{rows},3] x, bool[3] mask) => (y) {constants} {{ n = Compress (c, mask) u = Exp (n) {body} }}"
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 18]> {text}').SerializeToString()
    session, network = open_reference_session(model), core.load_network(model, "CPU", {"CPU_KERNELS": "JIT"})
    for mask in ([True, True, True], [False, True, False]):
        inputs = {"x": draw_array(8, 2, 3), "mask": np.array(mask)}
        assert_same(network.infer(inputs)["y"], session.run(None, inputs)[0])
