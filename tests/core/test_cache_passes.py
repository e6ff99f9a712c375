"""Caches of keys and values become inputs and outputs of the attention that reads them: the numbers stay, whoever else reads the caches."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx.reference import ReferenceEvaluator

from hetero_core import Core, Network
from hetero_core.kernels.program import compile_program
from hetero_core.transforms.caches import fuse_caches

SHAPES = "float[2,3,1,4] q, float[2,3,1,4] k, float[2,3,1,4] v, float[2,3,5,4] pk, float[2,3,5,4] pv"
ATTENTION = "y = Attention<scale = 0.25>(q, keys, values)"
APPENDED = "keys = Concat<axis = 2>(pk, k) values = Concat<axis = -2>(pv, v)"
PRESENT = "float[2,3,6,4] keys, float[2,3,6,4] values"
Y = "float[2,3,1,4] y"


@pytest.fixture
def core() -> Iterator[Core]:
    with Core() as opened:
        yield opened


def check(core: Core, nodes: str, outputs: str) -> Network:
    """Returns the network after the pass; its outputs are those of the reference evaluator on the model."""
    model = onnx.parser.parse_model(f'<ir_version: 11, opset_import: ["": 24]> g ({SHAPES}) => ({outputs}) {{ {nodes} }}')
    network = fuse_caches(core.read_network(model))
    drawn = [np.random.default_rng([index]).standard_normal(spec.shape) for index, spec in enumerate(network.inputs)]
    inputs = [array.astype(np.float32) for array in drawn]
    expected = ReferenceEvaluator(model).run(None, {spec.name: x for spec, x in zip(network.inputs, inputs, strict=True)})
    for found, wanted in zip(compile_program(network).run(tuple(inputs)), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6)
    return network


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        (f"{APPENDED} {ATTENTION}", f"{Y}, {PRESENT}"),
        (f"{APPENDED} {ATTENTION}", Y),
        (f"{APPENDED} {ATTENTION} z = Neg(keys)", f"{Y}, float[2,3,6,4] z, {PRESENT}"),
    ],
    ids=["outputs", "read here alone", "read afterwards"],
)
def test_attention_appends_to_both_caches_itself(core: Core, nodes: str, outputs: str) -> None:
    network = check(core, nodes, outputs)
    (attention,) = (node for node in network.nodes if node.op_type == "Attention")
    assert not [node for node in network.nodes if node.op_type == "Concat"]
    assert attention.inputs == ("q", "k", "v", "", "pk", "pv")
    assert attention.outputs == ("y", "keys", "values")
    assert len(attention.origins) == 3


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        (f"{APPENDED} early = Neg(keys) {ATTENTION}", f"{Y}, float[2,3,6,4] early"),
        ("keys = Concat<axis = 2>(pk, k, k) values = Concat<axis = 2>(pv, v, v) y = Attention(q, keys, values)", Y),
        ("keys = Concat<axis = 2>(pk, k) y = Attention(q, keys, keys)", Y),
        ("keys = Concat<axis = 2>(pk, k) values = Neg(keys) y = Attention(q, keys, values)", Y),
        (f"{APPENDED} y = Attention<is_causal = 1>(q, keys, values)", Y),
        (
            "keys = Concat<axis = 1>(pk, pk) values = Concat<axis = 1>(pv, pv) qs = Concat<axis = 1>(q, q) y = Attention(qs, keys, values)",
            "float[2,6,1,4] y",
        ),
    ],
    ids=["read before", "three pieces", "the same for both", "one of them", "causal", "other axis"],
)
def test_what_is_no_cache_of_the_attention_alone_stays(core: Core, nodes: str, outputs: str) -> None:
    assert [node for node in check(core, nodes, outputs).nodes if node.op_type == "Concat"]
