"""The times of one run, added up by subgraph."""

from __future__ import annotations

from typing import Any

from hetero_core.cli.tables import format_seconds, format_table
from hetero_core.profile import Profile


def sum_times(profile: Profile) -> list[dict[str, Any]]:
    """Returns for each subgraph its device, the seconds of its nodes, and seconds and bytes of what was copied for it.

    `path` is "1/0" for subgraph 0 of a split network that is subgraph 1; `subgraph` is then 1 and `stage_device` the device of that.
    """
    device_of_stage = {stage.path: stage.device for stage in profile.stages}
    sums: dict[tuple[tuple[int, ...], str], dict[str, Any]] = {}
    for entry in profile.entries:
        fields = sums.setdefault(
            (entry.path, entry.device),
            {
                "subgraph": entry.subgraph,
                "path": "/".join(map(str, entry.path)),
                "device": entry.device,
                "stage_device": device_of_stage.get(entry.path[:1], entry.device),
                "steps": 0,
                "seconds": 0.0,
                "transfer_seconds": 0.0,
                "transfer_bytes": 0,
            },
        )
        if entry.operator == "transfer":
            fields["transfer_seconds"] += entry.seconds
            fields["transfer_bytes"] += entry.nbytes
        else:
            fields["steps"] += 1
            fields["seconds"] += entry.seconds
    return list(sums.values())


def format_times(sums: list[dict[str, Any]]) -> str:
    """Returns the sums as a table."""
    rows = [
        (
            fields["path"] or ("0" if fields["steps"] else "-"),
            fields["device"],
            str(fields["steps"]),
            format_seconds(fields["seconds"]),
            f"{format_seconds(fields['transfer_seconds'])}, {fields['transfer_bytes']} bytes" if fields["transfer_bytes"] else "-",
        )
        for fields in sums
    ]
    return format_table(("SUBGRAPH", "DEVICE", "STEPS", "TIME", "COPIED"), rows)
