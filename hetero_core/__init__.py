"""One ONNX model over several devices, each a plugin."""
