"""The processor of a run of tests, in one line. Imports the standard library alone, since noxfile.py imports it."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from pathlib import Path


def describe_processor(grants_flag: Callable[[str], bool] = bool) -> str:
    """Returns the processor and which vectors it has, as "processor: x86-64 AMD EPYC, AVX2 without AVX-512, without VNNI".

    `grants_flag` takes flags of /proc/cpuinfo away, which are those of the host in an emulator.
    """
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}
    flags = set(filter(grants_flag, fields.get("flags", "").split()))
    name = os.environ.get("EMULATED_PROCESSOR") or fields.get("model name", platform.processor())
    machine = {"x86_64": "x86-64", "amd64": "x86-64"}.get(platform.machine().lower(), platform.machine())
    if not flags:
        return f"processor: {machine} {name}"
    vectors = "AVX-512" if "avx512f" in flags else "AVX2 without AVX-512" if "avx2" in flags else "no AVX2"
    has_vnni = bool({"avx512_vnni", "avx_vnni"} & flags)
    return f"processor: {machine} {name}, {vectors}, {'with' if has_vnni else 'without'} VNNI"
