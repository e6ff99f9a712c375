"""The OPENVINO device: hooks on OpenVINO. `OPENVINO` is its CPU device; other listed devices that work have names like `OPENVINO.GPU`."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from hetero_core.contract import ConfigKey, DeviceName, Executable
from hetero_core.devices.processors import describe_host_memory
from hetero_core.devices.threads import STREAMS_KEY, THREADS_KEY
from hetero_core.engines.device import EngineDevice
from hetero_core.errors import LoadError
from hetero_core.hookspecs import hookimpl
from hetero_core.network.graph import Network, Node
from hetero_openvino.arithmetic import find_excess, find_output_excess, settle_limit
from hetero_openvino.conversion import find_border_fault, read_model
from hetero_openvino.engine import OpenvinoEngine
from hetero_openvino.executable import OpenvinoExecutable, open_tensor
from hetero_openvino.known_errors import QUANTIZED_KEY, find_known_error
from hetero_openvino.ports import Ports, assign_ports, take_out_copies
from hetero_openvino.probing import OpenvinoProber, shorten_message

PRECISION_KEY, MODE_KEY = "INFERENCE_PRECISION_HINT", "EXECUTION_MODE_HINT"
NEWEST_OPSETS = MappingProxyType({"": 28})
"""The newest compared opset: OpenVINO 2026.4 silently runs newer operators by their older definition."""


class OpenvinoDevice(EngineDevice):
    """The device; each Core has a single object per registered name."""

    title = "OpenVINO"
    newest_ir_version = 13

    def __init__(self, name: str, engine: OpenvinoEngine) -> None:
        self._name = name
        self._engine = engine
        self.version = engine.version
        self._probers: dict[str, OpenvinoProber] = {}

    @hookimpl
    def config_keys(self) -> Mapping[str, ConfigKey]:
        """The engine's properties that shape a compiled model here."""
        return {
            PRECISION_KEY: ConfigKey(
                str, None, "What float32 is computed in; not set: as EXECUTION_MODE_HINT has it.", choices=("bf16", "f16", "f32")
            ),
            MODE_KEY: ConfigKey(
                str,
                "ACCURACY",
                "ACCURACY: float32 is computed in f32, which keeps the answer; PERFORMANCE: in what OpenVINO takes by itself, bfloat16 on "
                "processors that have it. INFERENCE_PRECISION_HINT wins.",
                choices=("ACCURACY", "PERFORMANCE"),
            ),
            QUANTIZED_KEY: ConfigKey(
                bool,
                False,
                "Take quantized models, whose results differ from ONNX's by steps of the quantization: OpenVINO rounds halves another way.",
            ),
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
            "OPTIMIZATION_CAPABILITIES": lambda: self._list_capabilities(own),
            "DEVICE_ARCHITECTURE": lambda: str(self._engine.core.get_property(own, "DEVICE_ARCHITECTURE")) or "openvino",
            "DEVICE_TYPE": lambda: self._engine.core.get_property(own, "DEVICE_TYPE").name.lower(),
            # OpenVINO 2026.4: Relu of NaN is 0, and so is Gather of an index that is not there.
            "VALUE_DEVIATIONS": ("INDICES", "NAN"),
            **(describe_host_memory() if own == "CPU" else {}),
        }

    def _list_capabilities(self, own: str) -> tuple[str, ...]:
        named = self._engine.core.get_property(own, "OPTIMIZATION_CAPABILITIES")
        # The engine names BF16 only if the processor computes in it; every processor takes the same networks.
        return tuple(dict.fromkeys((*named, "BF16"))) if own == "CPU" else tuple(named)

    def newest_opsets(self, network: Network) -> Mapping[str, int]:
        """Returns the newest compared opset."""
        return NEWEST_OPSETS

    def find_known_errors(self, device: DeviceName, network: Network, config: Mapping[str, Any]) -> Mapping[str, str]:
        """Returns the known error of each wrong node, by name."""
        excess = find_output_excess(network) or find_border_fault(network)
        if excess is not None:
            return dict.fromkeys(network.index_of_node, excess)
        errors: dict[str, str] = {}
        _, bounds = settle_limit(network)
        for node in network.nodes:
            error = find_known_error(node, network, takes_quantized=config[QUANTIZED_KEY]) or find_excess(node, network, bounds)
            if error is not None:
                errors[node.name] = f"{error} (OpenVINO {self.version})"
        return errors

    def find_refusals(self, device: DeviceName, nodes: Iterable[Node], stamped: Network) -> Mapping[str, str]:
        """Returns the engine's reasons for refusing nodes, from a single query about all distinct nodes."""
        own = device.id or "CPU"
        return self._probers.setdefault(own, OpenvinoProber(self._engine, own)).find_refusals(nodes, stamped)

    def compile(self, device: DeviceName, network: Network, stamped: Network, config: Mapping[str, Any]) -> OpenvinoExecutable:
        """Compiles the network; float32 stays float32 unless another precision is asked for."""
        excess = find_output_excess(network) or find_border_fault(network)
        if excess is not None:
            raise LoadError(
                f"cannot load network '{network.name}' on {device}: {excess}. Take the output away, or use HETERO:{device},CPU"
            )
        properties = _translate(config, device.id or "CPU")
        try:
            model = read_model(self._engine.core, stamped)
            compiled, ports = self._compile(model, assign_ports(model, stamped), device.id or "CPU", properties)
        except LoadError:
            raise
        except Exception as error:
            raise LoadError(
                f"OpenVINO {self.version} cannot load network '{network.name}' on {device.id or 'CPU'}: {shorten_message(str(error))}"
            ) from error
        return self._open(device, network, config, compiled, ports)

    def _compile(self, model: Any, ports: Ports, device: str, properties: Mapping[str, Any]) -> tuple[Any, Ports]:
        """Returns the compiled model (None if all outputs are inputs) and its ports."""
        while any(port is not None for port in ports.outputs):
            compiled = self._engine.core.compile_model(model, device, dict(properties))
            computed = take_out_copies(model, ports, compiled)
            if computed.outputs == ports.outputs:
                return compiled, ports
            ports = computed
        return None, ports

    def _open(
        self,
        device: DeviceName,
        network: Network,
        config: Mapping[str, Any],
        compiled: Any,
        ports: Ports,
        blob: memoryview | None = None,
    ) -> OpenvinoExecutable:
        def compile_measured() -> OpenvinoExecutable:
            return self.compile(device, network, self.stamp(network), {**config, "PERF_COUNT": True})

        again = None if config["PERF_COUNT"] else compile_measured
        streams = config[STREAMS_KEY]
        return OpenvinoExecutable(self._engine, network, compiled, ports, streams=streams, blob=blob, compile_measured=again)

    def store(self, executable: OpenvinoExecutable) -> Mapping[str, Any]:
        """The engine's own export, and the ports of its model; empty if all outputs are inputs."""
        if executable.compiled is None:
            return {}
        stream = io.BytesIO()
        executable.compiled.export_model(stream)
        return {"model": stream.getbuffer(), "ports": executable.ports.pack()}

    def restore(
        self, device: DeviceName, network: Network, stored: Mapping[str, memoryview], config: Mapping[str, Any]
    ) -> Executable:
        """Imports the engine's own export."""
        own = device.id or "CPU"
        compiled = self._engine.core.import_model(open_tensor(self._engine.module, stored["model"]), own, _translate(config, own))
        return self._open(device, network, config, compiled, Ports.unpack(bytes(stored["ports"])), stored["model"])


