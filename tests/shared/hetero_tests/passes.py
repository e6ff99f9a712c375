"""Models for tests of passes, and a check that a pass preserves the outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import onnx.parser
from onnx.reference import ReferenceEvaluator

from hetero_core import Core, Network
from hetero_core.kernels.program import compile_program
from hetero_core.network.types import fixed_sizes


def draw_array(seed: int, *shape: int) -> Any:
    """Returns normally distributed float32 numbers."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def parse(text: str, constants: Mapping[str, Any], *, opset: int = 17, ir_version: int = 8) -> onnx.ModelProto:
    """Returns the model of a text, with the given constants that the text uses by name."""
    model = onnx.parser.parse_model(f'<ir_version: {ir_version}, opset_import: ["": {opset}]> {text}')
    read = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items() if name in read
    )
    return model


def check(core: Core, model: onnx.ModelProto, transform: Callable[[Network], Network], *, scale: float = 1) -> Network:
    """Returns the transformed network; asserts that its outputs equal the reference evaluator's outputs for the model."""
    network = transform(core.read_network(model))
    drawn = [scale * draw_array(index, *(fixed_sizes(spec.shape) or ())) for index, spec in enumerate(network.inputs)]
    inputs = [
        x if spec.dtype == "float32" else (x > -0.3).astype(spec.dtype) for x, spec in zip(drawn, network.inputs, strict=True)
    ]
    expected = ReferenceEvaluator(model).run(None, {spec.name: x for spec, x in zip(network.inputs, inputs, strict=True)})
    for output, reference in zip(compile_program(network).run(tuple(inputs)), expected, strict=True):
        assert output.shape == reference.shape
        np.testing.assert_allclose(output, reference, rtol=2e-5, atol=2e-5)
    return network


def list_operators(network: Network) -> list[str]:
    return [node.op_type for node in network.nodes]
