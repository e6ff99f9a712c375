"""Device strings: `NAME`, `NAME.id`, `NAME:arguments`; lists of them with counts, exclusions and nesting.

The grammar, with spaces anywhere between its pieces:

    device    = NAME [ "." id ] [ ":" arguments ]
    arguments = entry { "," entry }
    entry     = [ "-" ] ( device | "(" device ")" ) [ "(" count ")" ]
    id        = text without quotes, in which case does not matter | '"' text '"', in which it does

A count belongs to the entry that it ends; if that entry has a colon and no parentheses of its own, to its innermost entry:
`MULTI:BATCH:CPU(8)` is a MULTI of a single BATCH, which has `CPU(8)`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from hetero_core.contract import DeviceName
from hetero_core.errors import DeviceNameError

# Compiled on the first use: most device strings have neither quotes nor counts.
_QUOTED = r'("[^"]*")'
_COUNTED = r"(?s)(.*?)\s*\(\s*(\d+)\s*\)"


@dataclass(frozen=True, slots=True)
class ListedDevice:
    """An entry of a list: `CPU(2)` has a count of 2, `-CPU` is excluded. The device that has the list defines both."""

    device: DeviceName
    count: int | None = None
    is_excluded: bool = False

    def __str__(self) -> str:
        text = f"({self.device})" if self.device.arguments else str(self.device)
        return ("-" if self.is_excluded else "") + text + ("" if self.count is None else f"({self.count})")


def parse_device_name(text: str | DeviceName) -> DeviceName:
    """Returns the parts of a device string: split at the first dot before the first colon, upper-cased, spaces stripped.

    An id in quotes, as in `GPU."uuid-1f"`, stays as it is written.

    Raises: DeviceNameError when the text is empty, has no name, or has an empty id or empty arguments; for a count without a list.
    """
    if isinstance(text, DeviceName):
        return text
    if not isinstance(text, str):
        raise DeviceNameError(f"a device is a text like 'CPU', 'GPU.1' or 'HETERO:GPU,CPU'; got {text!r}")
    head, colon, arguments = _split_once(text.strip(), ":")
    name, dot, device_id = (piece.strip() for piece in _split_once(head, "."))
    if not name or (dot and not device_id.strip('"')) or (colon and not arguments.strip()):
        raise DeviceNameError(f"device {text!r} is incomplete: expected NAME, NAME.id or NAME:arguments, as in 'HETERO:GPU.1,CPU'")
    if not colon and "(" in head and re.fullmatch(_COUNTED, head):
        raise DeviceNameError(
            f"device {text!r} has a count and stands in no list; a count is for the devices of one that is made of devices, "
            f"as in 'MULTI:{text.strip()}'"
        )
    return DeviceName(name.upper(), _read_id(device_id, text), normalise_arguments(arguments))


def parse_device_list(arguments: str) -> tuple[ListedDevice, ...]:
    """Returns the entries of a comma-separated list, in order.

    Raises: DeviceNameError for unbalanced parentheses and quotes, an empty entry, and a count of 0.
    """
    entries = _split_entries(arguments)
    return tuple(ListedDevice(parse_device_name(text), count, is_excluded) for text, count, is_excluded in entries)


def split_device_list(arguments: str) -> tuple[str, ...]:
    """Returns the devices of a comma-separated list, without parentheses around them and counts; excluded devices are left out.

    Raises: DeviceNameError as `parse_device_list` does for the list; the devices themselves are not parsed.
    """
    return tuple(device for device, _, is_excluded in _split_entries(arguments) if not is_excluded)


def normalise_arguments(arguments: str) -> str:
    """Returns the text behind a colon upper-cased and without spaces, except in quotes: two spellings of a list become the same text."""
    if '"' not in arguments:
        return "".join(arguments.split()).upper()
    pieces = re.split(_QUOTED, arguments)
    if any('"' in piece for piece in pieces[::2]):
        raise DeviceNameError(f"device list '{arguments}': a quote does not end")
    return "".join(piece if index % 2 else "".join(piece.split()).upper() for index, piece in enumerate(pieces))


def _read_id(device_id: str, text: str) -> str:
    if '"' not in device_id:
        return device_id.upper()
    if device_id.count('"') != 2 or not (device_id.startswith('"') and device_id.endswith('"')):
        raise DeviceNameError(f"device {text!r}: an id stands in quotes as a whole, as in 'GPU.\"uuid-1f\"'")
    return device_id[1:-1]


def _mask(text: str) -> str:
    """Returns the text with a letter in place of each character in quotes, so that separators are found outside of quotes alone."""
    return re.sub(_QUOTED, lambda quoted: "q" * len(quoted[0]), text)


def _walk(text: str) -> Iterator[tuple[int, str, int]]:
    """Yields position, character and depth of parentheses outside quotes; both parentheses of a pair have the same depth."""
    depth = 0
    masked = _mask(text)
    for position, character in enumerate(masked):
        depth += character == "("
        yield position, character, depth
        depth -= character == ")"
        if depth < 0:
            break
    if '"' in masked:
        raise DeviceNameError(f"device list '{text}': a quote does not end")
    if depth != 0:
        raise DeviceNameError(f"device list '{text}': parentheses do not match")


def _split_once(text: str, separator: str) -> tuple[str, str, str]:
    """Splits at the first separator outside quotes, as `str.partition` does."""
    place = _mask(text).find(separator)
    return (text, "", "") if place < 0 else (text[:place], separator, text[place + 1 :])


def _split_entries(arguments: str) -> Iterator[tuple[str, int | None, bool]]:
    """Yields the text of each device of a list, its count, and whether it is excluded."""
    commas = [position for position, character, depth in _walk(arguments) if character == "," and depth == 0]
    for before, end in pairwise((-1, *commas, len(arguments))):
        yield _split_entry(arguments[before + 1 : end].strip(), arguments)


def _split_entry(entry: str, arguments: str) -> tuple[str, int | None, bool]:
    is_excluded = entry.startswith("-")
    text, count = (entry[1:] if is_excluded else entry).strip(), None
    counted = re.fullmatch(_COUNTED, text)
    if counted and not any(character == ":" and depth == 0 for _, character, depth in _walk(text)):
        text, count = counted[1], int(counted[2])
        if count == 0:
            raise DeviceNameError(f"device list '{arguments}': the count of '{entry}' is 0; expected 1 or more, or no count")
    if text.startswith("(") and text.endswith(")"):
        text = text[1:-1].strip()
    if not text:
        raise DeviceNameError(
            f"device list '{arguments}' has an empty entry; expected devices separated by commas, as in 'GPU,CPU'"
        )
    return text, count, is_excluded
