"""Puts a front end in place of the package with the same API, for a program or for a block of code.

If the package is installed, the names of the front end are set on the package's own module, and all its remaining names stay; a device
around the engine takes the engine's names from where the package defines them. If the package is not installed, the front end is
imported in its name. Python processes that a program starts do the same, by `startup/sitecustomize.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGES_KEY = "HETERO_FRONTENDS"
"""The environment variable that lists the packages which are replaced in each Python process."""
DEVICE_KEY = "HETERO_DEVICE"
"""The environment variable that names the device of a program behind a front end, in place of the program's own choice."""
_STARTUP = str(Path(__file__).parent / "startup")


def find_device(device: str) -> str:
    """Returns the device that HETERO_DEVICE names; the program's own choice without it."""
    return os.environ.get(DEVICE_KEY, "").strip() or device


@contextmanager
def replace_package(package: str, device: str | None = None) -> Iterator[None]:
    """Puts the front end in the place of a package until the block ends; `device` is the value of HETERO_DEVICE meanwhile.

    Names that a program has imported before, by `from package import ...`, stay as they are.
    """
    with ExitStack() as stack:
        own = [] if device is None else [(os.environ, DEVICE_KEY, device)]
        for place, name, value in chain(own, _list_changes(package)):
            stack.callback(*((place.__setitem__, name, place[name]) if name in place else (place.pop, name, None)))
            place[name] = value
        yield


def replace_at_start() -> None:
    """Replaces the packages that HETERO_FRONTENDS lists until this process ends."""
    for package in filter(None, os.environ.get(PACKAGES_KEY, "").split(",")):
        for place, name, value in _list_changes(package):
            place[name] = value


def run_program(package: str, words: Sequence[str]) -> int:
    """Starts Python again on a program, `[-d DEVICE] (APP.py | -m MODULE) [arguments]`, behind the front end; returns its exit status."""
    environment, arguments = dict(os.environ), list(words)
    if len(arguments) > 1 and arguments[0] in ("-d", "--device"):
        environment[DEVICE_KEY] = arguments[1]
        del arguments[:2]
    if not arguments or arguments[0] in ("-d", "--device", "-h", "--help") or arguments == ["-m"]:
        sys.stderr.write(f"usage: python -m hetero_core.frontends.{package} [-d DEVICE] (APP.py | -m MODULE) [arguments]\n")
        return 0 if arguments[:1] in (["-h"], ["--help"]) else 2
    for name, first, separator in ((PACKAGES_KEY, package, ","), ("PYTHONPATH", _STARTUP, os.pathsep)):
        before = filter(None, environment.get(name, "").split(separator))
        environment[name] = separator.join(dict.fromkeys([first, *before]))
    command = [sys.executable, *subprocess._args_from_interpreter_flags(), *arguments]  # type: ignore[attr-defined]  # as multiprocessing
    if os.name == "posix":
        os.execve(sys.executable, command, environment)
    return subprocess.call(command, env=environment)


def _list_changes(package: str) -> Iterator[tuple[Any, str, Any]]:
    """Yields mappings, each with a key and its value, that put the names of the front end into an installed package, or the front end
    itself in the place of one that is not installed. A change is made before the next is asked for.
    """
    front = import_module(f"hetero_core.frontends.{package}")
    try:
        original: ModuleType = import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise  # the package is installed, and lacks a requirement
        original = front
        yield sys.modules, package, front
    stand_ins = getattr(front, "STAND_IN_SUBMODULES", ()) if original is front else ()
    for name in (*front.SUBMODULES, *stand_ins):
        yield sys.modules, f"{package}.{name}", import_module(f"{front.__name__}.{name}")
    for name in () if original is front else front.PUT_NAMES:
        yield vars(original), name, getattr(front, name)
