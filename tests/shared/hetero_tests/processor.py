"""Describes the processor of a test run in a single line. Imports the standard library only, because noxfile.py imports it."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from pathlib import Path


def describe_processor(grants_flag: Callable[[str], bool] = bool) -> str:
    """Returns the processor and its vector extensions, as "processor: x86-64 AMD EPYC, AVX2 without AVX-512, without VNNI".

    `grants_flag` filters the flags of /proc/cpuinfo, because an emulator shows the flags of the host.
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
