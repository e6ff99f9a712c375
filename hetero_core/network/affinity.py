"""Pins of nodes to devices: patterns of names, precedence between patterns, and files of pins.

Knows names only. Rank of patterns: exact name, then glob and "re:", then "op:"; a pattern of lower rank fills in the nodes
without a pin of higher rank.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from hetero_core.errors import AffinityError, enumerate_choices, suggest

AFFINITY_KEY = "hetero.affinity"
"""The key of a node's pin in `metadata_props` of an ONNX file."""

PLAIN_AFFINITY_KEY = "affinity"
"""The key by which the Inference Engine and OpenVINO know a node's device; read as a pin of a node without AFFINITY_KEY."""
TABLE = "affinity"
"""The table of a TOML file that holds pins."""


def read_pins(path: str | os.PathLike[str]) -> dict[str, str]:
    """Returns pattern -> device from the table [affinity] of a TOML file, in the order of the file. Raises: AffinityError."""
    import tomllib  # only files of pins need it

    where = f"'{os.fspath(path)}'"
    try:
        with open(path, encoding="utf-8") as file:
            document = tomllib.loads(file.read())
    except OSError as error:
        raise AffinityError(f"cannot read pins from {where}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise AffinityError(f"cannot read pins from {where}: it is no TOML: {error}") from error
    for key in document:
        if key != TABLE:
            hint = suggest(key, [TABLE]) or ";"
            raise AffinityError(
                f"{where} has '{key}' at its top{hint} expected the table [{TABLE}] alone, found {enumerate_choices(document)}"
            )
    pins = document.get(TABLE)
    if not isinstance(pins, dict):
        raise AffinityError(f'{where}: expected a table [{TABLE}] with lines such as "conv1" = "GPU", found {pins!r}')
    for pattern, device in pins.items():
        if not isinstance(device, str) or not device.strip():
            raise AffinityError(
                f"{where}, [{TABLE}], key '{pattern}': expected a device as text, got {device!r}; quote a pattern that has dots"
            )
    return pins


def resolve_pins(nodes: Sequence[tuple[str, str]], pins: Mapping[str, str]) -> dict[str, str]:
    """Returns node name -> device for `nodes` given as (name, operator type), in the order of the nodes. Raises: AffinityError."""
    names = {name for name, _ in nodes}
    chosen: dict[str, tuple[int, str, str]] = {}
    for pattern, device in pins.items():
        if not isinstance(pattern, str):
            raise AffinityError(f"a pin is the name of a node or a pattern as text; got {pattern!r}")
        if not isinstance(device, str) or not device.strip():
            raise AffinityError(f"pin '{pattern}': expected a device name, got {device!r}")
        rank, matched = _match_pattern(nodes, names, pattern)
        if not matched:
            known = {op_type for _, op_type in nodes} if pattern.startswith("op:") else names
            hint = suggest(pattern.removeprefix("op:"), known)
            raise AffinityError(f"pin '{pattern}' -> {device} matches none of the {len(nodes)} nodes{hint}")
        for name in matched:
            held = chosen.get(name)
            if held is None or rank < held[0]:
                chosen[name] = (rank, pattern, device)
            elif rank == held[0] and device != held[2]:
                raise AffinityError(
                    f"pins '{held[1]}' -> {held[2]} and '{pattern}' -> {device} are of one rank and disagree on node '{name}'; "
                    "pin the node by its exact name"
                )
    return {name: chosen[name][2] for name, _ in nodes if name in chosen}


def _match_pattern(nodes: Sequence[tuple[str, str]], names: set[str], pattern: str) -> tuple[int, list[str]]:
    """Returns the rank of a pattern (0 exact, 1 glob or expression, 2 operator) and the names that it matches."""
    if pattern in names:
        return 0, [pattern]
    if pattern.startswith("op:"):
        return 2, [name for name, op_type in nodes if op_type == pattern[3:]]
    if pattern.startswith("re:"):
        try:
            expression = re.compile(pattern[3:])
        except re.error as error:
            raise AffinityError(f"pin '{pattern}' is no regular expression: {error}") from error
        return 1, [name for name, _ in nodes if expression.fullmatch(name)]
    return 1, [name for name, _ in nodes if fnmatchcase(name, pattern)]
