"""Settings of the process, which belong to the program: a snapshot that is taken before a device is made and after it was used."""

from __future__ import annotations

import gc
import locale
import logging
import os
import random
import re
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

PROCESS = Path("/proc/self")


def read_settings() -> Mapping[str, Any]:
    """Returns name -> value of each setting. The affinity and the floating-point mode are those of the calling thread."""
    root = logging.getLogger()
    return {
        "the random numbers of random": random.getstate(),
        "the random numbers of NumPy": _read_numpy_random(),
        "np.seterr": np.geterr(),
        # pytest writes the name of the running test there.
        "os.environ": {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"},
        "the working folder": os.getcwd(),
        "the locale": locale.setlocale(locale.LC_ALL),
        "the limit of recursion": sys.getrecursionlimit(),
        "garbage collection": (gc.isenabled(), gc.get_threshold()),
        "the switch interval of threads": sys.getswitchinterval(),
        "the signal handlers": _read_handlers(),
        "the root logger": (root.level, root.disabled, [type(handler).__name__ for handler in root.handlers]),
        "the affinity to processors": os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None,
        # Half of a number that has no smaller neighbour without denormals.
        "the floating-point mode, which flushes denormals to 0": float(np.finfo(np.float32).tiny * np.float32(0.5)) == 0,
    }


def _read_numpy_random() -> tuple[Any, ...]:
    state: Any = np.random.get_state(legacy=False)  # the very state that a device must leave alone
    return state["state"]["key"].tobytes(), state["state"]["pos"], state["has_gauss"], state["gauss"]


def _read_handlers() -> tuple[Any, ...]:
    """Returns the handlers set by Python, and the masks of signals that are ignored or caught by C code, where Linux tells them."""
    handlers = tuple(signal.getsignal(number) for number in sorted(signal.valid_signals()))
    status = PROCESS / "status"
    return handlers, re.findall(r"^Sig(?:Ign|Cgt):.*", status.read_text(), re.MULTILINE) if status.exists() else []
