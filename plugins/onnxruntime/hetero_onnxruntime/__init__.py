"""ORT, the device that runs ONNX Runtime. Light: the engine is imported when ORT is first needed."""

from __future__ import annotations

from hetero_core.hookspecs import hookimpl

requires_api = (1, 0)
kind = "engine"
quick_weights = float("inf")


@hookimpl
def create_device(name: str) -> object:
    """Returns the device. Raises: DeviceUnavailableError when no distribution of ONNX Runtime is installed, or it does not work."""
    from hetero_onnxruntime.device import OrtDevice
    from hetero_onnxruntime.engine import open_engine  # imports onnxruntime

    return OrtDevice(name, open_engine())
