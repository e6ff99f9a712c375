"""Resize with any number of taps by machine code; expected values from the reference evaluator of ONNX."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from hetero_core import Core

from ..trial import WIDTHS

pytestmark = pytest.mark.skipif(not WIDTHS, reason="no kernels are made for this processor, or llvmlite is not installed")


@pytest.mark.parametrize("channels", [1, 3, 20])
@pytest.mark.parametrize(("height", "width"), [(7, 11), (40, 9), (21, 64)])
@pytest.mark.parametrize(
    "attributes",
    [
        'mode = "linear", antialias = 1',
        'mode = "cubic", antialias = 1',
        'mode = "cubic", cubic_coeff_a = -0.5, exclude_outside = 1',
    ],
)
def test_resized_images_equal_the_reference(attributes: str, height: int, width: int, channels: int) -> None:
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 19]> resized (float[2, {channels}, 21, 30] x) => (float[a, b, c, d] y)
        <int64[2] sizes = {{{height}, {width}}}> {{ y = Resize <{attributes}, axes = [2, 3]> (x, , , sizes) }}"""
    )
    x = np.random.default_rng(0).standard_normal((2, channels, 21, 30)).astype(np.float32)
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    with Core() as core:
        network = core.load_network(model, "CPU", {"CPU_KERNELS": "JIT", "INFERENCE_NUM_THREADS": 2})
        y = network.infer({"x": x})["y"]
        assert network.get_metric("CPU_FOREIGN_STEPS") == 0
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-5)
