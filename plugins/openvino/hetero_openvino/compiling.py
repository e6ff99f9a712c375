"""From a stamped network to a compiled model of the engine, ready to run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hetero_core.devices.threads import STREAMS_KEY
from hetero_core.errors import LoadError
from hetero_core.network.graph import Network
from hetero_openvino.conversion import read_model
from hetero_openvino.engine import OpenvinoEngine
from hetero_openvino.executable import OpenvinoExecutable
from hetero_openvino.ports import Ports, assign_ports, take_out_copies
from hetero_openvino.probing import shorten_message


def compile_network(
    engine: OpenvinoEngine,
    network: Network,
    stamped: Network,
    device: str,
    properties: Mapping[str, Any],
    compile_measured: Callable[[], OpenvinoExecutable] | None,
) -> OpenvinoExecutable:
    """Returns the network compiled. Raises: LoadError with the engine's own words."""
    try:
        model = read_model(engine.core, stamped)
        ports = assign_ports(model, stamped)
        compiled, ports = _compile(engine, model, ports, device, properties)
    except LoadError:
        raise
    except Exception as error:
        raise LoadError(
            f"OpenVINO {engine.version} cannot load network '{network.name}' on {device}: {shorten_message(str(error))}"
        ) from error
    return OpenvinoExecutable(engine, network, compiled, ports, streams=properties[STREAMS_KEY], compile_measured=compile_measured)


def _compile(engine: OpenvinoEngine, model: Any, ports: Ports, device: str, properties: Mapping[str, Any]) -> tuple[Any, Ports]:
    """Returns the compiled model (None if all outputs are inputs) and its ports."""
    while any(port is not None for port in ports.outputs):
        compiled = engine.core.compile_model(model, device, dict(properties))
        computed = take_out_copies(model, ports, compiled)
        if computed.outputs == ports.outputs:
            return compiled, ports
        ports = computed
    return None, ports
