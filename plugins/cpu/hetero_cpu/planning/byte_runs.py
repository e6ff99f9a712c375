"""Sets of bytes as sorted runs, and an array of labels over them: what a verifier of plans counts in.

A run is a stretch of bytes that lie side by side. A whole array is one run; a slice of the channels of an image is a run for each pixel.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hetero_cpu.planning.recipe import Array


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """Disjoint runs from `begins[i]` to `ends[i]` - 1 in ascending order; none touches the one before it."""

    begins: Array
    ends: Array

    @property
    def count(self) -> int:
        """The number of bytes."""
        return int((self.ends - self.begins).sum())

    @property
    def first(self) -> int:
        """The first byte of a set that has one."""
        return int(self.begins[0])

    @property
    def end(self) -> int:
        """The position after the last byte of a set that is not empty."""
        return int(self.ends[-1])


NO_BYTES = Runs(np.zeros(0, np.int64), np.zeros(0, np.int64))


def join_runs(begins: Array, ends: Array) -> Runs:
    """Returns the bytes of all runs, which may overlap and stand in any order."""
    filled = ends > begins
    begins, ends = begins[filled], ends[filled]
    if len(begins) > 1 and not (begins[1:] > ends[:-1]).all():
        order = np.argsort(begins, kind="stable")
        begins, reached = begins[order], np.maximum.accumulate(ends[order])
        starts = np.concatenate([[True], begins[1:] > reached[:-1]])
        begins, ends = begins[starts], reached[np.concatenate([starts[1:], [True]])]
    return Runs(begins, ends)


def list_runs(begin: int, shape: Sequence[int], strides: Sequence[int], itemsize: int) -> Runs:
    """Returns the bytes of an array whose first element lies at `begin`; strides in bytes."""
    axes = [(stride, size) for stride, size in zip(strides, shape, strict=True) if size != 1 and stride != 0]
    if 0 in shape:
        return NO_BYTES
    begin += sum(stride * (size - 1) for stride, size in axes if stride < 0)
    length = itemsize
    begins = np.array([begin], np.int64)
    for stride, size in sorted((abs(stride), size) for stride, size in axes):
        if stride == length and len(begins) == 1:
            length *= size
        else:
            begins = (np.arange(size, dtype=np.int64)[:, None] * stride + begins).reshape(-1)
    return join_runs(begins, begins + length)


def join_all(sets: Iterable[Runs]) -> Runs:
    """Returns the bytes that are in one of the sets or in several."""
    listed = list(sets)
    if not listed:
        return NO_BYTES
    return join_runs(np.concatenate([runs.begins for runs in listed]), np.concatenate([runs.ends for runs in listed]))


def intersect(first: Runs, second: Runs) -> Runs:
    """Returns the bytes that are in both sets. Linear in the runs of the shorter one, but for a search in the other."""
    if not len(first.begins) or not len(second.begins) or first.end <= second.first or second.end <= first.first:
        return NO_BYTES
    if len(second.begins) > len(first.begins):
        first, second = second, first
    low = np.searchsorted(first.ends, second.begins, side="right")
    high = np.searchsorted(first.begins, second.ends, side="left")
    counts = np.maximum(high - low, 0)
    picked, owners = _spread(low, counts), np.repeat(np.arange(len(counts)), counts)
    return join_runs(np.maximum(first.begins[picked], second.begins[owners]), np.minimum(first.ends[picked], second.ends[owners]))


def subtract(first: Runs, second: Runs) -> Runs:
    """Returns the bytes of the first set that are not in the second."""
    if not len(first.begins) or not len(second.begins):
        return first
    low, high = min(first.first, second.first), max(first.end, second.end)
    gaps = Runs(np.concatenate([[low], second.ends]), np.concatenate([second.begins, [high]]))
    return intersect(first, join_runs(gaps.begins, gaps.ends))


def _spread(begins: Array, counts: Array) -> Array:
    """Returns the numbers begins[i] to begins[i] + counts[i] - 1 for all i, one after the other."""
    total = int(counts.sum())
    before = np.cumsum(counts) - counts
    numbers: Array = np.arange(total) + np.repeat(begins - before, counts)
    return numbers


class Labels:
    """One label for each byte of a block of memory; bytes between two borders of the sets that it was made for have the same one."""

    def __init__(self, sets: Iterable[Runs], nbytes: int, label: int) -> None:
        ends = [np.array([0, nbytes], np.int64)]
        for runs in sets:
            ends += [runs.begins, runs.ends]
        self._borders = np.unique(np.concatenate(ends))
        self._labels = np.full(len(self._borders) - 1, label, np.int32)

    def find(self, runs: Runs) -> Places:
        """Returns where the labels of a set stand, which must be one of those that the labels were made for."""
        low, high = np.searchsorted(self._borders, runs.begins), np.searchsorted(self._borders, runs.ends)
        if len(low) == 1:
            return slice(int(low[0]), int(high[0]))
        return _spread(low, high - low)

    def write(self, places: Places, label: int) -> None:
        """Gives the bytes at these places a label."""
        self._labels[places] = label

    def list_strangers(self, places: Places, labels: Sequence[int]) -> list[tuple[int, Runs]]:
        """Returns the other labels than these that bytes of the places have, each with the bytes."""
        here = self._labels[places]
        strange = (here != labels[0]) if len(labels) == 1 else ~np.isin(here, labels)
        if not strange.any():
            return []
        numbers = (np.arange(places.start, places.stop) if isinstance(places, slice) else places)[strange]
        others = here[strange]
        return [
            (int(label), join_runs(self._borders[numbers[others == label]], self._borders[numbers[others == label] + 1]))
            for label in np.unique(others)
        ]


Places = slice | Array
"""Positions of labels: a range, or one number for each."""
