"""Heads that share keys and values: with one query they become queries of one head, the repeated keys go, the numbers stay."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx.reference import ReferenceEvaluator

from hetero_core import Core, Network
from hetero_core.kernels.program import compile_program
from hetero_core.transforms.shared_heads import share_heads

CONSTANTS = "int64[1] axis = {2}, int64[5] copied = {2,2,3,5,4}, int64[4] joined = {2,6,5,4}"
REPEATED = """
    k1 = Unsqueeze(k, axis) k2 = Expand(k1, copied) keys = Reshape(k2, joined)
    v1 = Unsqueeze(v, axis) v2 = Expand(v1, copied) values = Reshape(v2, joined)
"""
SHARED = "float[2,2,5,4] k, float[2,2,5,4] v"


@pytest.fixture
def core() -> Iterator[Core]:
    with Core() as opened:
        yield opened


def check(core: Core, inputs: str, nodes: str, outputs: str, *, constants: str = CONSTANTS) -> Network:
    """Returns the network after the pass; its outputs are those of the reference evaluator on the model."""
    text = f'<ir_version: 11, opset_import: ["": 24]> g ({inputs}) => ({outputs}) <{constants}> {{ {nodes} }}'
    model = onnx.parser.parse_model(text)
    network = share_heads(core.read_network(model))
    drawn = [np.random.default_rng([index]).standard_normal(spec.shape) for index, spec in enumerate(network.inputs)]
    arrays = [array.astype(np.float32) for array in drawn]
    expected = ReferenceEvaluator(model).run(None, {spec.name: x for spec, x in zip(network.inputs, arrays, strict=True)})
    for result, reference in zip(compile_program(network).run(tuple(arrays)), expected, strict=True):
        np.testing.assert_allclose(result, reference, rtol=2e-5, atol=2e-6)
    return network


def list_operators(network: Network) -> list[str]:
    return [node.op_type for node in network.nodes]


@pytest.mark.parametrize("mask", ["float[1,5] mask", "float[2,1,1,5] mask", ""], ids=["of keys", "of images", "none"])
def test_heads_of_one_query_that_share_keys_read_them_once(core: Core, mask: str) -> None:
    inputs = f"float[2,6,1,4] q, {SHARED}" + (f", {mask}" if mask else "")
    attention = f"y = Attention<scale = 0.25>(q, keys, values{', mask' if mask else ''})"
    network = check(core, inputs, REPEATED + attention, "float[2,6,1,4] y")
    assert list_operators(network) == ["Reshape", "Attention", "Reshape"]
    assert network.nodes[1].inputs[1:3] == ("k", "v")
    assert all(len(node.origins) == 7 for node in network.nodes)


@pytest.mark.parametrize(
    ("inputs", "attention", "output"),
    [
        (
            f"float[2,6,1,4] q, {SHARED}, float[2,6,1,5] mask",
            "y = Attention<scale = 0.25>(q, keys, values, mask)",
            "float[2,6,1,4] y",
        ),
        (f"float[2,6,3,4] q, {SHARED}", "y = Attention<scale = 0.25>(q, keys, values)", "float[2,6,3,4] y"),
        (f"float[2,6,1,4] q, {SHARED}", "y = Attention<scale = 0.25, is_causal = 1>(q, keys, values)", "float[2,6,1,4] y"),
    ],
    ids=["mask of heads", "three queries", "causal"],
)
def test_other_attention_stays_as_it_is(core: Core, inputs: str, attention: str, output: str) -> None:
    network = check(core, inputs, REPEATED + attention, output)
    assert list_operators(network) == ["Unsqueeze", "Expand", "Reshape"] * 2 + ["Attention"]


def test_keys_that_are_repeated_in_another_order_stay(core: Core) -> None:
    constants = "int64[1] axis = {1}, int64[5] copied = {2,3,2,5,4}, int64[4] joined = {2,6,5,4}"
    inputs = f"float[2,6,1,4] q, {SHARED}"
    network = check(
        core, inputs, REPEATED + "y = Attention<scale = 0.25>(q, keys, values)", "float[2,6,1,4] y", constants=constants
    )
    assert list_operators(network) == ["Unsqueeze", "Expand", "Reshape"] * 2 + ["Attention"]


def test_more_heads_than_kernels_take_together_stay(core: Core) -> None:
    constants = "int64[1] axis = {2}, int64[5] copied = {2,2,17,5,4}, int64[4] joined = {2,34,5,4}"
    inputs = f"float[2,34,1,4] q, {SHARED}"
    network = check(
        core, inputs, REPEATED + "y = Attention<scale = 0.25>(q, keys, values)", "float[2,34,1,4] y", constants=constants
    )
    assert list_operators(network) == ["Unsqueeze", "Expand", "Reshape"] * 2 + ["Attention"]


def test_repeated_keys_that_others_read_stay(core: Core) -> None:
    outputs = "float[2,6,1,4] y, float[2,6,5,4] keys"
    network = check(core, f"float[2,6,1,4] q, {SHARED}", REPEATED + "y = Attention<scale = 0.25>(q, keys, values)", outputs)
    assert list_operators(network) == ["Unsqueeze", "Expand", "Reshape"] * 2 + ["Attention"]
