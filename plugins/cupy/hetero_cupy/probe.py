"""Why CuPy cannot work here: the findings of a probe, and a sentence with the missing part and its remedy.

`find_facts` asks a CuPy that was imported; `explain_facts` is a pure function, so that each case can be tested without its machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

INSTALL = "pip install 'hetero-cupy[cuda12]' for a driver of CUDA 12, 'hetero-cupy[cuda13]' for one of CUDA 13 or later"


@dataclass(frozen=True, slots=True)
class Facts:
    """Versions as CUDA numbers them (12090 is 12.9), 0 for no driver. A field of text is the error that was met, empty for none."""

    driver: int = 0
    runtime: int = 0
    cards: int = 0
    count_error: str = ""
    nvrtc_error: str = ""
    kernel_error: str = ""


def find_facts(cupy: Any, run_kernel: Callable[[], None]) -> Facts:
    """Returns what is found; asks nothing further once something is missing, as the rest would fail for that reason."""
    runtime = cupy.cuda.runtime
    driver, version = runtime.driverGetVersion(), runtime.runtimeGetVersion()
    if not driver or driver // 1000 < version // 1000:
        return Facts(driver, version)
    cards, count_error = _try(runtime.getDeviceCount)
    if not cards:
        return Facts(driver, version, 0, count_error)
    _, nvrtc_error = _try(cupy.cuda.nvrtc.getVersion)
    kernel_error = "" if nvrtc_error else _try(run_kernel)[1]
    return Facts(driver, version, cards, "", nvrtc_error, kernel_error)


def _try(call: Callable[[], Any]) -> tuple[Any, str]:
    try:
        return call(), ""
    except Exception as error:  # noqa: BLE001  # whatever it is becomes a part of the reason that the user reads
        return None, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def explain_facts(facts: Facts) -> str | None:
    """Returns the missing part and its remedy; None if nothing is missing."""
    if not facts.driver:
        return (
            "CuPy finds no NVIDIA driver; install the driver of the card, or, in a container, start it with access to the card "
            "(docker run --gpus all)"
        )
    if facts.driver // 1000 < facts.runtime // 1000:
        return (
            f"the driver is too old: it is for CUDA {_show(facts.driver)} and this CuPy for CUDA {_show(facts.runtime)}; install a newer "
            f"driver, or the CuPy that fits: {INSTALL}"
        )
    if not facts.cards:
        error = f" ({facts.count_error})" if facts.count_error else ""
        return f"there is a driver and no card{error}; look at nvidia-smi, and at the environment variable CUDA_VISIBLE_DEVICES"
    if facts.nvrtc_error:
        return (
            f"NVRTC, with which CuPy compiles kernels, cannot be loaded ({facts.nvrtc_error}); "
            f"pip install nvidia-cuda-nvrtc-cu{facts.runtime // 1000} for CUDA 12, nvidia-cuda-nvrtc for later ones"
        )
    if facts.kernel_error:
        return (
            f"the card did not run a first kernel ({facts.kernel_error}); look at nvidia-smi, and whether the CuPy fits: {INSTALL}"
        )
    return None


def explain_import(error: ImportError) -> str:
    """Returns why CuPy cannot be imported."""
    if isinstance(error, ModuleNotFoundError) and error.name == "cupy":
        return f"CuPy is not installed; {INSTALL}"
    text = " ".join(str(error).split())[:300]
    return f"CuPy is installed and cannot be imported ({text}); uninstall every distribution of it, and then {INSTALL}"


def _show(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"
