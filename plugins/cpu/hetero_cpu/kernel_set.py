"""Check that BLAS runs the kernels of this processor; those of an older one cost half of the speed."""

from __future__ import annotations

import logging
import os
from functools import cache
from typing import TYPE_CHECKING, Any

from hetero_core.devices.processors import grants_flag, read_processor_flags
from hetero_cpu.blas import import_threadpoolctl

if TYPE_CHECKING:
    from hetero_cpu.planning.plan import ExecutionPlan

logger = logging.getLogger(__name__)

# Kernel sets of OpenBLAS that use no more than AVX2. Those with AVX-512 are SkylakeX, Cooperlake and SapphireRapids.
_WITHOUT_AVX512 = frozenset(
    {"barcelona", "bulldozer", "core2", "excavator", "haswell", "nehalem", "prescott", "sandybridge", "zen"}
)


def warn_where_toolkit_computes(plan: ExecutionPlan) -> None:
    """Warns of slow kernels if the toolkit computes steps of a plan."""
    if plan.foreign_count:
        warn_of_slow_kernels()


@cache
def warn_of_slow_kernels() -> None:
    """Logs a warning when the processor has AVX-512 and OpenBLAS does not use it; once in a process."""
    # Takes some 5 ms, so it is asked for only where NumPy computes something.
    message = describe_slow_kernels(
        import_threadpoolctl().threadpool_info(),
        frozenset(filter(grants_flag, read_processor_flags())),
        os.environ.get("OPENBLAS_CORETYPE"),
    )
    if message is not None:
        logger.warning("%s", message)


def describe_slow_kernels(libraries: list[dict[str, Any]], flags: frozenset[str], variable: str | None) -> str | None:
    """Returns what is wrong with the kernels of a BLAS, as threadpoolctl describes it; None when nothing is known to be."""
    for library in libraries:
        architecture = str(library.get("architecture", ""))
        if library.get("internal_api") != "openblas" or architecture.lower() not in _WITHOUT_AVX512 or "avx512f" not in flags:
            continue
        cause = (
            f"OPENBLAS_CORETYPE is '{variable}'; unset it"
            if variable
            else "it does not know the processor; set OPENBLAS_CORETYPE=SkylakeX before Python starts"
        )
        return f"OpenBLAS runs its kernels for {architecture}, and the processor has AVX-512, which is about twice as fast: {cause}"
    return None
