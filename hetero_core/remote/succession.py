"""The succession of hosts of a device: a host starts on first use, and a dead host is replaced until restarts keep failing."""

from __future__ import annotations

import itertools
import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any, Generic, TypeVar

from hetero_core import hookspecs
from hetero_core.contract import CancelToken, ConfigKey, RunContext
from hetero_core.devices.provenance import find_core_version
from hetero_core.devices.watch import find_end_of_wait
from hetero_core.errors import DeadlineExceededError, DeviceCrashedError, DeviceUnavailableError, HeteroError

logger = logging.getLogger(__name__)

_MOST_CRASHES = 2
"""The number of crashes without a successful run in between, after which the device is given up."""


_TYPES: Mapping[str, type] = {kind.__name__: kind for kind in (bool, int, float, str, tuple, dict)}
Result = TypeVar("Result")


class HostReplacedError(DeviceCrashedError):
    """The host was ended because another request hung; the call can be retried."""


def call_again(call: Callable[[], Result]) -> Result:
    """Returns the result of a call; retries it each time its host was ended because another request hung."""
    while True:
        # A round fails only if another request hung the host; the next round uses a new host.
        with suppress(HostReplacedError):
            return call()


@dataclass(frozen=True, slots=True)
class Description:
    """The facts that a host tells of its device once: keys, names of metrics, and its full name."""

    keys: Mapping[str, ConfigKey]
    metrics: tuple[str, ...]
    full_name: str


GRACE = 1.0
"""Seconds that a host has to answer after the caller's wait has ended."""


class Link(ABC):
    """This process's end of the connection to a host. Safe for threads. A host that does not answer in time is ended; the
    unanswered request is recorded as the reason.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._end = ""
        self._culprit: object = None
        # The numbers of requests that are no longer referenced; the host is told with the next call.
        self.forgotten: deque[int] = deque()

    @property
    def has_hung(self) -> bool:
        """Says whether the host was ended because it hung; it did not crash."""
        return self._culprit is not None

    @property
    def is_dead(self) -> bool:
        """Says whether the host has been seen to be gone."""
        return bool(self._end)

    @abstractmethod
    def call(
        self, question: tuple[str, Any], bulk: Sequence[Any], token: CancelToken | None, end_of_wait: float | None
    ) -> tuple[Any, Sequence[Any]]:
        """Returns the answer to an operation with arguments, and its buffers. Raises: as `Succession.call`."""

    @abstractmethod
    def is_answered(self, request: Any) -> bool:
        """Says whether the answer to a request is there, or the host is gone; waits for it some 50 ms."""

    @abstractmethod
    def cancel(self, request: Any) -> None:
        """Tells the host that a request is abandoned."""

    @abstractmethod
    def kill(self) -> None:
        """Ends the host at once."""

    @abstractmethod
    def close(self) -> None:
        """Ends the host."""

    def note_end(self, end: str, culprit: object = None) -> None:
        """Keeps the first reason for the end of the host."""
        with self._lock:
            if not self._end:
                self._end, self._culprit = end, culprit

    def await_answer(self, request: Any, what: str, token: CancelToken | None, end_of_wait: float | None) -> None:
        """Waits for the answer to a request, or for the end of the host. `what` is the request in messages. The wait ends at
        `end_of_wait`, on the clock of `time.monotonic`, and when the run of `token` is cancelled.
        """
        limit = None if end_of_wait is None else end_of_wait + GRACE
        is_told = False
        while not self.is_answered(request):
            if token is not None and token.is_set and not is_told:
                is_told, limit = True, monotonic() + GRACE
                self.cancel(request)
            if limit is not None and monotonic() > limit:
                self.note_end(f"was ended: it did not answer in time while it {what}", request)
                self.kill()
                limit = None

    def take_forgotten(self) -> tuple[int, ...]:
        """Returns, once, the requests that are no longer referenced."""
        sessions = []
        with suppress(IndexError):
            while True:
                sessions.append(self.forgotten.popleft())
        return tuple(sessions)

    def convert_end(self, request: object, message: str) -> HeteroError:
        """Returns the error of a request after the end of its host, by cause: its deadline, a different request that hung, or a crash."""
        if self._culprit is None:
            return DeviceCrashedError(message)
        return DeadlineExceededError(message) if self._culprit is request else HostReplacedError(message)


AnyLink = TypeVar("AnyLink", bound=Link)


class Session(ABC, Generic[AnyLink]):
    """The near end of a request on a network of a host; its host forgets it with the next call after the last reference is gone.

    `copied_bytes` is the size of the inputs and outputs that its last run copied.
    """

    copied_bytes = 0

    def __init__(self, carrier: Succession[AnyLink], loaded: tuple[AnyLink, int]) -> None:
        """`loaded`: the host and the number of the network there. If the host is gone, the run fails, and the next has another session."""
        self.loaded = loaded
        self.link, self.network = loaded
        self.carrier = carrier
        self.number = next(carrier.session_numbers)

    @abstractmethod
    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Returns the outputs, valid until the next run of this session."""

    def __del__(self) -> None:
        self.link.forgotten.append(self.number)


