"""ONNX Runtime as an oracle: a session that computes each node by itself."""

from __future__ import annotations

from typing import Any


def open_reference_session(model: bytes) -> Any:
    """Returns an onnxruntime.InferenceSession on one thread, without rewrites of the network and without messages.

    Raises: what onnxruntime raises; ImportError where it is not installed.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
