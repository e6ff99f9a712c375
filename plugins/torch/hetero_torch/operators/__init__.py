"""ONNX operators as functions of PyTorch, a file for each kind; `table` registers them."""
