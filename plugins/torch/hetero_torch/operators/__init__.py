"""ONNX operators as functions of PyTorch, one file for each kind; `table` holds what they are right for."""
