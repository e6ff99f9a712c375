"""Processors, threads and drivers: what the process may use, and settings that ask for more."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path

from hetero_core.diagnosis.findings import Finding

THREAD_VARIABLES = ("MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def check_threads(environment: Mapping[str, str], *, affinity: int, processors: int) -> list[Finding]:
    """Returns how many processors there are to use, and a cure for each variable that asks for more threads than that.

    `affinity` counts the processors of the mask, `processors` what the quota of the control groups leaves of them.
    """
    text = f"{processors} processors to use"
    findings = [
        Finding("threads", text if affinity == processors else f"{text}, of {affinity} in the mask: a quota holds the rest back")
    ]
    is_set = False
    for name in THREAD_VARIABLES:
        value = environment.get(name)
        if value is None:
            continue
        is_set = True
        if not value.isdecimal() or int(value) < 1:
            findings.append(
                Finding("threads", f"{name}={value} is no number of threads", f"set {name} to 1 to {processors}, or unset it")
            )
        elif int(value) > processors:
            findings.append(Finding("threads", f"{name}={value} is more than there are processors", f"set {name}={processors}"))
        else:
            findings.append(Finding("threads", f"{name}={value}"))
    if affinity > processors and not is_set:
        text = f"BLAS counts the mask and makes {affinity} threads for {processors} processors"
        findings.append(Finding("threads", text, f"set OPENBLAS_NUM_THREADS={processors} and OMP_NUM_THREADS={processors}"))
    return findings


def check_gpu(driver: str | None, fault: str | None) -> list[Finding]:
    """Returns what is known of an NVIDIA driver: its version as the kernel says it, and why its library cannot be loaded."""
    if driver is None and fault is not None:
        return [Finding("gpu", "no NVIDIA driver")]
    if driver is None:
        text, cure = (
            "libcuda can be loaded, and the kernel has no NVIDIA driver",
            "install the driver, or start the container with the GPU",
        )
    elif fault is not None:
        text, cure = f"{driver}, but libcuda cannot be loaded: {fault}", "install the driver's libraries of the same version"
    else:
        text, cure = driver, ""
    return [Finding("gpu", text, cure)]


def read_driver(version: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """Returns the first line that the kernel's driver says of itself; None if it says nothing."""
    try:
        return version.read_text(encoding="utf-8", errors="replace").splitlines()[0]
    except (OSError, IndexError):
        return None


def find_cuda_fault(library: str = "libcuda.so.1") -> str | None:
    """Returns why the driver's library cannot be loaded, None when it can."""
    try:
        ctypes.CDLL(library)
    except OSError as error:
        return str(error)
    return None
