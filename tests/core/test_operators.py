"""Our type inference agrees with onnx on random nodes, for every operator with a rule and every version of the rule."""

from __future__ import annotations

import random
import warnings
from functools import partial
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx.printer
import onnx.shape_inference
import pytest
from hetero_tests.drawn_nodes import UNDRAWN, draw_model, list_versions
from hetero_tests.samples import IS_WHOLE

from hetero_core.dtypes import dtype_of_numpy
from hetero_core.errors import HeteroError, NetworkDeclarationWarning
from hetero_core.network.hints import without_hints
from hetero_core.network.inference import apply_rule, read_numbers
from hetero_core.network.operators import OPERATORS
from hetero_core.network.reader import assemble_network, read_network
from hetero_core.network.tensors import read_type
from hetero_core.network.types import TensorType, merge_types
from hetero_core.network.weights import WeightFiles
from hetero_core.testing.backend_cases import iterate_backend_cases

VERSIONS = list_versions({name: operator for name, operator in OPERATORS.items() if operator.dtypes is not None})
DRAWS = 60
ENOUGH = DRAWS if IS_WHOLE else 12
"""Nodes with an inferred type after which an operator draws no more."""


def infer_by_onnx(model: onnx.ModelProto) -> Any:
    graph = onnx.shape_inference.infer_shapes(model).graph
    return {output.name: read_type(output.type, "output") for output in graph.output}


@pytest.mark.parametrize(("op_type", "since"), VERSIONS, ids=[f"{name}-{since}" for name, since in VERSIONS])
def test_drawn_node_has_the_type_that_onnx_infers(op_type: str, since: int) -> None:
    draw = random.Random(f"{op_type} {since}")
    inferred_count = 0
    for _ in range(DRAWS):
        if inferred_count == ENOUGH:
            break
        model = draw_model(draw, op_type, since)
        try:
            network = assemble_network(model, WeightFiles(None), "drawn")
        except HeteroError:
            continue  # the schema has no such node
        (node,), constants = network.nodes, network.initializers
        if node.attributes.get("ceil_mode") and since < 22:
            continue  # onnx also counts windows that start behind the padded end
        if node.op_type == "ConvTranspose" and "auto_pad" in node.attributes:
            continue  # onnx adds output_padding to SAME
        input_types = [network.types.get(value) or constants[value].type if value else None for value in node.inputs]
        types = apply_rule(node, input_types, partial(read_numbers, constants))
        if types is not None:
            inferred_count += 1
            for name, expected in infer_by_onnx(model).items():
                # Our rules keep named sizes that onnx loses, as in a Reshape with -1.
                assert merge_types(expected or TensorType(None), types[name]) == types[name], onnx.printer.to_text(model)
    assert inferred_count > 0 or op_type in UNDRAWN


def test_types_of_the_node_cases_are_those_of_their_results() -> None:
    checked = 0
    for case in iterate_backend_cases(kinds=("node",)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NetworkDeclarationWarning)  # some cases declare a wrong output shape
            network = without_hints(read_network(case.model))
        for _, outputs in case.runs:
            for spec, array in zip(network.outputs, outputs, strict=True):
                if not isinstance(spec.type, TensorType) or not isinstance(array, np.ndarray):
                    continue
                checked += 1
                assert spec.dtype in (None, "string", dtype_of_numpy(array.dtype)), case.name
                sizes = (
                    array.shape
                    if spec.shape is None
                    else tuple(
                        length if not isinstance(size, int) else size for size, length in zip(spec.shape, array.shape, strict=True)
                    )
                )
                assert sizes == array.shape, case.name
    assert checked > 1500
