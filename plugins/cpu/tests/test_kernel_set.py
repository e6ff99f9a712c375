"""The warning that BLAS runs kernels of an older processor."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hetero_cpu.machine.compiler import find_width
from hetero_cpu.run.blas import describe_slow_kernels

from hetero_core.devices.processors import grants_flag, read_processor_flags

AVX512 = frozenset({"avx2", "avx512f"})


def openblas(architecture: str) -> list[dict[str, str]]:
    return [{"internal_api": "openmp"}, {"internal_api": "openblas", "architecture": architecture}]


def test_old_kernels_on_a_new_processor_are_named_with_the_cause() -> None:
    assert describe_slow_kernels(openblas("Haswell"), AVX512, "Haswell") == (
        "OpenBLAS runs its kernels for Haswell, and the processor has AVX-512, which is about twice as fast: "
        "OPENBLAS_CORETYPE is 'Haswell'; unset it"
    )
    warning = describe_slow_kernels(openblas("Zen"), AVX512, None)
    assert warning is not None
    assert warning.endswith("it does not know the processor; set OPENBLAS_CORETYPE=SkylakeX before Python starts")


@pytest.mark.parametrize(
    ("architecture", "flags"),
    [("SkylakeX", AVX512), ("Haswell", frozenset({"avx2"})), ("neoversen1", AVX512), ("Haswell", frozenset())],
)
def test_kernels_that_fit_the_processor_give_no_warning(architecture: str, flags: frozenset[str]) -> None:
    assert describe_slow_kernels(openblas(architecture), flags, None) is None


@pytest.mark.skipif("avx512f" not in filter(grants_flag, read_processor_flags()), reason="the processor has no AVX-512")
@pytest.mark.parametrize(("kernels", "count"), [("NUMPY", 1), ("JIT", 0)])
def test_old_kernels_warn_once_if_numpy_computes(kernels: str, count: int) -> None:
    if kernels == "JIT" and not find_width():
        pytest.skip("no machine code for this processor")
    program = """
import logging, sys, onnx.parser
from hetero_core import Core
logging.basicConfig(level=logging.WARNING, format="%(message)s")
model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Relu (x) }')
with Core() as core:
    for _ in range(2):
        core.load_network(model, "CPU", {"CPU_KERNELS": sys.argv[1]}).infer({"x": [1.0, -1.0]})
"""
    environment = {**os.environ, "OPENBLAS_CORETYPE": "Haswell"}
    ended = subprocess.run(
        [sys.executable, "-c", program, kernels], env=environment, capture_output=True, text=True, check=True, timeout=900
    )
    assert ended.stderr.count("OpenBLAS runs its kernels for Haswell") == count
