"""Execution providers as devices of hetero.

The device of a session, in this order: option `device` of the HeteroExecutionProvider, HETERO_DEVICE in the environment, the list of
providers, AUTO. A list with accelerators becomes HETERO over them and the host's devices; the host alone becomes AUTO without accelerators.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from hetero_core.core import Core
from hetero_core.errors import HeteroError
from hetero_core.frontends.replacement import find_device
from hetero_core.frontends.shared_core import find_core

logger = logging.getLogger(__name__)

HETERO_PROVIDER = "HeteroExecutionProvider"
"""The provider of any device; its option `device` names it, and its other options are configuration keys."""
CPU_PROVIDER = "CPUExecutionProvider"

# Provider -> the devices that do its work, in order of preference. Every other provider may be one of ONNX Runtime's own: ORT.<ID>.
_DEVICES = {"CUDAExecutionProvider": ("GPU",), "OpenVINOExecutionProvider": ("OPENVINO",)}
_KNOWN = (
    *("Tensorrt", "CUDA", "MIGraphX", "ROCM", "OpenVINO", "Dnnl", "VitisAI", "QNN", "Nnapi", "VSINPU", "Js", "CoreML", "Dml"),
    *("Rknpu", "WebNN", "WebGpu", "Xnnpack", "CANN", "Azure"),
)
"""ONNX Runtime's providers, without "ExecutionProvider"; a program may ask for one that is missing, and gets a warning."""
_HOSTS = ("CPU", "ORT")
"""The devices for nodes that accelerators refuse."""


@dataclass(frozen=True)
class Placement:
    """The device of a session; `is_chosen` if the caller named it. `providers` and their options are for the application to read."""

    device: str
    config: Mapping[str, str]
    is_chosen: bool
    providers: Mapping[str, dict[str, str]]


def place_session(providers: Sequence[Any] | None, provider_options: Sequence[Any] | None) -> Placement:
    """Returns the device for a session's arguments. Raises: ValueError for arguments that ONNX Runtime refuses, too."""
    options = read_providers(providers, provider_options)
    core = find_core()
    asked = [name for name in options if name not in (HETERO_PROVIDER, CPU_PROVIDER)]
    device_of_provider = {name: _find_device(core, name, options[name]) for name in asked}
    missing = [name for name, device in device_of_provider.items() if device is None]
    for name in missing:  # programs filter by ONNX Runtime's text
        text = f"Specified provider '{name}' is not in available provider names.Available providers: "
        warnings.warn(f"{text}'{', '.join(get_available_providers())}'", stacklevel=4)
    own = options.get(HETERO_PROVIDER, {})
    config = {key: value for key, value in own.items() if key != "device"}
    present = {name: option for name, option in options.items() if name not in missing} or {HETERO_PROVIDER: {}}
    present.setdefault(CPU_PROVIDER, {})
    chosen = own.get("device") or find_device("")
    if chosen:
        return Placement(chosen, config, True, present)
    accelerators = [device for device in device_of_provider.values() if device is not None]
    is_host = HETERO_PROVIDER not in present
    if (is_host and accelerators) or "AUTO" not in core.device_names:
        return Placement(_join_hosts(core, accelerators if is_host else []), config, False, present)
    left_out = [f"-{name}" for name in core.device_names if is_host and _ask(name, core.find_kind) == "accelerator"]
    return Placement("AUTO" + (":" if left_out else "") + ",".join(left_out), config, False, present)


def find_splitter() -> str | None:
    """Returns HETERO over the host's devices, for a model that no device takes whole; None if it is not installed."""
    device = _join_hosts(find_core(), [])
    return device if device.startswith("HETERO") else None


def _join_hosts(core: Core, accelerators: Sequence[str]) -> str:
    """Returns HETERO over these devices and the host's; the first of them if HETERO is not installed."""
    names = core.device_names
    listed = [*accelerators, *(name for name in _HOSTS if name in names and name not in accelerators)]
    return "HETERO:" + ",".join(listed) if len(listed) > 1 and "HETERO" in names else next(iter(listed), "AUTO")


