"""The times of runs as a Chrome trace, which Perfetto and chrome://tracing show: devices, nodes, transfers, requests side by side.

Requests, transfers and each device are processes of the trace; slices that overlap have tracks of their own.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from hetero_core.profile import NodeTime, Profile, StageTime

_JITTER = 50
"""The largest overlap of two slices, in nanoseconds, by rounding alone: the later slice is moved."""

Event = dict[str, Any]
"""One event of the format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU."""

_REQUESTS, _TRANSFERS = "requests", "transfers"


@dataclass(frozen=True, slots=True)
class _Slice:
    """A span of time with a name, in nanoseconds. `thread` measured it, so that it ended when it was recorded; 0 if the device told it."""

    name: str
    category: str
    begin: int
    end: int
    arguments: Mapping[str, Any] = field(default_factory=dict)
    thread: int = 0


_Block = list[_Slice]
"""A frame, and the slices within it."""


def _make_block(frame: _Slice, parts: Sequence[_Slice] = ()) -> _Block:
    """Returns the block; a frame that is shorter than its parts grows, to one nanosecond at least."""
    inside = _lay_end_to_end(frame, sorted(parts, key=lambda part: part.begin))
    begin = min([frame.begin, *(part.begin for part in inside)])
    end = max([frame.end, begin + 1, *(part.end for part in inside)])
    return [replace(frame, begin=begin, end=end), *inside]


def _assign_tracks(blocks: Iterable[_Block]) -> list[tuple[_Slice, int]]:
    """Returns each slice of one process with its track: slices of a track are apart or nested.

    Parts stand on the track of their frame; a part that overlaps the part before has a track of its own.
    """
    free: list[int] = []

    def take(begin: int, end: int) -> int:
        track = next((index for index, moment in enumerate(free) if moment <= begin), len(free))
        free[track : track + 1] = [end]
        return track

    placed = []
    for frame, *parts in sorted(blocks, key=lambda block: (block[0].begin, -block[0].end)):
        own_track, moment = take(frame.begin, frame.end), frame.begin
        placed.append((frame, own_track))
        for part in parts:
            if part.begin + _JITTER < moment:
                placed.append((part, take(part.begin, part.end)))
                continue
            begin = max(part.begin, moment)
            moment = max(begin, part.end)
            placed.append((replace(part, begin=begin, end=moment), own_track))
    return placed


def _lay_end_to_end(frame: _Slice, parts: Sequence[_Slice]) -> list[_Slice]:
    """Returns the parts laid end to end if their moments are impossible.

    A device that learns all times when the run is over records them then, on one thread, and all seem to end together. Their order
    and durations are right, their moments are not, and they say so.
    """
    is_one_thread = len({piece.thread for piece in parts}) == 1 and parts[0].thread != 0
    is_late = is_one_thread and any(piece.end > other.begin + _JITTER for piece, other in pairwise(parts))
    if not is_late or sum(piece.end - piece.begin for piece in parts) > frame.end - frame.begin:
        return list(parts)
    laid, moment = [], frame.begin
    for piece in sorted(parts, key=lambda part: part.end):
        length = piece.end - piece.begin
        arguments = {**piece.arguments, "moment": "not known; laid out in order"}
        laid.append(replace(piece, begin=moment, end=moment + length, arguments=arguments))
        moment += length
    return laid


def profiles_to_trace(profiles: Sequence[Profile]) -> str:
    """Returns the trace of runs that have ended, as JSON."""
    return format_events(list_events(profiles))


def format_events(events: Iterable[Event]) -> str:
    """Returns events of one or several lists as JSON: names first, then by time, an enclosing event before its inner events."""
    ordered = sorted(events, key=lambda event: (event["ph"] != "M", event.get("ts", 0), -event.get("dur", 0)))
    return json.dumps({"traceEvents": ordered, "displayTimeUnit": "ns"}, indent=0)


def list_events(profiles: Sequence[Profile], *, title: str = "", first_process: int = 1) -> list[Event]:
    """Returns the events of runs that have ended.

    `title` stands before the name of each process; processes are numbered from `first_process`, at most 1000 of them.
    Times are microseconds since the zero of `time.perf_counter`, which processes of a machine share if it is the clock of the system.
    """
    blocks: dict[str, list[_Block]] = {_REQUESTS: []}
    transfers: list[_Block] = []
    for index, profile in enumerate(profiles):
        blocks[_REQUESTS].append(_draw_request(profile, index))
        for stage, entries in _group_by_stage(profile):
            blocks.setdefault(stage.device, []).append(_draw_stage(stage, entries, index))
        transfers += [[_draw_entry(entry, index)] for entry in profile.entries if entry.source]
    blocks |= {_TRANSFERS: transfers} if transfers else {}
    events: list[Event] = []
    for number, (name, own) in enumerate(blocks.items(), first_process):
        placed = _assign_tracks(own)
        events += _name_tracks(f"{title}{name}", number, name, max((track for _, track in placed), default=0) + 1)
        events += [_write_slice(part, number, track + 1) for part, track in placed]
    return events


def _name_tracks(title: str, number: int, name: str, width: int) -> Iterator[Event]:
    rows = [("process", 0, title, number)]
    rows += [("thread", row, name if row == 1 else f"{name} ({row})", row) for row in range(1, width + 1)]
    for kind, row, text, index in rows:
        yield {"ph": "M", "name": f"{kind}_name", "pid": number, "tid": row, "args": {"name": text}}
        yield {"ph": "M", "name": f"{kind}_sort_index", "pid": number, "tid": row, "args": {"sort_index": index}}


def _write_slice(piece: _Slice, process: int, track: int) -> Event:
    return {
        "ph": "X",
        "name": piece.name,
        "cat": piece.category,
        "pid": process,
        "tid": track,
        "ts": piece.begin / 1000,
        "dur": (piece.end - piece.begin) / 1000,
        "args": dict(piece.arguments),
    }


def _make_slice(name: str, category: str, begin: float, end: float, arguments: Mapping[str, Any], *, thread: int = 0) -> _Slice:
    return _Slice(name, category, round(begin * 1e9), round(end * 1e9), arguments, thread)


def _find_end(profile: Profile) -> float:
    """Returns the end of a run; of an abandoned run, the end of its last known step."""
    if profile.ended is not None:
        return profile.ended
    steps: list[NodeTime | StageTime] = [*profile.entries, *profile.stages]
    return max([profile.requested if profile.began is None else profile.began, *(step.begin + step.seconds for step in steps)])


def _draw_request(profile: Profile, request: int) -> _Block:
    """Returns the request's own span, and in it the wait and the run."""
    end = _find_end(profile)
    began = end if profile.began is None else profile.began
    arguments = {"request": request, "device": profile.device, "copied bytes": profile.copied_bytes}
    parts = [_make_slice("queue wait", "queue", profile.requested, began, {"request": request})]
    if profile.began is not None:
        parts.append(_make_slice("run", "run", began, end, {"request": request}))
    for fallback in profile.fallbacks:
        reason = {"request": request, "subgraph": "/".join(map(str, fallback.path)), "reason": fallback.reason}
        title, end_of_load = f"{fallback.device} failed: load on {fallback.target}", fallback.begin + fallback.seconds
        parts.append(_make_slice(title, "fallback", fallback.begin, end_of_load, reason))
    return _make_block(_make_slice(f"request {request}", "request", profile.requested, end, arguments), parts)


