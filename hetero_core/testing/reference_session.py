"""ONNX Runtime as an oracle: a session without fusions, and a probe whether its products of bytes are exact on this processor.

Without VNNI its AVX2 kernels add pairs of uint8 x int8 products in 16 bits, which saturate: 64 times 255 x 127 gives 1,048,544, not
2,072,640. Products of uint8 x uint8 are exact on every processor.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx

SIGNED_WEIGHTS: dict[str, tuple[int | None, tuple[tuple[int, int], ...]]] = {
    "MatMulInteger": (0, ((1, 3),)),
    "ConvInteger": (0, ((1, 3),)),
    "QLinearMatMul": (0, ((3, 5),)),
    "QLinearConv": (0, ((3, 5),)),
    "QGemm": (0, ((3, 5),)),
    "MatMulIntegerToFloat": (0, ((1, 5),)),
    "DynamicQuantizeMatMul": (None, ((1, 3),)),
    "QAttention": (0, ((1, 7),)),
    "DynamicQuantizeLSTM": (None, ((1, 9), (2, 11))),
}
"""Operator on bytes -> the positions of its uint8 values (None: quantized in the run), its weights and their zero points."""


def open_reference_session(model: bytes) -> Any:
    """Returns an onnxruntime.InferenceSession on a single thread, without rewrites of the network and without messages.

    Raises: any error of onnxruntime; ImportError if it is not installed.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


@cache
def engine_multiplies_exactly(weights: str = "int8") -> bool:
    """Returns whether ONNX Runtime multiplies uint8 with weights of this type exactly on this processor, from a probe of 64 products.

    Raises: ImportError if onnxruntime is not installed.
    """
    import numpy as np
    import onnx.parser

    text = f"g (uint8[M,K] a, {weights}[K,N] b) => (int32[M,N] y) {{ y = MatMulInteger(a, b) }}"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')
    largest = int(np.iinfo(weights).max)
    feeds = {"a": np.full((4, 64), 255, np.uint8), "b": np.full((64, 16), largest, weights)}
    (product,) = open_reference_session(model.SerializeToString()).run(None, feeds)
    return bool((product == 64 * 255 * largest).all())


def is_exact_reference(model: onnx.ModelProto) -> bool:
    """Returns whether ONNX Runtime is an oracle for the model on this processor: any products of bytes are exact."""
    graphs = (model.graph, *model.functions)
    return not any(_multiplies_bytes(graph.node) for graph in graphs) or engine_multiplies_exactly()


def _multiplies_bytes(nodes: Any) -> bool:
    return any(
        node.op_type in SIGNED_WEIGHTS
        or any(_multiplies_bytes(graph.node) for attribute in node.attribute for graph in (attribute.g, *attribute.graphs))
        for node in nodes
    )
