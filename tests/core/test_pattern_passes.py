"""Operator patterns of exporters are fused into a single operator with equal results; similar subgraphs are not fused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import pytest
from hetero_tests.passes import check, draw_array, parse

from hetero_core import Core, Network
from hetero_core.transforms.activations import fuse_gelu, fuse_hard_swish, fuse_swish
from hetero_core.transforms.normalizations import fuse_layer_normalization, fuse_rms_normalization

NUMBERS = {
    "root": np.float32(2**0.5),
    "half": np.float32(0.5),
    "one": np.float32(1),
    "two": np.float32(2),
    "three": np.float32(3),
    "six": np.float32(6),
    "sixth": np.float32(1 / 6),
    "zero": np.float32(0),
    "small": np.float32(0.044715),
    "slope": np.float32((2 / np.pi) ** 0.5),
    "quick": np.float32(1.702),
    "minushalf": np.float32(-0.5),
    "epsilon": np.float32(1e-3),
    "wide": np.ones((1, 1, 1), np.float32),
}


def parse_numbers(text: str, constants: Mapping[str, Any] = MappingProxyType({}), *, opset: int = 17) -> onnx.ModelProto:
    return parse(text, {**NUMBERS, **constants}, opset=opset)


ERF = "d = Div (x, root) e = Erf (d) a = Add (e, one)"
TANH = "q = Pow (x, three) r = Mul (small, q) s = Add (x, r) t = Mul (slope, s) u = Tanh (t) a = Add (u, one)"
FAST = "q = Mul (x, x) r = Mul (q, small) s = Add (one, r) v = Mul (x, slope) t = Mul (v, s) u = Tanh (t) a = Add (one, u)"
CUBED = "q = Mul (x, x) k = Mul (q, x) r = Mul (k, small) s = Add (r, x) t = Mul (s, slope) u = Tanh (t) a = Add (u, one)"
SIGMOID = "s = Sigmoid (x) y = Mul (x, s)"
QUICK = "m = Mul (quick, x) s = Sigmoid (m) y = Mul (s, x)"
LOGISTIC = "n = Neg (x) e = Exp (n) a = Add (e, one) y = Div (x, a)"
RELU_SIX = "a = Add (x, three) c = Clip (a, zero, six)"
BOUNDS = "a = Add (three, x) l = Max (a, zero) c = Min (l, six)"
TURNED_BOUNDS = "a = Add (three, x) l = Min (a, six) c = Max (l, zero)"


@pytest.mark.parametrize(
    ("text", "transform", "op_type", "attributes"),
    [
        (f"{ERF} h = Mul (a, half) y = Mul (x, h)", fuse_gelu, "Gelu", {}),
        (f"{ERF} p = Mul (a, x) y = Div (p, two)", fuse_gelu, "Gelu", {}),
        (f"{ERF} p = Mul (x, a) y = Mul (p, half)", fuse_gelu, "Gelu", {}),
        (f"{ERF} h = Div (x, two) y = Mul (a, h)", fuse_gelu, "Gelu", {}),
        (f"{TANH} p = Mul (x, a) y = Mul (half, p)", fuse_gelu, "Gelu", {"approximate": "tanh"}),
        (f"{TANH} h = Mul (x, half) y = Mul (h, a)", fuse_gelu, "Gelu", {"approximate": "tanh"}),
        (f"{FAST} h = Mul (half, x) y = Mul (a, h)", fuse_gelu, "Gelu", {"approximate": "tanh"}),
        (f"{CUBED} h = Mul (half, a) y = Mul (x, h)", fuse_gelu, "Gelu", {"approximate": "tanh"}),
        (SIGMOID, fuse_swish, "Swish", {"alpha": 1.0}),
        (QUICK, fuse_swish, "Swish", {"alpha": float(np.float32(1.702))}),
        (LOGISTIC, fuse_swish, "Swish", {"alpha": 1.0}),
        (f"{RELU_SIX} m = Mul (x, c) y = Div (m, six)", fuse_hard_swish, "HardSwish", {}),
        (f"{RELU_SIX} m = Div (c, six) y = Mul (m, x)", fuse_hard_swish, "HardSwish", {}),
        (f"{BOUNDS} m = Mul (x, sixth) y = Mul (c, m)", fuse_hard_swish, "HardSwish", {}),
        (f"{TURNED_BOUNDS} m = Mul (c, sixth) y = Mul (x, m)", fuse_hard_swish, "HardSwish", {}),
        ("h = HardSigmoid <alpha = 0.16666667> (x) y = Mul (x, h)", fuse_hard_swish, "HardSwish", {}),
        (f"{RELU_SIX} y = Div (c, six)", fuse_hard_swish, "HardSigmoid", {"alpha": 1 / 6, "beta": 0.5}),
        (f"{BOUNDS} y = Mul (sixth, c)", fuse_hard_swish, "HardSigmoid", {"alpha": 1 / 6, "beta": 0.5}),
    ],
)  # fmt: skip
def test_written_out_pattern_is_fused_into_one_node(
    core: Core, text: str, transform: Callable[[Network], Network], op_type: str, attributes: dict[str, Any]
) -> None:
    model = parse_numbers(f"g (float[3, 7] x) => (float[3, 7] y) {{ {text} }}", {"second": np.array([-1])})
    network = check(core, model, transform, scale=3)
    assert [(node.op_type, node.inputs, dict(node.attributes)) for node in network.nodes] == [(op_type, ("x",), attributes)]
    assert len(network.nodes[0].origins) == len(model.graph.node)


@pytest.mark.parametrize(
    ("text", "transform"),
    [
        (f"{ERF.replace('root)', 'one)')} p = Mul (x, a) y = Mul (p, half)", fuse_gelu),
        (f"{ERF.replace('x, root', 'root, x')} p = Mul (x, a) y = Mul (p, half)", fuse_gelu),
        (f"{ERF} h = Mul (a, wide) p = Mul (h, half) y = Mul (x, p)", fuse_gelu),
        (f"{TANH} p = Mul (q, a) y = Mul (half, p)", fuse_gelu),
        (f"{TANH} p = Mul (x, a) h = Mul (half, p) y = Add (h, u)", fuse_gelu),
        (TANH.replace("three", "two") + " p = Mul (x, a) y = Mul (half, p)", fuse_gelu),
        ("s = Sigmoid (x) n = Neg (x) y = Mul (n, s)", fuse_swish),
        ("s = Sigmoid (x) m = Mul (x, s) y = Add (m, s)", fuse_swish),
        ("n = Neg (x) e = Exp (n) a = Add (e, two) y = Div (x, a)", fuse_swish),
        ("a = Add (x, three) c = Clip (a, zero, three) m = Mul (x, c) y = Div (m, six)", fuse_hard_swish),
        ("a = Add (x, three) c = Clip (a, zero) m = Mul (x, c) y = Div (m, six)", fuse_hard_swish),
        (f"{RELU_SIX} m = Mul (x, c) y = Div (m, three)", fuse_hard_swish),
        ("h = HardSigmoid (x) y = Mul (x, h)", fuse_hard_swish),
    ],
)
def test_similar_subgraph_is_not_fused(core: Core, text: str, transform: Callable[[Network], Network]) -> None:
    rank = "1, 3, 7" if "wide" in text else "3, 7"
    model = parse_numbers(f"g (float[3, 7] x) => (float[{rank}] y) {{ {text} }}", {"second": np.array([-1])})
    network = core.read_network(model)
    assert transform(network) is network


def test_gelu_of_a_wider_number_keeps_its_rank(core: Core) -> None:
    """The constant 1 of the sum has three axes, so the result has three axes."""
    text = f"{ERF.replace('one', 'wide')} p = Mul (x, a) y = Mul (p, half)"
    network = core.read_network(parse_numbers(f"g (float[3, 7] x) => (float[1, 3, 7] y) {{ {text} }}"))
    assert fuse_gelu(network) is network


def test_pattern_of_another_type_stays(core: Core) -> None:
    network = core.read_network(parse_numbers(f"g (double[3, 7] x) => (double[3, 7] y) {{ {SIGMOID} }}"))
    assert fuse_swish(network) is network


def test_pattern_whose_inner_value_is_an_output_stays(core: Core) -> None:
    network = core.read_network(parse_numbers(f"g (float[3, 7] x) => (float[3, 7] y, float[3, 7] s) {{ {SIGMOID} }}"))
    assert fuse_swish(network) is network


CENTERED = "m = ReduceMean (x, last) c = Sub (x, m) q = Mul (c, c) v = ReduceMean (q, last) e = Add (v, epsilon)"
SQUARED = "q = Pow (x, two) v = ReduceMean (q, last) e = Add (epsilon, v)"
PARAMETERS = {
    "w": draw_array(1, 8),
    "b": draw_array(2, 8),
    "last": np.array([-1]),
    "first": np.array([1]),
    "f": draw_array(3, 3, 1),
}


@pytest.mark.parametrize(
    "text",
    [
        f"{CENTERED} r = Sqrt (e) n = Div (c, r) s = Mul (w, n) y = Add (s, b)",
        f"{CENTERED} r = Sqrt (e) i = Reciprocal (r) n = Mul (c, i) s = Mul (n, w) y = Add (b, s)",
        f"{CENTERED} r = Sqrt (e) i = Div (one, r) n = Mul (c, i) s = Mul (n, w) y = Add (s, b)",
        f"{CENTERED} r = Pow (e, half) n = Div (c, r) s = Mul (n, w) y = Add (s, b)",
        f"{CENTERED} i = Pow (e, minushalf) g = Mul (i, w) s = Mul (c, g) y = Add (s, b)",
        f"d = Sub (x, m) {CENTERED.replace('Mul (c, c)', 'Pow (c, two)')} r = Sqrt (e) n = Div (d, r) s = Mul (n, w) y = Add (s, b)",
        f"{CENTERED} r = Sqrt (e) i = Reciprocal (r) g = Mul (i, w) k = Mul (x, g) l = Mul (m, g) o = Sub (b, l) y = Add (k, o)",
        f"{CENTERED} r = Sqrt (e) n = Div (c, r) y = Mul (n, w)",
    ],
)
def test_layer_normalization_in_other_forms_becomes_one_node(core: Core, text: str) -> None:
    if text.startswith("d ="):
        # Move Sub behind ReduceMean, which computes m.
        text = text.replace("d = Sub (x, m) ", "").replace("q = Pow", "d = Sub (x, m) q = Pow")
    model = parse_numbers(f"g (float[2, 3, 8] x) => (float[2, 3, 8] y) {{ {text} }}", PARAMETERS, opset=18)
    network = check(core, model, fuse_layer_normalization, scale=3)
    reference = ("x", "w", "b") if "b" in network.initializers else ("x", "w")
    assert [(node.op_type, node.inputs) for node in network.nodes] == [("LayerNormalization", reference)]
    assert network.nodes[0].attributes["epsilon"] == pytest.approx(1e-3)
    assert len(network.nodes[0].origins) == len(model.graph.node)


@pytest.mark.parametrize(
    "text",
    [
        f"{SQUARED} r = Sqrt (e) n = Div (x, r) y = Mul (n, w)",
        f"{SQUARED} r = Sqrt (e) i = Reciprocal (r) n = Mul (x, i) y = Mul (w, n)",
        f"{SQUARED} i = Pow (e, minushalf) g = Mul (i, w) y = Mul (x, g)",
        f"{SQUARED.replace('Pow (x, two)', 'Mul (x, x)')} r = Sqrt (e) i = Div (one, r) n = Mul (x, i) y = Mul (n, w)",
    ],
)
def test_written_out_rms_normalization_is_fused_into_one_node(core: Core, text: str) -> None:
    model = parse_numbers(f"g (float[2, 3, 8] x) => (float[2, 3, 8] y) {{ {text} }}", PARAMETERS, opset=18)
    network = check(core, model, lambda network: fuse_rms_normalization(fuse_layer_normalization(network)), scale=3)
    assert [(node.op_type, node.inputs) for node in network.nodes] == [("RMSNormalization", ("x", "w"))]
    assert network.nodes[0].attributes["epsilon"] == pytest.approx(1e-3)


@pytest.mark.parametrize(
    "text",
    [
        f"{SQUARED.replace('last', 'first')} r = Sqrt (e) n = Div (x, r) y = Mul (n, w)",
        f"{SQUARED} r = Sqrt (e) n = Div (x, r) y = Mul (n, f)",
        f"{SQUARED} r = Sqrt (v) n = Div (x, r) y = Mul (n, w)",
        f"{SQUARED} r = Sqrt (e) n = Div (x, r) s = Mul (n, w) y = Add (s, n)",
        f"{SQUARED} r = Sqrt (e) n = Div (r, x) y = Mul (n, w)",
        f"{SQUARED.replace('ReduceMean', 'ReduceMean <keepdims = 0>')} r = Sqrt (e) u = Unsqueeze (r, last) n = Div (x, u) y = Mul (n, w)",
    ],
    ids=["another axis", "a scale of another axis", "no epsilon", "read outside", "divided the other way", "another rank within"],
)  # fmt: skip
def test_subgraph_similar_to_rms_normalization_is_not_fused(core: Core, text: str) -> None:
    model = parse_numbers(f"g (float[2, 3, 8] x) => (float[2, 3, 8] y) {{ {text} }}", PARAMETERS, opset=18)
    network = core.read_network(model)
    assert fuse_rms_normalization(network) is network
