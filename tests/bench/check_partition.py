"""The long check of subgraph selection: 20,000 random graphs under every policy. Prints what held and what did not.

Each graph has 1 to 60 nodes on 1 to 4 devices, repeated edges and shared inputs, and a random numbering. For every policy: the plan
is acyclic in its order, covers each node once, one device for each subgraph, is connected where the policy promises it, comes out the
same again, and stays sound under another numbering. LARGEST_FIRST is compared with the tracer, which follows the document to
the letter; FEWEST with the optimum of a search over all orders, for graphs of up to 12 nodes. Usage: check_partition.py [graphs] [seed]
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Sequence
from time import perf_counter

from hetero_hetero.subgraphs import POLICIES, Subgraph, select_subgraphs
from hetero_hetero.trace import trace_selection

Graph = tuple[list[list[int]], list[str]]


def make_graph(draw: random.Random, most: int, devices: int) -> Graph:
    """Returns a graph like those of networks: a backbone of chains with skips, joins and shared inputs, numbered at random."""
    count = draw.randint(1, most)
    number = list(range(count))
    draw.shuffle(number)
    predecessors: list[list[int]] = [[] for _ in range(count)]
    reach = draw.choice([1, 2, 4, 10, most])
    extra = draw.choice([0.0, 0.1, 0.3, 0.6, 1.0])
    for target in range(1, count):
        if draw.random() < 0.95:
            predecessors[number[target]].append(number[max(0, target - draw.randint(1, reach))])
        while draw.random() < extra / (1 + extra):
            predecessors[number[target]].append(number[draw.randrange(max(0, target - 3 * reach), target)])
        if draw.random() < 0.05:
            predecessors[number[target]] *= 2
    share = draw.choice([0.02, 0.1, 0.3, 0.5])
    names = "ABCD"[:devices]
    return predecessors, [draw.choice(names) if draw.random() < share else "A" for _ in range(count)]


def find_fault(graph: Graph, plan: Sequence[Subgraph], *, connected: bool) -> str | None:
    """Returns what is wrong with a plan, or None."""
    predecessors, devices = graph
    if sorted(node for part in plan for node in part.nodes) != list(range(len(devices))):
        return "not every node once"
    place = {node: index for index, part in enumerate(plan) for node in part.nodes}
    for target, sources in enumerate(predecessors):
        if any(place[source] > place[target] for source in sources):
            return "an edge against the order"
    for part in plan:
        if any(devices[node] != part.device for node in part.nodes):
            return "two devices in a subgraph"
        if connected and not is_connected(predecessors, part.nodes):
            return "a subgraph in two pieces"
    return None


def is_connected(predecessors: Sequence[Sequence[int]], nodes: Sequence[int]) -> bool:
    group = {node: node for node in nodes}

    def find(node: int) -> int:
        while group[node] != node:
            node = group[node]
        return node

    for target in nodes:
        for source in predecessors[target]:
            if source in group:
                group[find(source)] = find(target)
    return len({find(node) for node in nodes}) == 1


def renumber(draw: random.Random, graph: Graph) -> Graph:
    predecessors, devices = graph
    number = list(range(len(devices)))
    draw.shuffle(number)
    moved: list[list[int]] = [[] for _ in number]
    names = [""] * len(number)
    for node, sources in enumerate(predecessors):
        moved[number[node]] = [number[source] for source in sources]
        names[number[node]] = devices[node]
    return moved, names


def count_fewest(graph: Graph) -> int:
    """The fewest runs of one device in any order of the nodes, by dynamic programming over the sets of nodes done."""
    predecessors, devices = graph
    before = [sum(1 << source for source in set(sources)) for sources in predecessors]
    cost = {(0, ""): 0}
    for _ in devices:
        following: dict[tuple[int, str], int] = {}
        for (done, last), runs in cost.items():
            for node, device in enumerate(devices):
                if not done >> node & 1 and not before[node] & ~done:
                    state = (done | 1 << node, device)
                    following[state] = min(following.get(state, 99), runs + (device != last))
        cost = following
    return min(cost.values())


def check_soundness(total: int, seed: int) -> None:
    draw = random.Random(seed)
    faults: Counter[str] = Counter()
    equal, ours, traced = 0, 0, 0
    began = perf_counter()
    for _ in range(total):
        devices = draw.randint(1, 4)
        graph = make_graph(draw, 60, devices)
        priorities = list("ABCD")
        for policy in POLICIES:
            plan = select_subgraphs(*graph, priorities, policy=policy)
            connected = policy in ("LARGEST_FIRST", "LEVELS")
            for label, fault in (
                ("", find_fault(graph, plan, connected=connected)),
                ("again: ", None if select_subgraphs(*graph, priorities, policy=policy) == plan else "another plan"),
            ):
                faults.update([f"{policy}: {label}{fault}"] if fault else [])
            other = renumber(draw, graph)
            fault = find_fault(other, select_subgraphs(*other, priorities, policy=policy), connected=connected)
            faults.update([f"{policy}, renumbered: {fault}"] if fault else [])
        mine = {frozenset(part.nodes) for part in select_subgraphs(*graph, priorities)}
        literal = {frozenset(part.nodes) for part in trace_selection(*graph, priorities).subgraphs}
        equal += mine == literal
        ours += len(mine)
        traced += len(literal)
    print(f"{total} graphs of 1 to 60 nodes, seed {seed}, {perf_counter() - began:.0f} s: faults {dict(faults)}")
    print(f"LARGEST_FIRST equals the tracer on {equal / total:.2%}, subgraphs {ours / traced - 1:+.3%} against it in the mean")


def check_fewest(total: int, seed: int) -> None:
    for devices in (2, 3, 4):
        draw = random.Random(seed + devices)
        exact, ours, best = 0, 0, 0
        for _ in range(total):
            graph = make_graph(draw, 12, devices)
            found, optimum = len(select_subgraphs(*graph, list("ABCD"), policy="FEWEST")), count_fewest(graph)
            exact += found == optimum
            ours += found
            best += optimum
        share = f"optimal on {exact / total:.2%}, {ours / best - 1:+.3%} in the mean"
        print(f"FEWEST, {devices} devices, {total} graphs of 1 to 12 nodes: {share}")


if __name__ == "__main__":
    wanted = [int(argument) for argument in sys.argv[1:]]
    check_soundness(*(wanted + [20000, 1][len(wanted) :]))
    check_fewest(1000, 1)
