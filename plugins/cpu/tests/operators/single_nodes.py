"""Networks of one node for the tests of NumPy's steps, and their check against a formula."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.helper as oh
from hypothesis import HealthCheck, settings

from hetero_core import Core

RELATIVE = 2e-5
SETTINGS = settings(max_examples=24, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])


def draw_array(seed: int, *shape: int) -> Any:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def make_model(node: Any, inputs: dict[str, Any], opset: int = 24) -> Any:
    graph = oh.make_graph(
        [node],
        "g",
        [oh.make_tensor_value_info(name, 1, array.shape) for name, array in inputs.items()],
        [oh.make_tensor_value_info("y", 1, None)],
    )
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", opset)], ir_version=11)


def check(core: Core, model: Any, inputs: dict[str, Any], wanted: Any) -> None:
    loaded = core.load_network(model, "CPU")
    assert loaded.get_metric("CPU_FOREIGN_STEPS") == 0
    for _ in range(2):
        found = loaded.infer(inputs)["y"]
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=RELATIVE, atol=RELATIVE)
