"""Versions: which opsets a model imports, and which version of an operator an opset means."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING

from hetero_core.errors import InvalidNetworkError
from hetero_core.network.scopes import normal_domain
from hetero_core.network.soundness import check_text

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True, slots=True)
class Schema:
    """The demands of an operator on its nodes, from a version on.

    `inputs` and `outputs` are the least and the most of them; `needed` says of each formal input whether it may not be absent; `types`
    names the type of each: inputs with the same name have the same type, one without a name has any, and further inputs have the last.
    `kinds` are those of the attributes (`attributes.KIND_NAMES`), `required` the attributes without a default.
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
