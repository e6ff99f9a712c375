"""Metadata of nodes in packed networks for which ONNX has no field: a node's opset, its origins, its original name.

Imports nothing heavy.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from hetero_core.errors import InvalidNetworkError
from hetero_core.network.graph import EMPTY, Node

ORIGINAL_NAME_KEY, ORIGINS_KEY, OPSET_KEY = "hetero.original_name", "hetero.origins", "hetero.opset"
"""Keys of a node's metadata. Files of a network have none of them: a file is a model of its own."""


def no_notes(node: Node) -> Mapping[str, str]:
    """Returns no metadata: an ONNX file need not say more than ONNX does."""
    return EMPTY


def history_of_node(node: Node) -> Mapping[str, str]:
    """Returns as metadata what ONNX has no field for: the original name and the origins."""
    notes: dict[str, str] = {}
    if node.original_name is not None:
        notes[ORIGINAL_NAME_KEY] = node.original_name
    if node.origins != (node.name,):
        notes[ORIGINS_KEY] = json.dumps(node.origins)
    return notes


def read_origins_note(metadata: Mapping[str, str], owner: str) -> tuple[str, ...]:
    """Returns the origins that a packed network notes for a node, none where it notes none."""
    text = metadata.get(ORIGINS_KEY)
    if text is None:
        return ()
    try:
        origins = json.loads(text)
    except ValueError:
        origins = None
    if not isinstance(origins, list) or not all(isinstance(origin, str) for origin in origins):
        raise InvalidNetworkError(f"{owner} has '{ORIGINS_KEY}' = '{text[:40]}'; expected a list of names. Remove this metadata.")
    return tuple(origins)


def read_opset_note(metadata: Mapping[str, str], owner: str) -> int:
    """Returns the opset that a packed network notes for a node, 0 if it notes none."""
    text = metadata.get(OPSET_KEY, "0")
    if not text.isdecimal() or len(text) > 9:
        raise InvalidNetworkError(f"{owner} has '{OPSET_KEY}' = '{text[:40]}'; expected an opset version. Remove this metadata.")
    return int(text)
