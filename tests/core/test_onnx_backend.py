"""ONNX's backend interface: ONNX's own runner of its suite on CPU, and the methods that the runner does not call.

The default tests run the cases of some operators of each family; WHOLE_KIT=1 runs all.
"""

from __future__ import annotations

import os
import re
import unittest
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from hetero_core.errors import UnsupportedNodesError
from hetero_core.frontends import onnx_backend
from hetero_core.frontends.onnx_backend import HeteroBackend, HeteroBackendRep

CASES = (
    ""
    if os.environ.get("WHOLE_KIT")
    else "test_(add|argmax|cast_FLOAT_to_F|concat|einsum|gru|if|optional|pad|sequence|softmax|strnorm|topk|where)(?!.*expanded)"
)

UNCERTAIN = "bernoulli|dropout.*rand|squeezenet|causal_fp16_expanded|loop16_seq_none"
"""Outputs that are drawn, are a matter of roundings, or of a kind that the runner does not compare; the kit judges them."""


class SuiteBackend(HeteroBackend):
    """CPU alone, which skips the cases that it refuses."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **config: Any) -> HeteroBackendRep:
        from onnx.backend.test.runner import BackendIsNotSupposedToImplementIt

        try:
            return super().prepare(model, device, **config)
        except UnsupportedNodesError as error:
            raise BackendIsNotSupposedToImplementIt(str(error)) from error

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device == "CPU"


def list_cases() -> Iterator[unittest.TestCase]:
    from onnx.backend.test import BackendTest

    for category in BackendTest(SuiteBackend, __name__).test_cases.values():
        for case in unittest.defaultTestLoader.loadTestsFromTestCase(category):
            if re.match(CASES, case._testMethodName) and not re.search(UNCERTAIN, case._testMethodName):
                yield case


@pytest.mark.filterwarnings("ignore")
def test_suite_of_onnx() -> None:
    with warnings.catch_warnings():
        # The scripts of the suite overflow and divide by zero on purpose.
        warnings.simplefilter("ignore")
        result = unittest.TestResult()
        unittest.TestSuite(list_cases()).run(result)
    wrong = [f"{case}: {text.splitlines()[-1]}" for case, text in (*result.failures, *result.errors)]
    assert wrong == []
    refused = [reason for _, reason in result.skipped if "refused" in reason]
    assert result.testsRun - len(result.skipped) > 100
    assert len(refused) < 0.05 * result.testsRun


def make_model(op_type: str) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2])
    return helper.make_model(helper.make_graph([helper.make_node(op_type, ["x"], ["y"])], "g", [x], [y]))


def test_model_is_prepared_once_and_runs_often() -> None:
    prepared = onnx_backend.prepare(make_model("Neg"), "HETERO:TEMPLATE,CPU", PERF_COUNT=True)
    for x in ([1, 2], [3, -4]):
        (y,) = prepared.run([np.float32(x)])
        assert y.tolist() == [-x[0], -x[1]]
    assert onnx_backend.run_model(make_model("Abs"), [np.float32([-1, 2])])[0].tolist() == [1, 2]


def test_node_runs_with_and_without_optional_inputs() -> None:
    node = helper.make_node("Clip", ["x", "", "most"], ["y"])
    x = np.float32([-5, 2, 9])
    assert onnx_backend.run_node(node, [x, np.float32(3)])[0].tolist() == [-5, 2, 3]
    assert onnx_backend.run_node(node, {"x": x, "most": np.float32(3)}, opset_version=13)[0].tolist() == [-5, 2, 3]


def test_compatible_models_are_those_that_the_device_takes() -> None:
    assert onnx_backend.is_compatible(make_model("Neg"), "CPU")
    assert not onnx_backend.is_compatible(make_model("Unheard"), "CPU")


@pytest.mark.parametrize(
    ("device", "expected"),
    [("CPU", "CPU"), ("CPU:0", "CPU"), ("CUDA", "GPU"), ("CUDA:1", "GPU.1"), ("HETERO:GPU,CPU", "HETERO:GPU,CPU")],
)
def test_device_of_onnx(device: str, expected: str) -> None:
    assert onnx_backend.find_device(device) == expected


def test_supported_devices() -> None:
    assert onnx_backend.supports_device("CPU")
    assert not onnx_backend.supports_device("NPU")
