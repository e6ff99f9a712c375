"""OpenVINO's Python API, answered by a Core of hetero: `import hetero_core.frontends.openvino as ov` for `import openvino as ov`.

`python -m hetero_core.frontends.openvino APP.py` and `with replace_openvino():` need no change of a program. Data flow: a Model is a
network; compiling loads it on a device; a run names, casts and copies its inputs (`ports`), and a request of hetero computes it.
"""

from functools import partial

from hetero_core.frontends.openvino import layout_helpers, preprocess, properties
from hetero_core.frontends.openvino.core import Core, Version, compile_model, convert_model, get_version, save_model
from hetero_core.frontends.openvino.model import Model, Node, OVAny, get_batch, set_batch
from hetero_core.frontends.openvino.ports import ConstOutput, Output, Tensor, tensor_from_file
from hetero_core.frontends.openvino.requests import AsyncInferQueue, CompiledModel, InferRequest, ProfilingInfo
from hetero_core.frontends.openvino.shapes import Dimension, Layout, PartialShape, Shape, Type
from hetero_core.frontends.replacement import replace_package

# fmt: off
__all__ = [
    "AsyncInferQueue", "CompiledModel", "ConstOutput", "Core", "Dimension", "InferRequest", "Layout", "Model", "Node", "OVAny", "Output",
    "PartialShape", "ProfilingInfo", "Shape", "Tensor", "Type", "Version", "__version__", "compile_model", "convert_model", "get_batch",
    "get_version", "layout_helpers", "preprocess", "properties", "replace_openvino", "save_model", "serialize", "set_batch",
    "tensor_from_file",
]
# fmt: on
PUT_NAMES = tuple(name for name in __all__ if name != "replace_openvino")
"""The names that are put into an installed OpenVINO."""

_GROUPS = ("device", "hint", "intel_auto", "intel_cpu", "log", "streams")
SUBMODULES = ("preprocess", "properties", "runtime", *(f"properties.{name}" for name in _GROUPS))
"""The submodules that stand in the place of OpenVINO's, for `replacement`."""

__version__ = get_version()
serialize = save_model
replace_openvino = partial(replace_package, "openvino")
