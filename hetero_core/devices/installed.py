"""Installed packages: entry points and versions, read from the folders of the search path.

importlib-metadata knows every way in which a distribution can be installed, and takes 10 ms to import and ask. What pip leaves is plain:
a folder `<name>-<version>.dist-info` in a folder of the search path, one for each name. That is read here; where anything is not
plain (an archive, an egg, a finder of somebody's own, a name that is there twice, a value that is no module and attribute),
importlib-metadata is asked.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from importlib import import_module
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any

from hetero_core.devices.provenance import read_identity

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class InstalledFolder:
    """The `dist-info` folder of a distribution."""

    path: str

    def read_text(self, name: str) -> str | None:
        """Returns the text of a file in the folder, None where there is none."""
        try:
            with open(os.path.join(self.path, name), encoding="utf-8") as file:
                return file.read()
        except OSError:
            return None


@dataclass(frozen=True, slots=True)
class InstalledEntryPoint:
    """An entry point, as importlib-metadata would give it: `load` imports its module and returns what `value` names."""

    name: str
    value: str
    group: str
    dist: InstalledFolder
    load: Callable[[], Any]


def list_entry_points(groups: Collection[str]) -> list[Any]:
    """Returns the entry points of these groups, in the order of the search path; each call walks anew."""
    entry_points = _read_plain(groups)
    if entry_points is not None:
        return entry_points
    import importlib_metadata

    return [entry_point for entry_point in importlib_metadata.entry_points() if entry_point.group in groups]


def find_version(distribution: str) -> str:
    """Returns the version of an installed distribution. Raises: importlib_metadata.PackageNotFoundError."""
    folders = (_find_folders() or {}).get(_normalize(distribution), [])
    if len(folders) == 1 and folders[0].endswith(".dist-info"):
        folder = InstalledFolder(folders[0])
        if "\nVersion: " in (folder.read_text("METADATA") or ""):
            return read_identity(folder)[1]
    import importlib_metadata

    return read_identity(importlib_metadata.distribution(distribution))[1]


@cache
def find_core_version() -> str:
    """Returns the version of hetero-core that is installed; asked once in a process."""
    return find_version("hetero-core")


def _read_plain(groups: Collection[str]) -> list[InstalledEntryPoint] | None:
    folders = _find_folders()
    if folders is None:
        return None
    entry_points: list[InstalledEntryPoint] = []
    for paths in folders.values():
        for path in paths:
            pairs = _read_pairs(path, groups)
            if pairs is None or (pairs and (len(paths) > 1 or not _is_described(path))):
                return None
            folder = InstalledFolder(path)
            entry_points += [InstalledEntryPoint(name, value, group, folder, partial(_load, value)) for group, name, value in pairs]
    return entry_points


def _is_described(path: str) -> bool:
    header = (InstalledFolder(path).read_text("METADATA") or "").partition("\n\n")[0]
    return path.endswith(".dist-info") and "Name: " in header and "\nVersion: " in header


def _find_folders() -> dict[str, list[str]] | None:
    """Returns distribution -> folders, in the order of the search path; None where a part of it is not plain."""
    if any(hasattr(finder, "find_distributions") and not _is_standard(finder) for finder in sys.meta_path):
        return None
    return _list_folders(tuple([(root, _read_time(root)) for root in dict.fromkeys(sys.path)]))


def _read_time(root: str) -> int:
    """Returns when a folder was changed last, 0 where there is none."""
    try:
        return os.stat(root or ".").st_mtime_ns
    except OSError:
        return 0


@lru_cache(maxsize=1)
def _list_folders(roots: tuple[tuple[str, int], ...]) -> dict[str, list[str]] | None:
    folders: dict[str, list[str]] = {}
    for root, _ in roots:
        try:
            names = os.listdir(root or ".")
        except OSError:
            if os.path.isfile(root):
                return None
            continue
        if root.lower().endswith(".egg"):
            return None
        for name in names:
            if name.lower().endswith((".dist-info", ".egg-info")):
                distribution = _normalize(name.lower().rpartition(".")[0].partition("-")[0])
                folders.setdefault(distribution, []).append(os.path.join(root, name))
    return folders


def _is_standard(finder: Any) -> bool:
    return finder is PathFinder or type(finder).__module__.partition(".")[0] == "importlib_metadata"


def _normalize(name: str) -> str:
    # re.sub(r"[-_.]+", "_", name), which takes a millisecond to be compiled.
    while (joined := name.replace("-", "_").replace(".", "_").replace("__", "_")) != name:
        name = joined
    return name.lower()


def _read_pairs(path: str, groups: Collection[str]) -> list[tuple[str, str, str]] | None:
    """Returns group, name and value of the entry points of these groups; None where one of them is not plain."""
    try:
        with open(os.path.join(path, "entry_points.txt"), "rb") as file:
            content = file.read()
    except OSError:
        return []
    if not any(group.encode() in content for group in groups):
        return []
    group = ""
    pairs = []
    for line in map(str.strip, content.decode("utf-8", "replace").splitlines()):
        if line.startswith("[") and line.endswith("]"):
            group = line.strip("[]")
        elif group in groups and line and not line.startswith("#"):
            name, equals, value = (each.strip() for each in line.partition("="))
            module, colon, attribute = value.partition(":")
            if not equals or not _is_dotted(module) or (colon and not _is_dotted(attribute)):
                return None
            pairs.append((group, name, value))
    return pairs


def _is_dotted(text: str) -> bool:
    return all(part.isidentifier() for part in text.split("."))


def _load(value: str) -> Any:
    module, _, attributes = value.partition(":")
    loaded = import_module(module)
    for attribute in attributes.split(".") if attributes else ():
        loaded = getattr(loaded, attribute)
    return loaded
