"""Known devices, hardware, and other projects' names of devices, as data. Error messages and `hetero devices` read it.

A device is known here by its name and package only: nothing is imported, and a device that is not in the table works as well.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from types import MappingProxyType

KNOWN_DEVICES: Mapping[str, str] = MappingProxyType(
    {
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
)
"""Device -> requirement that installs it with its engine."""

HARDWARE: tuple[tuple[str, str, str], ...] = (
    ("an NVIDIA card", "/proc/driver/nvidia/version", "GPU"),
    ("a card for AMD's ROCm", "/dev/kfd", "TORCH"),
    ("an NPU", "/dev/accel/accel0", "OPENVINO"),
)
"""Hardware, the file that its driver makes, and the device that uses it."""

_ORT, _TORCH, _OPENVINO = "ONNX Runtime", "PyTorch", "OpenVINO"
FOREIGN_NAMES: Mapping[str, tuple[str, tuple[str, ...]]] = MappingProxyType(
    {
        "CPUExecutionProvider": (_ORT, ("CPU", "ORT")),
        "CUDAExecutionProvider": (_ORT, ("GPU", "ORT.CUDA")),
        "TensorrtExecutionProvider": (_ORT, ("ORT.TENSORRT",)),
        "NvTensorRTRTXExecutionProvider": (_ORT, ("ORT.NVTENSORRTRTX",)),
        "ROCMExecutionProvider": (_ORT, ("ORT.ROCM",)),
        "MIGraphXExecutionProvider": (_ORT, ("ORT.MIGRAPHX",)),
        "DmlExecutionProvider": (_ORT, ("ORT.DML",)),
        "CoreMLExecutionProvider": (_ORT, ("ORT.COREML",)),
        "QNNExecutionProvider": (_ORT, ("ORT.QNN",)),
        "XnnpackExecutionProvider": (_ORT, ("ORT.XNNPACK",)),
        "AzureExecutionProvider": (_ORT, ("ORT",)),
        "OpenVINOExecutionProvider": (_ORT, ("OPENVINO", "ORT.OPENVINO")),
        "DnnlExecutionProvider": (_ORT, ("ORT.DNNL",)),
        "cuda": (_TORCH, ("GPU", "TORCH.CUDA.0")),
        "mps": (_TORCH, ("TORCH.MPS",)),
        "xpu": (_TORCH, ("TORCH.XPU", "OPENVINO.GPU")),
        "NPU": (_OPENVINO, ("OPENVINO.NPU",)),
        "onnxruntime": ("", ("ORT",)),
        "TensorRT": ("", ("ORT.TENSORRT",)),
        "pytorch": ("", ("TORCH",)),
        "cupy": ("", ("GPU",)),
    }
)
"""Another project's name of a device -> the project ("" for a library's own name), and the devices to use instead."""
_FOREIGN = {name.upper(): name for name in FOREIGN_NAMES}


def advise_missing(device: str, installed: Collection[str]) -> str:
    """Returns what to use or to install for a device that no plugin announces; "" if neither table has the name."""
    if device in KNOWN_DEVICES:
        return f"install it with 'pip install {KNOWN_DEVICES[device]}'"
    if device not in _FOREIGN:
        return ""
    project, devices = FOREIGN_NAMES[_FOREIGN[device]]
    source = f"{project}'s name of a device" if project else "a library"
    return f"'{_FOREIGN[device]}' is {source}: use {' or '.join(_word(name, installed) for name in devices)}"


def _word(device: str, installed: Collection[str]) -> str:
    name = device.partition(".")[0]
    return f"'{device}'" if name in installed else f"'{device}' ('pip install {KNOWN_DEVICES[name]}')"


def list_missing(installed: Collection[str]) -> dict[str, str]:
    """Returns the known devices that are not installed, with the requirement of each."""
    return {device: requirement for device, requirement in KNOWN_DEVICES.items() if device not in installed}


def list_unused_hardware(installed: Collection[str], root: str = "/") -> dict[str, str]:
    """Returns hardware of this machine without an installed device -> the requirement of a device for it."""
    return {
        hardware: KNOWN_DEVICES[device]
        for hardware, path, device in HARDWARE
        if device not in installed and os.path.exists(os.path.join(root, path.lstrip("/")))
    }
