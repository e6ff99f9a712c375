"""The benchmark script compares engines and computes the right interval; times are not checked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pyperf
import pytest

from hetero_core.testing.models import light_inputs

BENCH = Path(__file__).parents[1] / "bench"


@pytest.fixture(autouse=True)
def bench_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))


def test_engines_alternate_and_their_values_are_files_of_pyperf(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(BENCH / "compare.py"),
        "residual",
        "--pairs",
        "1",
        "--seconds",
        "0.01",
        "--output",
        str(tmp_path),
    ]
    printed = subprocess.run(
        [*command, "--engines", "CPU+CPU_KERNELS=NUMPY", "HETERO:TEMPLATE,CPU"],
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    assert "HETERO:TEMPLATE,CPU" in printed.stdout
    suite = pyperf.BenchmarkSuite.load(str(tmp_path / "HETERO_TEMPLATE_CPU.json"))
    names = [f"residual {figure}, threads 1" for figure in ("first answer", "load", "run", "plan", "peak memory")]
    assert suite.get_benchmark_names() == names
    assert suite.get_benchmark("residual peak memory, threads 1").median() > 2**24
    difference = float(printed.stdout.rpartition("outputs differ by ")[2].split()[0])
    assert 0 <= difference < 1e-6


def test_interval_of_the_median_follows_order_statistics() -> None:
    from compare import find_interval

    # Source: Conover, Practical Nonparametric Statistics, table A3 (binomial, p = 0.5).
    assert find_interval([5.0, 1, 2, 3, 4]) is None
    assert find_interval([6.0, 1, 2, 3, 4, 5]) == (1, 6)
    assert find_interval([float(value) for value in range(1, 11)]) == (2, 9)


def test_widened_light_model_equals_image_by_image_runs() -> None:
    from cases import make_case

    # The channel shuffles of shufflenet are Reshapes to constant sizes.
    together, single = make_case("shufflenet", 2).model, make_case("shufflenet").model
    ((name, images),) = light_inputs(together).items()
    both, each = (
        onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]) for model in (together, single)
    )
    expected = np.concatenate([each.run(None, {name: images[index : index + 1]})[0] for index in range(2)])
    np.testing.assert_allclose(both.run(None, {name: images})[0], expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("name", ["trees", "int8_resnet", "mixed:12", "prefill"])
def test_case_is_a_valid_model(name: str) -> None:
    from cases import make_case

    case = make_case(name)
    onnx.checker.check_model(case.model)
    assert {value.name for value in case.model.graph.input} == case.runs[0].keys()
