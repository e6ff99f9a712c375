"""The networks that tests/bench/gpu.py runs, for any batch, and inputs for them. Imports onnx when a network is built."""

from __future__ import annotations

from functools import lru_cache
from typing import Any


def set_batch(model: Any, batch: int) -> Any:
    """Returns a light model for a batch; they name it in inputs, outputs and the shapes of Reshape."""
    import onnx
    from onnx import numpy_helper

    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    del changed.graph.value_info[:]
    for value in (*changed.graph.input, *changed.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = batch
    shapes = {node.input[1] for node in changed.graph.node if node.op_type == "Reshape"}
    for tensor in changed.graph.initializer:
        if tensor.name in shapes:
            shape = numpy_helper.to_array(tensor).copy()
            if shape[0] == 1:
                shape[0] = batch
                tensor.CopyFrom(numpy_helper.from_array(shape, tensor.name))
    return changed


@lru_cache(maxsize=1)
def make_model(name: str, batch: int) -> Any:
    """Returns a network; the last one is kept, since it is asked for once for each element type."""
    from hetero_tests.larger_models import LARGER_MODELS, larger_model

    from hetero_core.testing.models import light_model

    if name in LARGER_MODELS:
        return larger_model(name, batch)
    return light_model(name) if batch == 1 else set_batch(light_model(name), batch)


def draw_inputs(network: Any) -> dict[str, Any]:
    import numpy as np

    draw = np.random.default_rng(0)
    return {
        spec.name: draw.standard_normal(spec.shape).astype(np.float32)
        if spec.dtype == "float32"
        else np.ones(spec.shape, spec.dtype)
        for spec in network.inputs
    }
