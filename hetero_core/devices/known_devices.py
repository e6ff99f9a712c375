"""Known devices, hardware, and other projects' names of devices, as data. Error messages and `hetero devices` read it.

A device is known here by its name and package only: nothing is imported, and a device that is not in the table works as well.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

KNOWN_DEVICES: Mapping[str, str] = {
    "AUTO": "hetero-auto",
    "BATCH": "hetero-batch",
    "CPU": "hetero-cpu",
    "GPU": "hetero-cupy",
    "HETERO": "hetero-hetero",
    "MULTI": "hetero-auto",
    "OPENVINO": "hetero-openvino[engine]",
    "ORT": "hetero-onnxruntime[cpu]",
    "PROCESS": "hetero-process",
    "RAY": "hetero-ray",
    "TEMPLATE": "hetero-template",
    "TORCH": "hetero-torch[torch]",
}
"""Device -> requirement that installs it with its engine."""

HARDWARE: tuple[tuple[str, str, str], ...] = (
    ("an NVIDIA card", "/proc/driver/nvidia/version", "GPU"),
    ("a card for AMD's ROCm", "/dev/kfd", "TORCH"),
    ("an NPU", "/dev/accel/accel0", "OPENVINO"),
)
"""Hardware, the file that its driver makes, and the device that uses it."""

FOREIGN_NAMES: Mapping[str, tuple[str, ...]] = {
    "CPUExecutionProvider": ("CPU", "ORT"),
    "CUDAExecutionProvider": ("GPU", "ORT.CUDA"),
    "OpenVINOExecutionProvider": ("OPENVINO", "ORT.OPENVINO"),
    "cuda": ("GPU", "TORCH.CUDA.0"),
    "mps": ("TORCH.MPS",),
    "xpu": ("TORCH.XPU", "OPENVINO.GPU"),
    "NPU": ("OPENVINO.NPU",),
}
"""Another project's name of a device -> the devices to use. Any other provider of ONNX Runtime is an id of the device in _PROVIDER."""
_PROVIDER, _ENDING = "ORT", "EXECUTIONPROVIDER"
_FOREIGN = {name.upper(): devices for name, devices in FOREIGN_NAMES.items()}


def advise_missing(device: str, installed: Collection[str]) -> str:
    """Returns what to use or to install for a device that no plugin announces; "" if its name is not known."""
    if device in KNOWN_DEVICES:
        return f"install it with 'pip install {KNOWN_DEVICES[device]}'"
    provider = (f"{_PROVIDER}.{device.removesuffix(_ENDING)}",) if device.endswith(_ENDING) and device != _ENDING else ()
    devices = _FOREIGN.get(device, provider)
    return f"it is another project's name: use {' or '.join(_word(name, installed) for name in devices)}" if devices else ""


def _word(device: str, installed: Collection[str]) -> str:
    name = device.partition(".")[0]
    return f"'{device}'" if name in installed else f"'{device}' ('pip install {KNOWN_DEVICES[name]}')"


def list_unused_hardware(installed: Collection[str], root: str = "/") -> dict[str, str]:
    """Returns hardware of this machine without an installed device -> the requirement of a device for it."""
    return {
        hardware: KNOWN_DEVICES[device]
        for hardware, path, device in HARDWARE
        if device not in installed and os.path.exists(os.path.join(root, path.lstrip("/")))
    }
