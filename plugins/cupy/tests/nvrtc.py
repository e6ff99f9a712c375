"""NVIDIA's runtime compiler, which needs no card: from its wheel or the system."""

from __future__ import annotations

import ctypes
import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

ARCHITECTURES = ("80", "90")
MISSING = "NVRTC is not installed: pip install nvidia-cuda-nvrtc-cu12"


@cache
def load_nvrtc() -> Any:
    """Returns the library, None where there is none."""
    found = importlib.util.find_spec("nvidia")
    folders = [Path(folder) for folder in (found.submodule_search_locations or ())] if found is not None else []
    wheels = sorted(path for folder in folders for path in folder.glob("**/libnvrtc.so.*") if "alt" not in path.name)
    for name in (*map(str, wheels), "libnvrtc.so.12", "libnvrtc.so.13"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def compile_module(source: str, architecture: str) -> bytes:
    """Returns PTX. Raises: AssertionError with the compiler's words."""
    nvrtc = load_nvrtc()
    program = ctypes.c_void_p()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None) == 0
    options = (ctypes.c_char_p * 2)(f"--gpu-architecture=compute_{architecture}".encode(), b"--device-as-default-execution-space")
    answer = nvrtc.nvrtcCompileProgram(program, 2, options)
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    assert answer == 0, log.value.decode()
    nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size))
    ptx = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetPTX(program, ptx)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return ptx.value
