"""NVIDIA's compiler, which needs no card: NVRTC, from its wheel or the system, or else nvcc."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from hetero_tests.samples import IS_WHOLE

# The oldest that the kernels are written for; the newest beside it in `nox -s kit`.
ARCHITECTURES = ("80", "90") if IS_WHOLE else ("80",)
MISSING = "neither NVRTC nor nvcc is installed: pip install nvidia-cuda-nvrtc-cu12"
NVCC = shutil.which("nvcc")


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


def has_compiler() -> bool:
    """Says whether there is one."""
    return load_nvrtc() is not None or NVCC is not None


def compile_module(source: str, architecture: str) -> bytes:
    """Returns PTX. Raises: AssertionError with the compiler's words."""
    nvrtc = load_nvrtc()
    return _compile_by_nvcc(source, architecture) if nvrtc is None else _compile_by_nvrtc(nvrtc, source, architecture)


def compile_modules(sources: Sequence[str], architecture: str) -> bytes:
    """Returns the PTX of all of them, compiled as one: the compiler starts once, and functions of one name do not meet.

    Raises: AssertionError with the compiler's words.
    """
    spaces = [f"namespace module{index} {{\n{source}\n}}\n" for index, source in enumerate(sources)]
    return compile_module("".join(spaces), architecture)


def _compile_by_nvcc(source: str, architecture: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        text, made = Path(folder, "kernel.cu"), Path(folder, "kernel.ptx")
        text.write_text(source)
        command = [str(NVCC), "-ptx", f"-arch=compute_{architecture}", "-o", str(made), str(text)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return made.read_bytes()


def _compile_by_nvrtc(nvrtc: Any, source: str, architecture: str) -> bytes:
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
