"""The JSON header of a container: who made it, for what, and the table of its sections. Every field of a stranger's header is checked."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class BlobHeader:
    """The header of a container. `inputs` and `outputs` are names; `config` is the complete configuration.

    `device_id` and `architecture` describe the device that compiled. Both are "" in formats 1 and 2; `device_id` if the device string has
    no id, `architecture` if the device is made of devices, whose own containers name it.
    """

    device: str
    distribution: str
    plugin_version: str
    core_version: str
    payload_version: int
    network: str
    fingerprint: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    config: Mapping[str, Any]
    device_id: str = ""
    architecture: str = ""


@dataclass(frozen=True, slots=True)
class SectionEntry:
    """A section in the table: where it is, from the end of the header; its digest in hex, "" in format 1."""

    name: str
    offset: int
    size: int
    digest: str
    is_code: bool
    is_spare: bool


def write_header(header: BlobHeader, table: list[dict[str, Any]]) -> bytes:
    """Returns the text of a header with the rows of its table."""
    fields = {field.name: getattr(header, field.name) for field in dataclasses.fields(header)}
    return json.dumps({**fields, "config": dict(header.config), "sections": table}, sort_keys=True).encode()


def read_header(text: bytes, *, version: int) -> tuple[BlobHeader, list[SectionEntry]]:
    """Returns the header and the table of sections of a container in this format.

    Raises: ValueError, RecursionError for a text that is no header.
    """
    fields = json.loads(text)
    table = [_read_row(row) for row in _take_field(fields, "sections", list)]
    return _read_fields(fields, _KIND_OF_FIELD if version > 2 else _KIND_OF_OLD_FIELD), table


_KIND_OF_OLD_FIELD: Mapping[str, type] = {
    **dict.fromkeys(("device", "distribution", "plugin_version", "core_version", "network", "fingerprint"), str),
    "payload_version": int,
    "inputs": list,
    "outputs": list,
    "config": dict,
}
_KIND_OF_FIELD: Mapping[str, type] = {**_KIND_OF_OLD_FIELD, "device_id": str, "architecture": str}
_KIND_IN_WORDS = {int: "an int", str: "a text", list: "a list", dict: "an object"}


def _read_fields(fields: dict[str, Any], kinds: Mapping[str, type]) -> BlobHeader:
    """Raises: ValueError for a field that is missing, unknown or of another type."""
    header_fields = {name: _take_field(fields, name, kind) for name, kind in kinds.items()}
    if fields:
        raise ValueError(f"it has the fields {', '.join(fields)}, which the format does not have")
    for side in ("inputs", "outputs"):
        if not all(isinstance(name, str) for name in header_fields[side]):
            raise ValueError(f"its {side} are {header_fields[side]!r}; expected names")
    return BlobHeader(**{**header_fields, "inputs": tuple(header_fields["inputs"]), "outputs": tuple(header_fields["outputs"])})


def _read_row(row: Any) -> SectionEntry:
    fields = dict(row) if isinstance(row, dict) else row
    name, offset, size = _take_field(fields, "name", str), _take_field(fields, "offset", int), _take_field(fields, "size", int)
    is_code, is_spare, digest = fields.pop("code", False), fields.pop("spare", False), fields.pop("digest", "")
    # A mark that is not understood might be one that forbids something.
    if fields or not isinstance(is_code, bool) or not isinstance(digest, str) or is_spare not in (False, is_code):
        raise ValueError(
            f"its section '{name}' is marked {dict(row)!r:.120}; expected name, offset, size, digest and perhaps code, or code and spare"
        )
    return SectionEntry(name, offset, size, digest, is_code, bool(is_spare))


def _take_field(fields: Any, name: str, kind: type) -> Any:
    """Removes a field and returns it. Raises: ValueError when it is not there or of another type; a bool is no int."""
    value = fields.pop(name, None) if isinstance(fields, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        # One kind of error for all that a stranger's header may get wrong.
        raise ValueError(f"its field '{name}' is {value!r:.60}; expected {_KIND_IN_WORDS[kind]}")  # noqa: TRY004  # see above
    return value
