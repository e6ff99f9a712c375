"""The installed PyTorch: its probe, and its places: the processor and the accelerators that ran the probe."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np

from hetero_core.engines.installation import find_version, import_engine, require_version
from hetero_core.errors import DeviceUnavailableError

OLDEST = (2, 6)
_CURE = "pip install 'hetero-torch[torch]', or the build of PyTorch for your accelerator as pytorch.org says"
CPU = "CPU"


class TorchProcessors:
    """The places where PyTorch computes, by the id of the device: "CPU", "CUDA.0", "MPS", "XPU"."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.version = str(torch.__version__)

    @cache  # noqa: B019  # one object per Core and registered name
    def list_working(self) -> Mapping[str, Any]:
        """Returns the places that ran the probe, `torch.device` by id, the processor first. Accelerators are tried once."""
        return {name: place for name, place in self._list_all() if _find_fault(self._torch, place) is None}

    def find(self, device_id: str) -> Any:
        """Returns the `torch.device` of an id; "" is the processor."""
        return self._torch.device(CPU.lower()) if device_id in ("", CPU) else self.list_working()[device_id]

    def _list_all(self) -> Iterator[tuple[str, Any]]:
        torch = self._torch
        yield CPU, torch.device("cpu")
        if torch.cuda.is_available():
            yield from ((f"CUDA.{index}", torch.device("cuda", index)) for index in range(torch.cuda.device_count()))
        if torch.backends.mps.is_available():
            yield "MPS", torch.device("mps")
        if torch.xpu.is_available():
            # The first has torch's own name without a number.
            yield from (
                (f"XPU.{index}" if index else "XPU", torch.device("xpu", index)) for index in range(torch.xpu.device_count())
            )


def open_torch() -> TorchProcessors:
    """Returns the places of the installed PyTorch after its processor ran the probe.

    Raises: DeviceUnavailableError that says what is missing, broken or too old, and the cure.
    """
    if find_version("torch") is None:
        raise DeviceUnavailableError(f"PyTorch is not installed; {_CURE}")
    torch = import_engine("torch", "inference_mode", "PyTorch", cure=_CURE)
    require_version("PyTorch", torch.__version__, OLDEST, distribution="torch")
    fault = _find_fault(torch, torch.device("cpu"))
    if fault is not None:
        raise DeviceUnavailableError(f"PyTorch {torch.__version__} cannot compute on the processor: {fault}; {_CURE}")
    _warn_once(torch)
    return TorchProcessors(torch)


def _find_fault(torch: Any, place: Any) -> str | None:
    """Returns why PyTorch cannot compute on a device, None if it can: by a tiny sum, not by a count of drivers."""
    try:
        total = float(torch.ones(2, device=place).add(1).sum())
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        return f"{type(error).__name__}: {error}"
    return None if total == 4 else f"2 + 2 is {total}"


def _warn_once(torch: Any) -> None:
    """Silences PyTorch's only warning about tensors over read-only arrays: this device never writes its inputs."""
    array = np.zeros(1, np.float32)
    array.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.from_numpy(array)
