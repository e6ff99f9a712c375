"""Device strings: `NAME`, `NAME.id`, `NAME:arguments`; lists of them with nesting, as in `HETERO:(HETERO:A,B),C`."""

from __future__ import annotations

from hetero_core.contract import DeviceName
from hetero_core.errors import DeviceNameError


def parse_device_name(text: str | DeviceName) -> DeviceName:
    """Returns the parts of a device string: split at the first dot before the first colon, upper-cased, spaces stripped.

    Raises: DeviceNameError when the text is empty, has no name, or has an empty id or empty arguments.
    """
    if isinstance(text, DeviceName):
        return text
    if not isinstance(text, str):
        raise DeviceNameError(f"a device is a text like 'CPU', 'GPU.1' or 'HETERO:GPU,CPU'; got {text!r}")
    head, colon, arguments = text.strip().partition(":")
    name, dot, device_id = (piece.strip() for piece in head.partition("."))
    if not name or (dot and not device_id) or (colon and not arguments.strip()):
        raise DeviceNameError(f"device {text!r} is incomplete: expected NAME, NAME.id or NAME:arguments, as in 'HETERO:GPU.1,CPU'")
    return DeviceName(name.upper(), device_id.upper(), _normalise_arguments(arguments))


def split_device_list(arguments: str) -> tuple[str, ...]:
    """Returns the devices of a comma-separated list; a pair of parentheses around one of them is taken off.

    Raises: DeviceNameError for unbalanced parentheses and for an empty entry.
    """
    entries, depth, entry = [], 0, ""
    for character in arguments:
        depth += (character == "(") - (character == ")")
        if depth < 0:
            break
        if character == "," and depth == 0:
            entries.append(entry)
            entry = ""
        else:
            entry += character
    entries.append(entry)
    if depth != 0:
        raise DeviceNameError(f"device list '{arguments}': parentheses do not match")
    stripped = [_strip_parentheses(entry.strip()) for entry in entries]
    if not all(stripped):
        raise DeviceNameError(
            f"device list '{arguments}' has an empty entry; expected devices separated by commas, as in 'GPU,CPU'"
        )
    return tuple(stripped)


def _strip_parentheses(entry: str) -> str:
    return entry[1:-1].strip() if entry.startswith("(") and entry.endswith(")") else entry


def _normalise_arguments(arguments: str) -> str:
    """Upper-cases and drops spaces, so that two spellings of one device string are one string."""
    return "".join(arguments.split()).upper()
