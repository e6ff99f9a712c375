"""Drawn cases of the operators that ONNX Runtime has beside ONNX's own, with ONNX Runtime's own kernels as the oracle."""
