"""Attention in the patterns of exporters is fused into a single node with equal results, for each variant of scale, mask and heads."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from hetero_cpu.transforms.reshapes import merge_stacked_transposes, merge_transposes
from hetero_tests.passes import check as check_pass
from hetero_tests.passes import draw_array, list_operators
from hetero_tests.passes import parse as parse_with

from hetero_core import Core
from hetero_core.transforms.attention import fuse_attention, pack_heads
from hetero_core.transforms.rewrite import run_passes

PASSES = (merge_stacked_transposes, fuse_attention, merge_transposes, pack_heads)


CONSTANTS: dict[str, Any] = {
    "eighth": np.float32(0.125),
    "four": np.float32(4),
    "minus": np.float32(-0.5),
    "half": np.array([0.5], np.float32),
    "row": draw_array(5, 2, 1, 1, 7),
    "square": draw_array(6, 5, 7),
    "single": draw_array(6, 5, 1),
    "line": draw_array(7, 7),
    "gap": np.where(draw_array(8, 5, 7) > 0, 0, -np.inf).astype(np.float32),
    "batched": draw_array(9, 6, 5, 7),
    "flat": np.array([-1, 7, 4]),
    "stack": np.array([2, 3, 4, 7]),
    "heads": np.array([2, 5, 3, 4]),
    "keyheads": np.array([0, 0, 3, 4]),
    "valueheads": np.array([2, 7, 3, 6]),
    "joined": np.array([2, 5, 18]),
    "lowest": np.float32(-1e9),
    "one": np.float32(1),
    "zero": np.float32(0),
    "never": np.float32(-np.inf),
    "axes": np.array([1, 2]),
}


parse = partial(parse_with, constants=CONSTANTS)
check = partial(check_pass, transform=partial(run_passes, passes=PASSES))

STACKS = "g (float[2,3,5,4] q, float[2,3,7,4] k, float[2,3,7,6] v) => (float[2,3,5,6] y)"
KEYS = "t = Transpose <perm = [0, 1, 3, 2]> (k)"
SCORES = f"{KEYS} s = MatMul (q, t)"
STACK = "t = Transpose <perm = [0, 2, 1]> (k) s = MatMul (q, t)"
END = "p = Softmax <axis = -1> ({}) y = MatMul (p, v)"


@pytest.mark.parametrize(
    ("text", "scale"),
    [
        (f"{SCORES} {END.format('s')}", 1),
        (f"{SCORES} c = Mul (s, eighth) {END.format('c')}", 0.125),
        (f"{SCORES} c = Div (s, four) {END.format('c')}", 0.25),
        (f"{KEYS} r = Mul (eighth, q) s = MatMul (r, t) {END.format('s')}", 0.125),
        (f"{KEYS} r = Div (q, four) s = MatMul (r, t) {END.format('s')}", 0.25),
        (f"{KEYS} r = Mul (q, half) u = Mul (t, half) s = MatMul (r, u) {END.format('s')}", 0.25),
        (f"h = Mul (k, half) t = Transpose <perm = [0, 1, 3, 2]> (h) s = MatMul (q, t) c = Div (s, four) {END.format('c')}", 0.125),
        (
            f"f = Reshape (k, flat) n = Transpose <perm = [0, 2, 1]> (f) t = Reshape (n, stack) s = MatMul (q, t) {END.format('s')}",
            1,
        ),
        (f"{SCORES} c = Mul (s, eighth) m = Add (row, c) {END.format('m')}", 0.125),
        (f"{SCORES} c = Mul (s, eighth) m = Add (c, square) {END.format('m')}", 0.125),
        (f"{SCORES} m = Add (s, square) {END.format('m').replace('-1', '3')}", 1),
    ],
)
def test_attention_pattern_becomes_a_single_node(core: Core, text: str, scale: float) -> None:
    model = parse(f"{STACKS} {{ {text} }}")
    network = check(core, model)
    (attention,) = network.nodes
    mask = ("row",) if "row" in text else ("square",) if "square" in text else ()
    assert (attention.op_type, attention.inputs, dict(attention.attributes)) == (
        "Attention",
        ("q", "k", "v", *mask),
        {"scale": scale},
    )
    assert len(attention.origins) == len(model.graph.node)


def test_stack_of_matrices_becomes_attention_with_one_head(core: Core) -> None:
    text = f"t = Transpose <perm = [0, 2, 1]> (k) s = MatMul (q, t) c = Mul (s, eighth) m = Add (c, square) {END.format('m')}"
    network = check(core, parse(f"g (float[6,5,4] q, float[6,7,4] k, float[6,7,9] v) => (float[6,5,9] y) {{ {text} }}"))
    assert list_operators(network) == ["Attention"]
    assert dict(network.nodes[0].attributes) == {"scale": 0.125, "q_num_heads": 1, "kv_num_heads": 1}


def test_transposed_keys_with_further_readers_get_a_transpose(core: Core) -> None:
    text = f"{SCORES} {END.format('s')} z = Abs (t)"
    network = check(core, parse(f"{STACKS.replace(' y)', ' y, float[2,3,4,7] z)')} {{ {text} }}"))
    assert sorted(list_operators(network)) == ["Abs", "Attention", "Transpose"]
    assert next(node for node in network.nodes if node.op_type == "Attention").inputs == ("q", "k", "v")


def test_value_used_as_query_and_value_stays(core: Core) -> None:
    # The scale of the node may take over the factor of the query, but the scaled query must stay: it is also the value.
    text = """g (float[2,3,4,5] x, float[2,3,5,4] k) => (float[2,3,4,5] y) <float f = {0.5}> {
      q = Mul (x, f)  s = MatMul (q, k)  p = Softmax <axis = -1> (s)  y = MatMul (p, q) }"""
    assert list_operators(check(core, parse(text))) == ["Mul", "Transpose", "Attention"]


def test_transposed_keys_are_transposed_back(core: Core) -> None:
    head = "g (float[2,3,5,4] q, float[2,3,4,7] t, float[2,3,7,6] v) => (float[2,3,5,6] y)"
    network = check(core, parse(f"{head} {{ s = MatMul (q, t) {END.format('s')} }}"))
    assert list_operators(network) == ["Transpose", "Attention"]


@pytest.mark.parametrize(
    "mask",
    [
        "f = Cast <to = 1> (a) i = Sub (one, f) l = Mul (i, lowest) w = Unsqueeze (l, axes)",
        "b = Cast <to = 9> (a) l = Where (b, zero, lowest) w = Unsqueeze (l, axes)",
    ],
)
def test_mask_from_integers_becomes_the_mask_of_attention(core: Core, mask: str) -> None:
    head = STACKS.replace("k,", "k, int64[2,7] a,")
    network = check(core, parse(f"{head} {{ {mask} {SCORES} c = Mul (s, eighth) m = Add (c, w) {END.format('m')} }}"))
    assert list_operators(network)[-1] == "Attention"
    assert network.nodes[-1].inputs == ("q", "k", "v", "w")


@pytest.mark.parametrize(
    ("head", "text"),
    [
        (STACKS, f"{SCORES} m = Add (s, line) {END.format('m')}"),
        (STACKS, f"{SCORES} m = Add (s, single) {END.format('m')}"),
        (STACKS, f"{SCORES} m = Add (s, gap) {END.format('m')}"),
        (STACKS, f"{SCORES} c = Mul (s, minus) {END.format('c')}"),
        (STACKS, f"{SCORES} c = Div (four, s) {END.format('c')}"),
        (STACKS, f"{SCORES} {END.format('s').replace('-1', '2')}"),
        (STACKS.replace(" y)", " y, float[2,3,5,7] p)"), f"{SCORES} {END.format('s')}"),
        (STACKS.replace(" y)", " y, float[2,3,5,7] z)"), f"{SCORES} {END.format('s')} z = Abs (s)"),
        (STACKS.replace("k,", "k, float[5,7] given,"), f"{SCORES} m = Add (s, given) {END.format('m')}"),
        (
            STACKS.replace("k,", "k, bool[5,7] seen,"),
            f"l = Where (seen, zero, never) {SCORES} m = Add (s, l) {END.format('m')}",
        ),
        (STACKS.replace("2,3,7,6", "1,3,7,6"), f"{SCORES} {END.format('s')}"),
        (STACKS.replace("2,3,7,4", "1,7,4").replace("2,3,7,6", "1,7,6"), f"{STACK} {END.format('s')}"),
        (STACKS.replace("float[2,3,5,4] q", "float[b,3,5,4] q").replace("[2,3,5,6]", "[b,3,5,6]"), f"{SCORES} {END.format('s')}"),
        (STACKS.replace("float", "double"), f"{SCORES} {END.format('s')}"),
        ("g (float[6,5,4] q, float[6,7,4] k, float[6,7,9] v) => (float[6,5,9] y)", f"{STACK} m = Add (s, batched) {END.format('m')}"),
    ],
    ids=[
        "a mask of one axis", "a mask that misses the keys", "a mask with minus infinity", "a negative scale", "divided the other way",
        "softmax of another axis",
        "probabilities are an output", "scores are read outside", "a mask from outside", "a mask of minus infinity",
        "values that broadcast", "stacks that broadcast", "an open size", "another type", "a mask for each matrix of a stack",
    ],
)  # fmt: skip
def test_near_misses_of_attention_stay(core: Core, head: str, text: str) -> None:
    network = core.read_network(parse(f"{head} {{ {text} }}"))
    assert fuse_attention(network) is network


PACKED = "g (float[2,5,12] x, float[2,7,12] h, float[2,7,18] w) => (float[2,5,18] y)"
HEADS = """a = Reshape (x, heads) q = Transpose <perm = [0, 2, 1, 3]> (a)
    b = Reshape (h, keyheads) t = Transpose <perm = [0, 2, 3, 1]> (b)
    c = Reshape (w, valueheads) v = Transpose <perm = [0, 2, 1, 3]> (c)
    s = MatMul (q, t) d = Mul (s, half) {mask} p = Softmax <axis = -1> ({scores}) o = MatMul (p, v)
    j = Transpose <perm = [0, 2, 1, 3]> (o) y = Reshape (j, joined)"""


@pytest.mark.parametrize(("mask", "scores"), [("", "d"), ("m = Add (d, row)", "m")])
def test_split_and_joined_heads_become_packed_attention(core: Core, mask: str, scores: str) -> None:
    model = parse(f"{PACKED} {{ {HEADS.format(mask=mask, scores=scores)} }}")
    network = check(core, model)
    (attention,) = network.nodes
    assert attention.inputs == ("x", "h", "w", *(("row",) if mask else ()))
    assert dict(attention.attributes) == {"scale": 0.5, "q_num_heads": 3, "kv_num_heads": 3}
    assert set(attention.origins) == {node.name for node in core.read_network(model).nodes}


@pytest.mark.parametrize(
    ("old", "new"),
    [("q = Transpose <perm = [0, 2, 1, 3]> (a)", "u = Relu (a) q = Transpose <perm = [0, 2, 1, 3]> (u)"), ("", " z = Abs (o)")],
    ids=["something between", "the stack is read outside"],
)
def test_interrupted_split_of_heads_stays(core: Core, old: str, new: str) -> None:
    text = HEADS.format(mask="", scores="d")
    head = PACKED if old else PACKED.replace(" y)", " y, float[2,3,5,6] z)")
    network = check(core, parse(f"{head} {{ {text.replace(old, new) if old else text + new} }}"))
    attention = next(node for node in network.nodes if node.op_type == "Attention")
    assert dict(attention.attributes) == {"scale": 0.5}
