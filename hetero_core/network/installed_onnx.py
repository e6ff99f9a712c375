"""The installed onnx, as far as it can be known and used without importing the package: its release, and its class of messages.

`import onnx` loads its checker, its helpers, its library of schemas and their imports, 50 ms; reading a small model needs its messages
alone. Where a program has imported onnx, that is used.
"""

from __future__ import annotations

import importlib
import os
import sys
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx


def find_model_class() -> type[onnx.ModelProto]:
    """Returns `onnx.ModelProto`, the class itself, whether the package is imported or not."""
    messages = None if "onnx" in sys.modules else _load_messages()
    if messages is None:
        messages = importlib.import_module("onnx")  # heavy
    model_class: type[onnx.ModelProto] = messages.ModelProto
    return model_class


@cache
def _load_messages() -> Any:
    """Returns onnx's module of messages, run from its file under a name of ours; None where there is no such file.

    protobuf keeps one class for each message, so the package gets these classes when it is imported later.
    """
    folder = _find_folder()
    path = None if folder is None else os.path.join(folder, "onnx_ml_pb2.py")
    spec = None if path is None or not os.path.isfile(path) else spec_from_file_location("hetero_core.network.onnx_messages", path)
    if spec is None or spec.loader is None:
        return None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def is_release_installed(version: str) -> bool:
    """Says whether the onnx that an import would find is of this release."""
    folder = _find_folder()
    return folder is not None and os.path.isdir(os.path.join(os.path.dirname(folder), f"onnx-{version}.dist-info"))


@cache
def _find_folder() -> str | None:
    spec: ModuleSpec | None = find_spec("onnx")
    return None if spec is None or spec.origin is None else os.path.dirname(spec.origin)
