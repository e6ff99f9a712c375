"""Versions: which opsets a model imports, and which version of an operator an opset means."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from hetero_core.errors import InvalidNetworkError
from hetero_core.network.schemas import find_latest_opsets, find_since_version
from hetero_core.network.scopes import normal_domain
from hetero_core.network.soundness import check_text

if TYPE_CHECKING:
    import onnx

BLOCKED_DOMAIN = "com.microsoft.nchwc"
"""The domain of ONNX Runtime's operators on blocks of channels."""
_LARGEST_VERSION = 2**31 - 1
"""The versions that onnx accepts; of a domain that onnx does not know, a model may state any."""


def since_version(op_type: str, domain: str, opset: int) -> int:
    """Returns the version of an operator that an opset means, 0 where onnx has no schema for it."""
    return find_since_version(op_type, domain, opset) if 1 <= opset <= _LARGEST_VERSION else 0


def read_opsets(entries: Iterable[onnx.OperatorSetIdProto], owner: str) -> dict[str, int]:
    """Returns domain -> version.

    Raises: InvalidNetworkError for a domain with two versions and for a version that the installed onnx does not know.
    """
    latest = find_latest_opsets()
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
