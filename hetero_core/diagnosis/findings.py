"""One finding about an installation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """A statement about one topic of the installation. `cure` says what to do; it is empty if nothing needs to be done."""

    topic: str
    text: str
    cure: str = ""