def _find_device(core: Core, provider: str, options: Mapping[str, str]) -> str | None:
    """Returns the device that does a provider's work; None without a working device."""
    number = options.get("device_id", "0")
    for name in _DEVICES.get(provider, ()):
        if _ask(name, core.config_keys) is not None:
            return name if number == "0" else f"{name}.{number}"
    device = f"ORT.{provider.removesuffix('ExecutionProvider').upper()}"
    return device if provider in _list_engine_providers() and _ask(device, core.config_keys) is not None else None


def _ask(device: str, question: Callable[[str], Any]) -> Any:
    """Returns the answer of a function of the Core about a device; None if the device is not installed or cannot be used."""
    if device.partition(".")[0] not in find_core().device_names:
        return None
    try:
        return question(device)
    except HeteroError as error:
        logger.info("device %s is not used: %s", device, error)
        return None


def _list_engine_providers() -> list[str]:
    """Returns the providers of an installed ONNX Runtime, except CPU and a cloud service; their drivers may be missing."""
    if "ORT" not in find_core().device_names:
        return []
    try:
        engine = import_module("onnxruntime.capi._pybind_state")
    except ImportError:
        return []
    if engine.__name__.startswith("hetero_core."):  # it stands in for a missing one
        return []
    return [name for name in engine.get_available_providers() if name not in (CPU_PROVIDER, "AzureExecutionProvider")]


def read_providers(providers: Any, provider_options: Any) -> dict[str, dict[str, str]]:
    """Returns each provider once with its options as texts. Raises: ValueError."""
    if providers is None:
        return {}
    if isinstance(providers, str):  # ONNX Runtime goes through its letters, warns, and takes the CPU
        providers = [providers]
    if not isinstance(providers, Sequence):
        raise ValueError(f"'providers' should be a sequence, got {providers!r}.")  # noqa: TRY004  # as ONNX Runtime
    pairs = [(each, {}) if isinstance(each, str) else each for each in providers]
    if provider_options is not None:
        is_list = isinstance(provider_options, Sequence) and len(provider_options) == len(providers)
        if not is_list or not all(isinstance(each, str) for each in providers):
            raise ValueError("'provider_options' should have one dict for each name in 'providers'.")
        pairs = list(zip(providers, provider_options, strict=True))
    read: dict[str, dict[str, str]] = {}
    for pair in pairs:
        match pair:
            case (str() as name, dict() as options):
                if name in read:
                    warnings.warn(f"Duplicate provider '{name}' encountered, ignoring.", stacklevel=5)
                read.setdefault(name, {str(key): str(value) for key, value in options.items()})
            case _:
                raise ValueError(f"'providers' values must be either strings or (string, dict) tuples, got {pair!r}.")
    return read


def get_available_providers() -> list[str]:
    """Returns the providers for which a device works, in order of priority; CPUExecutionProvider is the last."""
    core = find_core()
    accelerated = [
        name for name, devices in _DEVICES.items() if any(_ask(each, core.find_kind) == "accelerator" for each in devices)
    ]
    names = [*accelerated, *(name for name in _list_engine_providers() if name not in accelerated)]
    return [HETERO_PROVIDER, *(name for name in names if _find_device(core, name, {}) is not None), CPU_PROVIDER]


def get_all_providers() -> list[str]:
    """Returns all names of providers that a session may get, available or not; CPUExecutionProvider is the last."""
    return [HETERO_PROVIDER, *(f"{name}ExecutionProvider" for name in _KNOWN), CPU_PROVIDER]


def get_device() -> str:
    """Returns "GPU" if a graphics card can be used, else "CPU"; as programs compare it with "GPU"."""
    return "GPU" if "CUDAExecutionProvider" in get_available_providers() else "CPU"
