"""Scale, mask and softmax of attention scores: what becomes one kernel, what does not, and that it computes the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from hetero_core import Core, Network

from .compiled import transform_network

SCORES = "float[2,3,4,5] x"


def list_operators(network: Network) -> list[str]:
    return [node.op_type for node in transform_network(network, precision="f32", fuses=True).nodes]


@pytest.mark.parametrize(
    ("text", "operators"),
    [
        (f"g ({SCORES}) => (float[2,3,4,5] y) <float c = {{8}}> {{ s = Div (x, c) y = Softmax (s) }}", ["Softmax"]),
        (f"g ({SCORES}) => (float[2,3,4,5] y) <float c = {{0.5}}> {{ s = Mul (x, c) y = Softmax <axis = 3> (s) }}", ["Softmax"]),
        (
            f"g ({SCORES}, float[2,1,1,5] m) => (float[2,3,4,5] y) <float c = {{8}}> {{ s = Div (x, c) a = Add (s, m) y = Softmax (a) }}",
            ["Softmax"],
        ),
        (f"g ({SCORES}, float[1,1,4,5] m) => (float[2,3,4,5] y) {{ a = Add (m, x) y = Softmax (a) }}", ["Softmax"]),
        # The keys of this mask are spread, and the one after has no batch: neither is what the kernel reads.
        (f"g ({SCORES}, float[2,3,4,1] m) => (float[2,3,4,5] y) {{ a = Add (x, m) y = Softmax (a) }}", ["Add", "Softmax"]),
        (f"g ({SCORES}, float[4,5] m) => (float[2,3,4,5] y) {{ a = Add (x, m) y = Softmax (a) }}", ["Add", "Softmax"]),
        # Over another axis, by a number that divides nothing, or read by others, too.
        (
            f"g ({SCORES}) => (float[2,3,4,5] y) <float c = {{8}}> {{ s = Div (x, c) y = Softmax <axis = 1> (s) }}",
            ["Div", "Softmax"],
        ),
        (f"g ({SCORES}) => (float[2,3,4,5] y) <float c = {{0}}> {{ s = Div (x, c) y = Softmax (s) }}", ["Div", "Softmax"]),
        (
            f"g ({SCORES}) => (float[2,3,4,5] y, float[2,3,4,5] s) <float c = {{8}}> {{ s = Div (x, c) y = Softmax (s) }}",
            ["Div", "Softmax"],
        ),
    ],
)
def test_what_stands_before_a_softmax_joins_it(core: Core, read: Callable[[str], Network], text: str, operators: list[str]) -> None:
    network = read(text)
    assert list_operators(network) == operators
    draw = np.random.default_rng(0)
    inputs = {spec.name: draw.normal(size=spec.shape).astype(np.float32) for spec in network.inputs}
    with np.errstate(all="ignore"):
        expected = core.load_network(network, "CPU").infer(inputs)
    for name, found in core.load_network(network, "GPU", {"GPU_FUSION": True}).infer(inputs).items():
        np.testing.assert_allclose(found, expected[name], rtol=1e-5, atol=1e-7)
