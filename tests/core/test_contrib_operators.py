"""The com.microsoft operators: output types, refusals with reasons, formulas, the reference page, operator names of the wheel."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest
from hetero_tests.contrib_page import LEFT_OUT, format_page, list_names

from hetero_core import Core, Network
from hetero_core.conformance.contrib import draw_case
from hetero_core.errors import InferenceError
from hetero_core.kernels.registry import read_table
from hetero_core.kernels.sizes import estimate_bytes
from hetero_core.network.reader import read_network
from hetero_core.testing.compare import describe_mismatch
from hetero_core.testing.contrib.case import MICROSOFT, make_model, run_engine

HEAD = '<ir_version: 10, opset_import: ["": 17, "com.microsoft": 1]>'


def read(text: str) -> Network:
    return read_network(onnx.parser.parse_model(f"{HEAD} {text}"))


def run(text: str, **inputs: Any) -> dict[str, Any]:
    with Core() as core, core.load_network(onnx.parser.parse_model(f"{HEAD} {text}"), "CPU") as loaded:
        return dict(loaded.infer(inputs))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("g (uint8[N,3] a, float s, uint8 z, uint8[3] b) => (y) { y = com.microsoft.QLinearAdd(a, s, z, b, s, z, s, z) }", "uint8[N,3]"),
        ("g (float[N,S,16] x, uint8[8,1,8] w, float[8] s) => (y) "
         "{ y = com.microsoft.MatMulNBits <K = 16, N = 8, block_size = 16, bits = 4> (x, w, s) }", "float32[N,S,8]"),
        ("g (float16[N,S,16] x, float16[N,S,16] r, float16[16] w) => (y) "
         "{ y = com.microsoft.SkipLayerNormalization(x, r, w) }", "float16[N,S,16]"),
        ("g (float[N,S,16] x, float[16] w) => (y) { y = SimplifiedLayerNormalization(x, w) }", "float32[N,S,16]"),
        ("g (float[4,5] a, float[4,6] b) => (y) { y = com.microsoft.FusedMatMul <transA = 1> (a, b) }", "float32[5,6]"),
        ("g (int8[1,3,8,8] x, float s, int8 z) => (y) { y = com.microsoft.QLinearAveragePool "
         "<kernel_shape = [2,2], strides = [2,2]> (x, s, z, s, z) }", "int8[1,3,4,4]"),
        ("g (string[N] x) => (y) { y = com.microsoft.Tokenizer "
         '<mark = 0, mincharnum = 1, pad_value = "", separators = [" "]> (x) }', "string[N,?]"),
    ],
)  # fmt: skip
def test_output_type_of_an_operator_is_inferred(text: str, expected: str) -> None:
    assert str(read(text).type_of("y")) == expected


@pytest.mark.parametrize(
    ("opset", "text", "expected"),
    [
        (14, "g (float16[N,S,16] x, float16[16] w) => (y) { y = LayerNormalization(x, w) }", "float16[N,S,16]"),
        (14, "g (float[N,S,16] x, float[16] w) => (y) { z, y = LayerNormalization(x, w) }", "float32[N,S,1]"),
        (8, "g (float[N,3,4,4] x) => (y) { y = MeanVarianceNormalization(x) }", "float32[N,3,4,4]"),
        (9, "g (float[N,4] x) => (y) { y = ThresholdedRelu(x) }", "float32[N,4]"),
    ],
)
def test_operator_before_its_first_opset_is_onnx_runtimes(opset: int, text: str, expected: str) -> None:
    network = read_network(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {text}'))
    assert (network.nodes[0].since_version, str(network.type_of("y"))) == (0, expected)


def test_domain_need_not_be_imported() -> None:
    model = onnx.parser.parse_model(f"{HEAD} g (float[2] x) => (float[2] y) {{ y = com.microsoft.Gelu(x) }}")
    del model.opset_import[1]
    assert read_network(model).nodes[0].opset == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("g (float[1,2,8] x, float[8,24] w) => (y) { y = com.microsoft.Attention <num_heads = 2, do_rotary = 1> (x, w) }",
         "attribute 'do_rotary' of com.microsoft:Attention-1 is 1; implemented: 0"),
        ("g (float[1,2,2,3,4] x) => (y) { y = com.microsoft.MultiHeadAttention <num_heads = 2> (x) }",
         "has 1 inputs; implemented: 3 to 8"),
        ("g (uint8[1,8,8,3] x) => (y) { y = com.microsoft.NhwcMaxPool "
         '<kernel_shape = [2,2], dilations = [2,2], auto_pad = "SAME_UPPER"> (x) }', "its windows are dilated; write the pads out"),
        ("g (float[2,3] a, uint8[3,2] b) => (y) { y = com.microsoft.MatMulNBits <K = 3, N = 2, block_size = 16, bits = 3> (a, b, a) }",
         "attribute 'bits' of com.microsoft:MatMulNBits-1 is 3; implemented: 2, 4, 8"),
        ("g (int32[1,2] i, int32[1,2] s, uint8[5,4] w, uint8[4] g, float e, uint8 z) => (y, m) "
         "{ y, m = com.microsoft.QEmbedLayerNormalization (i, s, w, w, , g, g, , e, e, , e, e, z, z, , z, z) }",
         "com.microsoft:QEmbedLayerNormalization-1 has some of the four inputs of segments, not all"),
        ("g (float[1,S,8] q, float[1,S,8] k, float[1,S,8] v, float[1,1,P,8] p, int32[1] s, int32[1] t) => (y, a, b) { y, a, b = "
         "com.microsoft.GroupQueryAttention <num_heads = 1, kv_num_heads = 1, sliding_window_cache = 1> (q, k, v, p, p, s, t) }",
         "has sliding_window_cache=1 and no local_window_size; expected a window of at least 1"),
        ("g (float[1,S,8] q, float[1,S,8] k, float[1,S,8] v, float[1,1,P,8] p, int32[1] s, int32[1] t, float[1,1,S,P] m) => (y, a, b) "
         "{ y, a, b = com.microsoft.GroupQueryAttention <num_heads = 1, kv_num_heads = 1, local_window_size = 4, "
         "sliding_window_cache = 1> (q, k, v, p, p, s, t, , , , m) }",
         "has sliding_window_cache=1 and attention_bias 'm'; implemented: one of them"),
        ("g (float[2] x) => (y) { y = com.microsoft.Gelux(x) }",
         "operator com.microsoft:Gelux has no kernel, did you mean 'Gelu'"),
    ],
)  # fmt: skip
def test_unimplemented_attribute_is_refused_with_the_reason(text: str, reason: str) -> None:
    with Core() as core:
        result = core.query_network(read(text), "CPU")
    assert reason in next(iter(result.refused.values()))


@pytest.mark.parametrize("level", [0, 1, 4])
@pytest.mark.parametrize("bits", [4, 8])
def test_product_with_blocks_is_float32_at_each_accuracy_level(bits: int, level: int) -> None:
    """Level 4 would allow 8-bit activations; their error is 7e-3 of the largest output here."""
    rng = np.random.default_rng(bits)
    codes = rng.integers(0, 2**bits, (64, 8, 32))
    packed = (codes[..., 0::2] | codes[..., 1::2] << 4 if bits == 4 else codes).astype(np.uint8)
    scales, x = rng.uniform(0.01, 0.1, (64, 8)).astype(np.float32), rng.standard_normal((5, 256)).astype(np.float32)
    exact = x.astype(np.float64) @ ((codes - 2 ** (bits - 1)) * scales.astype(np.float64)[..., None]).reshape(64, 256).T
    attributes = f"K = 256, N = 64, block_size = 32, bits = {bits}, accuracy_level = {level}"
    text = f"g (float[5,256] x, uint8[64,8,{4 * bits}] w, float[64,8] s) => (float[5,64] y) " \
           f"{{ y = com.microsoft.MatMulNBits <{attributes}> (x, w, s) }}"  # fmt: skip
    np.testing.assert_allclose(run(text, x=x, w=packed, s=scales)["y"], exact, rtol=0, atol=1e-5 * np.abs(exact).max())


@pytest.mark.parametrize("delta", [None, np.asarray(2, np.int64)])
def test_size_of_a_range_is_estimated_before_the_run(delta: Any) -> None:
    node = read("g (int64 a, int64 b) => (y) { y = com.microsoft.Range(a, b) }").nodes[0]
    counted = estimate_bytes(node, (np.asarray(0, np.int64), np.asarray(10**12, np.int64), delta))
    assert counted >= 8 * 10**12 // (1 if delta is None else 2)


@pytest.mark.parametrize("operator", ["BiasGelu", "FastGelu"])
def test_bias_larger_than_the_input_is_refused(operator: str) -> None:
    # Like ONNX Runtime: the bias has the length of the input's last axis, and is not broadcast.
    text = f"g (float[3,1] x, float[N] b) => (float[3,1] y) {{ y = com.microsoft.{operator} (x, b) }}"
    with pytest.raises(InferenceError, match=r"the bias has shape \(3,\); expected \(1,\), the last size of the input"):
        run(text, x=np.ones((3, 1), np.float32), b=np.ones(3, np.float32))


HALVES = sorted(
    {op_type for (domain, op_type, _), record in read_table().items() if domain == MICROSOFT and record.halves is not None}
)


@pytest.mark.parametrize("operator", HALVES)
def test_operator_of_float32_takes_float16_as_the_engine_does(operator: str) -> None:
    """ONNX Runtime runs these operators between Casts; the optimizer of transformers writes them with float16."""
    case = draw_case(operator, 0, 3)
    halves = tuple(x.astype(np.float16) if x is not None and x.dtype == np.float32 else x for x in case.inputs)
    case = replace(case, inputs=halves, aliases=())
    expected = run_engine(case)
    with Core() as core, core.load_network(make_model(case), "CPU") as loaded:
        outputs = loaded.infer(case.feeds)
    for name, answer in expected.items():
        mismatch = describe_mismatch(outputs[name], answer, rtol=0 if answer.dtype.kind in "iub" else 4e-3, name=name)
        assert mismatch is None, mismatch


@pytest.mark.parametrize("capacity", [4, 6, 9])
@pytest.mark.parametrize("steps", [1, 2, 4, 10])
def test_sliding_cache_is_attention_over_the_window(capacity: int, steps: int) -> None:
    window, total, rng = 4, 20, np.random.default_rng(0)
    keys, values, queries = (rng.standard_normal((total, 8)).astype(np.float32) for _ in range(3))
    text = """g (float[1,S,8] q, float[1,S,8] k, float[1,S,8] v, float[1,1,P,8] pk, float[1,1,P,8] pv, int32[1] s, int32[1] t)
        => (y, nk, nv) { y, nk, nv = com.microsoft.GroupQueryAttention
        <num_heads = 1, kv_num_heads = 1, local_window_size = 4, sliding_window_cache = 1> (q, k, v, pk, pv, s, t) }"""
    cache = {name: np.full((1, 1, capacity, 8), np.nan, np.float32) for name in ("pk", "pv")}
    with Core() as core, core.load_network(onnx.parser.parse_model(f"{HEAD} {text}"), "CPU") as loaded:
        for end in range(steps, total + 1, steps):
            new = {name: array[None, end - steps : end] for name, array in (("q", queries), ("k", keys), ("v", values))}
            counts = {"s": np.array([end - 1], np.int32), "t": np.array([end], np.int32)}
            outputs = loaded.infer({**new, **cache, **counts})
            for row, query in enumerate(queries[end - steps : end].astype(np.float64), end - steps):
                seen = slice(max(row + 1 - window, 0), row + 1)
                weights = np.exp(keys[seen] @ query / np.sqrt(8))
                expected = weights @ values[seen] / weights.sum()
                np.testing.assert_allclose(outputs["y"][0, row - end + steps], expected, rtol=1e-5, atol=1e-6)
            cache = {"pk": outputs["nk"], "pv": outputs["nv"]}
            assert cache["pk"].shape == (1, 1, capacity, 8)


def test_sliding_cache_below_its_window_is_refused() -> None:
    text = """g (float[1,1,8] q, float[1,1,8] k, float[1,1,8] v, float[1,1,3,8] p, int32[1] s, int32[1] t) => (y, a, b)
        { y, a, b = com.microsoft.GroupQueryAttention
        <num_heads = 1, kv_num_heads = 1, local_window_size = 4, sliding_window_cache = 1> (q, k, v, p, p, s, t) }"""
    x, count = np.zeros((1, 1, 8), np.float32), np.array([5], np.int32)
    with pytest.raises(InferenceError, match="the cache holds 3 keys; sliding_window_cache=1 needs local_window_size=4"):
        run(text, q=x, k=x, v=x, p=np.zeros((1, 1, 3, 8), np.float32), s=count - 1, t=count)


def test_page_is_fresh() -> None:
    page = Path(__file__).parents[2] / "docs/reference/onnxruntime-operators.md"
    message = "run: PYTHONPATH=tests/shared python -m hetero_tests.contrib_page docs/reference/onnxruntime-operators.md"
    assert page.read_text() == format_page(), message


def test_page_has_every_name_that_the_wheel_lists() -> None:
    state = pytest.importorskip("onnxruntime.capi.onnxruntime_pybind11_state")
    kernels = state.get_all_opkernel_def()
    listed = {kernel.op_name for kernel in kernels if (kernel.provider, kernel.domain) == ("CPUExecutionProvider", "com.microsoft")}
    assert set(list_names()) == listed - set(LEFT_OUT)
    assert len(list_names()) == 82
