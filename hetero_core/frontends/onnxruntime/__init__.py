"""ONNX Runtime's Python interface on the devices of hetero: an application changes one import at most.

    import hetero_core.frontends.onnxruntime as onnxruntime          # one import changed
    python -m hetero_core.frontends.onnxruntime APP.py               # none
    with replace_onnxruntime(): import application                   # none

A session goes from its model to a Core of the process (`providers` names the device), to an ExecutableNetwork, and each `run` to its
`infer`. ONNX Runtime itself is needed only by the device ORT. `docs/reference/onnxruntime-api.md` lists which names are here.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from hetero_core.frontends.replacement import replace_package

if TYPE_CHECKING:
    from hetero_core.frontends.onnxruntime.options import *  # noqa: F403
    from hetero_core.frontends.onnxruntime.providers import *  # noqa: F403
    from hetero_core.frontends.onnxruntime.session import *  # noqa: F403
    from hetero_core.frontends.onnxruntime.values import *  # noqa: F403

_NAMES = {
    "options": ("ExecutionMode", "ExecutionOrder", "GraphOptimizationLevel", "RunOptions", "SessionOptions"),
    "providers": ("get_all_providers", "get_available_providers", "get_device"),
    "session": ("IOBinding", "InferenceSession", "SessionIOBinding"),
    "values": ("ModelMetadata", "NodeArg", "OrtValue"),
}
_HOME_OF_NAME = {name: home for home, names in _NAMES.items() for name in names}

PUT_NAMES = tuple(_HOME_OF_NAME)
"""The names that are put into an installed ONNX Runtime."""
_IN_CAPI = ("_pybind_state", "onnxruntime_inference_collection", "onnxruntime_pybind11_state")
STAND_IN_SUBMODULES = ("capi", *(f"capi.{name}" for name in _IN_CAPI))
"""The submodules of a front end that stands in for a missing ONNX Runtime; an installed one keeps its own."""
SUBMODULES = ()

__version__ = "1.32.0"
"""The version of ONNX Runtime whose interface this is."""

replace_onnxruntime = partial(replace_package, "onnxruntime")

if not TYPE_CHECKING:  # hidden from type checkers, which would accept every name

    def __getattr__(name: str) -> object:
        # Imported on first use: the runner of a program needs none of them.
        if name not in _HOME_OF_NAME:
            where = "docs/reference/onnxruntime-api.md lists its names, and the reasons"
            raise AttributeError(f"hetero's front end for ONNX Runtime has no '{name}'; {where}")
        attribute = getattr(import_module(f"{__name__}.{_HOME_OF_NAME[name]}"), name)
        globals()[name] = attribute
        return attribute


def get_version_string() -> str:
    """Returns the version of ONNX Runtime whose interface this is."""
    return __version__


def get_build_info() -> str:
    """Returns a text that names hetero."""
    return f"ORT Build Info: hetero's front end, interface of ONNX Runtime {__version__}"


def preload_dlls(*arguments: Any, **options: Any) -> None:
    """Has no effect: each device loads its libraries, nothing is reported to anybody, and logs go through Python's `logging`."""


disable_telemetry_events = enable_telemetry_events = set_default_logger_severity = set_default_logger_verbosity = preload_dlls


def set_seed(seed: int) -> None:
    """Has no effect, which is logged once: random operators without a seed of their own draw other numbers."""
    from hetero_core.frontends.shared_core import report_once

    report_once(f"set_seed({seed}) has no effect on devices of hetero")