class Succession(Generic[AnyLink]):
    """The hosts of a device; a single host is active at a time. A subclass implements the transport of messages and arrays.

    `memory` is the memory of its arrays of numbers: HOST, or its own, for which it has to_host and from_host.
    `copies_metric` names the metric of a network with the bytes that its runs have copied; it is empty if sessions do not count copies.
    """

    memory: str
    copies_metric: str = ""

    def __init__(self, device: str) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._link: AnyLink | None = None
        self._crashes = 0
        self.session_numbers = itertools.count(1)
        self._description: Description | None = None

    @property
    @abstractmethod
    def place(self) -> str:
        """The place of the device, as messages name it: "in another process"."""

    @abstractmethod
    def start(self) -> AnyLink:
        """Starts a host and returns its near end. Raises: DeviceCrashedError."""

    def ship(self, buffers: Sequence[Any]) -> Sequence[Any]:
        """Returns buffers in the form that `call` takes: as they are, or as references that hosts fetch."""
        return buffers

    def call(
        self, operation: str, *arguments: Any, bulk: Sequence[Any] = (), token: CancelToken | None = None
    ) -> tuple[Any, Sequence[Any]]:
        """Returns the host's answer, and its buffers. `bulk` is from `ship`; `token` is of the run that this belongs to. A host that hangs
        is ended when the wait ends: after the DEADLINE of the load or query that this thread works for, or when `token` is set.

        Raises: the host's error; DeviceCrashedError if the host is gone; DeadlineExceededError.
        """
        return self.find_link().call((operation, arguments), bulk, token, find_end_of_wait())

    @abstractmethod
    def open_session(self, loaded: tuple[AnyLink, int], token: CancelToken) -> Session[AnyLink]:
        """Returns the near end of a request on a network of a host; `token` is of its first run."""

    def describe(self) -> Description:
        """Returns the host's description of its device; it is requested once and cached.

        Raises: DeviceUnavailableError if the host's hetero-core differs; errors of the host.
        """
        if self._description is None:
            fields, _ = call_again(lambda: self.call("describe"))
            # Before the rest of the answer is read.
            theirs, ours = (fields["core"], tuple(fields["api"])), (find_core_version(), hookspecs.API)
            if theirs != ours:
                raise DeviceUnavailableError(
                    f"device {self._device} {self.place} has hetero-core {theirs[0]} with API {theirs[1]}; here it is {ours[0]} with API "
                    f"{ours[1]}; install the same version in both environments"
                )
            keys = {
                name: ConfigKey(_TYPES[kind], default, doc, choices, runtime, False, least, words, aliases=aliases)
                for name, (kind, default, doc, choices, runtime, least, words, aliases) in fields["keys"].items()
            }
            self._description = Description(keys, fields["metrics"], fields["full_name"])
        return self._description

    def find_link(self) -> AnyLink:
        """Returns the active host; starts a new host if no host is active.

        Raises: DeviceCrashedError when the device crashed again after it was started again.
        """
        with self._lock:
            if self._link is not None and not self._link.is_dead:
                return self._link
            if self._link is not None:
                # A host that we ended because it hung used up its caller's deadline; it does not count as a crash.
                self._crashes += not self._link.has_hung
                self._link.close()
                self._link = None
                if self._crashes < _MOST_CRASHES:
                    logger.warning("device %s is started again %s", self._device, self.place)
            if self._crashes >= _MOST_CRASHES:
                raise DeviceCrashedError(
                    f"device {self._device} has crashed {self._crashes} times in a row and is given up; "
                    "make a new Core to try again, or use another device"
                )
            self._link = self.start()
            return self._link

    def note_success(self) -> None:
        """Notes that a run has ended well: the next crash counts as the first."""
        self._crashes = 0

    def close(self) -> None:
        """Ends the host, for good."""
        with self._lock:
            self._crashes = _MOST_CRASHES
            if self._link is not None:
                self._link.close()
