"""Puts a front end in the place of the package whose API it has, for one program or for a block of code.

If the package is installed, the names of the front end are set on the package's own module, and all its remaining names stay; an engine's
device holds the originals (`engines.installation`). If it is not installed, the front end is imported in its name. A process that the
program starts does the same: `startup/sitecustomize.py` runs there before the program's own code.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from hetero_core.engines.installation import hold_originals

PACKAGES_KEY = "HETERO_FRONTENDS"
"""The environment variable that lists the replaced packages for the processes that a program starts."""
DEVICE_KEY = "HETERO_DEVICE"
"""The environment variable that names the device of a program behind a front end, in place of the program's own choice."""
_STARTUP = str(Path(__file__).parent / "startup")
_ABSENT = object()


def find_device(device: str) -> str:
    """Returns the device that HETERO_DEVICE names; the program's own choice without it."""
    return os.environ.get(DEVICE_KEY, "").strip() or device


@contextmanager
def replace_package(package: str) -> Iterator[None]:
    """Lets `import package` give the front end within the block; names that were imported before stay the package's own."""
    changes = _replace(package)
    try:
        yield
    finally:
        for place, name, before in reversed(changes):
            if before is _ABSENT:
                place.pop(name, None)
            else:
                place[name] = before


def replace_at_start() -> None:
    """Replaces the packages that HETERO_FRONTENDS lists until this process ends."""
    for package in filter(None, os.environ.get(PACKAGES_KEY, "").split(",")):
        _replace(package)


def run_program(package: str, arguments: Sequence[str]) -> None:
    """Runs a program, a file or `-m MODULE`, with the front end in the place of the package, in its child processes, too."""
    is_module = arguments[:1] == ["-m"]
    words = list(arguments[is_module:])
    if not words or words[0] in ("-h", "--help"):
        raise SystemExit(f"usage: python -m hetero_core.frontends.{package} [-m] PROGRAM [ARGUMENT ...]")
    _extend_variable(PACKAGES_KEY, package, ",")
    _extend_variable("PYTHONPATH", _STARTUP, os.pathsep)
    replace_at_start()
    sys.argv = words
    sys.path.insert(0, os.getcwd() if is_module else str(Path(words[0]).resolve().parent))
    if is_module:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(words[0], run_name="__main__")


def _extend_variable(name: str, first: str, separator: str) -> None:
    before = filter(None, os.environ.get(name, "").split(separator))
    os.environ[name] = separator.join(dict.fromkeys([first, *before]))


def _replace(package: str) -> list[tuple[dict[str, Any], str, Any]]:
    """Replaces a package; returns each changed place with its former value."""
    front = import_module(f"hetero_core.frontends.{package}")
    changes: list[tuple[dict[str, Any], str, Any]] = []

    def put(place: dict[str, Any], name: str, value: Any) -> None:
        changes.append((place, name, place.get(name, _ABSENT)))
        place[name] = value

    try:
        original: ModuleType | None = import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise  # the package is installed, and lacks a requirement
        original = None
        put(sys.modules, package, front)
    for name in front.SUBMODULES:
        put(sys.modules, f"{package}.{name}", import_module(f"{front.__name__}.{name}"))
    if original not in (None, front):
        hold_originals(original)
        for name in (*front.__all__, *(name for name in front.SUBMODULES if "." not in name)):
            put(vars(original), name, getattr(front, name))
    return changes
