"""The ORT device: hooks on ONNX Runtime. `ORT` is its CPU provider; other usable providers have names like `ORT.CUDA`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hetero_core.contract import ConfigKey, DeviceName, Executable
from hetero_core.devices.processors import describe_host_memory
from hetero_core.engines.device import EngineDevice
from hetero_core.hookspecs import hookimpl
from hetero_core.network.graph import Network, Node
from hetero_onnxruntime.compiled import restore_session, store_session
from hetero_onnxruntime.engine import CPU_PROVIDER, WEBGPU_PROVIDER, OrtEngine, describe_rivalry, make_id
from hetero_onnxruntime.executable import OrtExecutable
from hetero_onnxruntime.known_errors import find_known_error, find_provider_error
from hetero_onnxruntime.probing import OrtProber
from hetero_onnxruntime.session import CONFIG_KEYS, Settings, build_session

_CARDS = ("CUDA", "MIGRAPHX", "NVTENSORRTRTX", "ROCM", "TENSORRT", "WEBGPU")
_CAPABILITIES = ("FP32", "FP64", "FP16", "INT8")
WEBGPU_ID = make_id(WEBGPU_PROVIDER)


class OrtDevice(EngineDevice):
    """One object per Core and registered name."""

    title = "ONNX Runtime"

    def __init__(self, name: str, engine: OrtEngine) -> None:
        self._name = name
        self._engine = engine
        self.version = engine.version
        self._probers: dict[str, OrtProber] = {}

    @property
    def newest_ir_version(self) -> int:  # type: ignore[override]  # asked of the engine when it is first needed
        """The newest file format that the engine accepts."""
        return self._engine.newest_ir_version

    @hookimpl
    def config_keys(self) -> Mapping[str, ConfigKey]:
        """The options of the engine that a user may set; unknown options, which the engine would ignore, are refused."""
        return CONFIG_KEYS

    @hookimpl
    def metrics(self, device: DeviceName) -> Mapping[str, Any]:
        """Facts about the engine; the providers are probed when they are asked for."""
        return {
            "AVAILABLE_DEVICES": lambda: tuple(self._engine.provider_of_id),
            "UNAVAILABLE_DEVICES": lambda: self._engine.fault_of_id,
            "FULL_DEVICE_NAME": f"ONNX Runtime {self._engine.version}, {device.id or 'CPU'} provider"
            + describe_rivalry(self._engine.distributions),
            "OPTIMIZATION_CAPABILITIES": lambda: self._list_capabilities(device),
            "DEVICE_ARCHITECTURE": "onnxruntime",
            "DEVICE_TYPE": "discrete" if device.id in _CARDS else "integrated",
            # MaxPool of ONNX Runtime 1.32 passes NaN over; shaders of WebGPU clamp an index.
            "VALUE_DEVIATIONS": ("NAN", "INDICES") if device.id == WEBGPU_ID else ("NAN",),
            **(describe_host_memory() if device.id in ("", "CPU") else {}),
        }

    def _list_capabilities(self, device: DeviceName) -> tuple[str, ...]:
        if device.id != WEBGPU_ID:
            return _CAPABILITIES
        return ("FP32",) if self._engine.find_fault_of_halves(self._provider(device)) else ("FP32", "FP16")

    def newest_opsets(self, network: Network) -> Mapping[str, int]:
        """Returns the newest opset of each domain of a network that the engine accepts."""
        return {domain: self._engine.newest_opset(domain) for domain in ("", "ai.onnx.ml", *network.opsets)}

    def find_known_errors(self, device: DeviceName, network: Network, config: Mapping[str, Any]) -> Mapping[str, str]:
        """Returns the known errors of the engine and its provider, by the name of the node."""
        provider = self._provider(device)
        halves = self._engine.find_fault_of_halves(provider)
        error_of_node = (
            (node, find_known_error(node, network) or find_provider_error(node, network, provider, halves))
            for node in network.nodes
        )
        errors = {node.name: error for node, error in error_of_node if error is not None}
        passed = [spec.name for spec in network.outputs if spec.name not in network.index_of_producer]
        if passed and provider != CPU_PROVIDER:
            # ONNX Runtime 1.24 with OpenVINO: "Duplicate definition of name". A part that HETERO cuts has no such outputs.
            why = f"{provider} does not load a network that returns its input or constant '{passed[0]}' as it is"
            return {node.name: errors.get(node.name, why) for node in network.nodes}
        return errors

    def find_refusals(self, device: DeviceName, nodes: Iterable[Node], stamped: Network) -> Mapping[str, str]:
        """Returns why the engine makes no session of a node, by name."""
        provider = self._provider(device)
        return self._probers.setdefault(provider, OrtProber(self._engine, provider)).find_refusals(nodes, stamped)

    def compile(self, device: DeviceName, network: Network, stamped: Network, config: Mapping[str, Any]) -> Executable:
        """Makes a session on the provider that was asked for."""
        settings = Settings.of_config(self._provider(device), config, network)
        return OrtExecutable(self._engine, network, lambda: stamped, settings, build_session(self._engine, stamped, settings))

    def store(self, executable: OrtExecutable) -> Mapping[str, Any]:
        """The optimized model and its weights; nothing on providers that have no such form."""
        if executable.settings.provider != CPU_PROVIDER:
            return {}
        return store_session(self._engine, executable.stamped, executable.settings)

    def restore(
        self, device: DeviceName, network: Network, stored: Mapping[str, memoryview], config: Mapping[str, Any]
    ) -> Executable:
        """Makes a session of the optimized model, whose weights stay in the memory of the blob."""
        settings = Settings.of_config(self._provider(device), config, network)
        loaded = restore_session(self._engine, stored, settings)
        return OrtExecutable(self._engine, network, lambda: self.stamp(network), settings, loaded)

    def _provider(self, device: DeviceName) -> str:
        providers = self._engine.provider_of_id
        return providers[device.id or next(iter(providers))]
