"""TORCH, the device that computes with PyTorch. Light: PyTorch is imported when TORCH is first needed."""

from __future__ import annotations

from hetero_core.hookspecs import hookimpl

requires_api = (1, 2)
kind = "engine"


@hookimpl
def create_device(name: str) -> object:
    """Returns the device. Raises: DeviceUnavailableError if PyTorch is not installed or does not work, with the cure."""
    from hetero_torch.installation import open_torch  # imports PyTorch

    places = open_torch()
    from hetero_torch.device import TorchDevice  # its operators need PyTorch

    return TorchDevice(name, places)
