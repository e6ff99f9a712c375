"""Work in the background waits for the first runs of a process."""

from __future__ import annotations

import threading
from time import monotonic

import pytest

from hetero_core.runtime import first_runs
from hetero_core.runtime.first_runs import FirstRuns

LONG = 60.0


def test_wait_ends_a_moment_after_the_last_first_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_runs, "LONGEST_GAP", 0.05)
    runs, ends = FirstRuns(), [threading.Event(), threading.Event()]
    for end in ends:
        runs.expect(end)
    set_at: list[float] = []

    def end_all() -> None:
        for end in ends:
            threading.Event().wait(0.05)
            set_at.append(monotonic())
            end.set()

    threading.Thread(target=end_all).start()
    runs.wait(monotonic() + LONG, lambda: False)
    assert all(end.is_set() for end in ends)
    ended = monotonic()
    assert ended - set_at[-1] >= 0.04
    runs.wait(monotonic() + LONG, lambda: False)
    assert monotonic() - ended < LONG / 2


def test_wait_ends_at_its_time_and_when_the_work_is_over() -> None:
    runs, end = FirstRuns(), threading.Event()
    runs.expect(end)
    runs.wait(monotonic() + 0.01, lambda: False)
    runs.wait(monotonic() + LONG, lambda: True)
    assert not end.is_set()


def test_run_of_a_network_that_is_gone_is_not_waited_for() -> None:
    runs = FirstRuns()
    runs.expect(threading.Event())
    began = monotonic()
    runs.wait(began + LONG, lambda: False)
    assert monotonic() - began < LONG / 2
