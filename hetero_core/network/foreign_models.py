"""Model files of other projects, as data: the name of each kind, and how to get an ONNX model from it."""

from __future__ import annotations

import os

_TORCH = "torch.onnx.export(model, inputs, 'model.onnx', dynamo=True)"
_TENSORFLOW = "python -m tf2onnx.convert"

FOREIGN_MODELS = {
    ".pt": ("a model of PyTorch", f"Load it in PyTorch and call {_TORCH}"),
    ".pth": ("the weights of a model of PyTorch", f"Load them into their model and call {_TORCH}"),
    ".pt2": ("a program of torch.export", f"Load it by torch.export.load and call {_TORCH}"),
    ".ckpt": ("a checkpoint of a training", f"Load it into its model and call {_TORCH}"),
    ".safetensors": (
        "the weights of a model without its graph",
        "Export their folder: optimum-cli export onnx --model FOLDER OUTPUT",
    ),
    ".gguf": ("a model of llama.cpp", "Export the model that it was made from: optimum-cli export onnx --model NAME OUTPUT"),
    ".xml": ("a model of OpenVINO", "It cannot be turned back: export the model that it was made from to ONNX"),
    ".tflite": ("a model of TensorFlow Lite", f"Run {_TENSORFLOW} --tflite MODEL.tflite --output model.onnx"),
    ".h5": ("a model of Keras", "Load it in Keras and call model.export('model.onnx', format='onnx')"),
    ".keras": ("a model of Keras", "Load it in Keras and call model.export('model.onnx', format='onnx')"),
    ".pb": ("a graph of TensorFlow", f"Run {_TENSORFLOW} --graphdef MODEL.pb --inputs NAMES --outputs NAMES --output model.onnx"),
    "saved_model.pb": ("a SavedModel of TensorFlow", f"Run {_TENSORFLOW} --saved-model FOLDER --output model.onnx"),
    ".engine": ("an engine of TensorRT for one card", "Use the ONNX model that it was built from"),
    ".plan": ("an engine of TensorRT for one card", "Use the ONNX model that it was built from"),
    ".trt": ("an engine of TensorRT for one card", "Use the ONNX model that it was built from"),
    ".pkl": ("a pickled model", "Load it and call skl2onnx.to_onnx(model, inputs) if it is a model of scikit-learn"),
    ".joblib": ("a pickled model", "Load it and call skl2onnx.to_onnx(model, inputs) if it is a model of scikit-learn"),
    ".mlmodel": ("a model of Core ML", "Export the model that it was made from to ONNX"),
}
"""The end of a file's name -> a description of the file and the way to an ONNX model."""

_FIRST_BYTE_OF_ONNX = b"\x08"
"""ir_version, the first field of a ModelProto, which every exporter writes."""


def describe_foreign(path: str, first: bytes) -> str:
    """Returns what a file is and how to export it, by its name and its first byte; "" for a file that may be an ONNX model.

    A file with a foreign name that begins as an ONNX model does is read: some files of ONNX end with ".pb".
    """
    name = os.path.basename(path).lower()
    ending = name if name in FOREIGN_MODELS else os.path.splitext(name)[1]
    if ending not in FOREIGN_MODELS or (first == _FIRST_BYTE_OF_ONNX and ending != name):
        return ""
    description, cure = FOREIGN_MODELS[ending]
    return f"it is {description}, not an ONNX model. {cure}."
