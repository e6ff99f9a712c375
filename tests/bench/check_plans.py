"""Verifies plans of CPU, which are made and not run: of the benchmark's networks, of ONNX's cases, of drawn graphs.

    python tests/bench/check_plans.py                               all of them
    python tests/bench/check_plans.py networks                      one kind: networks, cases, graphs
    python tests/bench/check_plans.py graphs --seeds 0 2000         a range of seeds
    python tests/bench/check_plans.py graphs --workers 1 --audit    each step also run on poisoned arenas, which takes long

Calls are bound, so that the chunks of machine code are checked as well; nothing is compiled without --audit. Prints every fault, then
how many plans there were. Ends with 1 where one is wrong.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import process_time
from typing import Any

from hetero_cpu.passes import join_network, strip_network, transform_network
from hetero_cpu.planning.call_verifier import verify_calls
from hetero_cpu.planning.plan import ExecutionPlan
from hetero_cpu.planning.plan_verifier import verify_plan
from hetero_cpu.planning.planner import build_plan
from hetero_cpu.planning.signature import Signature
from hetero_cpu.planning.specialization import specialize_network
from hetero_cpu.planning.weights import PackedWeights

from hetero_core.errors import HeteroError
from hetero_core.kernels.registry import find_refusals
from hetero_core.kernels.single_nodes import evaluate_node
from hetero_core.network.reader import read_network

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "shared"))

from hetero_tests.plan_audit import audit_plan  # the path is set above

# Bytes; the audit copies an arena for each chunk.
_LARGEST_AUDIT = 1 << 20
Subject = tuple[str, Any, Sequence[Any]]
"""A name, a model, and the inputs of a run in order."""


def list_networks() -> Iterator[Subject]:
    """Yields the networks of the benchmark, for batches 1 and 8."""
    from speed.models import MODELS, make_model

    from hetero_core.testing.models import light_inputs

    for name in MODELS:
        for batch in (1, 8):
            model = make_model(name, batch)
            inputs = light_inputs(model)
            yield f"{name}, batch {batch}", model, [inputs[value.name] for value in model.graph.input if value.name in inputs]


def list_cases() -> Iterator[Subject]:
    """Yields ONNX's cases of one node, and its models of a few."""
    from hetero_core.testing.backend_cases import iterate_backend_cases

    for case in iterate_backend_cases(kinds=("node", "simple", "pytorch-converted", "pytorch-operator")):
        yield case.name, case.model, case.runs[0][0] if case.runs else ()


def list_graphs(begin: int, end: int) -> Iterator[Subject]:
    """Yields the drawn graphs of a range of seeds."""
    from hetero_core.conformance.graphs.drawing import draw_graph

    for seed in range(begin, end):
        drawn = draw_graph(seed)
        yield f"graph {seed}", drawn.model, [drawn.feeds[0][value.name] for value in drawn.model.graph.input]


def make_plan(model: Any, inputs: Sequence[Any], workers: int) -> ExecutionPlan:
    """Returns the plan of a model. Raises: HeteroError for a model that CPU does not take."""
    network = transform_network(read_network(model))
    signature: Signature = tuple(getattr(array, "shape", None) for array in inputs)
    special = join_network(specialize_network(network, signature, evaluate_node))
    return build_plan(special, PackedWeights(), {}, workers=workers)


def check(subject: Subject, counts: Counter[str], *, workers: int, audits: bool) -> None:
    """Verifies the plans of a subject, prints what is wrong, and counts."""
    name, model, inputs = subject
    try:
        if find_refusals(strip_network(read_network(model))):
            counts["refused"] += 1
            return
        plan = make_plan(model, inputs, workers)
    except HeteroError:
        # Broken on purpose, or of types that nobody runs: a load refuses it with the reason.
        counts["refused"] += 1
        return
    began = process_time()
    problems = [str(fault) for fault in verify_plan(plan)]
    counts["milliseconds"] += round((process_time() - began) * 1e3)
    if not problems:
        problems += [str(fault) for fault in verify_calls(plan)]
    if audits and not problems and plan.arena_bytes <= _LARGEST_AUDIT:
        counts["audits"] += 1
        problems += audit_plan(plan, inputs)
    counts["plans"] += 1
    counts["steps"] += len(plan.steps)
    counts["wrong"] += bool(problems)
    for problem in problems[:4]:
        print(f"{name}: {problem}", flush=True)


def describe(counts: Counter[str]) -> str:
    """Returns the counts in words."""
    return (
        f"{counts['plans']} plans of {counts['steps']} steps, {counts['wrong']} wrong, {counts['refused']} models refused, "
        f"{counts['audits']} plans audited; verified in {counts['milliseconds'] / 1e3:.1f} s of the processor"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", choices=("networks", "cases", "graphs", []))
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, 2000), metavar=("BEGIN", "END"))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--audit", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    sources = {"networks": list_networks, "cases": list_cases, "graphs": lambda: list_graphs(*arguments.seeds)}
    wrong = 0
    for kind in arguments.kinds or sources:
        counts: Counter[str] = Counter()
        for number, subject in enumerate(sources[kind]()):
            check(subject, counts, workers=arguments.workers, audits=arguments.audit)
            if number % 100 == 99:
                print(f"{kind} up to {subject[0]}: {describe(counts)}", flush=True)
        wrong += counts["wrong"]
        print(f"{kind}: {describe(counts)}", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
