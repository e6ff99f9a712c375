"""Model files of other projects, as data: the name of each kind, and how to get an ONNX model from it."""

from __future__ import annotations

import os

_TORCH = "in PyTorch and call torch.onnx.export(model, inputs, 'model.onnx', dynamo=True)"
_WEIGHTS = "weights without a graph", "Export their folder: optimum-cli export onnx --model FOLDER OUTPUT"
_KERAS = "a model of Keras", "Load it in Keras and call model.export('model.onnx', format='onnx')"
_ENGINE = "an engine of TensorRT for one kind of card", "Use the ONNX model that it was built from"
_TENSORFLOW = "python -m tf2onnx.convert"

FOREIGN_MODELS = {
    ".pt": ("a model of PyTorch", f"Load it {_TORCH}"),
    ".pth": ("the weights of a model of PyTorch", f"Load them into their model {_TORCH}"),
    ".safetensors": _WEIGHTS,
    ".gguf": _WEIGHTS,
    ".xml": ("a model of OpenVINO", "Export the model that it was made from to ONNX; an .xml file cannot be turned back"),
    ".tflite": ("a model of TensorFlow Lite", f"Run {_TENSORFLOW} --tflite MODEL.tflite --output model.onnx"),
    ".h5": _KERAS,
    ".keras": _KERAS,
    ".pb": ("a graph of TensorFlow", f"Run {_TENSORFLOW} --graphdef MODEL.pb --inputs NAMES --outputs NAMES --output model.onnx"),
    "saved_model.pb": ("a SavedModel of TensorFlow", f"Run {_TENSORFLOW} --saved-model FOLDER --output model.onnx"),
    ".engine": _ENGINE,
}
"""The end of a file's name -> a description of the file, and the way to an ONNX model."""

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
