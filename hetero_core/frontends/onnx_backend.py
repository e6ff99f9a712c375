"""ONNX's own backend interface (`onnx.backend.base`): every device of hetero as a backend.

The words for a device: CPU is CPU, CUDA is GPU, "CUDA:1" is GPU.1; any other text is a device string of hetero, as "HETERO:GPU,CPU".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.backend.base import Backend, BackendRep

from hetero_core.errors import HeteroError, InvalidNetworkError, NetworkReadError
from hetero_core.frontends.shared_core import find_core
from hetero_core.runtime.executable import ExecutableNetwork


class HeteroBackendRep(BackendRep):  # type: ignore[misc]  # onnx is untyped
    """A model that `prepare` has loaded."""

    def __init__(self, network: ExecutableNetwork) -> None:
        self.network = network

    def run(self, inputs: Any, **_: Any) -> tuple[Any, ...]:
        """Returns the outputs in order, for values by position or name, or the only value. Raises: as `ExecutableNetwork.infer`."""
        return tuple(self.network.infer(inputs).values())


class HeteroBackend(Backend):  # type: ignore[misc]  # onnx is untyped
    """The interface of `onnx.backend.base.Backend`; `run_model` is the base class's own."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **_: Any) -> bool:
        """Says whether the device takes all nodes of the model. Raises: errors of device names."""
        try:
            return not find_core().query_network(model, find_device(device)).refused
        except (NetworkReadError, InvalidNetworkError):
            return False

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **config: Any) -> HeteroBackendRep:
        """Returns the loaded model; the keywords are keys of the device's configuration. Raises: as `Core.load_network`."""
        return HeteroBackendRep(find_core().load_network(model, find_device(device), config))

    @classmethod
    def run_node(
        cls, node: onnx.NodeProto, inputs: Any, device: str = "CPU", outputs_info: Any = None, **config: Any
    ) -> tuple[Any, ...]:
        """Returns the outputs of a node for arrays by position or by name. `outputs_info`, which is not needed, is ignored as ONNX allows.

        `opset_version` among the keywords is the opset of the node's domain, by default the newest. Raises: as `Core.load_network`.
        """
        names = [name for name in dict.fromkeys(node.input) if name]
        feeds = dict(inputs) if isinstance(inputs, Mapping) else dict(zip(names, inputs, strict=True))
        version = config.pop("opset_version", 1 if node.domain else onnx.defs.onnx_opset_version())
        arrays = {name: np.asarray(value) for name, value in feeds.items()}
        kinds = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in arrays.items()}
        specs = [helper.make_tensor_value_info(name, kinds[name], array.shape) for name, array in arrays.items()]
        graph = helper.make_graph([node], "node", specs, [onnx.ValueInfoProto(name=name) for name in node.output if name])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid(node.domain, version)])
        return cls.prepare(model, device, **config).run(feeds)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Says whether the device is installed and works."""
        try:
            find_core().resolve_config(find_device(device))
        except HeteroError:
            return False
        return True


def find_device(device: str) -> str:
    """Returns the device string of hetero for a device of ONNX: "CUDA:1" gives "GPU.1"."""
    name, _, number = device.partition(":")
    if name.upper() != "CUDA":
        return "CPU" if device.upper() == "CPU:0" else device
    return f"GPU.{number}" if number else "GPU"


is_compatible, prepare, run_model = HeteroBackend.is_compatible, HeteroBackend.prepare, HeteroBackend.run_model
run_node, supports_device = HeteroBackend.run_node, HeteroBackend.supports_device
