"""Signs of life: a command that works on one step for more than a second says on standard error what it is doing."""

from __future__ import annotations

import argparse
import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TextIO

FIRST_SECONDS = 1.0
NEXT_SECONDS = 10.0

Title = str | Callable[[], str]
"""The description of a step, or a function that returns one with the progress so far."""

Announcer = Callable[[Title], contextlib.AbstractContextManager[None]]
"""Says that a step goes on for as long as the context lasts."""


def follow(options: argparse.Namespace) -> Announcer:
    """Returns what announces the steps of a command: nothing with --json, whose reader is a program."""
    return _say_nothing if options.json else announce


@contextlib.contextmanager
def announce(
    step: Title, *, stream: TextIO | None = None, first: float = FIRST_SECONDS, again: float = NEXT_SECONDS
) -> Iterator[None]:
    """Writes a line when the step has lasted `first` seconds, and one with the time after every `again` seconds more."""
    is_over = threading.Event()
    target = sys.stderr if stream is None else stream
    title = step if callable(step) else lambda: step

    def watch() -> None:
        seconds = first
        if is_over.wait(first):
            return
        _write(target, f"hetero: {title()} ...")
        while not is_over.wait(again):
            seconds += again
            _write(target, f"hetero: {title()} ... {seconds:.0f} s")

    watcher = threading.Thread(target=watch, name="hetero-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()


def _write(stream: TextIO, line: str) -> None:
    # A reader of standard error that has left is no reason to end the work.
    with contextlib.suppress(OSError, ValueError):
        print(line, file=stream, flush=True)


@contextlib.contextmanager
def _say_nothing(_: Title) -> Iterator[None]:
    yield
