"""Drawn cases of ONNX Runtime's contrib operators, with ONNX Runtime's kernels as the oracle."""
