"""Runs native calls chunk by chunk in the calling thread, with vectors of either width; for tests and measurements."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any

import numpy as np
from hetero_cpu.machine import compiler
from hetero_cpu.machine.calls import NativeCall
from hetero_cpu.machine.compiler import COMPILER, Kernel

WIDTHS = tuple(width for width in (8, 16) if width <= compiler.find_width())
"""The widths of vectors that this processor can run."""


def find_entry(kernel: Kernel, width: int) -> Any:
    """Returns the function of a kernel that is made for vectors of `width` elements."""
    # Compares with the compiler's own width, since a test may have steps plan for another width.
    compiled = (
        kernel if width == compiler.find_width() else Kernel(f"{kernel.name}_of_{width}", lambda name, _: kernel.emit(name, width))
    )
    return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)(COMPILER.compile(compiled))


def run_calls(calls: Iterable[Any], width: int, *, workers: int = 1) -> None:
    """Runs calls in order, but the chunks of each call from last to first, since their order must not matter."""
    for call in calls:
        assert isinstance(call, NativeCall)
        entry = find_entry(call.kernel, width)
        row = np.array(call.numbers, np.int64)
        for chunk in reversed(range(call.chunks)):
            entry(row.ctypes.data, chunk, chunk % workers)


def make_open_plan(*arguments: Any, **options: Any) -> Any:
    """Returns the plan of a class of sizes with no kernel compiled, or None if the class cannot be planned."""
    from hetero_cpu.plan import open_plan as making

    planning = making.make_open_plan(*arguments, **options)
    while True:
        try:
            next(planning)
        except StopIteration as stop:
            return stop.value
