"""The engine folds constants at load within a limit; the rest is computed in each run."""

from __future__ import annotations

import resource

import numpy as np
import onnx
import onnx.numpy_helper
import pytest
from hetero_tests.child_loads import load_in_child
from hetero_tests.growing_models import build_many_constants
from onnx import helper

from hetero_core import Core

pytest.importorskip("onnxruntime", reason="needs the engine: pip install 'hetero-onnxruntime[test]'")


def test_constants_that_nodes_multiply_are_not_all_made_at_load() -> None:
    content, expected = build_many_constants(100, mebibytes=6)
    load = load_in_child(content, "ORT")
    assert load.outputs["y"] == pytest.approx([expected])
    assert load.peak < 600


def test_texts_that_nodes_double_are_not_made_at_load() -> None:
    nodes = [helper.make_node("StringConcat", [f"v{index}"] * 2, [f"v{index + 1}"]) for index in range(34)]
    nodes += [
        helper.make_node("Equal", ["v0", "v34"], ["e"]),
        helper.make_node("Cast", ["e"], ["c"], to=1),
        helper.make_node("Add", ["c", "x"], ["y"]),
    ]
    numbers = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy"]
    constant = onnx.numpy_helper.from_array(np.array(["ab"], object), "v0")
    graph = helper.make_graph(nodes, "g", numbers[:1], numbers[1:], [constant])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    with Core() as core:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        core.load_network(model, "ORT").close()
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 19
