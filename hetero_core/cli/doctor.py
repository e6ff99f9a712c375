"""`hetero doctor`: checks the installed packages and the libraries that they load, and names the cure of each fault."""

from __future__ import annotations

import argparse
import ctypes
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from hetero_core.blobs.store import open_private_folder
from hetero_core.cli.answer import OK, WRONG_RESULT, Answer, follow
from hetero_core.core import Core
from hetero_core.devices.processors import count_affinity, count_processors, grants_flag, read_processor_flags
from hetero_core.devices.registry import DeviceStatus
from hetero_core.devices.switches import PLUGINS_VARIABLE
from hetero_core.errors import PrivateFolderError
from hetero_core.reports.text import count

SHARED_FOLDERS = ("cupy", "onnxruntime", "openvino", "torch")
"""Packages that several distributions, each for a kind of hardware, install under the same name."""
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
"""Library -> pattern of the beginning of its file names."""
THREAD_VARIABLES = ("MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
FOLDER_CURE = "do what the reason says; until then every process compiles the code again"


@dataclass(frozen=True, slots=True)
class Finding:
    """A statement about one topic of the installation. `cure` says what to do; it is empty if nothing needs to be done."""

    topic: str
    text: str
    cure: str = ""


def answer(options: argparse.Namespace) -> Answer:
    """Returns all findings; the exit code is 1 if a finding needs a cure."""
    from importlib_metadata import packages_distributions  # reads the installed distributions

    with Core() as core, follow(options)("making the devices and looking at their libraries"):
        statuses = core.list_devices()
        findings = [Finding("environment", f"{name}: {text}") for name, text in core.switches.describe().items()]
        findings += check_devices(statuses)
        # Read while the engines that work are loaded.
        findings += check_distributions(packages_distributions())
        findings += check_libraries(read_libraries())
        findings += check_blas(_read_blas(), tuple(filter(grants_flag, read_processor_flags())), os.environ)
        names = {status.name: str(core.get_metric(status.name, "CODE_FOLDER")) for status in statuses if not status.reason}
        findings += check_code_folders({device: name for device, name in names.items() if name})
    findings += check_threads(os.environ, affinity=count_affinity(), processors=count_processors())
    findings.append(check_gpu(read_driver(), find_cuda_fault()))
    lines_of_topic: dict[str, list[str]] = {}
    for finding in findings:
        lines = lines_of_topic.setdefault(finding.topic, [finding.topic])
        lines.append(f"  {'!' if finding.cure else '-'} {finding.text}")
        lines += [f"    cure: {finding.cure}"] if finding.cure else []
    cures = sum(bool(finding.cure) for finding in findings)
    verdict = "nothing needs a cure" if cures == 0 else f"{cures} of {len(findings)} findings need a cure"
    lines = [*chain.from_iterable(lines_of_topic.values()), verdict]
    rows = [{**asdict(finding), "cure": finding.cure or None} for finding in findings]
    return Answer("\n".join(lines), {"findings": rows, "cures": cures}, WRONG_RESULT if cures else OK)


def check_devices(statuses: Sequence[DeviceStatus]) -> Iterator[Finding]:
    """Yields a finding for each installed device; the cure of an unusable device follows its reason."""
    for status in statuses:
        reason, cure = " ".join(status.reason.split()), ""
        if reason:
            cure = f"do what the reason says, or remove the plugin: pip uninstall {status.distribution}, or leave it out: "
            cure += f"{PLUGINS_VARIABLE}=-{status.name}"
        verdict = f"cannot be used: {reason}" if reason else f"works: {status.full_name}"
        plugin = f"{status.distribution} {status.version}".strip()
        yield Finding("devices", f"{status.name} ({plugin}) {verdict}", cure)
    if not statuses:
        yield Finding("devices", "no device is installed", "install one, as in: pip install hetero-cpu")


def check_distributions(distributions_of_folder: Mapping[str, Iterable[str]]) -> Iterator[Finding]:
    """Yields a finding for each package of an engine that several distributions have installed over each other."""
    for folder in SHARED_FOLDERS:
        owners = sorted(set(distributions_of_folder.get(folder, ())))
        if len(owners) > 1:
            text = f"{' and '.join(owners)} install the folder {folder} and overwrite each other"
            yield Finding("packages", text, f"pip uninstall {' '.join(owners)}, then install one of them")


def read_libraries(maps: Path = Path("/proc/self/maps")) -> tuple[str, ...]:
    """Returns the paths of the loaded native libraries, sorted; empty if the system does not list them."""
    lines = []
    with suppress(OSError):
        lines = maps.read_text(encoding="utf-8", errors="replace").splitlines()
    paths = {fields[5] for line in lines if len(fields := line.split(maxsplit=5)) == 6}
    return tuple(sorted(path for path in paths if ".so" in os.path.basename(path)))


def check_libraries(paths: Iterable[str]) -> Iterator[Finding]:
    """Yields the loaded libraries of each kind, with a cure if two different runtimes of OpenMP are in one process."""
    names = {path: os.path.basename(path) for path in sorted(paths)}
    paths_of_kind = {kind: [path for path in names if re.match(pattern, names[path])] for kind, pattern in KINDS.items()}
    for kind, loaded in paths_of_kind.items():
        if loaded:
            yield Finding("libraries", f"{kind}: {', '.join(loaded)}")
    runtimes = [kind for kind, loaded in paths_of_kind.items() if loaded and kind.startswith("OpenMP")]
    if len(runtimes) > 1:
        text = f"{' and '.join(runtimes)} are loaded; each keeps threads of its own, and they may wait for each other"
        cure = "load the packages that bring them in processes of their own, or install builds that share one runtime"
        yield Finding("libraries", text, cure)


def check_blas(blas: Iterable[Mapping[str, object]], flags: Iterable[str], environment: Mapping[str, str]) -> Iterator[Finding]:
    """Yields the kernels of each BLAS in `blas` of threadpoolctl, with a cure if a setting keeps it below the processor's `flags`."""
    forced = environment.get("OPENBLAS_CORETYPE")
    for library in blas:
        kernels = library.get("architecture")
        text = f"{library.get('internal_api')} {library.get('version')} computes with the kernels of {kernels}, "
        is_narrow = "avx512f" in flags and kernels in ("Haswell", "Zen", "Sandybridge", "Nehalem", "Prescott")
        cure = f"unset OPENBLAS_CORETYPE, which is {forced}; the processor has AVX-512" if is_narrow and forced else ""
        yield Finding("libraries", f"{text}{library.get('num_threads')} threads", cure)


def _read_blas() -> list[Mapping[str, Any]]:
    try:
        from threadpoolctl import threadpool_info  # type: ignore[import-untyped]  # optional; it has no stubs
    except ImportError:
        return []
    return [library for library in threadpool_info() if library.get("user_api") == "blas"]


def check_code_folders(folder_of_device: Mapping[str, str]) -> Iterator[Finding]:
    """Yields a finding for each device that keeps compiled code; its folder is opened, and made if it is missing, as the device does."""
    for device, name in folder_of_device.items():
        try:
            folder = open_private_folder(name)
        except PrivateFolderError as error:
            yield Finding("folders", f"{device} does not keep its compiled code: {error}", FOLDER_CURE)
            continue
        sizes = []
        for path in folder.iterdir():
            with suppress(FileNotFoundError):  # another process removed it meanwhile
                sizes.append(path.stat().st_size)
        text = f"{device} keeps its compiled code in '{folder}': {count(sizes, 'file')}, {sum(sizes) / 1e6:.1f} MB"
        yield Finding("folders", text)


def check_threads(environment: Mapping[str, str], *, affinity: int, processors: int) -> Iterator[Finding]:
    """Yields the number of usable processors, and a cure for each variable that asks for more threads.

    `affinity` counts the processors of the mask, `processors` those that the quota of the control groups leaves.
    """
    quota = "" if affinity == processors else f", of {affinity} in the mask: a quota holds the rest back"
    yield Finding("threads", f"{processors} processors to use{quota}")
    values = {name: environment[name] for name in THREAD_VARIABLES if name in environment}
    for name, value in values.items():
        fault = cure = ""
        if not value.isdecimal() or int(value) < 1:
            fault, cure = " is no number of threads", f"set {name} to 1 to {processors}, or unset it"
        elif int(value) > processors:
            fault, cure = " is more than there are processors", f"set {name}={processors}"
        yield Finding("threads", f"{name}={value}{fault}", cure)
    if affinity > processors and not values:
        text = f"BLAS counts the mask and makes {affinity} threads for {processors} processors"
        yield Finding("threads", text, f"set OPENBLAS_NUM_THREADS={processors} and OMP_NUM_THREADS={processors}")


def check_gpu(driver: str | None, fault: str | None) -> Finding:
    """Returns the version of the NVIDIA driver that the kernel states, and the reason why its library cannot be loaded."""
    text, cure = driver or "no NVIDIA driver", ""
    if driver is None and fault is None:
        text = "libcuda can be loaded, and the kernel has no NVIDIA driver"
        cure = "install the driver, or start the container with the GPU"
    elif driver is not None and fault is not None:
        text, cure = f"{driver}, but libcuda cannot be loaded: {fault}", "install the driver's libraries of the same version"
    return Finding("gpu", text, cure)


def read_driver(version: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """Returns the first line of the kernel's file about the driver; None if there is no such file or line."""
    with suppress(OSError, IndexError):
        return version.read_text(encoding="utf-8", errors="replace").splitlines()[0]
    return None


def find_cuda_fault(library: str = "libcuda.so.1") -> str | None:
    """Returns the reason why the driver's library cannot be loaded, None if it can."""
    try:
        ctypes.CDLL(library)
    except OSError as error:
        return str(error)
    return None
