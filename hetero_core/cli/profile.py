"""The times of one run, added up by subgraph."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hetero_core.cli.tables import format_seconds, format_table
from hetero_core.contract import NodeTime


def sum_times(entries: Iterable[NodeTime]) -> list[dict[str, Any]]:
    """Returns for each subgraph its device, the seconds of its nodes, and seconds and bytes of what was copied for it."""
    sums: dict[tuple[int, str], dict[str, Any]] = {}
    for entry in entries:
        fields = sums.setdefault(
            (entry.subgraph, entry.device),
            {
                "subgraph": entry.subgraph,
                "device": entry.device,
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
            str(fields["subgraph"]),
            fields["device"],
            str(fields["steps"]),
            format_seconds(fields["seconds"]),
            f"{format_seconds(fields['transfer_seconds'])}, {fields['transfer_bytes']} bytes" if fields["transfer_bytes"] else "-",
        )
        for fields in sums
    ]
    return format_table(("SUBGRAPH", "DEVICE", "STEPS", "TIME", "COPIED"), rows)
