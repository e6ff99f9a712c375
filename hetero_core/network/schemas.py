"""Schemas of ONNX's operators from a table, while onnx itself is not loaded: versions, arity, attributes.

onnx makes its schemas when its library is loaded, which takes longer than reading a small model. The table is generated from one release
of onnx (`python -m hetero_core.network.schemas`) and used only beside that release, and only before onnx is imported, as programs
register schemas of their own there; in any other case onnx is asked. A test compares all of it with onnx. Imports onnx only inside
functions.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from hetero_core.network.installed_onnx import is_release_installed

_FILE = os.path.join(os.path.dirname(__file__), "schemas.txt")
_RELEASE, _DOMAINS = "release", "domains"


@dataclass(frozen=True, slots=True)
class Schema:
    """The demands of an operator on its nodes, from one version on.

    `inputs` and `outputs` are the least and the most of them; `needed` says of each formal input whether it may not be absent; `kinds`
    are those of the attributes (`attributes.KIND_NAMES`), `required` the attributes without a default.
    """

    since_version: int
    inputs: tuple[int, int]
    outputs: tuple[int, int]
    needed: tuple[bool, ...]
    kinds: Mapping[str, int]
    required: tuple[str, ...]


def find_since_version(op_type: str, domain: str, opset: int) -> int:
    """Returns the version of an operator that an opset means, 0 where there is no schema for it."""
    lines = _open_table()
    if lines is not None:
        return max((since for since in _read_versions(lines.get(_key(op_type, domain), "")) if since <= opset), default=0)
    import onnx.defs  # heavy

    if not onnx.defs.has(op_type, max_inclusive_version=opset, domain=domain):
        return 0
    return int(onnx.defs.get_schema(op_type, opset, domain).since_version)


@cache
def find_schema(op_type: str, since_version: int, domain: str) -> Schema:
    """Returns the schema of an operator that has one of this version."""
    lines = _open_table()
    if lines is not None:
        return _read_versions(lines[_key(op_type, domain)])[since_version]
    return ask_onnx(op_type, since_version, domain)


def find_latest_opsets() -> Mapping[str, int]:
    """Returns the latest opset of each domain that the installed onnx knows."""
    lines = _open_table()
    if lines is not None:
        return {domain: int(latest) for domain, _, latest in (each.partition("=") for each in lines[_DOMAINS].split(" "))}
    from onnx.onnx_cpp2py_export.defs import schema_version_map  # heavy

    return {domain: latest for domain, (_, latest) in schema_version_map().items()}


def ask_onnx(op_type: str, since_version: int, domain: str) -> Schema:
    """Returns the schema that onnx has."""
    import onnx.defs  # heavy

    schema = onnx.defs.get_schema(op_type, since_version, domain)
    optional = onnx.defs.OpSchema.FormalParameterOption.Optional
    attributes = schema.attributes
    return Schema(
        int(schema.since_version),
        (schema.min_input, schema.max_input),
        (schema.min_output, schema.max_output),
        tuple(formal.option != optional for formal in schema.inputs),
        MappingProxyType({name: int(attribute.type.value) for name, attribute in attributes.items()}),
        tuple(sorted(name for name, attribute in attributes.items() if attribute.required)),
    )


def _open_table() -> Mapping[str, str] | None:
    """Returns operator -> line of the table; None where onnx is to be asked."""
    if "onnx" in sys.modules:
        return None
    lines = _read_table()
    return lines if is_release_installed(lines[_RELEASE]) else None


@cache
def _read_table() -> Mapping[str, str]:
    with open(_FILE, encoding="utf-8") as file:
        return dict(line.split(" ", 1) for line in file.read().splitlines())


def _key(op_type: str, domain: str) -> str:
    return f"{domain}:{op_type}"


@cache
def _read_versions(line: str) -> Mapping[int, Schema]:
    """Returns version -> schema. A line holds for each version, between slashes, what a Schema has, in its order."""
    return {schema.since_version: schema for schema in map(_read_schema, line.split())}


def _read_schema(text: str) -> Schema:
    since, least_input, most_input, least_output, most_output, needed, attributes = text.split("/")
    pairs = [attribute.split("=") for attribute in attributes.split(",") if attribute]
    return Schema(
        int(since),
        (int(least_input), int(most_input)),
        (int(least_output), int(most_output)),
        tuple(each == "1" for each in needed),
        MappingProxyType({name: int(kind.rstrip("!")) for name, kind in pairs}),
        tuple(name for name, kind in pairs if kind.endswith("!")),
    )


def format_table() -> str:
    """Returns the table of the installed onnx, without what a program has registered there since: call it first."""
    import onnx.defs  # heavy

    domains = " ".join(f"{domain}={latest}" for domain, latest in sorted(find_latest_opsets().items()))
    schemas: dict[str, list[Schema]] = {}
    for each in onnx.defs.get_all_schemas_with_history():
        schemas.setdefault(_key(each.name, each.domain), []).append(ask_onnx(each.name, each.since_version, each.domain))
    lines = [f"{_RELEASE} {onnx.__version__}", f"{_DOMAINS} {domains}"]
    for key, versions in sorted(schemas.items()):
        lines.append(" ".join([key, *map(_format_schema, sorted(versions, key=lambda schema: schema.since_version))]))
    return "\n".join(lines) + "\n"


def _format_schema(schema: Schema) -> str:
    attributes = [f"{name}={kind}{'!' * (name in schema.required)}" for name, kind in sorted(schema.kinds.items())]
    needed = "".join("1" if each else "0" for each in schema.needed)
    return "/".join(map(str, (schema.since_version, *schema.inputs, *schema.outputs, needed, ",".join(attributes))))


if __name__ == "__main__":
    with open(_FILE, "w", encoding="utf-8") as table:
        table.write(format_table())
