"""Objects that belong to a process cannot be pickled or copied; the error names the alternative."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import onnx.parser
import pytest

from hetero_core import Core

MODEL = '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Neg (x) }'
CURES = {
    "core": "a Core belongs to one process .*open one in each process, and pass paths of models",
    "network": "network 'g' belongs to one process .*pass the path or the bytes of its model",
    "loaded": r"network 'g' on TEMPLATE belongs to one process .*export_network\(stream\) writes and import them there",
    "request": "an InferRequest belongs to one process .*create a request there",
}


@pytest.mark.parametrize("take", [pickle.dumps, copy.deepcopy, copy.copy])
@pytest.mark.parametrize("name", CURES)
def test_error_names_the_alternative(name: str, take: Callable[[Any], Any]) -> None:
    with Core() as core:
        network = core.read_network(onnx.parser.parse_model(MODEL))
        loaded = core.load_network(network, "TEMPLATE")
        subjects = {"core": core, "network": network, "loaded": loaded, "request": loaded.create_infer_request()}
        with pytest.raises(TypeError, match=CURES[name]):
            take(subjects[name])
