"""The near end of an actor: starts it on a node, sends requests, and waits.

A thread that waits checks now and then whether its caller has given up. An actor that does not answer within GRACE seconds from then on is
ended.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hetero_core.contract import CancelToken
from hetero_core.remote.failures import restore_failure
from hetero_core.remote.succession import Link
from hetero_core.remote.values import load_value
from hetero_ray.actor import THREADS, HostActor
from hetero_ray.nodes import Fleet, RayNode, needs_gpu

_POLL = 0.05
"""Seconds between two checks whether the caller has given up."""


class RayLink(Link):
    """The caller's connection to an actor."""

    def __init__(self, device: str, node: RayNode, fleet: Fleet) -> None:
        super().__init__(device)
        self.node = node
        self._fleet = fleet
        self._numbers = itertools.count(1)
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
        request = None
        try:
            request = number, getattr(self._actor, method).remote(number, text, list(refs))
            self.await_answer(request, what, token, end_of_wait)
            is_good, answer, references = ray.get(request[1])
        except ray.exceptions.RayError as error:
            self.note_end(self._describe_loss(error))
            where = f"device {self._device} on node {self.node.name} of the Ray cluster"
            raise self.convert_end(request, f"{where} {self._end} while it {what}") from error
        if not is_good:
            raise restore_failure(load_value(answer), f"by device {self._device} on node {self.node.name} of the Ray cluster")
        return load_value(answer), references

    def _describe_loss(self, error: Exception) -> str:
        if isinstance(error, ray.exceptions.ActorUnavailableError):
            # Ray waits for a second for its node's report on the end of the actor. Without a report, the node is lost; the cluster
            # may notice this late.
            self._fleet.lost.add(self.node.id)
            return "cannot be reached any more"
        if "node has died" in str(error):
            self._fleet.lost.add(self.node.id)
            return "was lost with its node"
        return f"ended ({str(error).strip().splitlines()[-1]})"

    def is_answered(self, request: tuple[int, Any]) -> bool:
        """Says whether the answer is there, or the actor is gone."""
        return bool(ray.wait([request[1]], timeout=_POLL)[0])

    def cancel(self, request: tuple[int, Any]) -> None:
        """Tells the actor that a request is abandoned."""
        self._actor.cancel.remote(request[0])

    def kill(self) -> None:
        """Ends the actor at once."""
        ray.kill(self._actor)

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
                self.kill()