def _group_by_stage(profile: Profile) -> list[tuple[StageTime, list[NodeTime]]]:
    """Returns each subgraph with its nodes; a device that ran the whole network is a single subgraph.

    Of several runs of a subgraph, a node belongs to the last run that began before it.
    """
    entries_of_path: dict[tuple[int, ...], list[NodeTime]] = {}
    for entry in profile.entries:
        if not entry.source:
            entries_of_path.setdefault(entry.path, []).append(entry)
    grouped: list[tuple[StageTime, list[NodeTime]]] = [(stage, []) for stage in profile.stages]
    known = {stage.path for stage in profile.stages}
    for path, entries in entries_of_path.items():
        if path and path not in known:
            # The subgraph did not end.
            begin, end = min(entry.begin for entry in entries), max(entry.begin + entry.seconds for entry in entries)
            grouped.append((StageTime(path, entries[0].device, begin, end - begin, entries[0].thread, (), ()), []))
    if profile.began is not None and (() in entries_of_path or not grouped):
        seconds = _find_end(profile) - profile.began
        grouped.append((StageTime((), profile.device, profile.began, seconds, profile.thread, (), ()), []))
    for path, entries in entries_of_path.items():
        runs = [(stage.begin, own) for stage, own in grouped if stage.path == path]
        for entry in entries if runs else ():
            runs[max(bisect_right([begin for begin, _ in runs], entry.begin) - 1, 0)][1].append(entry)
    return grouped


def _draw_stage(stage: StageTime, entries: Sequence[NodeTime], request: int) -> _Block:
    path = "/".join(map(str, stage.path))
    arguments = {"request": request, "subgraph": path, "device": stage.device, "reads": stage.reads, "writes": stage.writes}
    name = f"subgraph {path}" if path else "network"
    frame = _make_slice(name, "subgraph", stage.begin, stage.begin + stage.seconds, arguments)
    return _make_block(frame, [_draw_entry(entry, request) for entry in entries])


def _draw_entry(entry: NodeTime, request: int) -> _Slice:
    arguments: dict[str, Any] = {"request": request, "subgraph": "/".join(map(str, entry.path)), "operator": entry.operator}
    is_transfer = entry.operator == "transfer"
    if is_transfer:
        arguments |= {"bytes": entry.nbytes, "source": entry.source, "targets": entry.targets}
    end = entry.begin + entry.seconds
    return _make_slice(entry.node, "transfer" if is_transfer else "node", entry.begin, end, arguments, thread=entry.thread)
