"""The meaning of the names in a NodeProto at its place: opsets and versions of operators, and within a function its attributes and values.

Imports no onnx at run time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from hetero_core.errors import InvalidNetworkError, NetworkReadError, enumerate_choices

if TYPE_CHECKING:
    import onnx

FunctionKey = tuple[str, str, str]
"""Domain, name and overload of a model-local function."""

OPSET_DOMAIN = "hetero.opset"
"""The domain of functions that the writer wraps around a node of another opset; the reader takes the node out again."""


ORIGINAL_NAME_KEY, ORIGINS_KEY, OPSET_KEY = "hetero.original_name", "hetero.origins", "hetero.opset"
"""Keys of a node's metadata in packed networks, for which ONNX has no field. Files of a network have none of them."""


def normal_domain(domain: str) -> str:
    """Returns the normal spelling of a domain: ONNX's own has two, "" and "ai.onnx"."""
    return "" if domain == "ai.onnx" else domain


_IMPLIED = {"com.microsoft": 1}
"""Domains that a model need not import, with the implied version: ONNX Runtime takes its own for imported."""


@dataclass(frozen=True, slots=True)
class NodeScope:
    """The place of a node: the model itself, or an inlined call.

    `path` is "" at the top and "call/" inside; `values` maps the function's names to those outside and grows with each new name;
    `pin` is the device that the enclosing node or call is pinned to; `calls` are the functions that are being inlined; `depth` is how
    many calls and bodies stand around it.
    """

    opsets: Mapping[str, int]
    path: str = ""
    values: dict[str, str] | None = None
    attributes: Mapping[str, Any] | None = None
    pin: str | None = None
    calls: tuple[FunctionKey, ...] = ()
    taken: set[str] = field(default_factory=set)
    depth: int = 0

    def values_named(self, names: Iterable[str]) -> tuple[str, ...]:
        """Returns the names of values in the network."""
        return tuple(names) if self.values is None else tuple([self.value(name) for name in names])

    def value(self, name: str) -> str:
        """Returns the name of a value in the network; inside a call a name of its own, which no other value has."""
        if self.values is None or not name:
            return name
        known = self.values.get(name)
        if known is None:
            known = self.values[name] = make_unique(self.path + name, self.taken) if self.path else name
        return known

    def opset(self, domain: str, owner: str) -> int:
        """Returns the version that is imported of a domain. Raises: InvalidNetworkError."""
        version = self.opsets.get(domain, _IMPLIED.get(domain))
        if version is None:
            raise InvalidNetworkError(
                f"{owner} is of domain '{domain or 'ai.onnx'}', of which no opset is imported; imported are "
                f"{enumerate_choices(name or 'ai.onnx' for name in self.opsets)}. Add it to opset_import."
            )
        return version


def make_unique(name: str, used_names: set[str]) -> str:
    """Returns `name` or a free `name_1`, `name_2`, ..., the first if they are used in order, and enters it in `used_names`.

    Cost: logarithmic in the number of used names, since nested calls in branches make the same name thousands of times.
    """
    last_used, free = 0, 1
    while f"{name}_{free}" in used_names:
        last_used, free = free, 2 * free
    while free - last_used > 1:
        middle = (last_used + free) // 2
        last_used, free = (middle, free) if f"{name}_{middle}" in used_names else (last_used, middle)
    unique = f"{name}_{free}" if name in used_names else name
    used_names.add(unique)
    return unique


def name_nodes(nodes: Sequence[tuple[str, str]], path: str, used_names: set[str]) -> list[str]:
    """Returns a unique name for each (name, op_type) and enters it in `used_names`; an empty or repeated one becomes <op_type>_<index>."""
    names: list[str] = [""] * len(nodes)
    for index, (name, _) in enumerate(nodes):
        if name and path + name not in used_names:
            names[index] = path + name
            used_names.add(path + name)
    for index, (_, op_type) in enumerate(nodes):
        if not names[index]:
            names[index] = make_unique(f"{path}{op_type}_{index}", used_names)
    return names


