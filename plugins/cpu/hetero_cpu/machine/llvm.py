"""The names with which kernels are emitted: those of `llvmlite.ir`, and the types of kernels. llvmlite is imported when one is first used.

A process whose kernels are all stored plans and runs without it.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    # Whoever looks at modules asks for such names; llvmlite has none that is wanted here.
    if name.startswith("__"):
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from llvmlite import ir  # type: ignore[import-not-found,import-untyped,unused-ignore]  # llvmlite ships no types

    types = {
        "I1": ir.IntType(1),
        "I16": ir.IntType(16),
        "I32": ir.IntType(32),
        "I64": ir.IntType(64),
        "FLOAT": ir.FloatType(),
        "VOID": ir.VoidType(),
        "POINTER": ir.PointerType(),
    }
    member = types[name] if name in types else getattr(ir, name)
    # The next one who asks finds it without this function.
    globals()[name] = member
    return member
