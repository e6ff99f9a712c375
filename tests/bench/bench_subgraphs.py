"""Times of subgraph selection on families of large graphs: python tests/bench/bench_subgraphs.py [nodes ...]

Needs hetero_core and hetero_hetero on the path. Prints one line per family, share of nodes on the second device, and policy.
"""

from __future__ import annotations

import random
import sys
import time

from hetero_hetero.subgraphs import POLICIES, select_subgraphs

Predecessors = list[list[int]]

SHARES = (0.02, 0.3, 0.5)


def make_residual_chain(count: int) -> Predecessors:
    """Blocks of three nodes and an addition that also takes the block's input."""
    predecessors: Predecessors = [[]]
    while len(predecessors) < count:
        last = len(predecessors) - 1
        predecessors += [[last], [last + 1], [last + 2], [last + 3, last]]
    return predecessors


def make_branches(count: int, branches: int = 100) -> Predecessors:
    """Chains between one source and one sink."""
    predecessors: Predecessors = [[]]
    ends = []
    for _ in range(branches):
        last = 0
        for _ in range(count // branches):
            predecessors.append([last])
            last = len(predecessors) - 1
        ends.append(last)
    return [*predecessors, ends]


def make_unet(count: int) -> Predecessors:
    """Three nodes per level down and up, and an edge across every level."""
    predecessors: Predecessors = [[]]
    skips = []
    for _ in range(count // 6):
        for _ in range(3):
            predecessors.append([len(predecessors) - 1])
        skips.append(len(predecessors) - 1)
    for skip in reversed(skips):
        predecessors.append([len(predecessors) - 1, skip])
        for _ in range(2):
            predecessors.append([len(predecessors) - 1])
    return predecessors


def make_layers(count: int, back: int = 1, width: int = 50) -> Predecessors:
    """Layers of 50 nodes, each fed by two random ones of the `back` layers before."""
    choice = random.Random(0)
    return [
        [max(0, node // width - choice.randint(1, back)) * width + choice.randrange(width) for _ in range(2)]
        if node >= width
        else []
        for node in range(count)
    ]


def make_long_layers(count: int) -> Predecessors:
    """Layers whose edges reach 20 layers back."""
    return make_layers(count, back=20)


def main(counts: list[int]) -> None:
    """Prints seconds and number of subgraphs."""
    families = (make_residual_chain, make_branches, make_unet, make_layers, make_long_layers)
    for count in counts:
        for family in families:
            predecessors = family(count)
            for share in SHARES:
                choice = random.Random(1)
                devices = ["B" if choice.random() < share else "A" for _ in predecessors]
                for policy in POLICIES:
                    start = time.perf_counter()
                    parts = select_subgraphs(predecessors, devices, ["A", "B"], policy)
                    seconds = time.perf_counter() - start
                    name = family.__name__.removeprefix("make_")
                    row = f"{count:7} {name:15} {share:5.0%} {policy:14} {seconds:7.2f} s {len(parts):7} subgraphs"
                    print(row, flush=True)


if __name__ == "__main__":
    main([int(count) for count in sys.argv[1:]] or [10_000, 100_000])
