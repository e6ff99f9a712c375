"""The times of runs as a Chrome trace, which Perfetto and chrome://tracing show: devices, nodes, transfers, requests side by side.

A process for the requests, one for each device, one for the transfers; where two things overlap, each has a track of its own. Arrows
lead from the subgraph that makes a value, over its transfer if there is one, to those that read it.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Any

from hetero_core.profile import NodeTime, Profile, StageTime
from hetero_core.reports.tracks import Slice, SliceStack, assign_tracks

Event = dict[str, Any]
"""One event of the format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU."""

_REQUESTS, _TRANSFERS = "requests", "transfers"
_MOST_ARROWS = 1_000_000
"""Limit for the arrows of one list of events, so that those of several lists have different numbers."""


def profiles_to_trace(profiles: Sequence[Profile]) -> str:
    """Returns the trace of runs that have ended, as JSON."""
    return format_events(list_events(profiles))


def format_events(events: Iterable[Event]) -> str:
    """Returns events, those of several lists, too, as JSON: names first, then by time, and what holds another event before it."""
    ordered = sorted(events, key=lambda event: (event["ph"] != "M", event.get("ts", 0), -event.get("dur", 0), event["ph"] != "X"))
    return json.dumps({"traceEvents": ordered, "displayTimeUnit": "ns"}, indent=0)


def list_events(profiles: Sequence[Profile], *, title: str = "", first_process: int = 1) -> list[Event]:
    """Returns the events of runs that have ended.

    `title` stands before the name of each process; processes are numbered from `first_process`, at most 1000 of them.
    Times are microseconds since the zero of `time.perf_counter`, which processes of one machine share where it is the system's.
    """
    blocks: list[SliceStack] = []
    arrows: list[tuple[SliceStack, SliceStack]] = []
    for index, profile in enumerate(profiles):
        blocks.append(_draw_request(profile, index))
        parts = _draw_parts(profile, index)
        transfers = [(entry, _draw_transfer(entry, index)) for entry in profile.entries if entry.source]
        blocks += [block for _, block in parts]
        blocks += [block for _, block in transfers]
        arrows += _find_arrows(parts, transfers)
    devices = dict.fromkeys(block.process for block in blocks if block.process not in (_REQUESTS, _TRANSFERS))
    names = [_REQUESTS, *devices, *([_TRANSFERS] if any(block.process == _TRANSFERS for block in blocks) else [])]
    number_of_process = {name: first_process + position for position, name in enumerate(names)}
    tracks = assign_tracks(blocks)
    events: list[Event] = []
    for name, number in number_of_process.items():
        width = max((tracks[block] + block.width for block in blocks if block.process == name), default=1)
        events += _name_tracks(f"{title}{name}", number, name, width)
    for block in blocks:
        for row, part in block.placed:
            events.append(_write_slice(part, number_of_process[block.process], tracks[block] + row + 1))
    for number, (source, target) in zip(count(first_process * _MOST_ARROWS), arrows, strict=False):
        place_of_source = number_of_process[source.process], tracks[source] + 1
        place_of_target = number_of_process[target.process], tracks[target] + 1
        # An arrow belongs to the slice around it: it leaves in the last nanosecond, and arrives in the first.
        events.append(_write_end("s", number, source.frame.end - 1, *place_of_source))
        events.append(_write_end("f", number, target.frame.begin, *place_of_target) | {"bp": "e"})
    return events


def _name_tracks(title: str, number: int, name: str, width: int) -> list[Event]:
    events: list[Event] = [
        {"ph": "M", "name": "process_name", "pid": number, "tid": 0, "args": {"name": title}},
        {"ph": "M", "name": "process_sort_index", "pid": number, "tid": 0, "args": {"sort_index": number}},
    ]
    for row in range(1, width + 1):
        track = name if row == 1 else f"{name} ({row})"
        events.append({"ph": "M", "name": "thread_name", "pid": number, "tid": row, "args": {"name": track}})
        events.append({"ph": "M", "name": "thread_sort_index", "pid": number, "tid": row, "args": {"sort_index": row}})
    return events


def _write_slice(piece: Slice, process: int, track: int) -> Event:
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


def _write_end(phase: str, number: int, moment: int, process: int, track: int) -> Event:
    return {"ph": phase, "name": "value", "cat": "value", "id": number, "pid": process, "tid": track, "ts": moment / 1000}


def _to_nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def _make_slice(name: str, category: str, begin: float, end: float, arguments: Mapping[str, Any], *, thread: int = 0) -> Slice:
    return Slice(name, category, _to_nanoseconds(begin), _to_nanoseconds(end), arguments, thread)


def _find_end(profile: Profile) -> float:
    """Returns when a run ended; of a run that was given up, when the last thing did that is known."""
    if profile.ended is not None:
        return profile.ended
    known = [profile.requested if profile.began is None else profile.began]
    known += [entry.begin + entry.seconds for entry in profile.entries]
    known += [stage.begin + stage.seconds for stage in profile.stages]
    return max(known)


def _draw_request(profile: Profile, request: int) -> SliceStack:
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
    return SliceStack.make(_REQUESTS, _make_slice(f"request {request}", "request", profile.requested, end, arguments), parts)


def _draw_parts(profile: Profile, request: int) -> list[tuple[StageTime, SliceStack]]:
    """Returns what ran on devices: subgraphs with their nodes; of a device that ran the whole network, one that holds all."""
    stages = list(profile.stages)
    known = {stage.path for stage in stages}
    for path, entries in _group_by_path(entry for entry in profile.entries if not entry.source).items():
        if path and path not in known:
            # The subgraph did not end.
            stages.append(_enclose(path, entries))
    own = any(not entry.path and not entry.source for entry in profile.entries)
    if profile.began is not None and (own or not stages):
        seconds = _find_end(profile) - profile.began
        stages.append(StageTime((), profile.device, profile.began, seconds, profile.thread, (), ()))
    entries_of_stage = _share_out(profile.entries, stages)
    return [(stage, _draw_stage(stage, entries_of_stage[index], request)) for index, stage in enumerate(stages)]


def _group_by_path(entries: Iterable[NodeTime]) -> dict[tuple[int, ...], list[NodeTime]]:
    grouped: dict[tuple[int, ...], list[NodeTime]] = {}
    for entry in entries:
        grouped.setdefault(entry.path, []).append(entry)
    return grouped


def _enclose(path: tuple[int, ...], entries: Sequence[NodeTime]) -> StageTime:
    begin = min(entry.begin for entry in entries)
    end = max(entry.begin + entry.seconds for entry in entries)
    return StageTime(path, entries[0].device, begin, end - begin, entries[0].thread, (), ())


def _share_out(entries: Iterable[NodeTime], stages: Sequence[StageTime]) -> list[list[NodeTime]]:
    """Returns the entries of each stage: those of its path, and where it ran several times, the run that began last before them."""
    positions: dict[tuple[int, ...], list[int]] = {}
    for index, stage in enumerate(stages):
        positions.setdefault(stage.path, []).append(index)
    shares: list[list[NodeTime]] = [[] for _ in stages]
    for entry in entries:
        if not entry.source and entry.path in positions:
            runs = positions[entry.path]
            last = bisect_right([stages[index].begin for index in runs], entry.begin) - 1
            shares[runs[max(last, 0)]].append(entry)
    return shares


def _draw_stage(stage: StageTime, entries: Sequence[NodeTime], request: int) -> SliceStack:
    path = "/".join(map(str, stage.path))
    arguments = {"request": request, "subgraph": path, "device": stage.device, "reads": stage.reads, "writes": stage.writes}
    name = f"subgraph {path}" if path else "network"
    frame = _make_slice(name, "subgraph", stage.begin, stage.begin + stage.seconds, arguments)
    return SliceStack.make(stage.device, frame, [_draw_node(entry, path, request) for entry in entries])


def _draw_node(entry: NodeTime, path: str, request: int) -> Slice:
    arguments: dict[str, Any] = {"request": request, "subgraph": path, "operator": entry.operator}
    if entry.operator == "transfer":
        arguments["bytes"] = entry.nbytes
    category = "transfer" if entry.operator == "transfer" else "node"
    end = entry.begin + entry.seconds
    return _make_slice(entry.node, category, entry.begin, end, arguments, thread=entry.thread)


def _draw_transfer(entry: NodeTime, request: int) -> SliceStack:
    path = "/".join(map(str, entry.path))
    arguments = {
        "request": request,
        "operator": "transfer",
        "subgraph": path,
        "bytes": entry.nbytes,
        "source": entry.source,
        "targets": entry.targets,
    }
    return SliceStack.make(_TRANSFERS, _make_slice(entry.node, "transfer", entry.begin, entry.begin + entry.seconds, arguments), [])


def _find_arrows(
    parts: Sequence[tuple[StageTime, SliceStack]], transfers: Sequence[tuple[NodeTime, SliceStack]]
) -> list[tuple[SliceStack, SliceStack]]:
    """Returns from where to where each value went, among the subgraphs of one split network."""
    makers = {(stage.path[:-1], value): block for stage, block in parts if stage.path for value in stage.writes}
    moved: dict[tuple[tuple[int, ...], str], list[tuple[NodeTime, SliceStack]]] = {}
    arrows = []
    for entry, block in transfers:
        # A transfer has the path of the subgraph that it follows; one of an input has that of the split network.
        maker = makers.get((entry.path[:-1], entry.node)) if entry.path else None
        if maker is not None and maker.frame.end <= block.frame.begin:
            arrows.append((maker, block))
            moved.setdefault((entry.path[:-1], entry.node), []).append((entry, block))
        else:
            moved.setdefault((entry.path, entry.node), []).append((entry, block))
    for stage, block in parts:
        for value in stage.reads if stage.path else ():
            place = stage.path[:-1], value
            copies = [copy for entry, copy in moved.get(place, ()) if stage.device in entry.targets]
            source = copies[0] if copies else makers.get(place)
            if source is not None and source.frame.end <= block.frame.begin:
                arrows.append((source, block))
    return arrows
