from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from hetero_core.testing.backend_cases import KINDS, BackendCase, iterate_backend_cases


@pytest.fixture(scope="module")
def cases() -> list[BackendCase]:
    return list(iterate_backend_cases())


def test_all_kinds_are_there_in_order_and_names_are_unique(cases: list[BackendCase]) -> None:
    counts = Counter(case.kind for case in cases)
    assert list(counts) == list(KINDS)
    # The counts of onnx 1.23; later versions have more cases.
    assert counts["node"] >= 1884
    assert [counts[kind] for kind in KINDS[1:]] == [23, 82, 35, 9]
    assert len({case.name for case in cases}) == len(cases)


def test_every_case_has_values_for_every_input_and_output(cases: list[BackendCase]) -> None:
    wrong = []
    for case in cases:
        constants = {tensor.name for tensor in case.model.graph.initializer}
        inputs = [spec.name for spec in case.model.graph.input if spec.name not in constants]
        for feeds, expected in case.runs:
            if len(feeds) != len(inputs) or len(expected) != len(case.model.graph.output):
                wrong.append(case.name)
    assert wrong == []


def test_pattern_and_kinds_select_cases() -> None:
    names = [case.name for case in iterate_backend_cases("^test_softmax_axis_[01]$", kinds=("node",))]
    assert names == ["test_softmax_axis_0", "test_softmax_axis_1"]
    assert [case.name for case in iterate_backend_cases("squeezenet")] == ["test_squeezenet"]


def test_sequences_are_lists_and_tensors_arrays() -> None:
    [case] = iterate_backend_cases("^test_sequence_insert_at_back$", kinds=("node",))
    [(inputs, _)] = case.runs
    assert isinstance(inputs[0], list)
    assert all(isinstance(element, np.ndarray) for element in inputs[0])


@pytest.mark.parametrize(("name", "drawn"), [("test_bernoulli_seed", True), ("test_abs", False), ("test_bernoulli_expanded", True)])
def test_random_models_are_marked_as_random(name: str, drawn: bool) -> None:
    [case] = iterate_backend_cases(f"^{name}$", kinds=("node",))
    assert case.is_random == drawn
