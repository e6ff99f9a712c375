"""The acceptance test of the network layer: every multi-node model of the ONNX backend suite equals its two halves in sequence.

Each model is cut at its middle and at three random positions of its topological order. The writer saves both halves, and the reference
evaluator runs them in sequence, and the whole model as the baseline: this tests reading, cutting, typing and writing, but no kernel.
The large networks ("real") are excluded, because their reference runs take minutes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
import onnx.checker
import pytest
from hetero_tests.samples import IS_WHOLE
from onnx.reference import ReferenceEvaluator

from hetero_core.network.graph import Network
from hetero_core.network.reader import read_network
from hetero_core.network.subnetwork import cut_subnetwork
from hetero_core.network.writer import network_to_proto
from hetero_core.testing.backend_cases import BackendCase, iterate_backend_cases

GROUPS = 8
TRIED = range(GROUPS if IS_WHOLE else 2)
"""The tested groups: all groups in the session `kit`."""
WITHOUT_REFERENCE = ("test_gradient_of_add", "test_gradient_of_add_and_mul")
"""The cases of Gradient, an operator without a kernel in the reference evaluator."""

# The suite and the reference evaluator divide by zero, overflow and cast NaN on purpose.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning", "ignore::UserWarning")


@pytest.fixture(scope="module", params=TRIED)
def multi_node_cases(request: pytest.FixtureRequest) -> list[tuple[BackendCase, Network]]:
    """The models of a group with more than one node; there are more than 400 in all groups."""
    kinds = ("node", "simple", "pytorch-converted", "pytorch-operator")
    cases = [case for case in iterate_backend_cases(kinds=kinds) if case.name not in WITHOUT_REFERENCE and not case.is_random]
    cases = [case for case in cases if len(case.model.graph.node) > 1 or case.model.functions]
    assert len(cases) > 400
    pairs = [(case, read_network(case.model)) for case in cases[request.param :: GROUPS]]
    return [(case, network) for case, network in pairs if len(network.nodes) > 1]


def test_halves_in_sequence_equal_the_whole(multi_node_cases: list[tuple[BackendCase, Network]]) -> None:
    failures = []
    for case, network in multi_node_cases:
        names = [node.name for node in network.nodes]
        for place in _places(case.name, len(names)):
            failures += _compare_parts(case, network, [names[:place], names[place:]], f"cut at {place}")
    assert not failures, "\n".join(failures)


def test_nodes_one_by_one_equal_the_whole(multi_node_cases: list[tuple[BackendCase, Network]]) -> None:
    failures = []
    for case, network in multi_node_cases:
        failures += _compare_parts(case, network, [[node.name] for node in network.nodes], "node by node")
    assert not failures, "\n".join(failures)


def _compare_parts(case: BackendCase, network: Network, parts: list[list[str]], how: str) -> list[str]:
    """Returns an error if the outputs of the parts differ from the whole; an empty list if they agree."""
    try:
        feeds = dict(zip((spec.name for spec in network.inputs), case.runs[0][0], strict=True))
        whole = ReferenceEvaluator(case.model)
        outputs = _run_parts(network, parts, feeds)
        for name, value in zip(whole.output_names, whole.run(None, feeds), strict=True):
            _assert_same(outputs[name], value, f"output '{name}'")
    except Exception as error:  # noqa: BLE001  # the test names every failing model
        return [f"{case.name}, {how}: {type(error).__name__}: {str(error)[:300]}"]
    return []


def _places(name: str, count: int) -> Iterator[int]:
    """Yields the middle and three random positions, seeded by the model's name, without duplicates."""
    draw = random.Random(name)
    yield from sorted({count // 2, *(draw.randrange(1, count) for _ in range(3))})


def _run_parts(network: Network, parts: list[list[str]], feeds: Mapping[str, Any]) -> dict[str, Any]:
    values = {**feeds, **{name: initializer.array for name, initializer in network.initializers.items()}}
    for part in (cut_subnetwork(network, names) for names in parts):
        proto = network_to_proto(part)
        # The checker requires shapes of inputs and outputs; a value of unknown rank has no shape.
        if all(spec.shape is not None or spec.dtype is None for spec in (*part.inputs, *part.outputs)):
            onnx.checker.check_model(proto)
        evaluator = ReferenceEvaluator(proto)
        outputs = evaluator.run(None, {spec.name: values[spec.name] for spec in part.inputs})
        values.update(zip((spec.name for spec in part.outputs), outputs, strict=True))
    return values


def _assert_same(output: Any, expected: Any, subject: str) -> None:
    if expected is None:
        assert output is None, subject
    elif isinstance(expected, list):
        assert isinstance(output, list), subject
        assert len(output) == len(expected), subject
        for index, (item, expected_item) in enumerate(zip(output, expected, strict=True)):
            _assert_same(item, expected_item, f"{subject}, element {index}")
    else:
        output, expected = np.asarray(output), np.asarray(expected)
        assert output.dtype == expected.dtype, subject
        assert output.shape == expected.shape, subject
        same = output.tolist() == expected.tolist() if output.dtype == object else output.tobytes() == expected.tobytes()
        assert same, subject
