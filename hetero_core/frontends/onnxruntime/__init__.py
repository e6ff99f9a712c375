"""ONNX Runtime's Python interface on the devices of hetero: an application changes one import, or none.

    import hetero_core.frontends.onnxruntime as onnxruntime          # one import changed
    python -m hetero_core.frontends.onnxruntime APP.py               # none
    with replace_onnxruntime(): import application                   # none

A session goes from its model to a Core of the process (`providers` names the device), to an ExecutableNetwork, and each `run` to its
`infer`. ONNX Runtime itself is needed only by the device ORT. `docs/reference/onnxruntime-api.md` lists which names are here.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hetero_core.frontends.onnxruntime.options import (
        ExecutionMode,
        ExecutionOrder,
        GraphOptimizationLevel,
        RunOptions,
        SessionOptions,
    )
    from hetero_core.frontends.onnxruntime.providers import get_all_providers, get_available_providers, get_device
    from hetero_core.frontends.onnxruntime.replacement import replace_onnxruntime
    from hetero_core.frontends.onnxruntime.session import InferenceSession, IOBinding, SessionIOBinding
    from hetero_core.frontends.onnxruntime.values import ModelMetadata, NodeArg, OrtAllocatorType, OrtDevice, OrtMemType, OrtValue

_NAMES = {
    "options": ("ExecutionMode", "ExecutionOrder", "GraphOptimizationLevel", "RunOptions", "SessionOptions"),
    "providers": ("get_all_providers", "get_available_providers", "get_device"),
    "session": ("IOBinding", "InferenceSession", "SessionIOBinding"),
    "values": ("ModelMetadata", "NodeArg", "OrtAllocatorType", "OrtDevice", "OrtMemType", "OrtValue"),
    "replacement": ("replace_onnxruntime",),
}
_HOME_OF_NAME = {name: home for home, names in _NAMES.items() for name in names}

__all__ = [
    "ExecutionMode",
    "ExecutionOrder",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "ModelMetadata",
    "NodeArg",
    "OrtAllocatorType",
    "OrtDevice",
    "OrtMemType",
    "OrtValue",
    "RunOptions",
    "SessionIOBinding",
    "SessionOptions",
    "get_all_providers",
    "get_available_providers",
    "get_device",
    "replace_onnxruntime",
]

PUT_NAMES = tuple(name for name in __all__ if name != "replace_onnxruntime")
"""The names that are put into an installed ONNX Runtime."""
STAND_IN_NAMES = (
    *("__version__", "disable_telemetry_events", "enable_telemetry_events", "get_build_info", "get_version_string"),
    *("has_collective_ops", "preload_dlls", "set_default_logger_severity", "set_default_logger_verbosity", "set_seed"),
)
"""Names that concern the engine as a whole: an installed ONNX Runtime keeps its own."""

__version__ = "1.32.0"
"""The version of ONNX Runtime whose interface this is."""


if not TYPE_CHECKING:  # hidden from type checkers, which would accept every name

    def __getattr__(name: str) -> object:
        # Imported on first use: the runner of a program needs none of them.
        if name not in _HOME_OF_NAME:
            raise AttributeError(
                f"hetero's front end for ONNX Runtime has no '{name}'; docs/reference/onnxruntime-api.md lists its names, and the reasons"
            )
        attribute = getattr(import_module(f"{__name__}.{_HOME_OF_NAME[name]}"), name)
        globals()[name] = attribute
        return attribute


def get_version_string() -> str:
    """Returns the version of ONNX Runtime whose interface this is."""
    return __version__


def get_build_info() -> str:
    """Returns a text that names hetero."""
    return f"hetero's front end, interface of ONNX Runtime {__version__}"


def has_collective_ops() -> bool:
    """Returns False: there are no operators for several machines."""
    return False


def disable_telemetry_events() -> None:
    """Has no effect: hetero reports nothing to anybody."""


def enable_telemetry_events() -> None:
    """Has no effect: hetero reports nothing to anybody."""


def preload_dlls(cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: str | None = None) -> None:
    """Has no effect: each device loads its own libraries."""


def set_default_logger_severity(severity: int) -> None:
    """Has no effect: hetero logs through Python's `logging`."""


def set_default_logger_verbosity(verbosity: int) -> None:
    """Has no effect: hetero logs through Python's `logging`."""


def set_seed(seed: int) -> None:
    """Has no effect, which is logged once: random operators without a seed of their own draw other numbers."""
    from hetero_core.frontends.onnxruntime.options import report_once

    report_once(f"set_seed({seed}) has no effect on devices of hetero")