def names_of_values(graph: onnx.GraphProto) -> Iterable[str]:
    """Yields the names of all values of a graph and of the bodies in it, with repeats."""
    for value in (*graph.input, *graph.output, *graph.initializer):
        yield value.name
    for sparse in graph.sparse_initializer:
        yield sparse.values.name
    for node in graph.node:
        yield from node.output
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from names_of_values(attribute.g)


def check_text(*texts: object) -> None:
    """Refuses names that are not UTF-8, which protobuf gives as bytes. Raises: NetworkReadError."""
    try:
        "".join(texts)  # type: ignore[arg-type]  # the error is the check
    except TypeError:
        name = next(text for text in texts if not isinstance(text, str))
        raise NetworkReadError(f"a name in the model is not UTF-8: {name!r}; the model is damaged. Export it again.") from None


@dataclass(frozen=True, slots=True)
class Schema:
    """The demands of an operator on its nodes, from a version on.

    `inputs` and `outputs` are the least and the most of them; `needed` says of each formal input whether it may not be absent; `types`
    names the type of each: inputs with the same name have the same type, one without a name has any, and further inputs have the last.
    `kinds` are those of the attributes (`tensors.KIND_NAMES`), `required` the attributes without a default.
    """

    since_version: int
    inputs: tuple[int, int]
    outputs: tuple[int, int]
    needed: tuple[bool, ...]
    types: tuple[str, ...]
    kinds: Mapping[str, int]
    required: tuple[str, ...]


@cache
def find_schema(op_type: str, since_version: int, domain: str) -> Schema:
    """Returns the schema of this version of an operator, which must exist."""
    import onnx.defs  # heavy

    schema = onnx.defs.get_schema(op_type, since_version, domain)
    options = onnx.defs.OpSchema.FormalParameterOption
    attributes = schema.attributes
    return Schema(
        int(schema.since_version),
        (schema.min_input, schema.max_input),
        (schema.min_output, schema.max_output),
        tuple(formal.option != options.Optional for formal in schema.inputs),
        tuple(
            "" if formal.option == options.Variadic and not formal.is_homogeneous else formal.type_str for formal in schema.inputs
        ),
        MappingProxyType({name: int(attribute.type.value) for name, attribute in attributes.items()}),
        tuple(sorted(name for name, attribute in attributes.items() if attribute.required)),
    )


BLOCKED_DOMAIN = "com.microsoft.nchwc"
"""The domain of ONNX Runtime's operators on blocks of channels."""
_LARGEST_VERSION = 2**31 - 1
"""The versions that onnx accepts; of a domain that onnx does not know, a model may state any."""


@lru_cache(4096)
def since_version(op_type: str, domain: str, opset: int) -> int:
    """Returns the version of an operator that an opset means, 0 if onnx has no schema for it."""
    import onnx.defs  # heavy

    if not 1 <= opset <= _LARGEST_VERSION or not onnx.defs.has(op_type, max_inclusive_version=opset, domain=domain):
        return 0
    return int(onnx.defs.get_schema(op_type, opset, domain).since_version)


def read_opsets(entries: Iterable[onnx.OperatorSetIdProto], owner: str) -> dict[str, int]:
    """Returns domain -> version. Raises: InvalidNetworkError."""
    from onnx.onnx_cpp2py_export.defs import schema_version_map  # heavy

    latest = {domain: newest for domain, (_, newest) in schema_version_map().items()}
    opsets: dict[str, int] = {}
    for entry in entries:
        check_text(entry.domain)
        domain, version = normal_domain(entry.domain), entry.version
        title = f"opset {version} of domain '{domain or 'ai.onnx'}'"
        if opsets.setdefault(domain, version) != version:
            raise InvalidNetworkError(f"{owner} imports {title} and opset {opsets[domain]} of the same; keep one of them.")
        if version < 1:
            raise InvalidNetworkError(f"{owner} imports {title}; expected a version of 1 or more. Correct the import.")
        if version > latest.get(domain, version):
            raise InvalidNetworkError(
                f"{owner} imports {title}; the installed onnx knows it up to {latest[domain]}. Upgrade onnx or convert the model."
            )
    return opsets
