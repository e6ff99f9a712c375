"""EXECUTION_MODE_HINT in the engine's own properties of a compiled model."""

from __future__ import annotations

from collections.abc import Callable

import openvino
import pytest

from hetero_core import Core, Network


@pytest.mark.parametrize(
    ("config", "mode", "is_exact"),
    [
        ({}, "ACCURACY", True),
        ({"EXECUTION_MODE_HINT": "ACCURACY"}, "ACCURACY", True),
        ({"EXECUTION_MODE_HINT": "PERFORMANCE"}, "PERFORMANCE", False),
        ({"EXECUTION_MODE_HINT": "PERFORMANCE", "INFERENCE_PRECISION_HINT": "f32"}, "PERFORMANCE", True),
    ],
)
def test_precision_follows_the_mode_unless_it_is_given(
    core: Core, read: Callable[[str], Network], config: dict[str, str], mode: str, is_exact: bool
) -> None:
    loaded = core.load_network(read("g (float[4, 4] x) => (float[4, 4] y) { y = MatMul (x, x) }"), "OPENVINO", config)
    assert loaded.get_config("EXECUTION_MODE_HINT") == mode
    answer = str(loaded.executable.compiled.get_property("INFERENCE_PRECISION_HINT").to_string())  # type: ignore[attr-defined]  # OPENVINO's
    # The engine's own default, read without the plugin.
    x = openvino.opset13.parameter([4, 4], openvino.Type.f32)
    alone = openvino.Core().compile_model(openvino.Model([openvino.opset13.matmul(x, x, False, False)], [x]), "CPU")
    assert answer == ("f32" if is_exact else str(alone.get_property("INFERENCE_PRECISION_HINT").to_string()))
