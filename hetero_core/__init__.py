"""hetero runs an ONNX model over several devices; each device is a plugin that pip installs.

    core = Core()
    network = core.load_network("model.onnx", "HETERO:GPU,CPU")
    outputs = network.infer({"x": array})

Importing it loads no plugin, no onnx and no driver, and each public name is imported on first use: pytest imports this package in every
run on a machine that has it installed.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hetero_core.contract import ConfigKey, DeviceName, Executable, Extension, Payload, QueryResult, RunContext
    from hetero_core.core import Core
    from hetero_core.errors import HeteroError
    from hetero_core.hookspecs import hookimpl
    from hetero_core.network.border import InputInfo, OutputInfo
    from hetero_core.network.graph import Network, Node
    from hetero_core.network.types import MapType, OptionalType, SequenceType, TensorType, ValueSpec
    from hetero_core.plan import Plan
    from hetero_core.runtime.executable import ExecutableNetwork
    from hetero_core.runtime.inputs import DeviceTensor
    from hetero_core.runtime.queue import AsyncInferQueue
    from hetero_core.runtime.request import InferRequest
    from hetero_core.transforms.editing import EditableNetwork

_HOMES = {
    "hetero_core.contract": ("ConfigKey", "DeviceName", "Executable", "Extension", "Payload", "QueryResult", "RunContext"),
    "hetero_core.core": ("Core",),
    "hetero_core.errors": ("HeteroError",),
    "hetero_core.hookspecs": ("hookimpl",),
    "hetero_core.network.border": ("InputInfo", "OutputInfo"),
    "hetero_core.network.graph": ("Network", "Node"),
    "hetero_core.network.types": ("MapType", "OptionalType", "SequenceType", "TensorType", "ValueSpec"),
    "hetero_core.plan": ("Plan",),
    "hetero_core.runtime.executable": ("ExecutableNetwork",),
    "hetero_core.runtime.inputs": ("DeviceTensor",),
    "hetero_core.runtime.queue": ("AsyncInferQueue",),
    "hetero_core.runtime.request": ("InferRequest",),
    "hetero_core.transforms.editing": ("EditableNetwork",),
}
_HOME_OF_NAME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AsyncInferQueue",
    "ConfigKey",
    "Core",
    "DeviceName",
    "DeviceTensor",
    "EditableNetwork",
    "Executable",
    "ExecutableNetwork",
    "Extension",
    "HeteroError",
    "InferRequest",
    "InputInfo",
    "MapType",
    "Network",
    "Node",
    "OptionalType",
    "OutputInfo",
    "Payload",
    "Plan",
    "QueryResult",
    "RunContext",
    "SequenceType",
    "TensorType",
    "ValueSpec",
    "hookimpl",
]


if not TYPE_CHECKING:  # hidden from type checkers, which would accept every name

    def __getattr__(name: str) -> object:
        if name not in _HOME_OF_NAME:
            raise AttributeError(f"module 'hetero_core' has no attribute '{name}'; it has {', '.join(__all__)}")
        attribute = getattr(import_module(_HOME_OF_NAME[name]), name)
        globals()[name] = attribute
        return attribute

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
