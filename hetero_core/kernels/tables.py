"""Tables of kernels by domain, operator and since-version. The toolkit has a table; a device with its own kernels has its own table.

`registry` declares kernels into a table, and tells why a table has none for a node. Imports no array library.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from hetero_core.errors import suggest
from hetero_core.network.graph import Node
from hetero_core.network.types import ValueType

if TYPE_CHECKING:
    from hetero_core.kernels.registry import KernelRecord

InputTypes = tuple[ValueType | None, ...]
"""The known types of a node's inputs."""
Key = tuple[str, str, int]
"""Domain, operator and the version since which it means this; 0 for an operator that onnx has no schema for."""


class KernelTable:
    """A table of kernels. A device makes its table and fills it: `@kernel("Relu", since=(14,), dtypes=FLOATS, table=TABLE)`.

    If this table has no kernel for a node's operator and version, the lookup falls back to `base`, if given.
    The toolkit's own table is `registry.TOOLKIT`.
    """

    def __init__(self, *, base: KernelTable | None = None) -> None:
        self._entries: dict[Key, KernelRecord | partial[KernelRecord]] = {}
        self._base = base

    def add(self, key: Key, complete: partial[KernelRecord]) -> None:
        """Adds a kernel for a version; `complete` makes its record when it is first read."""
        assert key not in self._entries, f"two kernels for {key[1]}-{key[2]}"
        self._entries[key] = complete

    def find(self, node: Node) -> KernelRecord | None:
        """Returns the kernel of a node's operator in the node's version, or None."""
        key = node.domain, node.op_type, node.since_version
        if key in self._entries:
            return self._complete(key)
        return None if self._base is None else self._base.find(node)

    def _complete(self, key: Key) -> KernelRecord:
        entry = self._entries[key]
        if isinstance(entry, partial):
            entry = self._entries[key] = entry()
        return entry

    def read(self) -> Mapping[Key, KernelRecord]:
        """Returns every kernel, sorted by domain, operator and version; includes those of the base that are not overridden."""
        below = {} if self._base is None else self._base.read()
        return dict(sorted({**below, **{key: self._complete(key) for key in self._entries}}.items()))

    def explain_missing(self, node: Node) -> str:
        """Returns why there is no kernel for a node: its version or its operator is missing; names the nearest."""
        name = f"{node.domain}:{node.op_type}" if node.domain else node.op_type
        keys = list(self.read())
        versions = [version for domain, op_type, version in keys if (domain, op_type) == (node.domain, node.op_type)]
        if versions:
            listed = ", ".join(str(version) for version in versions)
            return f"{name}-{node.since_version} has no kernel; there are kernels for version {listed}"
        others = [op_type for domain, op_type, _ in keys if domain == node.domain]
        return f"operator {name} has no kernel{suggest(node.op_type, others)}"


def read_signature(
    function: Callable[..., Any], as_attributes: tuple[str, ...] = ()
) -> tuple[dict[str, Any], tuple[str, ...], tuple[int, int | None]]:
    """Returns the attributes with their defaults, those without, and how many inputs there may be; the first parameter is none of them.

    The parameters `as_attributes` are attributes, even if they may stand by position.
    """
    parameters = list(inspect.signature(function).parameters.values())[1:]
    attributes = [each for each in parameters if each.kind is each.KEYWORD_ONLY or each.name in as_attributes]
    inputs = [each for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD and each.name not in as_attributes]
    defaults = {each.name: None if each.default is each.empty else each.default for each in attributes}
    required = tuple(each.name for each in attributes if each.default is each.empty)
    least = sum(each.default is each.empty for each in inputs)
    is_variadic = any(each.kind is each.VAR_POSITIONAL for each in parameters)
    return defaults, required, (least, None if is_variadic else len(inputs))
