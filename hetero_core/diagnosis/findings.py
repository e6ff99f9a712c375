"""One finding about an installation."""

from __future__ import annotations

from hetero_core.records import record


@record(frozen=True, slots=True)
class Finding:
    """What was found about a topic. `cure` says what to do about it; it is empty where nothing needs to be done."""

    topic: str
    text: str
    cure: str = ""
