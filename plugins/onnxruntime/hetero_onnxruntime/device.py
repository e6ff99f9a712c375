"""The ORT device: hooks on ONNX Runtime. `ORT` is its CPU provider, `ORT.CUDA` and others are what the installed engine really offers."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from hetero_core.contract import ConfigKey, DeviceName, Executable, Payload, QueryResult, freeze_mapping
from hetero_core.devices.query import require_all_supported
from hetero_core.devices.stamping import Stamps, apply_stamps, choose_stamps
from hetero_core.errors import BlobMismatchError
from hetero_core.hookspecs import hookimpl
from hetero_core.network.graph import Network
from hetero_core.network.writer import needs_wrappers, pack_network, unpack_network
from hetero_onnxruntime.engine import CPU_PROVIDER, Engine, describe_rivalry
from hetero_onnxruntime.executable import OrtExecutable
from hetero_onnxruntime.known_errors import find_known_error
from hetero_onnxruntime.probing import Prober
from hetero_onnxruntime.provider_errors import find_provider_error
from hetero_onnxruntime.session import CONFIG_KEYS, Settings

_CAPABILITIES = ("FP32", "FP64", "FP16", "INT8")


class OrtDevice:
    """One object per Core and registered name."""

    def __init__(self, name: str, engine: Engine) -> None:
        self._name = name
        self._engine = engine
        self._lock = threading.Lock()
        self._probers: dict[str, Prober] = {}

    @hookimpl
    def config_keys(self) -> Mapping[str, ConfigKey]:
        """What of the engine's options a user may set; everything else is refused, as the engine itself ignores what it does not know."""
        return CONFIG_KEYS

    @hookimpl
    def metrics(self, device: DeviceName) -> Mapping[str, Any]:
        """Facts about the engine; the providers are probed when they are asked for."""
        return {
            "AVAILABLE_DEVICES": lambda: tuple(self._engine.provider_of_id),
            "FULL_DEVICE_NAME": f"ONNX Runtime {self._engine.version}, {device.id or 'CPU'} provider"
            + describe_rivalry(self._engine.distributions),
            "OPTIMIZATION_CAPABILITIES": _CAPABILITIES,
            "DEVICE_ARCHITECTURE": "onnxruntime",
            "ORT_DISTRIBUTIONS": tuple(f"{name} {version}" for name, version in sorted(self._engine.distributions.items())),
        }

    @hookimpl
    def query_network(self, device: DeviceName, network: Network) -> QueryResult:
        """Stamps the network, then asks the engine about each distinct node."""
        stamps = choose_stamps(network, self._newest_of_domain(network))
        stamped = apply_stamps(network, stamps, self._engine.newest_ir_version)
        provider = self._provider(device)
        reasons = dict(stamps.refusals)
        reasons.update(
            (node.name, reason)
            for node in network.nodes
            if node.name not in reasons
            and (reason := find_known_error(node, network) or find_provider_error(node, network, provider))
        )
        passed = [spec.name for spec in network.outputs if spec.name not in network.index_of_producer]
        if passed and provider != CPU_PROVIDER:
            # ONNX Runtime 1.24 with OpenVINO: "Duplicate definition of name". A part that HETERO cuts has no such outputs.
            why = f"{provider} does not load a network that returns its input or constant '{passed[0]}' as it is"
            reasons.update((node.name, why) for node in network.nodes if node.name not in reasons)
        asked = [node for node in stamped.nodes if node.name not in reasons]
        reasons.update(self._prober(device).find_refusals(asked, stamped))
        return QueryResult(
            supported=freeze_mapping((node.name, str(device)) for node in network.nodes if node.name not in reasons),
            refused=freeze_mapping((node.name, reasons[node.name]) for node in network.nodes if node.name in reasons),
        )

    @hookimpl
    def load_network(self, device: DeviceName, network: Network, config: Mapping[str, Any]) -> Executable:
        """Makes a session; what the query took runs on the provider that was asked for, or this fails."""
        require_all_supported(device, network, self.query_network(device, network))
        settings = Settings.of_config(self._provider(device), config)
        return OrtExecutable(self._engine, network, self._stamp(network), settings)

    @hookimpl
    def export_network(self, executable: OrtExecutable) -> Payload:
        """The network itself with the engine's version: what the engine would compile fits only the processor that it was made on."""
        return Payload({**pack_network(executable.network), "engine": self._engine.version.encode()})

    @hookimpl
    def import_network(self, device: DeviceName, payload: Payload, config: Mapping[str, Any]) -> Executable:
        """Makes a session of the exported network; weights stay in the blob's memory."""
        written = bytes(payload.sections["engine"]).decode()
        if written != self._engine.version:
            raise BlobMismatchError(
                f"the blob was exported by ONNX Runtime {written}; {self._engine.version} is installed. Export the network again"
            )
        return self.load_network(device, unpack_network(payload.sections), config)

    def _provider(self, device: DeviceName) -> str:
        providers = self._engine.provider_of_id
        return providers[device.id or next(iter(providers))]

    def _prober(self, device: DeviceName) -> Prober:
        provider = self._provider(device)
        with self._lock:
            return self._probers.setdefault(provider, Prober(self._engine, provider))

    def _newest_of_domain(self, network: Network) -> Mapping[str, int]:
        return {domain: self._engine.newest_opset(domain) for domain in ("", "ai.onnx.ml", *network.opsets)}

    def _stamp(self, network: Network) -> Network:
        stamps: Stamps = choose_stamps(network, self._newest_of_domain(network))
        stamped = apply_stamps(network, stamps, self._engine.newest_ir_version)
        assert not needs_wrappers(stamped), "a stamped network has one opset per domain"
        return stamped
