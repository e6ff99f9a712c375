"""The formulas of the small models, against ONNX Runtime: an oracle that is wrong would be worse than none."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from hetero_core.conformance import oracles
from hetero_core.conformance.check import CheckFailed, Skip
from hetero_core.testing.compare import max_relative_difference
from hetero_core.testing.formulas import FORMULAS
from hetero_core.testing.models import SMALL_MODELS, light_inputs, small_model


def test_every_small_model_has_a_formula() -> None:
    assert tuple(FORMULAS) == SMALL_MODELS


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("seed", [0, 7])
def test_formula_agrees_with_the_engine(name: str, seed: int) -> None:
    model = small_model(name)
    inputs = light_inputs(model, seed)
    given = {one.name: onnx.numpy_helper.to_array(one) for one in model.graph.initializer} | inputs
    wide = {key: array.astype(np.float64) if array.dtype.kind == "f" else array for key, array in given.items()}
    for found, expected in zip(FORMULAS[name](wide), oracles.run_onnxruntime(model, inputs), strict=True):
        assert found.dtype == np.float64
        assert max_relative_difference(found, expected) < 1e-5


def test_small_model_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="no small model 'residul', did you mean 'residual'"):
        small_model("residul")


def test_one_oracle_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oracles, "_list_oracles", lambda name, model: {"an oracle": lambda inputs: [np.zeros(1)]})
    with pytest.raises(Skip, match="there is one oracle for 'loop' only \\(an oracle\\)"):
        oracles.find_expected("loop", 90)


def test_oracles_that_do_not_agree_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(value: float) -> Any:
        return lambda inputs: [np.full(1, value)]

    monkeypatch.setattr(
        oracles, "_list_oracles", lambda name, model: {"one": answer(1.0), "two": answer(2.0), "three": answer(3.0)}
    )
    with pytest.raises(CheckFailed, match="the oracles for 'loop' do not agree; relative to one, two: 1, three: 2"):
        oracles.find_expected("loop", 91)
    # Of three, two are enough.
    monkeypatch.setattr(
        oracles, "_list_oracles", lambda name, model: {"one": answer(1.0), "two": answer(2.0), "three": answer(1.0)}
    )
    assert oracles.find_expected("loop", 92)[1] == [1.0]
