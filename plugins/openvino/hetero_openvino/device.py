"""The OPENVINO device: hooks on OpenVINO. `OPENVINO` is its CPU device, `OPENVINO.GPU` and others are what it lists and what works."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from hetero_core.contract import ConfigKey, DeviceName, Executable, Payload, QueryResult, freeze_mapping
from hetero_core.devices.query import require_all_supported
from hetero_core.devices.stamping import Stamps, apply_stamps, choose_stamps
from hetero_core.devices.threads import STREAMS_KEY, THREADS_KEY
from hetero_core.errors import BlobMismatchError, LoadError
from hetero_core.hookspecs import hookimpl
from hetero_core.network.graph import Network
from hetero_core.network.writer import pack_network, unpack_network
from hetero_core.transforms.folding import find_excess_folding
from hetero_openvino.arithmetic import find_excess, find_output_excess, settle_limits
from hetero_openvino.engine import Engine
from hetero_openvino.executable import OpenvinoExecutable, compile_network
from hetero_openvino.known_errors import find_known_error
from hetero_openvino.probing import Prober
from hetero_openvino.roundings import find_lost_rounding

PRECISION_KEY = "INFERENCE_PRECISION_HINT"
NEWEST_OPSETS = MappingProxyType({"": 28})
"""The newest opset whose operators were compared with OpenVINO 2026.4, which runs what it does not know as what was before, without a word.

What it gets wrong of an opset is in `known_errors`.
"""
NEWEST_IR_VERSION = 13


class OpenvinoDevice:
    """One object per Core and registered name."""

    def __init__(self, name: str, engine: Engine) -> None:
        self._name = name
        self._engine = engine
        self._lock = threading.Lock()
        self._probers: dict[str, Prober] = {}

    @hookimpl
    def config_keys(self) -> Mapping[str, ConfigKey]:
        """What of the engine's properties shapes a compiled model here."""
        return {
            PRECISION_KEY: ConfigKey(
                str,
                "f32",
                "What float32 is computed in. OpenVINO itself takes bfloat16 on processors that have it; f32 keeps the answer.",
                choices=("bf16", "f16", "f32"),
            )
        }

    @hookimpl
    def metrics(self, device: DeviceName) -> Mapping[str, Any]:
        """Facts about the engine's device."""
        own = device.id or "CPU"
        return {
            "AVAILABLE_DEVICES": lambda: self._engine.ids,
            "FULL_DEVICE_NAME": lambda: (
                f"{self._engine.core.get_property(own, 'FULL_DEVICE_NAME')} with OpenVINO {self._engine.version}"
            ),
            "OPTIMIZATION_CAPABILITIES": lambda: tuple(self._engine.core.get_property(own, "OPTIMIZATION_CAPABILITIES")),
            "DEVICE_ARCHITECTURE": lambda: str(self._engine.core.get_property(own, "DEVICE_ARCHITECTURE")) or "openvino",
        }

    @hookimpl
    def query_network(self, device: DeviceName, network: Network) -> QueryResult:
        """Stamps the network, then asks the engine about all distinct nodes at once."""
        stamps = _stamp(network)
        stamped = apply_stamps(network, stamps, NEWEST_IR_VERSION)
        reasons = dict(stamps.refusals)
        for name, nbytes in find_excess_folding(network).items():
            reasons.setdefault(name, f"OpenVINO computes constants ahead, here of {nbytes} bytes or more, and knows no limit")
        excess = find_output_excess(network)
        if excess is not None:
            reasons.update((node.name, excess) for node in network.nodes if node.name not in reasons)
        _, bounds = settle_limits(network)
        for node in network.nodes:
            error = find_known_error(node, network) or find_excess(node, network, bounds) or find_lost_rounding(node, network)
            if error is not None:
                reasons.setdefault(node.name, f"{error} (OpenVINO {self._engine.version})")
        asked = [node for node in stamped.nodes if node.name not in reasons]
        reasons.update(self._prober(device).find_refusals(asked, stamped))
        return QueryResult(
            supported=freeze_mapping((node.name, str(device)) for node in network.nodes if node.name not in reasons),
            refused=freeze_mapping((node.name, reasons[node.name]) for node in network.nodes if node.name in reasons),
        )

    @hookimpl
    def load_network(self, device: DeviceName, network: Network, config: Mapping[str, Any]) -> Executable:
        """Compiles the network; float32 stays float32 unless another precision is asked for."""
        require_all_supported(device, network, self.query_network(device, network))
        excess = find_output_excess(network)
        if excess is not None:
            raise LoadError(
                f"cannot load network '{network.name}' on {device}: {excess}. Take the output away, or use HETERO:{device},CPU"
            )
        stamped = apply_stamps(network, _stamp(network), NEWEST_IR_VERSION)
        return compile_network(self._engine, network, stamped, device.id or "CPU", _translate(config, device.id or "CPU"))

    @hookimpl
    def export_network(self, executable: OpenvinoExecutable) -> Payload:
        """The network with the engine's version; what the engine compiles fits only the processor that it was made on."""
        return Payload({**pack_network(executable.network), "engine": self._engine.version.encode()})

    @hookimpl
    def import_network(self, device: DeviceName, payload: Payload, config: Mapping[str, Any]) -> Executable:
        """Compiles the exported network."""
        written = bytes(payload.sections["engine"]).decode()
        if written != self._engine.version:
            raise BlobMismatchError(
                f"the blob was exported by OpenVINO {written}; {self._engine.version} is installed. Export the network again"
            )
        return self.load_network(device, unpack_network(payload.sections), config)

    def _prober(self, device: DeviceName) -> Prober:
        own = device.id or "CPU"
        with self._lock:
            return self._probers.setdefault(own, Prober(self._engine, own))


def _stamp(network: Network) -> Stamps:
    return choose_stamps(network, NEWEST_OPSETS)


def _translate(config: Mapping[str, Any], device: str) -> dict[str, Any]:
    """Returns the engine's properties of a complete configuration."""
    streams = config[STREAMS_KEY]
    # OpenVINO 2026.4: a group of fused elementwise operations that has outputs of several shapes is wrong in some loads of ten.
    unfused = {"SNIPPETS_MODE": "DISABLE"} if device == "CPU" else {}
    return {
        **unfused,
        PRECISION_KEY: config[PRECISION_KEY],
        "PERF_COUNT": "YES" if config["PERF_COUNT"] else "NO",
        # Ours are the threads of one run; the engine's are those of all streams together.
        THREADS_KEY: config[THREADS_KEY] * streams,
        STREAMS_KEY: streams,
        # Other engines of the process would be pinned to the same processors.
        "ENABLE_CPU_PINNING": "NO",
    }
