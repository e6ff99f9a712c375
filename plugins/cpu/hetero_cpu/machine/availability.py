"""CPU_KERNELS: which kernels run, and whether this machine has them; CPU_VERIFY: whether plans are verified."""

from __future__ import annotations

import platform
import sys
from importlib.util import find_spec

from hetero_core.errors import ConfigValueError

NUMPY, JIT = "NUMPY", "JIT"
KERNELS_KEY = "CPU_KERNELS"
AUTO = "AUTO"
KERNEL_CHOICES = (AUTO, JIT, NUMPY)
VERIFY_KEY = "CPU_VERIFY"
YES, NO = "YES", "NO"
_MACHINE = "Linux on an x86-64 processor with AVX2"
VERIFY_CHOICES = (NO, YES, AUTO)
"""AUTO is the default of version 0.1.0, and means NO."""


def choose_kernels(choice: str, device: str) -> str:
    """Returns NUMPY, JIT (wait for machine code) or AUTO (the toolkit answers until it is compiled), as wished and possible.

    Raises: ConfigValueError for JIT if no machine code can be made.
    """
    if choice == NUMPY:
        return NUMPY
    obstacle = _find_obstacle()
    if obstacle is None:
        return choice
    if choice == AUTO:
        return NUMPY
    raise ConfigValueError(
        f"configuration key {KERNELS_KEY} of device {device}: expected {AUTO} or {NUMPY}, got {JIT}, which needs {obstacle}"
    )


def describe_machine_code() -> str:
    """Returns in a few words which machine code is made here, or the missing requirement."""
    obstacle = _find_obstacle()
    if obstacle is not None:
        return f"no machine code, which needs {obstacle}"
    from hetero_cpu.machine.compiler import find_llvmlite_version, find_width

    return f"machine code for {'AVX-512' if find_width() == 16 else 'AVX2'} by llvmlite {find_llvmlite_version()}"


def find_code_folder() -> str:
    """Returns the name of the private folder in which machine code is kept; empty if none is made."""
    if _find_obstacle() is not None:
        return ""
    from hetero_core.blobs.store import FOLDER

    return FOLDER


def _find_obstacle() -> str | None:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return _MACHINE
    if find_spec("llvmlite") is None:
        return "the package llvmlite, which hetero-cpu depends on here: pip install hetero-cpu"
    from hetero_cpu.machine.compiler import find_width

    return None if find_width() else _MACHINE
