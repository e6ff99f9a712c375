"""Native libraries of this process: runtimes of OpenMP that fight, and what BLAS makes of the processor."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from hetero_core.diagnosis.findings import Finding

KINDS = {
    "OpenMP of GNU": r"libgomp[-.]",
    "OpenMP of Intel": r"libiomp5[-.]",
    "OpenMP of LLVM": r"libomp[-.]",
    "TBB": r"libtbb[-.]",
    "OpenBLAS": r"lib(?:scipy_)?openblas",
    "MKL": r"libmkl_rt[-.]",
    "CUDA": r"libcuda(?:rt)?[-.]",
    "cuDNN": r"libcudnn[-.]",
}
"""Library -> how the names of its files begin."""


def read_libraries(maps: Path = Path("/proc/self/maps")) -> tuple[str, ...]:
    """Returns the paths of the native libraries that are loaded, sorted; none where the system does not say."""
    try:
        lines = maps.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ()
    paths = {fields[5] for line in lines if len(fields := line.split(maxsplit=5)) == 6}
    return tuple(sorted(path for path in paths if ".so" in os.path.basename(path)))


def group_libraries(paths: Iterable[str]) -> Mapping[str, tuple[str, ...]]:
    """Returns the paths of each kind that is there."""
    listed = sorted(paths)
    paths_of_kind = {
        kind: tuple(path for path in listed if re.match(pattern, os.path.basename(path))) for kind, pattern in KINDS.items()
    }
    return {kind: those for kind, those in paths_of_kind.items() if those}


def check_libraries(paths: Iterable[str]) -> list[Finding]:
    """Returns what is loaded of each kind, and a cure where two makers' runtimes of OpenMP are in one process."""
    grouped = group_libraries(paths)
    findings = [Finding("libraries", f"{kind}: {', '.join(those)}") for kind, those in grouped.items()]
    makers = [kind for kind in grouped if kind.startswith("OpenMP")]
    if len(makers) > 1:
        text = f"{' and '.join(makers)} are loaded; each keeps threads of its own, and they may wait for each other"
        cure = "load the packages that bring them in processes of their own, or install builds that share one runtime"
        findings.append(Finding("libraries", text, cure))
    return findings


def check_blas(blas: Iterable[Mapping[str, object]], flags: Iterable[str], environment: Mapping[str, str]) -> list[Finding]:
    """Returns which kernels BLAS has chosen, and a cure where a setting keeps it from what the processor has.

    `blas` is what threadpoolctl says about the libraries of BLAS, `flags` are those of /proc/cpuinfo.
    """
    findings = []
    has_wide = "avx512f" in set(flags)
    for each in blas:
        kernels = each.get("architecture")
        text = f"{each.get('internal_api')} {each.get('version')} computes with the kernels of {kernels}, {each.get('num_threads')} threads"
        is_narrow = has_wide and kernels in ("Haswell", "Zen", "Sandybridge", "Nehalem", "Prescott")
        forced = environment.get("OPENBLAS_CORETYPE")
        cure = f"unset OPENBLAS_CORETYPE, which is {forced}; the processor has AVX-512" if is_narrow and forced else ""
        findings.append(Finding("libraries", text, cure))
    return findings


def read_blas() -> list[Mapping[str, object]]:
    """Returns what threadpoolctl says about BLAS; nothing if it is not installed."""
    try:
        from threadpoolctl import threadpool_info  # type: ignore[import-untyped]  # optional; it has no stubs
    except ImportError:
        return []
    return [each for each in threadpool_info() if each.get("user_api") == "blas"]