def _translate(config: Mapping[str, Any], device: str) -> dict[str, Any]:
    streams = config[STREAMS_KEY]
    precision = {PRECISION_KEY: "f32"} if config[MODE_KEY] == "ACCURACY" else {MODE_KEY: "PERFORMANCE"}
    if config[PRECISION_KEY] is not None:
        precision = {PRECISION_KEY: config[PRECISION_KEY]}
    # OpenVINO 2026.4: a group of fused elementwise operations that has outputs of several shapes is wrong in some loads of ten.
    unfused = {"SNIPPETS_MODE": "DISABLE"} if device == "CPU" else {}
    # By default the engine quantizes the operand that is multiplied with dequantized weights to 8 bits, in groups of 32 elements.
    exact = {} if config[QUANTIZED_KEY] else {"DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
    return {
        **unfused,
        **(exact if device.startswith(("CPU", "GPU")) else {}),
        **precision,
        "PERF_COUNT": "YES" if config["PERF_COUNT"] else "NO",
        # Our key counts the threads of a run, the engine's key the threads of all streams.
        THREADS_KEY: config[THREADS_KEY] * streams,
        STREAMS_KEY: streams,
        # Pinning would put all engines of the process on the same processors.
        "ENABLE_CPU_PINNING": "NO",
    }
