"""ONNX Runtime's exceptions: each error of hetero becomes the exception that ONNX Runtime raises for it, with the text of hetero's error.

If ONNX Runtime is imported, an exception is also one of its own class, so that an application catches it by either name.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any

from hetero_core import errors
from hetero_core.errors import HeteroError

STATE_MODULE = "onnxruntime.capi.onnxruntime_pybind11_state"
"""The module from which applications import ONNX Runtime's exceptions."""

_NAMES = """
Fail InvalidArgument NoSuchFile NoModel EngineError RuntimeException InvalidProtobuf ModelLoaded NotImplemented InvalidGraph EPFail
ModelLoadCanceled ModelRequiresCompilation NotFound DeviceReset
"""
"""ONNX Runtime's exceptions in the order of their status codes, from 1 on."""
_LABELS = """
FAIL INVALID_ARGUMENT NO_SUCHFILE NO_MODEL ENGINE_ERROR RUNTIME_EXCEPTION INVALID_PROTOBUF MODEL_LOADED NOT_IMPLEMENTED INVALID_GRAPH
EP_FAIL MODEL_LOAD_CANCELED MODEL_REQUIRES_COMPILATION NOT_FOUND DEVICE_RESET
"""
"""The names of the status codes, as they begin ONNX Runtime's messages."""
_STATUS = {name: (code, label) for code, (name, label) in enumerate(zip(_NAMES.split(), _LABELS.split(), strict=True), 1)}

# ONNX Runtime raises either of several for one fault, by its version and the node: a node that nothing runs has no kernel
# (NotImplemented), no operator (InvalidGraph), no domain or wrong types (Fail); a file without a graph is an InvalidArgument.
_ALSO = {
    "RuntimeException": ("Fail",),
    "InvalidProtobuf": ("InvalidArgument",),
    "InvalidGraph": ("InvalidArgument", "Fail"),
    "NotImplemented": ("InvalidGraph",),
}

# The first class that matches names the exception: subclasses stand before their bases.
_NAME_OF_ERROR: tuple[tuple[Any, str], ...] = (
    (errors.NetworkNotFoundError, "NoSuchFile"),
    (errors.NetworkReadError, "InvalidProtobuf"),
    (errors.InvalidNetworkError, "InvalidGraph"),
    ((errors.UnsupportedNodesError, errors.NotImplementedByDeviceError), "NotImplemented"),
    ((errors.InputNameError, errors.InputShapeError, errors.InputTypeError), "InvalidArgument"),
    ((errors.ConfigKeyError, errors.ConfigValueError), "InvalidArgument"),
    ((errors.DeviceNameError, errors.DeviceNotFoundError, errors.DeviceUnavailableError), "EPFail"),
    ((errors.LoadError, errors.RequestCancelledError), "Fail"),
)


class OnnxRuntimeError(Exception):
    """The base class of the exceptions of this front end."""

    def __reduce__(self) -> tuple[Any, ...]:
        return make_error, (type(self).__name__, self.args[0], False)


EXCEPTIONS: dict[str, type[Exception]] = {}
for _name in sorted(_STATUS, key=lambda name: name == "NotImplemented"):  # behind InvalidGraph, its base
    _bases = tuple(EXCEPTIONS[each] for each in _ALSO.get(_name, ())) or (OnnxRuntimeError,)
    EXCEPTIONS[_name] = type(_name, _bases, {"__module__": __name__, "__doc__": f"ONNX Runtime's status {_STATUS[_name][0]}."})
"""This front end's exceptions by ONNX Runtime's names."""


def make_error(name: str, text: str, has_prefix: bool = True) -> Exception:
    """Returns an exception by its name in ONNX Runtime; the text gets ONNX Runtime's usual beginning if `has_prefix`."""
    code, label = _STATUS[name]
    raised, state = EXCEPTIONS[name], sys.modules.get(STATE_MODULE)
    if getattr(state, name, raised) is not raised:
        raised = _join(name, state)
    return raised(f"[ONNXRuntimeError] : {code} : {label} : {text}" if has_prefix else text)


@cache
def _join(name: str, state: ModuleType) -> type[Exception]:
    """Returns a class that is both this front end's and the engine's."""
    engine_classes = tuple(getattr(state, each.__name__) for each in EXCEPTIONS[name].__mro__ if each.__name__ in EXCEPTIONS)
    return type(name, (EXCEPTIONS[name], *engine_classes), {"__module__": __name__})


@contextmanager
def raise_as_onnxruntime() -> Iterator[None]:
    """Raises errors of hetero as ONNX Runtime's exceptions; the error itself is the cause."""
    try:
        yield
    except HeteroError as error:
        raise convert_error(error) from error


# Words of ONNX Runtime that programs look for in the text of an exception.
_BEGINNINGS = {"NoSuchFile": "Load model failed. File doesn't exist. ", "InvalidProtobuf": "Protobuf parsing failed. "}


def convert_error(error: HeteroError, beginning: str = "") -> Exception:
    """Returns ONNX Runtime's exception for an error of hetero; its text begins with words of ONNX Runtime."""
    otherwise = "InvalidArgument" if isinstance(error.__cause__, IndexError) else "RuntimeException"
    name = next((name for classes, name in _NAME_OF_ERROR if isinstance(error, classes)), otherwise)
    return make_error(name, beginning + _BEGINNINGS.get(name, "") + str(error))
