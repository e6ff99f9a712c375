"""hetero: one ONNX model over several devices, each device a plugin that pip installs.

    core = Core()
    network = core.load_network("model.onnx", "HETERO:GPU,CPU")
    outputs = network.infer({"x": array})

Imports no plugin, no onnx and no driver.
"""

from hetero_core.contract import (
    ConfigKey,
    DeviceName,
    Executable,
    Extension,
    Payload,
    Plan,
    QueryResult,
    RunContext,
)
from hetero_core.core import Core
from hetero_core.errors import HeteroError
from hetero_core.hookspecs import hookimpl
from hetero_core.network.border import InputInfo, OutputInfo
from hetero_core.network.graph import Network, Node
from hetero_core.network.types import MapType, OptionalType, SequenceType, TensorType, ValueSpec
from hetero_core.runtime.executable import ExecutableNetwork
from hetero_core.runtime.queue import AsyncInferQueue
from hetero_core.runtime.request import InferRequest

__all__ = [
    "AsyncInferQueue",
    "ConfigKey",
    "Core",
    "DeviceName",
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
