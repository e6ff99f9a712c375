"""Execution providers in libraries of their own, which ONNX Runtime loads: installed packages `onnxruntime-ep-*`, and files of the user.

A registration lasts for the whole process, so a library is registered once, when the providers are first asked
for. Its code then runs in this process.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

LIBRARY_VARIABLE = "ORT_PROVIDER_LIBRARY"
"""Environment variable with paths of libraries, separated as those of PATH are."""
_PREFIX = "onnxruntime_ep_"
_lock = threading.Lock()
_registered: dict[str, tuple[str, tuple[str, ...]]] = {}
"""Path of a library -> the engine's reason for refusing it, or an empty text, and the providers that came with it."""


def register_libraries(module: ModuleType) -> Mapping[str, str]:
    """Registers new libraries; returns the faults of unusable libraries by the name of the provider or file."""
    faults: dict[str, str] = {}
    files = [path for path in os.environ.get(LIBRARY_VARIABLE, "").split(os.pathsep) if path]
    with _lock:
        for source in (*_list_packages(), *files):
            title = source.removeprefix(_PREFIX) if source not in files else Path(source).stem
            try:
                path, names = _find_library(source, is_file=source in files)
            except Exception as error:  # noqa: BLE001  # a package of somebody else's may raise anything; its text is the answer
                faults[title] = f"{type(error).__name__}: {error}"
                continue
            fault, new_names = _register(module, path)
            for name in names or new_names or (title,):
                if fault or name not in _list_names(module):
                    faults[name] = fault or (
                        f"its library {Path(path).name} is loaded, and finds no hardware of its kind here; the provider's documents name "
                        "its hardware and drivers"
                    )
    return faults


def find_devices(module: ModuleType, provider: str) -> list[Any]:
    """Returns the engine's devices of a provider that came in a library, best first; none for a provider that the engine was built with."""
    is_known = any(provider in names for _, names in _registered.values())
    return [device for device in module.get_ep_devices() if device.ep_name == provider] if is_known else []


def _list_packages() -> list[str]:
    """Returns the names of installed packages of providers, sorted. `pkgutil.iter_modules` looks into every package for it, for 30 ms."""
    names: set[str] = set()
    for folder in sys.path:
        with suppress(OSError):  # a folder that is not there
            names.update(file.partition(".")[0] for file in os.listdir(folder or os.curdir) if file.startswith(_PREFIX))
    specs = ((name, find_spec(name)) for name in sorted(names) if name.isidentifier())
    return [name for name, spec in specs if spec is not None and spec.origin is not None]


def _find_library(source: str, *, is_file: bool) -> tuple[str, Sequence[str]]:
    """Returns path and providers of a library; of a file, no providers.

    A package tells them by the two functions that ONNX Runtime's documents ask of such packages.
    """
    if is_file and not os.path.isfile(source):
        raise FileNotFoundError(f"{LIBRARY_VARIABLE} names '{source}', which is no file; give the path of a provider's library")
    if is_file:
        return os.path.abspath(source), ()
    package = import_module(source)
    return str(package.get_library_path()), package.get_ep_names() if hasattr(package, "get_ep_names") else [package.get_ep_name()]


def _register(module: ModuleType, path: str) -> tuple[str, tuple[str, ...]]:
    """Registers a library once; returns its entry of `_registered`."""
    if path not in _registered:
        before, fault = _list_names(module), ""
        try:
            module.register_execution_provider_library(path, path)
        except Exception as error:  # noqa: BLE001  # any error of the engine is its answer
            fault = f"{type(error).__name__}: {' '.join(str(error).split())}"
        _registered[path] = fault, tuple(sorted(_list_names(module) - before))
    return _registered[path]


def _list_names(module: ModuleType) -> set[str]:
    return {device.ep_name for device in module.get_ep_devices()}
