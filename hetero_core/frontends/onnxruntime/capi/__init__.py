"""The submodules of `onnxruntime.capi` from which programs import classes and exceptions, if ONNX Runtime is not installed."""
