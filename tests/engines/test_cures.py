"""Refused loads of ONNX's cases on engines: each error suggests device strings, which run the network with correct outputs."""

from __future__ import annotations

import os
import re

import pytest

from hetero_core import Core
from hetero_core.errors import HeteroError, UnsupportedNodesError
from hetero_core.testing.backend_cases import BackendCase, iterate_backend_cases
from hetero_core.testing.compare import describe_mismatch

# Every SPARSE-th case that a device refuses is loaded with its cure; every case if the environment has WHOLE_KIT.
SPARSE = 1 if os.environ.get("WHOLE_KIT") else 12
DEVICES = ("OPENVINO", "ORT")
ROUNDING = 2e-2
"""The tolerance of bfloat16: an expanded function rounds after each operator."""


pytest.importorskip("openvino", reason="needs OpenVINO: pip install 'hetero-openvino[test]'")
pytest.importorskip("onnxruntime", reason="needs ONNX Runtime: pip install 'hetero-onnxruntime[cpu]'")


@pytest.fixture(scope="module")
def cases() -> list[BackendCase]:
    return [case for case in iterate_backend_cases(kinds=("node", "simple")) if not case.is_random]


def list_cures(error: UnsupportedNodesError) -> list[str]:
    return re.findall(r"'([^']+)'", error.cure) if error.cure.startswith("Load it with") else []


def find_fault(core: Core, case: BackendCase, device: str) -> str | None:
    """Returns the fault of a case on a device that should support it, None if it is correct."""
    try:
        with core.load_network(case.model, device) as network:
            for inputs, expected in case.runs:
                answers = network.infer({spec.name: value for spec, value in zip(network.inputs, inputs, strict=False)})
                for (name, answer), value in zip(answers.items(), expected, strict=True):
                    mismatch = describe_mismatch(answer, value, rtol=max(case.rtol, ROUNDING), name=name)
                    if mismatch is not None:
                        return mismatch
            return None
    except HeteroError as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("device", DEVICES)
def test_cure_of_a_refused_case_gives_correct_outputs(core: Core, cases: list[BackendCase], device: str) -> None:
    faults, count = [], 0
    for number, case in enumerate(cases):
        if number % SPARSE:
            continue
        try:
            core.load_network(case.model, device)
            continue
        except UnsupportedNodesError as error:
            refusal = error
        except HeteroError:
            continue  # no device reads such a model
        strings = list_cures(refusal)
        if not strings and not all(core.query_network(case.model, alternative).refused for alternative in ("CPU", *DEVICES)):
            faults.append(f"{case.name}: no cure: {refusal.cure}")
        fault_of_string = {string: find_fault(core, case, string) for string in strings}
        faults += [f"{case.name} on {string}: {fault}" for string, fault in fault_of_string.items() if fault is not None]
        count += len(strings)
    assert not faults, "\n".join(faults)
    assert count > 100 // SPARSE
