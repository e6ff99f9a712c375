"""The origin of a plugin: its distribution and version, for error messages and blobs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any


@dataclass(frozen=True, slots=True)
class Provenance:
    """The device name, the distribution that announces it, its version, and the module or object that implements it."""

    device: str
    distribution: str
    version: str
    module: str

    def __str__(self) -> str:
        return f"plugin {self.device} ({self.distribution} {self.version})".replace(" )", ")")


def describe_object(name: str, plugin: object) -> Provenance:
    """Returns the provenance of a plugin that was registered at run time: its distribution, where its module belongs to one."""
    module = getattr(plugin, "__name__", None) or type(plugin).__module__
    top = str(module).partition(".")[0]
    distribution, version = find_distribution(top)
    return Provenance(name, distribution or f"module {module}", version, str(module))


def read_identity(distribution: Any) -> tuple[str, str]:
    """Returns name and version of an installed distribution (an `importlib_metadata.Distribution`, or None for an unknown one).

    They stand in the first lines of its METADATA. The library's own properties parse the whole file as a mail: 2 ms for each of them.
    """
    if distribution is None:
        return "an unknown distribution", ""
    header = (distribution.read_text("METADATA") or "").partition("\n\n")[0]
    values = dict(line.split(": ", 1) for line in header.splitlines() if line.startswith(("Name: ", "Version: ")))
    if len(values) == 2:
        return values["Name"].strip(), values["Version"].strip()
    return distribution.name, distribution.version


@cache
def find_distribution(top_level: str) -> tuple[str, str]:
    """Returns name and version of the distribution that installs a top-level package; two empty texts where none does.

    Cost: reads the file lists of all distributions, some 0.2 s, once for each package.
    """
    import importlib_metadata  # reads the list of all installed files; only needed for plugins registered by hand

    names = importlib_metadata.packages_distributions().get(top_level, [])
    return (names[0], importlib_metadata.version(names[0])) if names else ("", "")
