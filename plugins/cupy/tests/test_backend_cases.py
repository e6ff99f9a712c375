"""onnx's own cases on a simulated card: claimed nodes are right, and every copy to or from the host is counted."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hetero_cupy.device import GpuDevice
from hetero_tests.fake_runtime import FakeRuntime

from hetero_core import Core, ExecutableNetwork, Network
from hetero_core.errors import UnsupportedNodesError
from hetero_core.network.types import HOST
from hetero_core.testing.backend_cases import BackendCase, iterate_backend_cases
from hetero_core.testing.compare import describe_mismatch

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
EVERY = 1 if os.environ.get("WHOLE_KIT") else 8
"""Every n-th case runs, and the first case of each operator; WHOLE_KIT in the environment makes n 1."""


@pytest.fixture(scope="module")
def cases() -> list[BackendCase]:
    return [case for case in iterate_backend_cases(kinds=KINDS) if not case.is_random]


def sample_cases(cases: list[BackendCase], every: int) -> list[BackendCase]:
    """Returns every n-th case, and the first case of each operator."""
    chosen, seen = [], set[str]()
    for place, case in enumerate(cases):
        operators = {node.op_type for node in case.model.graph.node}
        if place % every == 0 or operators - seen:
            chosen.append(case)
            seen |= operators
    return chosen


def find_mismatch(case: BackendCase, loaded: ExecutableNetwork, card: Any) -> str | None:
    """Returns the fault of the outputs or of the number of copies, or None."""
    request = loaded.create_infer_request()
    for inputs, expected in case.runs:
        named_inputs = {spec.name: value for spec, value in zip(loaded.inputs, inputs, strict=False)}
        card.copies.clear()
        before = loaded.executable.traffic.snapshot()
        outputs = request.infer(named_inputs)
        problem = check_copies(loaded, named_inputs, outputs, card.copies, before)
        if problem is not None:
            return problem
        for (name, value), expected_value in zip(outputs.items(), expected, strict=True):
            mismatch = describe_mismatch(value, expected_value, rtol=max(case.rtol, 1e-4), name=name)
            if mismatch is not None:
                return mismatch
    return None


def check_copies(
    loaded: ExecutableNetwork,
    inputs: dict[str, Any],
    outputs: dict[str, Any],
    copies: list[tuple[str, int]],
    before: tuple[int, ...],
) -> str | None:
    """Returns the fault if the card's number of copies differs from the copies at the border plus the network's own count."""
    after = loaded.executable.traffic.snapshot()
    inside = [new - old for new, old in zip(after, before, strict=True)]
    reads = sum(count_tensors(outputs[spec.name]) for spec in loaded.outputs if spec.memory != HOST)
    writes = sum(count_tensors(inputs.get(spec.name)) for spec in loaded.inputs if spec.memory != HOST)
    seen = [sum(1 for way, _ in copies if way == direction) for direction in ("to_host", "from_host")]
    # NonZero counts a read for its number of elements, without copying an array.
    lengths = inside[0] - (seen[0] - reads)
    if lengths < 0 or (lengths and "NonZero" not in {node.op_type for node in iterate_nodes(loaded)}):
        return f"{seen[0]} arrays were read, {reads} at the border and {inside[0]} counted"
    return (
        None if seen[1] - writes == inside[2] else f"{seen[1]} arrays were written, {writes} at the border and {inside[2]} counted"
    )


def iterate_nodes(loaded: ExecutableNetwork) -> list[Any]:
    network: Network = loaded.executable.network
    return [node for outer in network.nodes for node in (outer, *(inner for body in outer.bodies.values() for inner in body.nodes))]


def count_tensors(value: Any) -> int:
    return sum(count_tensors(element) for element in value) if isinstance(value, list | tuple) else int(value is not None)


def test_claims_are_right_and_copies_are_counted(cases: list[BackendCase]) -> None:
    cases = sample_cases(cases, EVERY)
    runtime = FakeRuntime()
    card = runtime.cards()[0]
    wrong, refused, passed, still = {}, 0, 0, 0
    with Core() as core:
        core.register_plugin("MOCKUP", GpuDevice("MOCKUP", runtime))
        for case in cases:
            network = core.read_network(case.model)
            result = core.query_network(network, "MOCKUP")
            try:
                loaded = core.load_network(network, "MOCKUP")
            except UnsupportedNodesError as error:
                if set(error.refusals) != set(result.refused):
                    wrong[case.name] = "load refuses other nodes than query"
                refused += 1
                continue
            assert not result.refused, case.name
            try:
                problem = find_mismatch(case, loaded, card)
            except Exception as error:  # noqa: BLE001  # the kind and the text go into the list that the test shows
                problem = f"{type(error).__name__}: {error}"
            if problem is not None:
                wrong[case.name] = problem
            else:
                passed += 1
                still += loaded.executable.traffic.snapshot() == (0, 0, 0, 0)
    assert wrong == {}
    assert passed + refused == len(cases)
    # A sample has about its share. If more cases pass, write the new numbers.
    share = 1.0 if EVERY == 1 else 0.9 / EVERY
    assert passed >= 1752 * share
    # Networks with copies only at their border.
    assert still >= 1400 * share
