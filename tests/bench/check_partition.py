"""The long check of subgraph selection: random graphs of several families under every policy. Prints what held and what did not.

Each graph has 1 to 60 nodes on 1 to 4 devices, repeated edges and shared inputs, and a random numbering. For every policy: the plan
is acyclic in its order, covers each node once, one device for each subgraph, is connected where the policy promises it, comes out the
same again, and stays sound under another numbering. LARGEST_FIRST is compared with LITERAL if that is sound, also on graphs of 65 to
2,000 nodes, where both are timed; FEWEST with the optimum of a search over all orders, for graphs of up to 12 nodes. Usage:
check_partition.py [graphs] [seed] [family ...]; without families, of those beyond the first two a tenth of the graphs.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from time import perf_counter, process_time

from hetero_hetero.subgraphs import POLICIES, Subgraph, run_selection, select_subgraphs

from hetero_core.errors import AffinityError

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


def make_banded_graph(draw: random.Random, most: int, devices: int, densities: Sequence[float]) -> Graph:
    """Returns a graph of so many edges per node, some repeated, each over a bounded number of places, numbered at random."""
    count = draw.randint(1, most)
    number = list(range(count))
    draw.shuffle(number)
    predecessors: list[list[int]] = [[] for _ in range(count)]
    density, reach = draw.choice(densities), draw.choice([3, 10, 60])
    for _ in range(int(density * count)):
        source = draw.randrange(count)
        target = min(count - 1, source + draw.randint(1, reach))
        if source < target:
            predecessors[number[target]] += [number[source]] * draw.choice([1, 1, 2])
    return predecessors, share_out(draw, count, devices, [0.1, 0.3, 0.6])


def make_layered_graph(draw: random.Random, most: int, devices: int, widths: Sequence[int]) -> Graph:
    """Returns a graph of layers whose nodes are fed by one to three of the layers before."""
    count, width, back = draw.randint(1, most), draw.choice(widths), draw.choice([1, 3, 20])
    predecessors = [
        [max(0, node // width - draw.randint(1, back)) * width + draw.randrange(width) for _ in range(draw.randint(1, 3))]
        if node >= width
        else []
        for node in range(count)
    ]
    return predecessors, share_out(draw, count, devices, [0.1, 0.3, 0.6])


def make_fed_graph(draw: random.Random, most: int, devices: int) -> Graph:
    """Returns a graph whose nodes are fed by one to three of all earlier ones."""
    count = draw.randint(1, most)
    predecessors = [[draw.randrange(node) for _ in range(draw.randint(1, 3))] if node else [] for node in range(count)]
    return predecessors, share_out(draw, count, devices, [0.1, 0.3, 0.6])


def make_scattered_graph(draw: random.Random, most: int, _: int) -> Graph:
    """Returns a graph whose nodes are on all four devices alike."""
    predecessors, _devices = make_banded_graph(draw, most, 4, [1, 2, 4])
    return predecessors, share_out(draw, len(predecessors), 4, [1.0])


def share_out(draw: random.Random, count: int, devices: int, shares: Sequence[float]) -> list[str]:
    """Returns devices for so many nodes, a share of them drawn from all, the rest the first."""
    share, names = draw.choice(shares), "ABCD"[:devices]
    return [draw.choice(names) if draw.random() < share else "A" for _ in range(count)]


FAMILIES: Mapping[str, Callable[[random.Random, int, int], Graph]] = {
    "network": make_graph,
    "banded": lambda draw, most, devices: make_banded_graph(draw, most, devices, [0.5, 1, 2, 4]),
    "dense": lambda draw, most, devices: make_banded_graph(draw, most, devices, [8, 16]),
    "sparse": lambda draw, most, devices: make_banded_graph(draw, most, devices, [0.5, 0.8]),
    "deep": lambda draw, most, devices: make_layered_graph(draw, most, devices, [1, 2, 3]),
    "wide": lambda draw, most, devices: make_layered_graph(draw, most, devices, [8, 14, 20]),
    "fed": make_fed_graph,
    "scattered": make_scattered_graph,
}


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


def check_soundness(total: int, seed: int, family: str) -> None:
    draw = random.Random(seed)
    faults: Counter[str] = Counter()
    sound = equal = 0
    began = perf_counter()
    for _ in range(total):
        graph = FAMILIES[family](draw, 60, draw.randint(1, 4))
        faults.update(list_faults(draw, graph))
        literal = select_to_the_letter(graph)
        sound += literal is not None
        equal += literal == select_subgraphs(*graph, "ABCD")
    print(f"{family}: {total} graphs of 1 to 60 nodes, seed {seed}, {perf_counter() - began:.0f} s: faults {dict(faults)}")
    print(f"    LITERAL is sound on {sound}, LARGEST_FIRST equals it on {equal}", flush=True)


def select_to_the_letter(graph: Graph) -> list[Subgraph] | None:
    """Returns the subgraphs of LITERAL, or None if they depend on each other in a circle."""
    try:
        return select_subgraphs(*graph, "ABCD", "LITERAL")
    except AffinityError:
        return None


def list_faults(draw: random.Random, graph: Graph) -> list[str]:
    """Returns the faults in the plans of all policies that make no circles, of this numbering and of another."""
    faults = []
    for policy in POLICIES:
        if policy == "LITERAL":
            continue
        plan = select_subgraphs(*graph, "ABCD", policy=policy)
        connected = policy in ("LARGEST_FIRST", "LEVELS")
        again = select_subgraphs(*graph, "ABCD", policy=policy)
        other = renumber(draw, graph)
        fault = find_fault(graph, plan, connected=connected)
        faults += [f"{policy}: {fault}"] if fault else []
        faults += [] if again == plan else [f"{policy}: again another plan"]
        fault = find_fault(other, select_subgraphs(*other, "ABCD", policy=policy), connected=connected)
        faults += [f"{policy}, renumbered: {fault}"] if fault else []
    return faults


def check_letter(total: int, seed: int, least: int, most: int) -> None:
    """Compares LARGEST_FIRST with LITERAL on graphs of so many nodes; prints milliseconds of processor time (median, most)."""
    for family, make in FAMILIES.items():
        draw = random.Random(f"{seed} {family} {most}")
        sound = equal = faults = 0
        seconds: dict[str, list[float]] = {"LITERAL": [], "LARGEST_FIRST": []}
        procedures: Counter[str] = Counter()
        for _ in range(total):
            graph: Graph = ([], [])
            while len(graph[0]) < least:
                graph = make(draw, most, draw.randint(2, 4))
            began = process_time()
            literal = select_to_the_letter(graph)
            seconds["LITERAL"].append(process_time() - began)
            began = process_time()
            selection = run_selection(*graph, "ABCD")
            seconds["LARGEST_FIRST"].append(process_time() - began)
            procedures.update(set(selection.procedure_of_node.values()))
            faults += find_fault(graph, selection.subgraphs, connected=True) is not None
            sound += literal is not None
            equal += literal is not None and tuple(literal) == selection.subgraphs
        times = ", ".join(f"{name} {1000 * median(each):.1f}, {1000 * max(each):.1f}" for name, each in seconds.items())
        print(
            f"{family}, {least} to {most} nodes: {total} graphs, {faults} faults, LITERAL is sound on {sound}, equal on {equal};",
            end="",
        )
        print(f" ms: {times}; graphs by procedure {dict(sorted(procedures.items()))}", flush=True)


def check_fewest(total: int, seed: int) -> None:
    for devices in (2, 3, 4):
        draw = random.Random(seed + devices)
        exact, ours, best = 0, 0, 0
        for _ in range(total):
            graph = make_graph(draw, 12, devices)
            count, optimum = len(select_subgraphs(*graph, list("ABCD"), policy="FEWEST")), count_fewest(graph)
            exact += count == optimum
            ours += count
            best += optimum
        share = f"optimal on {exact / total:.2%}, {ours / best - 1:+.3%} in the mean"
        print(f"FEWEST, {devices} devices, {total} graphs of 1 to 12 nodes: {share}")


if __name__ == "__main__":
    numbers = [int(argument) for argument in sys.argv[1:3]]
    graphs, seed = numbers + [20000, 1][len(numbers) :]
    for place, family in enumerate(sys.argv[3:] or FAMILIES):
        check_soundness(graphs if place < 2 or sys.argv[3:] else graphs // 10, seed, family)
    for least, most in ((65, 200), (200, 700), (700, 2000)):
        check_letter(max(1, graphs // 200), seed, least, most)
    check_fewest(1000, 1)
