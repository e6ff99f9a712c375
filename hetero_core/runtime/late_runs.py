"""Runs with DEADLINE: a timer that ends a run in time, and the most that may be late at once."""

from __future__ import annotations

import threading
from collections.abc import Callable

from hetero_core.devices.watch import LONGEST_WAIT, LateCalls
from hetero_core.errors import DeadlineExceededError

MOST_LATE_RUNS = 32
"""Runs of one network that may be late at once; each keeps a thread, and the arrays that it was given."""


def require_room(late_runs: LateCalls, where: str) -> None:
    """Raises DeadlineExceededError where so many runs are late that the device must be taken for one that hangs."""
    if late_runs.count >= MOST_LATE_RUNS:
        raise DeadlineExceededError(
            f"a run of {where} was not begun: {late_runs.count} runs before have not returned after their DEADLINE; the device hangs. "
            "Start the process anew"
        )


def start_timer(seconds: float, expire: Callable[[], None], *, name: str) -> threading.Timer:
    """Returns a timer that is running: it calls `expire` from a daemon thread of this name, unless it is cancelled before."""
    timer = threading.Timer(min(seconds, LONGEST_WAIT), expire)
    timer.name, timer.daemon = name, True
    timer.start()
    return timer


def start_thread(work: Callable[[], None], *, name: str) -> None:
    """Starts a daemon thread: one that is stuck in a device keeps neither the interpreter nor a pool of the Core from ending."""
    threading.Thread(target=work, name=name, daemon=True).start()


def describe_late_run(where: str, seconds: float, node: str, *, has_begun: bool) -> DeadlineExceededError:
    """Returns the error of a run that was set aside; `node` is the last one that it has begun, as far as its device tells."""
    place = (
        "it had not begun, the device was busy" if not has_begun else f"it was in node {node}" if node else "the device was at work"
    )
    return DeadlineExceededError(
        f"a run of {where} has not ended within DEADLINE={seconds:g} s: {place}. It was set aside with its working memory, and what the "
        "device returns is dropped; give it more time, or smaller inputs"
    )
