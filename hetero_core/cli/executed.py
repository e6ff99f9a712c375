"""The executed graph of a run as a file, for `hetero run --executed`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hetero_core.cli.answer import UsageError
from hetero_core.cli.options import find_target, write_target

if TYPE_CHECKING:
    from hetero_core.network.graph import Network

SUFFIXES = (".html", ".onnx")


def require_suffix(path: str | None) -> None:
    """Raises UsageError for a file whose ending does not say what to write."""
    if path is not None and Path(path).suffix.lower() not in SUFFIXES:
        raise UsageError(f"--executed {path}: expected a name that ends with {' or '.join(SUFFIXES)}")


def write_executed(path: str, executed: Network) -> Path:
    """Writes the executed graph as a page or as a model; returns where. Raises: UsageError."""
    from hetero_core.network.writer import network_to_bytes  # imports onnx
    from hetero_core.reports.executed import executed_to_html

    target = find_target(path)
    content = network_to_bytes(executed) if target.suffix.lower() == ".onnx" else executed_to_html(executed).encode()
    write_target(target, content)
    return target
