"""Key and value caches become inputs and outputs of the attention node: results stay equal, even if other nodes read the caches."""

from __future__ import annotations

import pytest
from hetero_cpu.transforms.caches import fuse_caches, share_heads
from hetero_tests.passes import check, list_operators, parse

from hetero_core import Core, Network

SHAPES = "float[2,3,1,4] q, float[2,3,1,4] k, float[2,3,1,4] v, float[2,3,5,4] pk, float[2,3,5,4] pv"
ATTENTION = "y = Attention<scale = 0.25>(q, keys, values)"
APPENDED = "keys = Concat<axis = 2>(pk, k) values = Concat<axis = -2>(pv, v)"
PRESENT = "float[2,3,6,4] keys, float[2,3,6,4] values"
Y = "float[2,3,1,4] y"


def check_caches(core: Core, nodes: str, outputs: str) -> Network:
    return check(core, parse(f"g ({SHAPES}) => ({outputs}) {{ {nodes} }}", {}, opset=24, ir_version=11), fuse_caches)


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
    network = check_caches(core, nodes, outputs)
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
def test_near_misses_of_a_cache_stay(core: Core, nodes: str, outputs: str) -> None:
    assert [node for node in check_caches(core, nodes, outputs).nodes if node.op_type == "Concat"]


def test_keys_of_many_queries_are_joined_before(core: Core) -> None:
    """As those of images and texts: no cache, and more queries than a block of the kernel has."""
    many = f"many = Concat<axis = 2>({', '.join('q' * 17)}) {ATTENTION.replace('(q,', '(many,')}"
    network = check_caches(core, f"{APPENDED} {many}", Y.replace("1,4", "17,4"))
    assert network.nodes[-1].inputs == ("many", "keys", "values")


# Heads that share keys and values: if there is a single query, the heads become the queries of a single head.

CONSTANTS = "int64[1] axis = {2}, int64[5] copied = {2,2,3,5,4}, int64[4] joined = {2,6,5,4}"
REPEATED = """
    k1 = Unsqueeze(k, axis) k2 = Expand(k1, copied) keys = Reshape(k2, joined)
    v1 = Unsqueeze(v, axis) v2 = Expand(v1, copied) values = Reshape(v2, joined)
"""
SHARED = "float[2,2,5,4] k, float[2,2,5,4] v"


def check_heads(core: Core, inputs: str, nodes: str, outputs: str, *, constants: str = CONSTANTS) -> Network:
    text = f"g ({inputs}) => ({outputs}) <{constants}> {{ {nodes} }}"
    return check(core, parse(text, {}, opset=24, ir_version=11), share_heads)


@pytest.mark.parametrize("mask", ["float[1,5] mask", "float[2,1,1,5] mask", ""], ids=["of keys", "of images", "none"])
def test_heads_with_shared_keys_read_them_once_for_a_query(core: Core, mask: str) -> None:
    inputs = f"float[2,6,1,4] q, {SHARED}" + (f", {mask}" if mask else "")
    attention = f"y = Attention<scale = 0.25>(q, keys, values{', mask' if mask else ''})"
    network = check_heads(core, inputs, REPEATED + attention, "float[2,6,1,4] y")
    assert list_operators(network) == ["Reshape", "Attention", "Reshape"]
    assert network.nodes[1].inputs[1:3] == ("k", "v")


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
def test_unsupported_attention_stays_unchanged(core: Core, inputs: str, attention: str, output: str) -> None:
    network = check_heads(core, inputs, REPEATED + attention, output)
    assert list_operators(network) == ["Unsqueeze", "Expand", "Reshape"] * 2 + ["Attention"]


def test_keys_that_are_repeated_in_another_order_stay(core: Core) -> None:
    constants = "int64[1] axis = {1}, int64[5] copied = {2,3,2,5,4}, int64[4] joined = {2,6,5,4}"
    inputs = f"float[2,6,1,4] q, {SHARED}"
    network = check_heads(
        core, inputs, REPEATED + "y = Attention<scale = 0.25>(q, keys, values)", "float[2,6,1,4] y", constants=constants
    )
    assert list_operators(network) == ["Unsqueeze", "Expand", "Reshape"] * 2 + ["Attention"]


def test_too_many_heads_for_the_kernel_stay(core: Core) -> None:
    constants = "int64[1] axis = {2}, int64[5] copied = {2,2,17,5,4}, int64[4] joined = {2,34,5,4}"
    inputs = f"float[2,34,1,4] q, {SHARED}"
    network = check_heads(
        core, inputs, REPEATED + "y = Attention<scale = 0.25>(q, keys, values)", "float[2,34,1,4] y", constants=constants
    )
    assert list_operators(network) == ["Unsqueeze", "Expand", "Reshape"] * 2 + ["Attention"]


def test_repeated_keys_with_further_readers_are_still_made(core: Core) -> None:
    outputs = "float[2,6,1,4] y, float[2,6,5,4] keys"
    network = check_heads(core, f"float[2,6,1,4] q, {SHARED}", REPEATED + "y = Attention<scale = 0.25>(q, keys, values)", outputs)
    assert list_operators(network) == ["Unsqueeze", "Expand", "Reshape", "Reshape", "Attention", "Reshape"]
