"""Operators of com.microsoft on OPENVINO: accepted nodes are right, and attributes that the engine ignores are refused."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

from hetero_core import Core, Network

HEAD = '<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>'


def read(core: Core, text: str) -> Network:
    return core.read_network(onnx.parser.parse_model(HEAD + text))


def test_product_without_moved_batch_is_right(core: Core) -> None:
    network = read(
        core,
        """g (float[2, 4, 3] a, float[2, 5, 4] b) => (float[2, 3, 5] y)
        { y = com.microsoft.FusedMatMul <transA = 1, transB = 1, alpha = 0.5> (a, b) }""",
    )
    generator = np.random.default_rng(0)
    a, b = generator.standard_normal((2, 4, 3), np.float32), generator.standard_normal((2, 5, 4), np.float32)
    y = core.load_network(network, "OPENVINO").infer({"a": a, "b": b})["y"]
    np.testing.assert_allclose(y, 0.5 * np.einsum("nki,njk->nij", a.astype(np.float64), b), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("attribute", ["transBatchA", "transBatchB"])
def test_product_that_moves_a_batch_is_refused(core: Core, attribute: str) -> None:
    network = read(
        core,
        f"""g (float[3, 3, 3] a, float[3, 3, 3] b) => (float[3, 3, 3] y)
        {{ y = com.microsoft.FusedMatMul <{attribute} = 1> (a, b) }}""",
    )
    (reason,) = core.query_network(network, "OPENVINO").refused.values()
    assert reason.startswith("OpenVINO ignores transBatchA and transBatchB of FusedMatMul")


@pytest.mark.parametrize(("is_causal", "is_padded", "is_refused"), [(0, True, False), (1, False, False), (1, True, True)])
def test_attention_with_possibly_empty_rows_is_refused(core: Core, is_causal: int, is_padded: bool, is_refused: bool) -> None:
    mask, named = (", int32[2, 4] m", ", bias, m") if is_padded else ("", "")
    network = read(
        core,
        f"""g (float[2, 4, 6] q, float[2, 4, 6] k, float[2, 4, 6] v, float[18] bias{mask}) => (float[2, 4, 6] y)
        {{ y = com.microsoft.MultiHeadAttention <num_heads = 2, unidirectional = {is_causal}> (q, k, v{named}) }}""",
    )
    refused = core.query_network(network, "OPENVINO").refused
    assert ["of which the mask of padded keys leaves none" in reason for reason in refused.values()] == [True] * is_refused
