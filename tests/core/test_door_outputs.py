"""Outputs belong to the caller: an output that shares memory is copied, all other outputs are not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx.parser
import pytest

from hetero_core import Core
from hetero_core.contract import OwnOutputs
from hetero_core.runtime.outputs import own_outputs

Array = np.ndarray[Any, Any]
X = np.arange(6, dtype=np.float32)


def make_constant() -> Array:
    array = np.arange(6, dtype=np.float32)
    array.flags.writeable = False
    return array


def make_foreign() -> Array:
    """Returns a view of a bytearray: no array owns the memory."""
    return np.frombuffer(bytearray(24), np.float32)


SHARED: dict[str, Callable[[Array, Array], tuple[Array, ...]]] = {
    "input": lambda x, y: (x,),
    "view of an input": lambda x, y: (x[1:],),
    "constant": lambda x, y: (make_constant(),),
    "the same twice": lambda x, y: (y, y),
    "view after its array": lambda x, y: (y, y[1:]),
    "array after its view": lambda x, y: (y[1:], y),
    "two views": lambda x, y: (y[1:], y[:-1]),
    "list with an input": lambda x, y: ([x], y),  # type: ignore[return-value,dict-item]  # a list is an output, too
}
APART: dict[str, Callable[[Array, Array], tuple[Array, ...]]] = {
    "array": lambda x, y: (y,),
    "two arrays": lambda x, y: (y, y.copy()),
    "two halves": lambda x, y: (y[:3], y[3:]),
    "foreign memory": lambda x, y: (make_foreign(), y, make_foreign()),
    "no elements": lambda x, y: (y[:0], y),
}


def list_arrays(outputs: Any) -> list[Array]:
    return [array for output in outputs for array in (output if isinstance(output, list) else [output])]


@pytest.mark.parametrize("case", [*SHARED, *APART])
def test_outputs_share_no_memory_and_may_be_written(case: str) -> None:
    x, y = X.copy(), X + 1
    outputs = {**SHARED, **APART}[case](x, y)
    expected = [array.copy() for array in list_arrays(outputs)]
    owned = list_arrays(own_outputs(outputs, (x,)))
    for array, copy in zip(owned, expected, strict=True):
        np.testing.assert_array_equal(array, copy)
    for index, array in enumerate(owned):
        assert array.flags.writeable
        assert not any(np.shares_memory(array, earlier) for earlier in (x, *owned[:index]))


@pytest.mark.parametrize("case", APART)
def test_outputs_without_shared_memory_are_not_copied(case: str) -> None:
    outputs = APART[case](X.copy(), X + 1)
    assert all(owned is output for owned, output in zip(own_outputs(outputs, (X.copy(),)), outputs, strict=True))


def test_own_outputs_of_a_device_are_not_checked() -> None:
    x = X.copy()
    outputs = OwnOutputs((x, x))
    assert own_outputs(outputs, (x,)) is outputs


@pytest.mark.parametrize("wrap", [dict, MappingProxyType])
def test_inputs_of_any_mapping_are_merged_with_set_tensors(wrap: Callable[[dict[str, Any]], Mapping[str, Any]]) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[2] x, float[2] w) => (float[2] y) { y = Sub(x, w) }'
    )
    ones = np.ones(2, np.float32)
    with Core() as core:
        request = core.load_network(model, "CPU").create_infer_request()
        assert request.infer(wrap({"x": 3 * ones, "w": ones}))["y"].tolist() == [2, 2]
        request.set_tensor("x", 5 * ones)
        assert request.infer(wrap({"w": ones}))["y"].tolist() == [4, 4]
        assert request.infer(wrap({"w": ones, "x": 7 * ones}))["y"].tolist() == [6, 6]
        assert request.infer(wrap({"w": 2 * ones}))["y"].tolist() == [3, 3], "what is given to a run is not set"


def test_change_of_the_returned_outputs_leaves_the_request_alone() -> None:
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Neg(x) }')
    with Core() as core:
        request = core.load_network(model, "CPU").create_infer_request()
        outputs = request.infer({"x": np.ones(2, np.float32)})
        outputs.clear()
        assert request.get_tensor("y").tolist() == [-1, -1]
