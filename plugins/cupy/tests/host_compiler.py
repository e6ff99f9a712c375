"""A card of make-believe that runs the plugin's CUDA C++: compiled for the host, blocks and threads one after another.

What CUDA adds to C++ stands in `_SHIM`. The text of a kernel is the one that a card gets, but for the two conversions of float16 that
only a card has an instruction for. Needs g++ and a C library with contexts, as Linux has.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hetero_cupy.conversions import CONVERSIONS
from hetero_cupy.runtime import Launch
from hetero_tests.fake_array import FakeArray
from hetero_tests.fake_runtime import FakeCard, FakeRuntime

COMPILER = shutil.which("g++")
MISSING = "no C++ compiler: g++ is not installed"

_SHIM = r"""
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#define __device__
#define __global__
// Blocks run one after another, so that one array serves all of them.
#define __shared__ static
struct Place { unsigned x; };
static Place threadIdx, blockIdx, blockDim, gridDim;
static ucontext_t before;
static ucontext_t* here;
// Every thread runs up to its next barrier before any runs on: what was not behind a barrier is not there yet.
static void __syncthreads() { swapcontext(here, &before); }
static float __uint_as_float(unsigned bits) { float value; memcpy(&value, &bits, 4); return value; }
static float __int_as_float(unsigned bits) { return __uint_as_float(bits); }
static unsigned __float_as_uint(float value) { unsigned bits; memcpy(&bits, &value, 4); return bits; }
"""

_CONVERSIONS = r"""
static float hetero_load_float16(unsigned short bits) { _Float16 value; memcpy(&value, &bits, 2); return (float)value; }
static unsigned short hetero_store_float16(float value) {
  _Float16 small = (_Float16)value;
  unsigned short bits;
  memcpy(&bits, &small, 2);
  return bits;
}
"""

_DRIVER = """
static void** a;
static char* ended;
static void run_thread() { CALL; ended[threadIdx.x] = 1; }
extern "C" void run_kernel(int blocks, int threads, void** arguments) {
  a = arguments; gridDim.x = blocks; blockDim.x = threads;
  ucontext_t* places = (ucontext_t*)calloc(threads, sizeof(ucontext_t));
  char* stacks = (char*)malloc(threads * 32768L);
  ended = (char*)malloc(threads);
  for (int block = 0; block < blocks; ++block) {
    blockIdx.x = block;
    memset(ended, 0, threads);
    for (int thread = 0; thread < threads; ++thread) {
      getcontext(&places[thread]);
      places[thread].uc_stack.ss_sp = &stacks[thread * 32768L];
      places[thread].uc_stack.ss_size = 32768;
      places[thread].uc_link = &before;
      makecontext(&places[thread], run_thread, 0);
    }
    for (bool goes_on = true; goes_on;) {
      goes_on = false;
      for (int thread = 0; thread < threads; ++thread) {
        if (ended[thread]) continue;
        threadIdx.x = thread; here = &places[thread];
        swapcontext(&before, here);
        goes_on = goes_on || !ended[thread];
      }
    }
  }
  free(places); free(stacks); free(ended);
}
"""
_FOLDER = Path(tempfile.mkdtemp(prefix="hetero-kernels-"))


def compile_for_host(name: str, source: str) -> Any:
    """Returns the library of a module with one kernel; compiled once for each name."""
    target = _FOLDER / f"{name}.so"
    if not target.exists():
        signature = re.search(r"__global__ void \w+\(([^)]*)\)", source)
        assert signature is not None
        types = [parameter.strip().rsplit(" ", 1)[0] for parameter in signature[1].split(",")]
        call = f"{name}({', '.join(f'*({kind}*)a[{index}]' for index, kind in enumerate(types))})"
        text = _SHIM + source.replace(CONVERSIONS, _CONVERSIONS) + _DRIVER.replace("CALL", call)
        # The headers of C alone: those of C++ take twice as long to compile as the kernel.
        options = ["-std=c++17", "-O1", "-nostdinc++", "-shared", "-fPIC", "-x", "c++"]
        command = [str(COMPILER), *options, "-", "-o", str(target)]
        ended = subprocess.run(command, input=text, text=True, capture_output=True, check=False)
        assert ended.returncode == 0, ended.stderr
    return ctypes.CDLL(str(target))


class HostCompiledCard(FakeCard):
    """Runs kernels as they are written; `launches` holds their names."""

    def __init__(self, index: int) -> None:
        super().__init__(index, capability="8.0")
        self.launches: list[str] = []

    def compile_kernel(self, name: str, source: str) -> Launch:
        """Returns the kernel, for arrays of this card that are C-contiguous."""
        library = compile_for_host(name, source)

        def launch(blocks: int, threads: int, arguments: tuple[Any, ...]) -> None:
            self.launches.append(name)
            held = [self._place(argument) for argument in arguments]
            addresses = (ctypes.c_void_p * len(held))(*(value.ctypes.data for value in held))
            library.run_kernel(blocks, threads, addresses)

        return launch

    def _place(self, argument: Any) -> np.ndarray[Any, Any]:
        """Returns an array that holds the argument: of an array, its address."""
        if isinstance(argument, FakeArray):
            array = self._home.unwrap(argument)
            assert array.flags.c_contiguous
            return np.array([array.ctypes.data], np.uint64)
        assert isinstance(argument, np.generic)
        return np.asarray(argument)


class HostCompilingRuntime(FakeRuntime):
    """A library whose card runs the CUDA C++ that it is given."""

    def __init__(self) -> None:
        super().__init__(capability="8.0")
        self.card = HostCompiledCard(0)

    def cards(self) -> tuple[HostCompiledCard, ...]:
        """Returns the one card."""
        return (self.card,)
