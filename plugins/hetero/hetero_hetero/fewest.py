"""Policy FEWEST: waves. A wave is all nodes that a device can run before it needs another device; fewer waves, fewer launches.

Any plan without cycles can run as a sequence of parts, and neighbours of one device in that sequence can be joined. So a plan of
fewest parts is a shortest sequence of devices with waves that cover the graph. A wave that takes all it can is never worse than a
smaller wave. On two devices the sequence alternates and only its first device is open: both are tried, which is exact. On more
devices the question is hard (it contains the shortest common supersequence), and the best few beginnings are kept and extended.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hetero_hetero.digraph import Adjacency, Digraph
from hetero_hetero.trace import SelectionLog

BEAM_WORK = 30_000
"""Nodes of the graph times beginnings that are kept."""

WIDEST_BEAM = 64


def select_fewest(graph: Digraph, log: SelectionLog) -> list[list[int]]:
    """Returns the waves as positions, in the order in which they run; a subgraph may be disconnected."""
    heading = "Waves were run, each all that one device can run next (policy FEWEST), without steps to show."
    log.begin_part(graph, "FEWEST", heading)
    return find_waves(graph.producers, graph.consumers, graph.device_of_position)


def find_waves(producers: Adjacency, consumers: Adjacency, devices: Sequence[int]) -> list[list[int]]:
    """Returns few waves that cover the graph, each with the nodes of a device in the order in which they became ready.

    Deterministic. Cost: at most O(V + E) for each beginning that is kept and each device, plus O(V) for each fork.
    """
    if not devices:
        return []
    width = max(2, min(WIDEST_BEAM, BEAM_WORK // len(devices)))
    beginnings = [_begin(producers, devices)]
    while True:
        extended: dict[tuple[tuple[int, ...], ...], _Waves] = {}
        for beginning in beginnings:
            for longer in _extend(beginning, consumers, devices):
                if not longer.remaining:
                    return longer.unroll()
                extended.setdefault(longer.frontier(), longer)
        beginnings = sorted(extended.values(), key=lambda longer: longer.remaining)[:width]


@dataclass(frozen=True)
class _Wave:
    """The last wave of a beginning and the waves before it."""

    nodes: list[int]
    before: _Wave | None


@dataclass
class _Waves:
    """Waves so far. `missing` counts the producers that did not run, `ready` holds per device the nodes that could run next."""

    missing: array[int]
    ready: list[list[int]]
    remaining: int
    last: _Wave | None

    def frontier(self) -> tuple[tuple[int, ...], ...]:
        """Returns the key of a set of executed nodes: the ready nodes, which are the first of the remaining nodes."""
        return tuple(tuple(sorted(nodes)) for nodes in self.ready)

    def unroll(self) -> list[list[int]]:
        """Returns the waves, first to last."""
        waves = []
        wave = self.last
        while wave is not None:
            waves.append(wave.nodes)
            wave = wave.before
        return waves[::-1]


def _begin(producers: Adjacency, devices: Sequence[int]) -> _Waves:
    """Returns the beginning without any wave."""
    missing = array("q", map(len, producers))
    ready: list[list[int]] = [[] for _ in range(max(devices) + 1)]
    for node, count in enumerate(missing):
        if not count:
            ready[devices[node]].append(node)
    return _Waves(missing, ready, len(devices), None)


def _extend(beginning: _Waves, consumers: Adjacency, devices: Sequence[int]) -> Iterator[_Waves]:
    """Yields the beginning with a further wave, for each device that has ready nodes. The last result takes over its arrays."""
    choices = [device for device, nodes in enumerate(beginning.ready) if nodes]
    for device in choices:
        if device == choices[-1]:
            longer = beginning
        else:
            longer = _Waves(beginning.missing[:], [list(nodes) for nodes in beginning.ready], beginning.remaining, beginning.last)
        _run_wave(longer, device, consumers, devices)
        yield longer


def _run_wave(beginning: _Waves, device: int, consumers: Adjacency, devices: Sequence[int]) -> None:
    """Runs on the device all that can run there now."""
    missing, ready = beginning.missing, beginning.ready
    wave = ready[device]
    for node in wave:  # grows while it is walked
        for consumer in consumers[node]:
            missing[consumer] -= 1
            if not missing[consumer]:
                ready[devices[consumer]].append(consumer)
    ready[device] = []
    beginning.remaining -= len(wave)
    beginning.last = _Wave(wave, beginning.last)
