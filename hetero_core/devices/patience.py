"""Time limits of questions to a plugin, and the memory of plugins that did not answer.

Questions (configuration keys, metrics, being created and closed) have the Core's `device_timeout`. The first time that a question is
asked it goes to a thread of its own; a plugin that has answered once is asked directly from then on, since a thread for each would cost
fifty times what the question does. What may rightly take long (query, load, import) has no limit but DEADLINE.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from hetero_core.contract import DeviceName
from hetero_core.devices.provenance import Provenance
from hetero_core.devices.watch import LateCalls, OnReturn, OutOfTimeError, call_within, is_watched, note_place
from hetero_core.errors import DeviceTimeoutError

logger = logging.getLogger(__name__)
Result = TypeVar("Result")

_QUESTIONS = frozenset(("config_keys", "metrics", "close_device"))


class Patience:
    """The time limits of one created plugin. Safe for threads."""

    def __init__(self, provenance: Provenance, timeout: float | None) -> None:
        self._provenance = provenance
        self._timeout = timeout
        self._answered: set[tuple[str, str]] = set()
        self._hangs_in: str | None = None
        self.late_calls = LateCalls()
        """The queries, loads and imports that ran out of DEADLINE and have not returned yet."""

    @property
    def is_exhausted(self) -> bool:
        """Says whether a question is still without an answer."""
        return self._hangs_in is not None

    def call(self, hook: str, device: DeviceName, call: Callable[[], Result]) -> Result:
        """Returns what a hook returns. Raises: DeviceTimeoutError."""
        if hook in _QUESTIONS:
            return self.ask(hook, device, call)
        self._require_answers(device)
        # For the message of a load that runs out of time; without a limit nobody reads it.
        if not is_watched():
            return call()
        with note_place(f"{hook} of {self._provenance} for device {device}"):
            return call()

    def ask(self, question: str, device: DeviceName, call: Callable[[], Result]) -> Result:
        """Returns the answer to a question. Raises: DeviceTimeoutError."""
        self._require_answers(device)
        key = (question, device.id)
        if self._timeout is None or key in self._answered:
            return call()

        def give_up() -> None:
            self._hangs_in = question

        def come_back(result: Any, error: BaseException | None) -> None:
            self._hangs_in = None
            logger.info("%s has returned from %s after all", self._provenance, question)

        answer = ask_within(
            self._timeout, call, question=question, provenance=self._provenance, on_set_aside=give_up, on_return=come_back
        )
        self._answered.add(key)
        return answer

    def _require_answers(self, device: DeviceName) -> None:
        if self._hangs_in is not None:
            raise describe_hanging(self._provenance, self._hangs_in, self._timeout, is_known=True)


def ask_within(
    seconds: float,
    call: Callable[[], Result],
    *,
    question: str,
    provenance: Provenance,
    on_set_aside: Callable[[], None],
    on_return: OnReturn,
) -> Result:
    """Returns the answer to one question. Raises: DeviceTimeoutError that names plugin and question."""
    try:
        with note_place(f"{question} of {provenance}"):
            return call_within(
                seconds, call, thread=f"hetero-{provenance.device} {question}", on_set_aside=on_set_aside, on_return=on_return
            )
    except OutOfTimeError:
        raise describe_hanging(provenance, question, seconds, is_known=False) from None


def describe_hanging(provenance: Provenance, question: str, seconds: float | None, *, is_known: bool) -> DeviceTimeoutError:
    """Returns the error for a plugin that does not answer; one that is known not to is not asked again."""
    since = "has not answered before and is not asked again until it does" if is_known else "was set aside, its thread goes on"
    return DeviceTimeoutError(
        f"device {provenance.device} hangs: {provenance} has not returned from {question} within {seconds:g} s; it {since}. Other devices "
        "are not affected. Look at its driver and hardware, update or uninstall the plugin, or give it more time with "
        "Core(device_timeout=...)"
    )
