"""Tracks of a timeline: which things may stand on one line, so that nothing on it overlaps except what holds another thing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

_JITTER = 50
"""Nanoseconds that two things may overlap by rounding alone: the later one is moved."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A span of time with a name, in nanoseconds. `thread` measured it, so that it ended when it was recorded; 0: somebody told."""

    name: str
    category: str
    begin: int
    end: int
    arguments: Mapping[str, Any] = field(default_factory=dict)
    thread: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class SliceStack:
    """A slice and what it holds, laid out on rows of its own; the frame is on row 0. `process` is the heading that it stands under."""

    process: str
    frame: Slice
    placed: tuple[tuple[int, Slice], ...]
    width: int

    @classmethod
    def make(cls, process: str, frame: Slice, parts: Sequence[Slice]) -> SliceStack:
        """Returns the block; a frame that is shorter than its parts grows, to one nanosecond at least."""
        inside = _lay_end_to_end(frame, sorted(parts, key=lambda part: part.begin))
        begin = min([frame.begin, *(part.begin for part in inside)])
        end = max([frame.end, begin + 1, *(part.end for part in inside)])
        grown = replace(frame, begin=begin, end=end)
        rows = _assign_rows(inside)
        width = 1 + max((row for row, _ in rows), default=0)
        return cls(process, grown, ((0, grown), *rows), width)


def _lay_end_to_end(frame: Slice, parts: Sequence[Slice]) -> list[Slice]:
    """Returns the parts in their order, one behind the other, where they cannot have run when they say so.

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


def _assign_rows(parts: Sequence[Slice]) -> list[tuple[int, Slice]]:
    """Returns each part, in order of beginnings, with the first row that is free."""
    free: list[int] = []
    rows = []
    for part in parts:
        row = next((index for index, moment in enumerate(free) if moment <= part.begin + _JITTER), len(free))
        if row == len(free):
            free.append(part.begin)
        begin = max(part.begin, free[row])
        placed = replace(part, begin=begin, end=max(begin, part.end))
        free[row] = placed.end
        rows.append((row, placed))
    return rows


def assign_tracks(blocks: Iterable[SliceStack]) -> dict[SliceStack, int]:
    """Returns the first track of each block under the heading of its process: the lowest with room for its whole width."""
    free_of_process: dict[str, list[int]] = {}
    tracks: dict[SliceStack, int] = {}
    for block in sorted(blocks, key=lambda entry: (entry.frame.begin, -entry.frame.end)):
        free = free_of_process.setdefault(block.process, [])
        first = next(
            track
            for track in range(len(free) + 1)
            if all(moment <= block.frame.begin for moment in free[track : track + block.width])
        )
        free.extend([0] * (first + block.width - len(free)))
        free[first : first + block.width] = [block.frame.end] * block.width
        tracks[block] = first
    return tracks
