"""The winner of a placement: the first turns choose candidates for the last turns, which decide."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hetero_hetero.placement.measured import Candidate, decide, find_best


def candidate(title: str, *times: float, error: str = "") -> Candidate:
    result = Candidate(title, (title,), is_basic=not title.startswith("MIXED"))
    result.times, result.error = list(times), error
    return result


@pytest.mark.parametrize(
    ("before", "true", "expected"),
    [
        # Four equal placements: the fastest in the first turns is not the fastest in the last turns.
        ({"CPU": 12.0, "MIXED 1": 11.6, "MIXED 2": 13.6}, {"CPU": 12.0, "MIXED 1": 13.0}, "CPU"),
        ({"CPU": 12.0, "MIXED 1": 8.0}, {"CPU": 12.0, "MIXED 1": 8.5}, "MIXED 1"),
        # The second-best placement has its turns, too.
        ({"CPU": 12.0, "MIXED 1": 10.0, "MIXED 2": 10.5}, {"CPU": 12.0, "MIXED 1": 12.0, "MIXED 2": 10.0}, "MIXED 2"),
        # The gain is too little for a split.
        ({"CPU": 12.0, "MIXED 1": 11.0}, {"CPU": 12.0, "MIXED 1": 11.9}, "CPU"),
        # Two nearly equal single devices swap places.
        ({"CPU": 12.0, "ORT": 12.2, "OPENVINO": 20.0}, {"CPU": 12.5, "ORT": 12.0}, "ORT"),
    ],
)
def test_last_turns_decide(before: Mapping[str, float], true: Mapping[str, float], expected: str) -> None:
    def time(racer: Candidate, seconds: float, turn: int) -> None:
        racer.times.append(true[racer.title])

    winner = decide([candidate(title, *[value] * 5) for title, value in before.items()], time)
    assert winner is not None
    assert winner.title == expected


def test_candidate_that_fails_in_the_last_turns_does_not_win() -> None:
    def time(racer: Candidate, seconds: float, turn: int) -> None:
        if racer.title == "MIXED 1":
            racer.error = "no current"
        else:
            racer.times.append(12.0)

    winner = decide([candidate("CPU", 12.0), candidate("MIXED 1", 5.0)], time)
    assert winner is not None
    assert winner.title == "CPU"


def test_search_that_ended_early_takes_a_split_only_beyond_doubt() -> None:
    basic = candidate("CPU", 10.0)
    assert find_best([basic, candidate("MIXED 1", 9.5)]) is basic
    sure = candidate("MIXED 1", 8.0)
    assert find_best([basic, sure]) is sure
    assert find_best([candidate("CPU", 10.0, error="no current")]) is None
