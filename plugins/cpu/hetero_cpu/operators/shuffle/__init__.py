"""Channel shuffles, which are three nodes in ONNX."""
