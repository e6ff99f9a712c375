"""Policy FEWEST: waves. A wave is all nodes that a device can run before it needs another device; fewer waves, fewer launches.

Any plan without cycles can run as a sequence of parts, and neighbours of one device in that sequence can be joined. So a plan of
fewest parts is a shortest sequence of devices with waves that cover the graph. A wave that takes all it can is never worse than a
smaller wave. On two devices the sequence alternates and only its first device is open: both are tried, which is exact. On more
devices the question is hard (it contains the shortest common supersequence), and the device with the most ready nodes is next.
"""

from __future__ import annotations

from collections.abc import Sequence

from hetero_hetero.digraph import Adjacency, Digraph
from hetero_hetero.trace import SelectionLog


def select_fewest(graph: Digraph, log: SelectionLog) -> list[list[int]]:
    """Returns the waves as positions, in the order in which they run; a subgraph may be disconnected."""
    heading = "Waves were run, each all that one device can run next (policy FEWEST), without steps to show."
    log.begin_part(graph, "FEWEST", heading)
    devices = graph.device_of_position
    first_devices = sorted({devices[position] for position, sources in enumerate(graph.producers) if not sources})
    return min((_run_waves(first, graph.producers, graph.consumers, devices) for first in first_devices), key=len, default=[])


def _run_waves(first: int, producers: Adjacency, consumers: Adjacency, devices: Sequence[int]) -> list[list[int]]:
    """Returns waves that cover the graph, from that of a first device on, each with nodes in the order in which they became ready."""
    missing = list(map(len, producers))
    ready: list[list[int]] = [[] for _ in range(max(devices) + 1)]
    for position, count in enumerate(missing):
        if not count:
            ready[devices[position]].append(position)
    waves, device = [], first
    while ready[device]:
        wave = ready[device]
        for position in wave:  # grows while it is walked
            for consumer in consumers[position]:
                missing[consumer] -= 1
                if not missing[consumer]:
                    ready[devices[consumer]].append(consumer)
        waves.append(wave)
        ready[device] = []
        device = max(range(len(ready)), key=lambda device: len(ready[device]))
    return waves
