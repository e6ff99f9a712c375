"""Simulates the throughput of a pipeline and of a fleet over many nodes: `python tests/bench/simulate_scale.py`.

A pipeline divides the network evenly over the nodes; a fleet runs the whole network on each. One program sends every message, one after
the other; a node computes one stage at a time; a value crosses a link beside the computing of its neighbours.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass

COUNTS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Load:
    """What one request costs, in seconds: the whole network, its largest node, one message of the program, one value between nodes."""

    network: float = 0.4
    largest: float = 0.01
    message: float = 0.0005
    transfer: float = 0.002


def simulate_pipeline(load: Load, nodes: int, *, requests: int = 400) -> float:
    """Returns the requests per second of the second half of the run: the first half fills the pipeline."""
    stage = max(load.network / nodes, load.largest)
    free, links, program, ends = [0.0] * nodes, [0.0] * nodes, 0.0, []
    arrivals = [0.0] * requests
    for index in range(nodes):
        for request in range(requests):
            begin = max(arrivals[request], links[index])
            links[index] = begin + (load.transfer if index else 0.0)
            free[index] = max(links[index], free[index]) + stage
            arrivals[request] = free[index]
    for request in range(requests):
        # All messages of a request pass through the one program.
        program = max(program + nodes * load.message, arrivals[request])
        ends.append(program)
    return _rate(ends)


def simulate_fleet(load: Load, nodes: int, *, requests: int = 4000) -> float:
    """Returns the requests per second of a fleet in which each request goes to the node that is free first."""
    free, program, ends = [0.0] * nodes, 0.0, []
    for _ in range(requests):
        program += load.message
        node = min(range(nodes), key=free.__getitem__)
        free[node] = max(free[node], program) + load.network
        ends.append(free[node])
    return _rate(sorted(ends))


def _rate(ends: list[float]) -> float:
    middle = len(ends) // 2
    return (len(ends) - 1 - middle) / (ends[-1] - ends[middle])


def main() -> None:
    """Prints requests per second for each number of nodes."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("network", 0.4), ("largest", 0.01), ("message", 0.0005), ("transfer", 0.002)):
        parser.add_argument(f"--{name}", type=float, default=default, help="seconds")
    load = Load(**vars(parser.parse_args()))
    for nodes in COUNTS:
        sys.stdout.write(
            f"{nodes:3} nodes  pipeline {simulate_pipeline(load, nodes):8.1f}/s  fleet {simulate_fleet(load, nodes):8.1f}/s\n"
        )


if __name__ == "__main__":
    main()
