"""Candidates of a placement, and which of them wins: the last turns decide, in which the fastest are timed again.

The fastest of several is also the luckiest one, so the times by which it came to the front say too little.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

CLOSE = 1.05
"""Candidates are timed again if they take at most this many times as long as the fastest."""
GAIN = 0.98
"""A mixed placement wins if it takes at most this share of the time of the best other one."""
_SURE_GAIN = 0.9
"""The share in place of GAIN if the search ended before the last turns."""
ROUNDS = 7
"""The last turns of each candidate."""
_DUELS = 2
"""Mixed placements that are timed again at most; each takes some seconds beyond the budget."""
LONGEST_TURN = 0.2


class Candidate:
    """A placement on its way: loaded in the process `key`, with a time of each round."""

    def __init__(self, title: str, devices: tuple[str, ...], key: str, *, is_basic: bool) -> None:
        self.title, self.devices, self.key, self.is_basic = title, devices, key, is_basic
        self.parts = 0
        self.estimate: float | None = None
        self.times: list[float] = []
        self.first: float | None = None
        self.error = ""

    @property
    def seconds(self) -> float | None:
        """The median of the rounds; before the first of them what loading measured."""
        return median(self.times) if self.times else self.first


def decide(candidates: Sequence[Candidate], time: Callable[[Candidate, float, int], None]) -> Candidate | None:
    """Returns the candidate that wins the last turns; None if there is no basic candidate.

    `time` appends the time of a turn to a candidate. A mixed placement has to be faster than the best basic one in the same turns.
    """
    losers: list[Candidate] = []
    best: Candidate | None = None
    for _ in range(_DUELS):
        timed = sorted((one for one in candidates if one.times and not one.error and one not in losers), key=_find_median)
        basics = [one for one in timed if one.is_basic]
        if not basics:
            return None
        limit = _find_median(basics[0])
        close = [one for one in basics if _find_median(one) <= CLOSE * limit]
        challenger = next((one for one in timed if not one.is_basic and _find_median(one) <= GAIN * limit), None)
        _race(close if challenger is None else [challenger, *close], time)
        best = min((one for one in close if not one.error), key=_find_median, default=None)
        if challenger is None or best is None:
            return best
        quotients = [mixed / basic for mixed, basic in zip(challenger.times, best.times, strict=False)]
        if not challenger.error and median(quotients) <= GAIN:
            return challenger
        losers.append(challenger)
    return best


def _race(racers: Sequence[Candidate], time: Callable[[Candidate, float, int], None]) -> None:
    """Times several candidates in turns, in order and back; when all have ended, these times take the place of those before."""
    if len(racers) < 2:
        return
    counts = [len(candidate.times) for candidate in racers]
    for turn in range(ROUNDS):
        for candidate in racers if turn % 2 == 0 else reversed(racers):
            time(candidate, LONGEST_TURN / 2, turn)
    for candidate, count in zip(racers, counts, strict=True):
        candidate.times = candidate.times[count:]


def find_best(candidates: Sequence[Candidate]) -> Candidate | None:
    """Returns the fastest candidate until now, of a search that ended early; a mixed one only where it is faster beyond doubt."""
    timed = [one for one in candidates if one.seconds is not None and not one.error and (one.times or one.is_basic)]
    if not timed:
        return None
    fastest = min(timed, key=_find_seconds)
    basic = min((one for one in timed if one.is_basic), key=_find_seconds, default=fastest)
    return fastest if _find_seconds(fastest) <= _SURE_GAIN * _find_seconds(basic) else basic


def _find_median(candidate: Candidate) -> float:
    return median(candidate.times) if candidate.times else float("inf")


def _find_seconds(candidate: Candidate) -> float:
    return float("inf") if candidate.seconds is None else candidate.seconds
