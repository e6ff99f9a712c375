"""Stands for `onnxruntime.capi.onnxruntime_inference_collection`: the same names as `_pybind_state`."""

from hetero_core.frontends.onnxruntime.capi._pybind_state import *  # noqa: F403
