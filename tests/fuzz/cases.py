"""The cases of a seed: a model that was changed, and what its seed was fed with.

Seeds: every case of ONNX's own suite, the models that come with the onnx package and with hetero, the small ones of `seeds`, and
operators that are drawn from their schemas.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import onnx
from mutate_nodes import mutate_nodes
from mutate_protos import mutate_bytes, mutate_model
from operator_models import make_operator_model
from seeds import list_seeds

import hetero_core

LARGEST_SEED = 20_000


@cache
def list_models() -> tuple[tuple[str, bytes, Mapping[str, Any]], ...]:
    """Returns (name, file, arrays that it may be fed with) of the models that are changed, in a fixed order."""
    from onnx.backend.test.case.node import collect_testcases

    models: list[tuple[str, bytes, Mapping[str, Any]]] = [(name, content, {}) for name, content in sorted(list_seeds().items())]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = collect_testcases(None)
    for case in sorted(cases, key=lambda case: str(case.name)):
        content = case.model.SerializeToString(deterministic=True)
        if len(content) <= LARGEST_SEED:
            names = [value.name for value in case.model.graph.input]
            models.append((case.name, content, dict(zip(names, case.data_sets[0][0], strict=False))))
    return tuple(models)


@cache
def list_trained() -> tuple[tuple[str, bytes], ...]:
    """Returns networks as tools export them."""
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    own = Path(hetero_core.__file__).parent / "cli" / "demo_assets" / "digits.onnx"
    return tuple((path.stem, path.read_bytes()) for path in (own, *sorted(folder.glob("*.onnx"))))


def make_case(seed: int, index: int) -> tuple[str, bytes, Mapping[str, Any]]:
    """Returns (what it is, model file, arrays that may fit its inputs)."""
    random = Random(f"{seed}:{index}")
    draw = random.random()
    if draw < 0.25:
        return "operator", make_operator_model(random).SerializeToString(deterministic=True), {}
    if draw < 0.30:
        name, content = random.choice(list_trained())
        arrays: Mapping[str, Any] = {}
    else:
        name, content, arrays = random.choice(list_models())
    mutate = random.choice((mutate_nodes, mutate_nodes, mutate_nodes, mutate_model, mutate_model, mutate_bytes))
    return f"{name} {mutate.__name__}", mutate(random, content), arrays
