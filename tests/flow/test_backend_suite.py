"""The cases of onnx's own backend suite on our devices: what a device claims it computes right, what it denies it refuses to load."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import hetero_cpu
import hetero_template
import pytest

from hetero_core import Core, ExecutableNetwork, Network
from hetero_core.errors import UnsupportedNodesError
from hetero_core.testing.backend_cases import BackendCase, iterate_backend_cases
from hetero_core.testing.compare import describe_mismatch

# The large networks of "real" take seconds each; tests/core/test_kernels_cases.py runs them once.
KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
# What CPU does not pass, and why; the six cases of Bernoulli, whose random draws no engine repeats, are left out before.
LEFT_OUT = {
    "test_gradient_of_add": "Gradient differentiates the graph around it, which no kernel can",
    "test_gradient_of_add_and_mul": "the same",
}
# bfloat16 functions written out round after each operator, so two right answers differ by a few units of 2**-8.
ROUNDING = {"bf16": 2e-2, "bfloat16": 2e-2}
SHARES = 8


@pytest.fixture(scope="module")
def cases() -> list[BackendCase]:
    drawn, fixed = [], []
    for case in iterate_backend_cases(kinds=KINDS):
        (drawn if case.is_random else fixed).append(case)
    assert len(drawn) == 6
    assert all("bernoulli" in case.name for case in drawn)
    return fixed


@pytest.fixture
def core() -> Iterator[Core]:
    with Core() as opened:
        opened.register_plugin("D0", hetero_template)
        opened.register_plugin("D1", hetero_cpu)
        yield opened


def find_mismatch(case: BackendCase, loaded: ExecutableNetwork) -> str | None:
    tolerance = max(case.rtol, 1e-4, *(value for key, value in ROUNDING.items() if key in case.name), 0.0)
    for inputs, expected in case.runs:
        found = loaded.infer({spec.name: value for spec, value in zip(loaded.inputs, inputs, strict=False)})
        for (name, value), wanted in zip(found.items(), expected, strict=True):
            mismatch = describe_mismatch(value, wanted, rtol=tolerance, name=name)
            if mismatch is not None:
                return mismatch
    return None


def check_claim(core: Core, case: BackendCase, network: Network, device: str) -> str | None:
    """Returns what is wrong with a device's answer about a case; None when the claim holds or the refusal is kept."""
    result = core.query_network(network, device)
    try:
        loaded = core.load_network(network, device)
    except UnsupportedNodesError as error:
        return None if set(error.refusals) == set(result.refused) else "load refuses other nodes than query"
    if result.refused:
        return f"loaded, though query refuses {list(result.refused)}"
    try:
        return find_mismatch(case, loaded)
    except Exception as error:  # noqa: BLE001  # the kind and the text go into the list that the test shows
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize(
    ("device", "least"), [("CPU", 2016), ("TEMPLATE", 1880), ("HETERO:TEMPLATE,CPU", 2016)], ids=["cpu", "template", "hetero"]
)
def test_claims_hold_and_refusals_are_kept(core: Core, cases: list[BackendCase], device: str, least: int) -> None:
    wrong, passed, refused = {}, 0, set()
    for case in cases:
        network = core.read_network(case.model)
        problem = check_claim(core, case, network, device)
        if problem is not None:
            wrong[case.name] = problem
        elif not core.query_network(network, device).refused:
            passed += 1
        else:
            refused.add(case.name)
    assert wrong == {}
    assert passed >= least
    if "CPU" in device:
        assert refused == set(LEFT_OUT)


@pytest.mark.parametrize("share", range(SHARES))
def test_model_cut_anywhere_gives_the_same_answer(core: Core, cases: list[BackendCase], share: int) -> None:
    """In two at its middle and at three random places, the halves on two devices, through the public API."""
    wrong, counted = {}, 0
    for case in [case for case in cases if len(case.model.graph.node) > 1 or case.kind != "node"][share::SHARES]:
        network = core.read_network(case.model)
        if len(network.nodes) < 2 or core.query_network(network, "HETERO:D0,D1").refused:
            continue
        counted += 1
        draw = random.Random(case.name)
        for place in (len(network.nodes) // 2, *(draw.randrange(1, len(network.nodes)) for _ in range(3))):
            problem = check_cut(core, case, network, place)
            if problem is not None:
                wrong[f"{case.name} cut before node {place}"] = problem
    assert wrong == {}
    assert counted > 20


def check_cut(core: Core, case: BackendCase, network: Network, place: int) -> str | None:
    first = core.query_network(network, "D0").supported
    second = core.query_network(network, "D1").supported
    pins: dict[str, Any] = {}
    for index, node in enumerate(network.nodes):
        wanted, other = ("D0", "D1") if index < place else ("D1", "D0")
        has_wanted = node.name in (first if wanted == "D0" else second)
        pins[node.name] = wanted if has_wanted else other
    try:
        return find_mismatch(case, core.load_network(network.with_affinity(pins), "HETERO:D0,D1"))
    except Exception as error:  # noqa: BLE001  # as above
        return f"{type(error).__name__}: {error}"
