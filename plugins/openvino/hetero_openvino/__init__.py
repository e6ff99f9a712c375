"""OPENVINO, the device that runs OpenVINO. Light: the engine is imported when OPENVINO is first needed."""

from __future__ import annotations

from hetero_core.hookspecs import hookimpl

requires_api = (1, 0)
kind = "engine"


@hookimpl
def create_device(name: str) -> object:
    """Returns the device. Raises: DeviceUnavailableError when OpenVINO is not installed, or does not work."""
    from hetero_openvino.device import OpenvinoDevice
    from hetero_openvino.engine import open_engine  # imports openvino

    return OpenvinoDevice(name, open_engine())
