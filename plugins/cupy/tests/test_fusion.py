"""Fused kernels: which operators are joined, what text they become, that compilers of CUDA take it, and that it computes the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hetero_cupy.fusion import write_kernel, write_number

from hetero_core import Core, Network

from . import cuda_compiler
from .compiled import transform_network

needs_cuda_compiler = pytest.mark.skipif(not cuda_compiler.has_compiler(), reason=cuda_compiler.MISSING)
X = np.array([[-4, -0.5, 0, 0.25], [1, 3.5, math.nan, math.inf]], np.float32)
SILU = "g (float[2,4] x, float[4] b) => (float[2,4] y) { a = Add (x, b) s = Sigmoid (a) p = Mul (a, s) y = Neg (p) }"
RESIDUAL = "g (float[2,4] x, float[2,4] z) => (float[2,4] y) { n = Neg (x) a = Add (n, z) r = LeakyRelu <alpha = 0.25> (a) y = Mul (r, r) }"


def fuse(network: Network) -> Network:
    return transform_network(network, precision="f32", fuses=True)


def list_operators(network: Network) -> list[str]:
    return [node.op_type for node in network.nodes]


def test_chain_becomes_one_node_and_a_value_read_twice_stays(read: Callable[..., Network]) -> None:
    fused = fuse(read(SILU))
    # a is read by Sigmoid and by Mul.
    assert list_operators(fused) == ["Add", "Fused"]
    assert fused.nodes[1].inputs == ("a",)
    assert len(fused.nodes[1].origins) == 3
    # r is read twice, by one node.
    assert list_operators(fuse(read(RESIDUAL))) == ["Fused"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("g (double[4] x) => (double[4] y) { a = Neg (x) y = Relu (a) }", "not 32 or 16 bits"),
        ("g (float[4] x) => (float[4] a, float[4] y) { a = Neg (x) y = Relu (a) }", "an output of the network"),
        ("g (float[4] x, float[2,4] z) => (float[2,4] y) { a = Neg (x) y = Add (a, z) }", "broadcast afterwards"),
        ("g (float[4] x) => (float[4] y) { a = Neg (x) y = Softmax (a) }", "not elementwise"),
    ],
)
def test_what_is_not_alike_is_not_fused(read: Callable[..., Network], text: str, reason: str) -> None:
    assert "Fused" not in list_operators(fuse(read(text))), reason


def test_text_follows_from_the_tree_alone() -> None:
    tree = ("Mul", (), (("LeakyRelu", (0.25,), (("Add", (), (0, 1)),)), ("Add", (), (0, 1))))
    text = write_kernel(tree, ("float32",) * 3)
    assert text == write_kernel(tree, ("float32",) * 3)
    assert text.inputs == ("float32 x0", "float32 x1")
    assert text.outputs == ("float32 y0",)
    # What occurs twice is computed once.
    assert text.body.splitlines() == [
        "float v0 = x0;",
        "float v1 = x1;",
        "float t0 = (v0 + v1);",
        "float t1 = hetero_leaky(t0, 0.25f);",
        "float t2 = (t1 * t0);",
        "y0 = t2;",
    ]


@pytest.mark.parametrize(("value", "text"), [(1, "1.0f"), (0.1, "0.10000000149011612f"), (1e-20, "9.999999682655225e-21f")])
def test_numbers_are_written_as_float32_has_them(value: float, text: str) -> None:
    assert write_number(value) == text


@pytest.mark.parametrize("text", [SILU, RESIDUAL])
def test_fused_network_computes_what_the_plain_one_does(core: Core, read: Callable[..., Network], text: str) -> None:
    network = read(text)
    inputs = {spec.name: X if spec.shape == (2, 4) else X[0] for spec in network.inputs}
    plain = core.load_network(network, "GPU").infer(inputs)["y"]
    loaded = core.load_network(network, "GPU", {"GPU_FUSION": True})
    assert loaded.get_metric("GPU_FUSED_KERNELS") == 1
    np.testing.assert_allclose(loaded.infer(inputs)["y"], plain, rtol=1e-6)


ALL_OPERATORS = (
    *("Abs", "Cast", "Ceil", "Erf", "Exp", "Floor", "Gelu", "Log"),
    *("Neg", "Reciprocal", "Relu", "Sigmoid", "Sqrt", "Tanh", "HardSwish", "HardSigmoid"),
    *("LeakyRelu", "Clip", "Add", "Sub", "Mul", "Div"),
)
PARAMETERS: dict[str, tuple[float, ...]] = {"HardSigmoid": (0.2, 0.5), "LeakyRelu": (0.01,), "Clip": (-1.5, 6.0)}


def make_tree(operator: str) -> Any:
    """Returns the operator on the sum of two inputs."""
    total = ("Add", (), (0, 1))
    arguments = (total, 1) if operator in ("Add", "Sub", "Mul", "Div") else (total,)
    return operator, PARAMETERS.get(operator, ()), arguments


@needs_cuda_compiler
@pytest.mark.parametrize("architecture", cuda_compiler.ARCHITECTURES)
def test_nvidias_compiler_takes_every_operator(architecture: str) -> None:
    texts = [write_kernel(make_tree(operator), ("float32",) * 3) for operator in ALL_OPERATORS]
    ptx = cuda_compiler.compile_modules([cuda_compiler.write_module(text) for text in texts], architecture)
    assert f".target sm_{architecture}".encode() in ptx
    assert [text.name for text in texts if f".entry {text.name}".encode() not in ptx] == []


@needs_cuda_compiler
def test_nvidias_compiler_refuses_what_is_wrong() -> None:
    source = cuda_compiler.write_module(write_kernel(make_tree("Relu"), ("float32",) * 3)).replace(
        "float hetero_relu", "float hetero_other"
    )
    with pytest.raises(AssertionError, match='identifier "hetero_relu" is undefined'):
        cuda_compiler.compile_module(source, "80")


def test_every_operator_with_a_rule_is_tried() -> None:
    from hetero_cupy.fusion import _RULES

    assert sorted(_RULES) == sorted(ALL_OPERATORS)
