"""Versions: which opsets a model imports, and which version of an operator an opset means. Imports onnx only inside functions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from hetero_core.errors import InvalidNetworkError
from hetero_core.network.scopes import normal_domain
from hetero_core.network.soundness import check_text

if TYPE_CHECKING:
    import onnx

_LARGEST_VERSION = 2**31 - 1
"""The versions that onnx accepts; of a domain that onnx does not know, a model may state any."""


def since_version(op_type: str, domain: str, opset: int) -> int:
    """Returns the version of an operator that an opset means, 0 where onnx has no schema for it."""
    import onnx.defs  # heavy

    if not 1 <= opset <= _LARGEST_VERSION or not onnx.defs.has(op_type, max_inclusive_version=opset, domain=domain):
        return 0
    return int(onnx.defs.get_schema(op_type, opset, domain).since_version)


def read_opsets(entries: Iterable[onnx.OperatorSetIdProto], owner: str) -> dict[str, int]:
    """Returns domain -> version.

    Raises: InvalidNetworkError for a domain with two versions and for a version that the installed onnx does not know.
    """
    from onnx.onnx_cpp2py_export.defs import schema_version_map  # heavy

    known: dict[str, tuple[int, int]] = schema_version_map()
    opsets: dict[str, int] = {}
    for entry in entries:
        check_text(entry.domain)
        domain, version = normal_domain(entry.domain), entry.version
        title = f"opset {version} of domain '{domain or 'ai.onnx'}'"
        if opsets.setdefault(domain, version) != version:
            raise InvalidNetworkError(f"{owner} imports {title} and opset {opsets[domain]} of the same; keep one of them.")
        if version < 1:
            raise InvalidNetworkError(f"{owner} imports {title}; expected a version of 1 or more. Correct the import.")
        if domain in known and version > known[domain][1]:
            raise InvalidNetworkError(
                f"{owner} imports {title}; the installed onnx knows it up to {known[domain][1]}. Upgrade onnx or convert the model."
            )
    return opsets
