"""Images and models for tests of operators: windows with random geometry, and the check of a network against a formula."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx.helper as oh
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from hetero_core import Core

RELATIVE = 2e-5
SETTINGS = settings(max_examples=16, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])


def make_model(nodes: list[Any], inputs: dict[str, tuple[int, ...]], constants: dict[str, Any], outputs: list[str]) -> Any:
    graph = oh.make_graph(
        nodes,
        "g",
        [oh.make_tensor_value_info(name, 1, shape) for name, shape in inputs.items()],
        [oh.make_tensor_value_info(name, 1, None) for name in outputs],
        [oh.make_tensor(name, 1, array.shape, array.reshape(-1)) for name, array in constants.items()],
    )
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", 21)], ir_version=10)


def draw_array(seed: int, *shape: int) -> Any:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def check(core: Core, model: Any, inputs: dict[str, Any], expected: dict[str, Any]) -> None:
    loaded = core.load_network(model, "CPU")
    for _ in range(2):
        answers = loaded.infer(inputs)
        for name, value in expected.items():
            assert answers[name].shape == value.shape
            limit = RELATIVE * max(np.abs(value).max(initial=0), 1e-3)
            assert np.abs(answers[name] - value).max(initial=0) <= limit, name


def list_windows(x: Any, kernel: Any, strides: Any, dilations: Any, pads: Any, outputs: Any, fill: float) -> Iterator[Any]:
    """Yields (i, j, elements) for each kernel position: the elements under it, as (batch, channels, *outputs)."""
    reach = [(o - 1) * s + (k - 1) * d + 1 for o, s, k, d in zip(outputs, strides, kernel, dilations, strict=True)]
    padded = np.full((*x.shape[:2], *(max(r, p + n) for r, p, n in zip(reach, pads, x.shape[2:], strict=False))), fill)
    padded[:, :, pads[0] : pads[0] + x.shape[2], pads[1] : pads[1] + x.shape[3]] = x
    for i, j in np.ndindex(*kernel):
        top, left = i * dilations[0], j * dilations[1]
        yield (
            i,
            j,
            padded[
                :,
                :,
                top : top + (outputs[0] - 1) * strides[0] + 1 : strides[0],
                left : left + (outputs[1] - 1) * strides[1] + 1 : strides[1],
            ],
        )


def count_outputs(size: int, kernel: int, stride: int, dilation: int, begin: int, end: int) -> int:
    return (size + begin + end - (kernel - 1) * dilation - 1) // stride + 1


def convolve(x: Any, w: Any, b: Any, strides: Any, dilations: Any, pads: Any, group: int) -> Any:
    kernel = w.shape[2:]
    outputs = [
        count_outputs(x.shape[axis + 2], kernel[axis], strides[axis], dilations[axis], pads[axis], pads[axis + 2])
        for axis in (0, 1)
    ]
    y = np.zeros((x.shape[0], w.shape[0], *outputs))
    split = w.reshape(group, -1, *w.shape[1:]).astype(np.float64)
    for i, j, elements in list_windows(x.astype(np.float64), kernel, strides, dilations, pads, outputs, 0.0):
        grouped = elements.reshape(x.shape[0], group, -1, *outputs)
        y += np.einsum("ngchw,goc->ngohw", grouped, split[..., i, j]).reshape(y.shape)
    return y + b.astype(np.float64)[:, None, None]


geometry = st.fixed_dictionaries(
    {
        "batch": st.integers(1, 3),
        "group": st.sampled_from([1, 1, 1, 2, 3]),
        "own": st.sampled_from([1, 2, 3, 5, 17, 33]),
        "made": st.sampled_from([1, 2, 5, 16]),
        "size": st.tuples(st.integers(1, 14), st.integers(1, 14)),
        "kernel": st.tuples(st.integers(1, 5), st.integers(1, 5)),
        "strides": st.tuples(st.integers(1, 3), st.integers(1, 3)),
        "dilations": st.tuples(st.integers(1, 3), st.integers(1, 2)),
        "pads": st.tuples(*[st.integers(0, 4)] * 4),
        "before": st.booleans(),
        "after": st.sampled_from([(), ("Relu",), ("Add",), ("Add", "Relu"), ("HardSwish",), ("Sigmoid",), ("Gelu",)]),
    }
)
