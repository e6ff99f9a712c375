"""This front end in the place of ONNX Runtime, for a program that says `import onnxruntime`.

If ONNX Runtime is installed, its module keeps its submodules and gets the names of this front end: `onnxruntime.InferenceSession` is ours,
`onnxruntime.capi` remains the engine's own, and the device ORT uses that. Otherwise a module `onnxruntime` stands in, with the submodules
from which programs import exceptions and classes. Both happen when the program imports the module, by a finder on `sys.meta_path`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import hetero_core.frontends.onnxruntime as frontend
from hetero_core.frontends.onnxruntime.errors import EXCEPTIONS, STATE_MODULE
from hetero_core.frontends.onnxruntime.providers import DEVICE_VARIABLE, STAND_IN

_MODULE = "onnxruntime"
_SUBMODULES = ("capi", "capi._pybind_state", "capi.onnxruntime_inference_collection", "capi.onnxruntime_pybind11_state")


@contextmanager
def replace_onnxruntime(device: str | None = None) -> Iterator[None]:
    """Puts this front end in the place of ONNX Runtime until the block ends; `device` is the value of HETERO_DEVICE meanwhile.

    Names that a program has imported before, by `from onnxruntime import ...`, stay as they are.
    """
    before = os.environ.get(DEVICE_VARIABLE)
    if device is not None:
        os.environ[DEVICE_VARIABLE] = device
    finder = start()
    try:
        yield
    finally:
        if finder is not None:
            finder.stop()
        if before is not None:
            os.environ[DEVICE_VARIABLE] = before
        elif device is not None:
            os.environ.pop(DEVICE_VARIABLE, None)


def start() -> Finder | None:
    """Puts this front end in the place of ONNX Runtime; returns None if it is there already."""
    if any(isinstance(finder, Finder) for finder in sys.meta_path):
        return None
    finder = Finder()
    sys.meta_path.insert(0, finder)
    if _MODULE in sys.modules:
        finder.put_names(sys.modules[_MODULE])
    return finder


class Finder(MetaPathFinder, Loader):
    """Finds the module `onnxruntime`: the installed one, whose names it replaces after the import, or the stand-in."""

    def __init__(self) -> None:
        self._replaced: dict[str, Any] = {}
        self._module: ModuleType | None = None

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Returns the spec of the installed module or of the stand-in; None for every other module."""
        if name == _MODULE:
            spec = self._find_installed(path, target)
            return ModuleSpec(name, self, origin=STAND_IN, is_package=True) if spec is None else self._follow(spec)
        package, _, rest = name.partition(".")
        is_stand_in = package == _MODULE and rest in _SUBMODULES and _stands_in(sys.modules.get(_MODULE))
        return ModuleSpec(name, self, origin=STAND_IN, is_package=rest == "capi") if is_stand_in else None

    def _find_installed(self, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(_MODULE, path, target)
            # An empty folder, left by an uninstalled package, has no origin.
            if spec is not None and spec.origin is not None:
                return spec
        return None

    def _follow(self, spec: ModuleSpec) -> ModuleSpec:
        """Returns the spec with a loader that replaces the names when the module has been executed."""
        loader: Any = spec.loader
        execute = loader.exec_module

        def execute_and_replace(module: ModuleType) -> None:
            execute(module)
            self.put_names(module)

        loader.exec_module = execute_and_replace
        return spec

    def exec_module(self, module: ModuleType) -> None:
        """Fills a stand-in."""
        for name in (*frontend.PUT_NAMES, *(frontend.STAND_IN_NAMES if module.__name__ == _MODULE else ())):
            setattr(module, name, getattr(frontend, name))
        if module.__name__ in (STATE_MODULE, f"{_MODULE}.capi._pybind_state"):
            vars(module).update(EXCEPTIONS)

    def put_names(self, module: ModuleType) -> None:
        """Replaces names of the installed module."""
        self._module = module
        for name in () if _stands_in(module) else frontend.PUT_NAMES:
            self._replaced[name] = getattr(module, name, None)
            setattr(module, name, getattr(frontend, name))

    def stop(self) -> None:
        """Restores the module, or removes the stand-in."""
        sys.meta_path.remove(self)
        for name, value in self._replaced.items():
            if value is None:
                delattr(self._module, name)
            else:
                setattr(self._module, name, value)
        for name in [name for name in sys.modules if name.partition(".")[0] == _MODULE]:
            if _stands_in(sys.modules[name]):
                del sys.modules[name]


def _stands_in(module: ModuleType | None) -> bool:
    return getattr(getattr(module, "__spec__", None), "origin", None) == STAND_IN
