"""Tables of kernels by domain, operator and since-version. The toolkit has a table; a device with its own kernels has its own table.

`registry` declares kernels into a table, and tells why a table has none for a node. Imports no array library.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from hetero_core.errors import suggest
from hetero_core.network.graph import Node

if TYPE_CHECKING:
    from hetero_core.kernels.registry import KernelRecord

Key = tuple[str, str, int]
"""Domain, operator and the version since which it means this; 0 for an operator that onnx has no schema for."""


class Declared(Protocol):
    """A declaration with its function; the kernel is made from both when it is first read."""

    @property
    def kernel(self) -> KernelRecord:
        """The kernel."""


class KernelTable:
    """A table of kernels. A device makes one and declares its kernels into it: `@kernel("Relu", since=(14,), dtypes=FLOATS, table=TABLE)`.

    If this table has no kernel for a node's operator and version, the lookup falls back to `base`, if given.
    The toolkit's own table is `registry.TOOLKIT`.
    """

    def __init__(self, *, base: KernelTable | None = None) -> None:
        self.entries: dict[Key, Declared] = {}
        self._base = base

    def add(self, key: Key, declared: Declared) -> None:
        """Adds a kernel for one version."""
        assert key not in self.entries, f"two kernels for {key[1]}-{key[2]}"
        self.entries[key] = declared

    def find(self, node: Node) -> KernelRecord | None:
        """Returns the kernel of a node's operator in the node's version, or None."""
        declared = self.entries.get((node.domain, node.op_type, node.since_version))
        if declared is not None:
            return declared.kernel
        return None if self._base is None else self._base.find(node)

    def read(self) -> Mapping[Key, KernelRecord]:
        """Returns every kernel, sorted by domain, operator and version; includes those of the base that are not overridden."""
        below = {} if self._base is None else self._base.read()
        return dict(sorted({**below, **{key: declared.kernel for key, declared in self.entries.items()}}.items()))

    def explain_missing(self, node: Node) -> str:
        """Returns why there is no kernel for a node: its version or its operator is missing; names the near ones."""
        name = f"{node.domain}:{node.op_type}" if node.domain else node.op_type
        keys = list(self.read())
        versions = [version for domain, op_type, version in keys if (domain, op_type) == (node.domain, node.op_type)]
        if versions:
            listed = ", ".join(str(version) for version in versions)
            return f"{name}-{node.since_version} has no kernel; there are kernels for version {listed}"
        others = [op_type for domain, op_type, _ in keys if domain == node.domain]
        return f"operator {name} has no kernel{suggest(node.op_type, others)}"


def read_signature(function: Callable[..., Any]) -> tuple[dict[str, Any], tuple[str, ...], tuple[int, int | None]]:
    """Returns the attributes with their defaults, those without, and how many inputs there may be; the first parameter is none of them."""
    # What inspect.signature tells, without its objects: 300 functions are read before the first network.
    code = function.__code__
    inputs = code.co_argcount - 1
    keywords = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    defaults = function.__kwdefaults__ or {}
    least = inputs - min(len(function.__defaults__ or ()), inputs)
    is_variadic = bool(code.co_flags & inspect.CO_VARARGS)
    required = tuple(name for name in keywords if name not in defaults)
    return {name: defaults.get(name) for name in keywords}, required, (least, None if is_variadic else inputs)
