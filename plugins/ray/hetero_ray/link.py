"""The near end of one actor: starts it on a node, sends requests, and waits.

A thread that waits looks now and then whether its caller has given up. An actor that does not answer within GRACE seconds from then on is
ended.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hetero_core.contract import CancelToken
from hetero_core.errors import DeadlineExceededError, DeviceCrashedError
from hetero_core.remote.failures import restore_failure
from hetero_core.remote.succession import HostReplacedError
from hetero_core.remote.values import load_value
from hetero_ray.actor import THREADS, HostActor
from hetero_ray.nodes import Fleet, RayNode, needs_gpu

GRACE = 1.0
"""Seconds that an actor has to give up what nobody waits for any more."""
_POLL = 0.05
"""Seconds between two looks at whether the caller has given up."""


class RayLink:
    """One actor. Safe for threads."""

    def __init__(self, device: str, node: RayNode, fleet: Fleet) -> None:
        self.node = node
        self._device = device
        self._fleet = fleet
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._end = ""
        self._culprit = 0
        self._is_closed = False
        fleet.hosts[node.id] += 1
        fleet.gpus[node.id] += needs_gpu(device)
        # It reserves no processor of Ray's count: the device's own keys say how many threads it may have.
        self._actor = (
            ray.remote(num_cpus=0, concurrency_groups={"control": 1})(HostActor)
            .options(
                num_gpus=1 if needs_gpu(device) else 0,
                max_concurrency=THREADS,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
            )
            .remote(device)
        )

    @property
    def is_ended_by_us(self) -> bool:
        """Says whether the actor was ended because it hung; it did not crash."""
        return self._culprit != 0

    @property
    def is_dead(self) -> bool:
        """Says whether the actor has been seen to be gone."""
        return bool(self._end)

    def request(
        self,
        method: str,
        text: bytes,
        refs: Sequence[Any] = (),
        *,
        what: str,
        token: CancelToken | None = None,
        end_of_wait: float | None = None,
    ) -> tuple[Any, list[Any]]:
        """Returns the answer to a request and its references. `what` and `end_of_wait` are as for a child process.

        Raises: the device's error; DeviceCrashedError if the actor is gone; DeadlineExceededError if it had to be ended.
        """
        number = next(self._numbers)
        try:
            future = getattr(self._actor, method).remote(number, text, list(refs))
            self._await(future, number, what, token, None if end_of_wait is None else end_of_wait + GRACE)
            is_good, answer, references = ray.get(future)
        except ray.exceptions.RayError as error:
            with self._lock:
                self._end = self._end or self._describe_loss(error)
            if self._culprit == number:
                raise DeadlineExceededError(self._describe_end(what)) from error
            kind = HostReplacedError if self._culprit else DeviceCrashedError
            raise kind(self._describe_end(what)) from error
        if not is_good:
            raise restore_failure(load_value(answer), f"by device {self._device} on node {self.node.name} of the Ray cluster")
        return load_value(answer), references

    def _await(self, future: Any, number: int, what: str, token: CancelToken | None, limit: float | None) -> None:
        """Waits for the answer, or for the end of the actor."""
        is_told = False
        while not ray.wait([future], timeout=_POLL)[0]:
            if token is not None and token.is_set and not is_told:
                is_told, limit = True, monotonic() + GRACE
                self._actor.cancel.remote(number)
            if limit is not None and monotonic() > limit:
                with self._lock:
                    if not self._end:
                        self._culprit, self._end = number, f"was ended: it did not answer in time while it {what}"
                ray.kill(self._actor)
                limit = None

    def _describe_loss(self, error: Exception) -> str:
        if isinstance(error, ray.exceptions.ActorUnavailableError):
            # Ray waits for a second to hear how an actor ended: its node would have said so. The cluster may take long to notice.
            self._fleet.lost.add(self.node.id)
            return "cannot be reached any more"
        if "node has died" in str(error):
            self._fleet.lost.add(self.node.id)
            return "was lost with its node"
        return f"ended ({str(error).strip().splitlines()[-1]})"

    def _describe_end(self, what: str) -> str:
        return f"device {self._device} on node {self.node.name} of the Ray cluster {self._end} while it {what}"

    def close(self) -> None:
        """Ends the actor."""
        with self._lock:
            is_first, self._is_closed, self._end = not self._is_closed, True, self._end or "was closed"
        if not is_first:
            return
        self._fleet.hosts[self.node.id] -= 1
        self._fleet.gpus[self.node.id] -= needs_gpu(self._device)
        if ray.is_initialized():
            with suppress(ray.exceptions.RayError):  # the actor may have gone before
                ray.kill(self._actor)
