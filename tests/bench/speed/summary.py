"""Ratios of other engines to ours: geometric mean, median and worst, over all rows and for each number of threads and batch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from speed.engines import OURS

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Ratios:
    """What `peer` needs in units of what `ours` needs: above 1, ours is better. `place` says which rows, `worst_model` which is lowest."""

    ours: str
    peer: str
    place: str
    count: int
    geometric_mean: float
    median: float
    worst: float
    worst_model: str


def list_engines(rows: Sequence[Row]) -> list[str]:
    """Returns the engines of the rows in the order of their first appearance."""
    return list(dict.fromkeys(engine for row in rows for engine in row["engines"]))


def list_pairs(engines: Sequence[str]) -> list[tuple[str, str]]:
    """Returns each of ours with each other."""
    return [(ours, peer) for ours in engines if ours in OURS for peer in engines if peer not in OURS]


def find_ratios(rows: Sequence[Row], ours: str, peer: str, key: str = "median") -> dict[str, float]:
    """Returns peer / ours of a figure for each row that has both, by what the row is."""
    found: dict[str, float] = {}
    for row in rows:
        one, other = (row["engines"].get(engine, {}).get(key) for engine in (ours, peer))
        if one is not None and other is not None:
            found[f"{row['model']}, batch {row['batch']}, threads {row['threads']}"] = other / one
    return found


def group_rows(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Returns the rows of each number of threads and batch, then, where there are several of both, of each batch, then all."""
    rows = sorted(rows, key=lambda row: (row["threads"], row["batch"]))
    batches = sorted({row["batch"] for row in rows})
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(f"threads {row['threads']}, batch {row['batch']}", []).append(row)
    if len(batches) > 1 and len({row["threads"] for row in rows}) > 1:
        groups |= {f"batch {batch}": [row for row in rows if row["batch"] == batch] for batch in batches}
    return {**groups, "all": rows} if len(groups) > 1 else groups


def summarize_ratios(rows: Sequence[Row], key: str = "median") -> Iterator[Ratios]:
    """Yields the ratios of each of ours to each other engine, over the groups of `group_rows`."""
    for ours, peer in list_pairs(list_engines(rows)):
        for place, members in group_rows(rows).items():
            ratios = find_ratios(members, ours, peer, key)
            if not ratios:
                continue
            lowest = min(ratios, key=lambda name: ratios[name])
            yield Ratios(
                ours=ours,
                peer=peer,
                place=place,
                count=len(ratios),
                geometric_mean=math.exp(statistics.mean(map(math.log, ratios.values()))),
                median=statistics.median(ratios.values()),
                worst=ratios[lowest],
                worst_model=lowest.partition(",")[0] if place.startswith("threads") else lowest,
            )
