"""Contrib: random cases of the operators that ONNX Runtime adds to ONNX's own, with ONNX Runtime's own kernels as the oracle.

The device must compute a claimed case as ONNX Runtime does, integers bit for bit, except for one step where a quantized value lies within
rounding noise of a half step. A case that it does not claim is one that `load_network` must refuse. The checks are skipped if ONNX Runtime
is not installed.
"""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np

from hetero_core.conformance.check import Check, CheckContext, CheckFailed, Skip, require_refusal
from hetero_core.conformance.operators import PASSED, REFUSED, WRONG, accept_half_steps
from hetero_core.dtypes import dtype_of_numpy
from hetero_core.network.types import TensorType
from hetero_core.runtime.inputs import fits_shape
from hetero_core.testing.compare import describe_mismatch
from hetero_core.testing.contrib.case import ContribCase, make_model, run_engine

if TYPE_CHECKING:
    from hetero_core.conformance.runner import Outcome
    from hetero_core.core import Core
    from hetero_core.network.graph import Network

CASES = 6
"""Cases of each operator."""


@cache
def list_contrib_checks() -> tuple[Check, ...]:
    """Returns the checks, named as "contrib.QLinearAdd_0"; each draws its case when it runs."""
    from hetero_core.testing.contrib.draws import DRAWS  # imports the draws of all operators

    return tuple(
        Check(f"contrib.{operator}_{index}", "contrib", partial(check_case, operator, index), shares_core=True)
        for operator in DRAWS
        for index in range(CASES)
    )


def draw_case(operator: str, index: int, seed: int) -> ContribCase:
    """Returns a case of an operator; equal numbers give equal cases."""
    from hetero_core.testing.contrib.draws import DRAWS, Generator

    return DRAWS[operator](Generator(np.random.PCG64([seed, index, crc32(operator.encode())])), operator)


def check_case(operator: str, index: int, context: CheckContext) -> None:
    """A drawn case of a contrib operator is computed as ONNX Runtime does, or it is refused by both query and load.

    Raises: CheckFailed; Skip for a refusal, and if ONNX Runtime is missing or its version cannot run the case.
    """
    if importlib.util.find_spec("onnxruntime") is None:
        raise Skip("ONNX Runtime is not installed, whose kernels are the oracle")
    case = draw_case(operator, index, context.seed)
    try:
        expected = run_engine(case)
    except Exception as error:  # another version of the engine may refuse in its own way
        raise Skip(f"the installed ONNX Runtime does not run the case: {type(error).__name__}: {error}") from error
    judge_case(case, expected, context.core, context.device)


def judge_case(case: ContribCase, expected: dict[str, Any], core: Core, device: str) -> None:
    """Computes a case on the device. Raises: CheckFailed if it is wrong; Skip with the finding REFUSED; any error of the device."""
    network = core.read_network(make_model(case))
    result = core.query_network(network, device)
    if result.refused:
        raise Skip(require_refusal(core, network, device, result), REFUSED)
    with core.load_network(network, device) as loaded:
        mismatch = _find_mismatch(case, network, loaded.infer(case.feeds), expected)
    if mismatch is not None:
        raise CheckFailed(mismatch)


def _find_mismatch(case: ContribCase, network: Network, outputs: dict[str, Any], expected: dict[str, Any]) -> str | None:
    """Returns the first difference of an output in value or in type, None if all outputs agree."""
    for name, reference in expected.items():
        rtol = case.tolerance if dtype_of_numpy(reference.dtype) == "float32" else None

        def run(inputs: Sequence[Any], name: str = name) -> list[Any]:
            return [run_engine(replace(case, inputs=tuple(inputs)))[name]]

        (accepted,) = accept_half_steps(network, case.inputs, [outputs[name]], [reference], run)
        mismatch = describe_mismatch(outputs[name], accepted, rtol=rtol, name=name)
        if mismatch is not None:
            return mismatch
        inferred = network.type_of(name)
        shape = inferred.shape if isinstance(inferred, TensorType) else None
        if not isinstance(inferred, TensorType) or inferred.dtype != dtype_of_numpy(reference.dtype):
            return f"{name} is {dtype_of_numpy(reference.dtype)}, and its inferred type {inferred}"
        if shape is None or not fits_shape(reference.shape, shape):
            return f"{name} has shape {list(reference.shape)}, and its inferred type is {inferred}"
    return None


def count_operators(outcomes: Sequence[Outcome]) -> list[dict[str, Any]] | None:
    """Returns the numbers of passed, refused and wrong cases of each operator; None if no case of the level ran."""
    counts: dict[str, Counter[object]] = {}
    for outcome in outcomes:
        if outcome.check.level == "contrib":
            operator = outcome.check.name.removeprefix("contrib.").rpartition("_")[0]
            status = {"passed": PASSED, "failed": WRONG}.get(outcome.status, outcome.finding)
            counts.setdefault(operator, Counter())[status] += 1
    if not counts:
        return None
    return [
        {"operator": operator} | {status: each[status] for status in (PASSED, REFUSED, WRONG)} for operator, each in counts.items()
    ]
