"""A cache of the installed plugins: each Core reads the metadata of all distributions, 12 ms, and a test session opens thousands."""

from __future__ import annotations

import os
import sys
from functools import cache, lru_cache
from typing import Any

import importlib_metadata

from hetero_core.devices import extensions, provenance, registry

_read_entry_points = importlib_metadata.entry_points


def share_installed_plugins() -> None:
    """Lets all Cores of this process share the entry points, until the path of modules or one of its folders changes."""
    importlib_metadata.entry_points = read_entry_points
    read_identity = cache(provenance.read_identity)
    importers: tuple[Any, ...] = (registry, extensions)
    for module in importers:
        module.read_identity = read_identity


def read_entry_points(**selection: Any) -> importlib_metadata.EntryPoints:
    """Returns the entry points like `importlib_metadata.entry_points`; cached if all are asked for."""
    return _read_entry_points(**selection) if selection else _read_all(tuple((folder, _read_time(folder)) for folder in sys.path))


@lru_cache(maxsize=1)
def _read_all(path: tuple[tuple[str, int], ...]) -> importlib_metadata.EntryPoints:
    return _read_entry_points()


def _read_time(folder: str) -> int:
    try:
        return os.stat(folder or ".").st_mtime_ns
    except OSError:
        return 0
