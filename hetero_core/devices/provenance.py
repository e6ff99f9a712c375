"""The origin of a plugin: its distribution and version, for error messages and blobs; and calls that add it to their errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, TypeVar

import importlib_metadata

from hetero_core.errors import HeteroError, PluginError


@dataclass(frozen=True, eq=False)
class Provenance:
    """The device name, the distribution that announces it, its version, and the module or object that implements it."""

    device: str
    read: Callable[[], tuple[str, str]]
    """Returns distribution and version; called on first use, because reading the metadata of a distribution takes a millisecond."""
    module: str

    @cached_property
    def _identity(self) -> tuple[str, str]:
        return self.read()

    @property
    def distribution(self) -> str:
        """The name of the distribution."""
        return self._identity[0]

    @property
    def version(self) -> str:
        """The version of the distribution; "" if it is unknown."""
        return self._identity[1]

    def __str__(self) -> str:
        return f"plugin {self.device} ({self.distribution} {self.version})".replace(" )", ")")


def describe_object(name: str, plugin: object) -> Provenance:
    """Returns the provenance of a plugin that was registered at run time, from the distribution of its module, if any."""
    module = getattr(plugin, "__name__", None) or type(plugin).__module__
    top = str(module).partition(".")[0]
    distribution, version = find_distribution(top)
    return Provenance(name, lambda: (distribution or f"module {module}", version), str(module))


def read_identity(distribution: Any) -> tuple[str, str]:
    """Returns name and version of an installed distribution (an `importlib_metadata.Distribution`, or None if it is unknown)."""
    if distribution is None:
        return "an unknown distribution", ""
    metadata = distribution.metadata  # parsed anew by each access
    return metadata["Name"], metadata["Version"]


def load_entry_point(entry_point: Any, title: object, *, kind: type[HeteroError] = PluginError, cure: str = "") -> Any:
    """Returns the object of an entry point, imported. Raises: an error of this kind with the error of the import; `title` begins it."""
    try:
        return entry_point.load()
    except (Exception, SystemExit) as error:
        raise kind(f"{title} cannot be imported from '{entry_point.value}': {type(error).__name__}: {error}{cure}") from error


@cache
def find_core_version() -> str:
    """Returns the version of hetero-core that is installed."""
    return importlib_metadata.version("hetero-core")


@cache
def find_distribution(top_level: str) -> tuple[str, str]:
    """Returns name and version of the distribution that installs a top-level package; two empty texts if no distribution does.

    Cost: reads the file lists of all distributions, some 0.2 s, once for each package.
    """
    names = importlib_metadata.packages_distributions().get(top_level, [])
    return (names[0], importlib_metadata.version(names[0])) if names else ("", "")


Result = TypeVar("Result")


def call_named(call: Callable[[], Result], *, blame: object, where: str) -> Result:
    """Returns the result of a call to a plugin. An error of the call gets a note with the plugin and the question.

    Raises: PluginError for a plugin that calls `sys.exit()`.
    """
    try:
        return call()
    except SystemExit as error:
        raise PluginError(f"{blame} called sys.exit({error.code!r}) in {where}; a plugin must not end the program") from error
    except Exception as error:  # a plugin may raise anything
        error.add_note(f"raised by {blame} in {where}")
        raise


def read_mapping(answer: Any, *, blame: object, where: str) -> dict[str, Any]:
    """Returns a copy of the mapping that a plugin returned. Raises: PluginError for anything else."""
    if not isinstance(answer, Mapping):
        raise PluginError(f"{blame} returned {type(answer).__name__} from {where}; expected a mapping by name")
    return dict(answer)
