"""The times of runs as a Chrome trace, which Perfetto and chrome://tracing show: devices, nodes, transfers, requests side by side.

Requests, transfers and each device are processes of the trace; slices that overlap have tracks of their own. Arrows lead from the subgraph
that makes a value, over the value's transfer, to its readers.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count, pairwise
from typing import Any

from hetero_core.profile import NodeTime, Profile, StageTime

_JITTER = 50
"""The largest overlap of two slices, in nanoseconds, by rounding alone: the later slice is moved."""

Event = dict[str, Any]
"""One event of the format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU."""

_REQUESTS, _TRANSFERS = "requests", "transfers"
_MOST_ARROWS = 1_000_000
"""The most arrows of a list of events: arrows of several lists have different numbers."""


@dataclass(frozen=True, slots=True, eq=False)
class _Slice:
    """A span of time with a name, in nanoseconds. `thread` measured it, so that it ended when it was recorded; 0 if the device told it."""

    name: str
    category: str
    begin: int
    end: int
    arguments: Mapping[str, Any] = field(default_factory=dict)
    thread: int = 0


class _Block:
    """A slice and the slices within it; `process` is the heading that it stands under."""

    def __init__(self, process: str, frame: _Slice, parts: Sequence[_Slice] = ()) -> None:
        """A frame that is shorter than its parts grows, to one nanosecond at least."""
        self.process = process
        self.parts = _lay_end_to_end(frame, sorted(parts, key=lambda part: part.begin))
        begin = min([frame.begin, *(part.begin for part in self.parts)])
        self.frame = replace(frame, begin=begin, end=max([frame.end, begin + 1, *(part.end for part in self.parts)]))


def _assign_tracks(blocks: Iterable[_Block]) -> list[tuple[_Slice, int]]:
    """Returns the slices of a process with tracks, on which they are apart or nested: an overlapping part has a track of its own."""
    free: list[int] = []

    def take(begin: int, end: int) -> int:
        track = next((index for index, moment in enumerate(free) if moment <= begin), len(free))
        free[track : track + 1] = [end]
        return track

    placed = []
    for block in sorted(blocks, key=lambda entry: (entry.frame.begin, -entry.frame.end)):
        own_track, moment = take(block.frame.begin, block.frame.end), block.frame.begin
        placed.append((block.frame, own_track))
        for part in block.parts:
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
    ordered = sorted(events, key=lambda event: (event["ph"] != "M", event.get("ts", 0), -event.get("dur", 0), event["ph"] != "X"))
    return json.dumps({"traceEvents": ordered, "displayTimeUnit": "ns"}, indent=0)


def list_events(profiles: Sequence[Profile], *, title: str = "", first_process: int = 1) -> list[Event]:
    """Returns the events of runs that have ended.

    `title` stands before the name of each process; processes are numbered from `first_process`, at most 1000 of them.
    Times are microseconds since the zero of `time.perf_counter`, which processes of a machine share if it is the clock of the system.
    """
    blocks: dict[str, list[_Block]] = {_REQUESTS: []}
    transfers_of_all: list[_Block] = []
    arrows: list[tuple[_Slice, _Slice]] = []
    for index, profile in enumerate(profiles):
        parts = _draw_parts(profile, index)
        transfers = [(entry, _draw_transfer(entry, index)) for entry in profile.entries if entry.source]
        for block in (_draw_request(profile, index), *(block for _, block in parts)):
            blocks.setdefault(block.process, []).append(block)
        transfers_of_all += [block for _, block in transfers]
        arrows += _find_arrows(parts, transfers)
    if transfers_of_all:
        blocks[_TRANSFERS] = transfers_of_all
    events: list[Event] = []
    place_of_slice: dict[_Slice, dict[str, int]] = {}
    for number, (name, own) in enumerate(blocks.items(), first_process):
        placed = _assign_tracks(own)
        width = max((track for _, track in placed), default=0) + 1
        titles = [f"{title}{name}", name, *(f"{name} ({row})" for row in range(2, width + 1))]
        for row, text in enumerate(titles):
            kind, index = ("thread", row) if row else ("process", number)
            for what, value in (("name", text), ("sort_index", index)):
                events.append({"ph": "M", "name": f"{kind}_{what}", "pid": number, "tid": row, "args": {what: value}})
        for part, track in placed:
            place_of_slice[part] = place = {"pid": number, "tid": track + 1}
            times = {"ts": part.begin / 1000, "dur": (part.end - part.begin) / 1000}
            events.append({"ph": "X", "name": part.name, "cat": part.category, **place, **times, "args": dict(part.arguments)})
    for number, (source, target) in zip(count(first_process * _MOST_ARROWS), arrows, strict=False):
        # An arrow belongs to the slice around it: it leaves in the last nanosecond, and arrives in the first.
        arrow = {"name": "value", "cat": "value", "id": number}
        events.append({"ph": "s", **arrow, **place_of_slice[source], "ts": (source.end - 1) / 1000})
        events.append({"ph": "f", **arrow, **place_of_slice[target], "ts": target.begin / 1000, "bp": "e"})
    return events


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
        reason = {"request": request, "subgraph": _join_path(fallback.path), "reason": fallback.reason}
        title, end_of_load = f"{fallback.device} failed: load on {fallback.target}", fallback.begin + fallback.seconds
        parts.append(_make_slice(title, "fallback", fallback.begin, end_of_load, reason))
    return _Block(_REQUESTS, _make_slice(f"request {request}", "request", profile.requested, end, arguments), parts)


def _draw_parts(profile: Profile, request: int) -> list[tuple[StageTime, _Block]]:
    """Returns a block for each subgraph with its nodes; a device that ran the whole network has a single block."""
    stages, entries = list(profile.stages), [entry for entry in profile.entries if not entry.source]
    if profile.began is not None and (not (stages or entries) or any(not entry.path for entry in entries)):
        seconds = _find_end(profile) - profile.began
        stages.append(StageTime((), profile.device, profile.began, seconds, profile.thread, (), ()))
    runs_of_path: dict[tuple[int, ...], list[tuple[StageTime, list[_Slice]]]] = {}
    for stage in stages:
        runs_of_path.setdefault(stage.path, []).append((stage, []))
    for entry in entries:
        # The subgraph did not end.
        unended = StageTime(entry.path, entry.device, entry.begin, entry.seconds, entry.thread, (), ())
        runs = runs_of_path.setdefault(entry.path, [(unended, [])])
        # Of several runs of a path, an entry belongs to the last run that began before it.
        last = bisect_right(runs, entry.begin, key=lambda run: run[0].begin) - 1
        category, size = ("transfer", {"bytes": entry.nbytes}) if entry.operator == "transfer" else ("node", {})
        arguments = {"request": request, "subgraph": _join_path(entry.path), "operator": entry.operator, **size}
        node = _make_slice(entry.node, category, entry.begin, entry.begin + entry.seconds, arguments, thread=entry.thread)
        runs[max(last, 0)][1].append(node)
    blocks = []
    for stage, nodes in chain.from_iterable(runs_of_path.values()):
        path = _join_path(stage.path)
        details = {"request": request, "subgraph": path, "device": stage.device, "reads": stage.reads, "writes": stage.writes}
        name = f"subgraph {path}" if stage.path else "network"
        frame = _make_slice(name, "subgraph", stage.begin, stage.begin + stage.seconds, details)
        blocks.append((stage, _Block(stage.device, frame, nodes)))
    return blocks


def _join_path(path: Sequence[int]) -> str:
    return "/".join(map(str, path))


def _draw_transfer(entry: NodeTime, request: int) -> _Block:
    arguments = {"request": request, "operator": "transfer", "subgraph": _join_path(entry.path), "bytes": entry.nbytes}
    arguments |= {"source": entry.source, "targets": entry.targets}
    return _Block(_TRANSFERS, _make_slice(entry.node, "transfer", entry.begin, entry.begin + entry.seconds, arguments))


def _find_arrows(
    parts: Sequence[tuple[StageTime, _Block]], transfers: Sequence[tuple[NodeTime, _Block]]
) -> list[tuple[_Slice, _Slice]]:
    """Returns both ends of the way of each value among the subgraphs of a split network."""
    makers = {(stage.path[:-1], value): block.frame for stage, block in parts if stage.path for value in stage.writes}
    copies_of_value: dict[tuple[tuple[int, ...], str], list[tuple[NodeTime, _Slice]]] = {}
    arrows = []
    for entry, block in transfers:
        # A transfer has the path of the subgraph that it follows; a transfer of an input has the path of the split network.
        maker = makers.get((entry.path[:-1], entry.node)) if entry.path else None
        path = entry.path
        if maker is not None and maker.end <= block.frame.begin:
            arrows.append((maker, block.frame))
            path = path[:-1]
        copies_of_value.setdefault((path, entry.node), []).append((entry, block.frame))
    for stage, block in parts:
        for value in stage.reads if stage.path else ():
            place = stage.path[:-1], value
            copies = [copy for entry, copy in copies_of_value.get(place, ()) if stage.device in entry.targets]
            source = copies[0] if copies else makers.get(place)
            if source is not None and source.end <= block.frame.begin:
                arrows.append((source, block.frame))
    return arrows
