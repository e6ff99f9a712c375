"""Models from ONNX Runtime's own tools, with random weights: quantized models in every form, and optimized transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from hetero_core import Core
from hetero_core.testing.compare import max_relative_difference
from hetero_core.testing.reference_session import open_reference_session

quantization = pytest.importorskip("onnxruntime.quantization")
# The block quantizer needs it; only the session `models` installs it, so that the short sessions skip this file.
pytest.importorskip("onnx_ir")

DEVICES = ("CPU", "TEMPLATE", "HETERO:ORT,CPU")
STEPS = 0.03
"""The tolerance: a value on the border between two 8-bit codes may change an output by a few steps of 1/255."""

CONVOLUTIONS = """<ir_version: 10, opset_import: ["": 17]> convolutions (float[N,3,16,16] x) => (float[N,10] y) {
    [conv_a] a = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (x, weight_a, bias_a)
    [relu_a] ra = Relu (a)
    [pool_a] pa = MaxPool <kernel_shape = [2,2], strides = [2,2]> (ra)
    [conv_b] b = Conv <kernel_shape = [3,3], pads = [1,1,1,1], group = 2> (pa, weight_b, bias_b)
    [sigmoid_b] sb = Sigmoid (b)
    [mul_b] mb = Mul (b, sb)
    [add_b] ab = Add (mb, pa)
    [leaky] lb = LeakyRelu <alpha = 0.1> (ab)
    [pool_b] pb = AveragePool <kernel_shape = [2,2], strides = [2,2]> (lb)
    [concat] cc = Concat <axis = 1> (pb, pb)
    [mean] gm = GlobalAveragePool (cc)
    [flat] fl = Flatten (gm)
    [dense] y = Gemm <transB = 1> (fl, weight_c, bias_c)
}"""
SIZES = {"weight_a": (8, 3, 3, 3), "bias_a": (8,), "weight_b": (8, 4, 3, 3), "bias_b": (8,), "weight_c": (10, 16), "bias_c": (10,)}


def add_weights(model: onnx.ModelProto, sizes: Mapping[str, tuple[int, ...]], seed: int) -> onnx.ModelProto:
    """Adds normally distributed constants with a deviation that preserves the scale of activations."""
    rng = np.random.default_rng(seed)
    for name, shape in sizes.items():
        factor = 0.1 if len(shape) == 1 else float(np.sqrt(2 / np.prod(shape[1:] if len(shape) > 2 else shape[:1])))
        array = (rng.standard_normal(shape) * factor).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def convolutions() -> onnx.ModelProto:
    return add_weights(onnx.parser.parse_model(CONVOLUTIONS), SIZES, 1)


class Images(quantization.CalibrationDataReader):  # type: ignore[misc]  # the tool has no types
    """Four calibration batches."""

    def __init__(self) -> None:
        rng = np.random.default_rng(2)
        self._batches: Iterator[dict[str, Any]] = iter(
            [{"x": rng.standard_normal((2, 3, 16, 16)).astype(np.float32)} for _ in range(4)]
        )

    def get_next(self) -> dict[str, Any] | None:
        return next(self._batches, None)


@pytest.fixture(scope="module")
def core() -> Iterator[Core]:
    with Core() as opened:
        yield opened


@pytest.fixture
def check(core: Core) -> Callable[..., None]:
    """Returns a function that runs a model on each device; the oracle is ONNX Runtime without optimisations."""

    def check_model(model: onnx.ModelProto, inputs: Mapping[str, Any], *, tolerance: float = STEPS) -> None:
        session = open_reference_session(model.SerializeToString())
        expected = session.run(None, dict(inputs))
        for device in DEVICES:
            with core.load_network(core.read_network(model), device) as loaded:
                outputs = loaded.infer(dict(inputs))
            for (name, value), reference in zip(outputs.items(), expected, strict=True):
                assert max_relative_difference(value, reference) <= tolerance, f"{name} on {device}"

    return check_model


def image() -> dict[str, Any]:
    return {"x": np.random.default_rng(3).standard_normal((3, 3, 16, 16)).astype(np.float32)}


@pytest.mark.parametrize("per_channel", [False, True], ids=["per_tensor", "per_channel"])
@pytest.mark.parametrize("weights", ["QInt8", "QUInt8"])
@pytest.mark.parametrize("activations", ["QInt8", "QUInt8"])
@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
def test_static_quantization(
    tmp_path: Path, check: Callable[..., None], form: str, activations: str, weights: str, per_channel: bool
) -> None:
    if (activations, weights) == ("QInt8", "QUInt8"):
        pytest.skip("ONNX Runtime's own tool makes no such model")
    quantization.quantize_static(
        convolutions(), tmp_path / "model.onnx", Images(), quant_format=quantization.QuantFormat[form], per_channel=per_channel,
        activation_type=quantization.QuantType[activations], weight_type=quantization.QuantType[weights],
    )  # fmt: skip
    check(onnx.load(tmp_path / "model.onnx"), image())


def test_static_quantization_to_16_bits(tmp_path: Path, check: Callable[..., None]) -> None:
    kinds = quantization.QuantType
    quantization.quantize_static(
        convolutions(), tmp_path / "model.onnx", Images(), activation_type=kinds.QUInt16, weight_type=kinds.QInt8,
        extra_options={"UseQDQContribOps": True},
    )  # fmt: skip
    model = onnx.load(tmp_path / "model.onnx")
    assert {node.domain for node in model.graph.node if "Quantize" in node.op_type} == {"com.microsoft"}
    check(model, image(), tolerance=1e-3)


ENCODER = """<ir_version: 10, opset_import: ["": 17]> encoder (int64[B,S] tokens, float[B,1,1,S] mask) => (float[B,S,32] hidden) <
    int64[4] heads = {0, 0, 4, 8}, int64[3] flat = {0, 0, 32}, float root = {2.8284271}, float two = {2.0}, float half = {0.5},
    float root_two = {1.4142135}, float one = {1.0}> {
    word = Gather (table, tokens)
    normal = LayerNormalization <axis = -1, epsilon = 0.00001> (word, scale_a, shift_a)
    q0 = MatMul (normal, weight_q)   q1 = Add (bias_q, q0)   q2 = Reshape (q1, heads)   q = Transpose <perm = [0,2,1,3]> (q2)
    k0 = MatMul (normal, weight_k)   k1 = Add (bias_k, k0)   k2 = Reshape (k1, heads)   k = Transpose <perm = [0,2,3,1]> (k2)
    v0 = MatMul (normal, weight_v)   v1 = Add (bias_v, v0)   v2 = Reshape (v1, heads)   v = Transpose <perm = [0,2,1,3]> (v2)
    raw = MatMul (q, k)   scaled = Div (raw, root)   masked = Add (scaled, mask)   share = Softmax <axis = -1> (masked)
    mixed = MatMul (share, v)   back = Transpose <perm = [0,2,1,3]> (mixed)   joined = Reshape (back, flat)
    o0 = MatMul (joined, weight_o)   o1 = Add (bias_o, o0)   s1 = Add (o1, normal)
    n1 = LayerNormalization <axis = -1, epsilon = 0.00001> (s1, scale_b, shift_b)
    f0 = MatMul (n1, weight_f)   f1 = Add (bias_f, f0)
    e0 = Div (f1, root_two)   e1 = Erf (e0)   e2 = Add (e1, one)   e3 = Mul (f1, e2)   gelu = Mul (e3, half)
    g0 = MatMul (gelu, weight_g)   g1 = Add (bias_g, g0)   s2 = Add (g1, n1)
    hidden = LayerNormalization <axis = -1, epsilon = 0.00001> (s2, scale_c, shift_c)
}"""
ENCODER_SIZES = {
    "table": (50, 32), **{f"weight_{name}": (32, 32) for name in "qkvo"}, "weight_f": (32, 64), "weight_g": (64, 32), "bias_f": (64,),
    **{f"bias_{name}": (32,) for name in "qkvog"}, **{f"{kind}_{name}": (32,) for kind in ("scale", "shift") for name in "abc"},
}  # fmt: skip


def encoder() -> onnx.ModelProto:
    return add_weights(onnx.parser.parse_model(ENCODER), ENCODER_SIZES, 4)


def text() -> dict[str, Any]:
    rng = np.random.default_rng(5)
    mask = np.where(rng.integers(0, 3, (2, 1, 1, 7)) > 0, 0, -10000).astype(np.float32)
    return {"tokens": rng.integers(0, 50, (2, 7)), "mask": mask}


@pytest.mark.parametrize("weights", ["QInt8", "QUInt8"])
@pytest.mark.parametrize("per_channel", [False, True], ids=["per_tensor", "per_channel"])
def test_dynamic_quantization(tmp_path: Path, check: Callable[..., None], weights: str, per_channel: bool) -> None:
    quantization.quantize_dynamic(
        encoder(), tmp_path / "model.onnx", weight_type=quantization.QuantType[weights], per_channel=per_channel
    )
    check(onnx.load(tmp_path / "model.onnx"), text(), tolerance=0.1)


@pytest.mark.parametrize("model_type", ["bert", "gpt2", "vit"])
def test_rewritten_transformer(tmp_path: Path, check: Callable[..., None], model_type: str) -> None:
    optimizer = pytest.importorskip("onnxruntime.transformers.optimizer")
    onnx.save(encoder(), tmp_path / "plain.onnx")
    rewritten = optimizer.optimize_model(
        str(tmp_path / "plain.onnx"), model_type=model_type, num_heads=4, hidden_size=32, opt_level=0, use_gpu=False
    ).model
    fused = {node.op_type for node in rewritten.graph.node if node.domain == "com.microsoft"}
    assert {"SkipLayerNormalization"} <= fused
    check(rewritten, text(), tolerance=1e-3)


@pytest.mark.parametrize("block_size", [16, 32])
@pytest.mark.parametrize("is_symmetric", [False, True], ids=["asymmetric", "symmetric"])
def test_blocks_of_four_bits(check: Callable[..., None], block_size: int, is_symmetric: bool) -> None:
    blocks = pytest.importorskip("onnxruntime.quantization.matmul_nbits_quantizer")
    quantizer = blocks.MatMulNBitsQuantizer(encoder(), block_size=block_size, is_symmetric=is_symmetric)
    quantizer.process()
    model = quantizer.model.model
    assert "MatMulNBits" in {node.op_type for node in model.graph.node}
    check(model, text(), tolerance=1e-3)
