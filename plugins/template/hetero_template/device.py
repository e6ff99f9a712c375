"""The TEMPLATE device: every hook once, each with a sentence of why. It computes with `onnx.reference` and pretends to have two ids."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import onnx.reference

from hetero_core.contract import ConfigKey, DeviceName, Executable, Extension, Payload, QueryResult
from hetero_core.devices.query import query_by_transform, require_all_supported
from hetero_core.errors import DeviceUnavailableError
from hetero_core.hookspecs import hookimpl
from hetero_core.network.graph import Network, Node
from hetero_core.network.types import ValueSpec
from hetero_core.network.writer import pack_network, unpack_network
from hetero_template.evaluator import ExtensionTable, find_refusal
from hetero_template.executable import TemplateExecutable
from hetero_template.transforms import transform_network

IDS = ("0", "1")
REFUSED_KEY = "TEMPLATE_REFUSED_OPERATORS"


class TemplateDevice:
    """One object per Core and registered name; physical ids come with each call in `device.id`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._extensions: ExtensionTable = {}
        _probe()

    @hookimpl
    def close_device(self) -> bool:
        """A device that holds pools, threads or driver handles gives them back here; this one only forgets its extensions."""
        self._extensions.clear()
        return True

    @hookimpl
    def config_keys(self) -> Mapping[str, ConfigKey]:
        """Keys are declared, so that the core converts texts, fills defaults and refuses what is unknown; no code of ours does."""
        return {
            REFUSED_KEY: ConfigKey(
                tuple,
                (),
                "Operator types that the device refuses, as a device without kernels for them would; for trying out splits.",
            ),
        }

    @hookimpl
    def metrics(self, device: DeviceName) -> Mapping[str, Any]:
        """Facts about the device; functions are called only when their metric is asked for."""
        return {
            "AVAILABLE_DEVICES": IDS,
            "FULL_DEVICE_NAME": f"{self._name} reference device {device.id or IDS[0]} (onnx.reference {onnx.__version__})",
            # Above the standard values a device may state its own; this one says that convolutions have hardware blocks.
            "OPTIMIZATION_CAPABILITIES": ("FP32", "FP16", "BF16", "INT8", "HARDWARE_CONVOLUTION"),
            "DEVICE_ARCHITECTURE": "onnx.reference",
            "RANGE_FOR_ASYNC_INFER_REQUESTS": (1, 1, 1),
            # The evaluator is Python; two such devices at once would only wait for each other.
            "HOLDS_INTERPRETER_LOCK": True,
        }

    @hookimpl
    def query_network(self, device: DeviceName, network: Network, config: Mapping[str, Any]) -> QueryResult:
        """The same passes as loading, then one question for each node of the result; the core maps the answers to original names."""
        return query_by_transform(_with_id(device), network, transform_network, partial(self._refuse, config=config))

    @hookimpl
    def load_network(self, device: DeviceName, network: Network, config: Mapping[str, Any]) -> Executable:
        """Asks the query first: what it refuses is refused here, with the same reasons, because it is the same code.

        A device with threads of its own would take `config["INFERENCE_NUM_THREADS"]` of them for one run; the evaluator has none.
        """
        require_all_supported(device, network, self.query_network(device, network, config))
        return TemplateExecutable(network, transform_network(network), self._extensions)

    @hookimpl
    def export_network(self, executable: TemplateExecutable) -> Payload:
        """Sections of bytes. Nothing is compiled here, so the network itself is all that is needed to build the executable again."""
        return Payload(pack_network(executable.network))

    @hookimpl
    def import_network(self, device: DeviceName, payload: Payload, config: Mapping[str, Any]) -> Executable:
        """The core has checked the blob; what is left is to check the network against what this device can do today."""
        return self.load_network(device, unpack_network(payload.sections), config)

    @hookimpl
    def add_extension(self, extension: Extension) -> bool:
        """An operator that ONNX does not know becomes one more row of the table that both query and loading read."""
        self._extensions[extension.domain, extension.op_type] = extension
        return True

    @hookimpl
    def to_host(self, array: Any) -> Any:
        """Called only for values whose spec names another memory than "host"; ours never do, and the copy would be this line."""
        return np.asarray(array)

    @hookimpl
    def from_host(self, array: Any, spec: ValueSpec) -> Any:
        """The way back. `spec.memory` says which memory, where a device has several."""
        return np.asarray(array)

    def _refuse(self, node: Node, network: Network, *, config: Mapping[str, Any]) -> str | None:
        if node.op_type in config[REFUSED_KEY]:
            return f"operator {node.op_type} is refused by {REFUSED_KEY}"
        return find_refusal(node, network, self._extensions)


def _with_id(device: DeviceName) -> DeviceName:
    """The answer of a query names the id that would be used, also where the caller named none."""
    return DeviceName(device.name, device.id, "")


def _probe() -> None:
    """Runs one tiny computation: a device says that it works after it worked, not after counting drivers."""
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> probe (float[2] x) => (float[2] y) { y = Add(x, x) }')
    (result,) = onnx.reference.ReferenceEvaluator(model).run(None, {"x": np.ones(2, np.float32)})
    if result.tolist() != [2.0, 2.0]:
        raise DeviceUnavailableError(f"onnx.reference {onnx.__version__} computes 1 + 1 = {result.tolist()}; reinstall onnx")
