"""The benchmark beside other engines: what is compared, counted and told is checked, how long it took is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from hetero_core.testing.formulas import compute_residual
from hetero_core.testing.models import light_inputs, residual_model

BENCH = Path(__file__).parents[1] / "bench"
QUICK = ["residual", "--threads", "1", "--rounds", "1", "--seconds", "0.02", "--engines"]


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Imports the files of tests/bench/speed by their names, as the script does."""
    import importlib

    monkeypatch.syspath_prepend(str(BENCH))
    yield lambda name: importlib.import_module(f"speed.{name}")
    for name in [name for name in sys.modules if name == "speed" or name.startswith("speed.")]:
        del sys.modules[name]


def run_script(*arguments: str, code: int = 0, **environment: str) -> str:
    command = [sys.executable, str(BENCH / "bench_models.py"), *arguments]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=900, check=False, env={**os.environ, **environment}, cwd=BENCH
    )
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended.stdout if code == 0 else ended.stderr


def test_engines_take_turns_and_are_compared_with_each_other_and_with_float64(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    printed = run_script(*QUICK, "CPU", "onnxruntime", "--batch", "2", "--json", str(file), OPENBLAS_CORETYPE="Haswell")
    assert "cleared: " in printed
    figures = json.loads(file.read_text())
    assert "OPENBLAS_CORETYPE" in figures["cleared"]
    (row,) = figures["rows"]
    assert (row["model"], row["batch"], row["threads"], list(row["engines"])) == ("residual", 2, 1, ["CPU", "onnxruntime"])
    for engine, found in row["engines"].items():
        # Not equal to float64, for it is float32; not further from it than float32 is.
        assert 0 < found["float64"] < 1e-6, engine
        assert min(found[key] for key in ("import", "load", "first", "median", "peak")) > 0
    assert row["engines"]["CPU"]["differences"].keys() == {"onnxruntime"}
    ratio = row["engines"]["onnxruntime"]["median"] / row["engines"]["CPU"]["median"]
    summary = f"| CPU  | onnxruntime | threads 1, batch 2 | 1    | {ratio:.2f} "
    assert summary in printed
    # The tables can be had again from the file.
    assert run_script("--table", str(file)).strip() in printed


def test_start_has_an_empty_cache_a_full_one_and_a_blob(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    printed = run_script("--start", *QUICK, "CPU", "--json", str(file))
    (row,) = json.loads(file.read_text())["rows"]
    assert row["engine"] == "CPU"
    assert 0 < row["difference"] < 1e-6
    for step in ("cold", "warm", "blob"):
        assert row[f"{step}_total"] > row[f"{step}_answer"] > row[f"{step}_load"] > 0
    assert "| residual | 1     | 1       | CPU    |" in printed


def test_a_model_that_there_is_not_is_refused_with_the_list() -> None:
    assert "no model 'resnet'; there are bert, densenet121, " in run_script("resnet", code=2)


def test_float64_answer_is_that_of_the_formula(modules: Any) -> None:
    model = modules("models").widen_batch(residual_model(), 2)
    inputs = light_inputs(model)
    weights = {tensor.name: onnx.numpy_helper.to_array(tensor).astype(np.float64) for tensor in model.graph.initializer}
    expected = compute_residual({**weights, **{name: array.astype(np.float64) for name, array in inputs.items()}})
    (output,) = modules("double").compute_expected(model, inputs)
    assert output.dtype == np.float64
    np.testing.assert_allclose(output, expected[0], rtol=1e-12)


def test_light_model_for_more_images_answers_image_by_image(modules: Any) -> None:
    make_model = modules("models").make_model
    # Its channel shuffles are Reshapes to constant sizes.
    together, alone = make_model("shufflenet", 2), make_model("shufflenet", 1)
    inputs = light_inputs(together)
    ((name, images),) = inputs.items()
    assert images.shape == (2, 3, 224, 224)
    both, each = (
        onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]) for model in (together, alone)
    )
    expected = np.concatenate([each.run(None, {name: images[index : index + 1]})[0] for index in range(2)])
    np.testing.assert_allclose(both.run(None, inputs)[0], expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("kind", ["elementwise", "mixed"])
def test_chain_has_as_many_operators_as_it_says_and_its_numbers_stay_small(modules: Any, kind: str) -> None:
    model = modules("models").make_model(f"{kind}:400", 2)
    assert len(model.graph.node) == 400
    inputs = light_inputs(model)
    (output,) = modules("double").compute_expected(model, inputs)
    assert output.shape == (2, 4, 4)
    assert 0 < np.abs(output).max() < 10


def test_ratios_have_their_geometric_mean_median_and_worst(modules: Any) -> None:
    rows = [
        {"model": model, "batch": 1, "threads": threads, "engines": {"CPU": {"median": 2.0}, "openvino": {"median": 2.0 * ratio}}}
        for model, threads, ratio in (("a", 1, 0.5), ("b", 1, 2.0), ("c", 1, 8.0), ("a", 2, 4.0))
    ]
    one, two, everything = modules("summary").summarize_ratios(rows)
    assert (one.place, one.count, one.median, one.worst, one.worst_model) == ("threads 1, batch 1", 3, 2.0, 0.5, "a")
    assert one.geometric_mean == pytest.approx(2.0)
    assert (two.place, two.geometric_mean) == ("threads 2, batch 1", pytest.approx(4.0))
    assert (everything.place, everything.count, everything.median) == ("all", 4, 3.0)
    assert everything.geometric_mean == pytest.approx(32 ** (1 / 4))
    assert everything.worst_model == "a, batch 1, threads 1"
    places = modules("summary").group_rows([*rows, {**rows[3], "batch": 8}])
    assert {place: len(members) for place, members in places.items()} == {
        "threads 1, batch 1": 3,
        "threads 2, batch 1": 1,
        "threads 2, batch 8": 1,
        "batch 1": 4,
        "batch 8": 1,
        "all": 5,
    }


def test_line_through_points_that_are_on_one_is_that_line(modules: Any) -> None:
    constant, slope, deviation = modules("evenness").fit_line({size: 3 + 2.0 * size for size in (1, 2, 4, 32)})
    assert (constant, slope) == (pytest.approx(3), pytest.approx(2))
    assert deviation < 1e-12
    *_, deviation = modules("evenness").fit_line({1: 1.0, 2: 2.0, 3: 6.0, 4: 4.0})
    # Least squares of (a + b n) / t - 1 by NumPy.
    points, times = np.array([1.0, 2, 3, 4]), np.array([1.0, 2, 6, 4])
    solution = np.linalg.lstsq(np.stack([1 / times, points / times], axis=1), np.ones(4), rcond=None)[0]
    assert deviation == pytest.approx(np.abs((solution[0] + solution[1] * points) / times - 1).max())


def test_stability_is_told_in_medians_of_processes(modules: Any) -> None:
    alone = [{"median": time, "idle": idle} for time, idle in ((1.0, 0.1), (2.0, 0.2), (5.0, 9.0))]
    found = modules("stability").summarize(alone, [{"median": 3.0}, {"median": 4.0}, {"median": 8.0}])
    assert (found["median"], found["slowest_to_median"], found["beside_to_median"]) == (2.0, 2.5, 2.0)
    assert (found["beside_slowest_to_median"], found["idle_median"], found["idle_most"]) == (4.0, 0.2, 9.0)


def test_children_have_nothing_that_chooses_kernels_or_ways_to_wait(modules: Any) -> None:
    given = {
        "PATH": "/bin",
        "OPENBLAS_CORETYPE": "Haswell",
        "NUMBA_CACHE_DIR": "x",
        "OMP_WAIT_POLICY": "active",
        "OMP_NUM_THREADS": "7",
        # Imports would compile what an installed package has compiled.
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    environment, cleared = modules("children").make_environment(given, 2, cache=Path("kept"))
    assert cleared == ["NUMBA_CACHE_DIR", "OMP_WAIT_POLICY", "OPENBLAS_CORETYPE", "PYTHONDONTWRITEBYTECODE"]
    threads = dict.fromkeys(("MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "2")
    assert environment == {"PATH": "/bin", "XDG_CACHE_HOME": "kept", **threads}


def test_kernels_that_the_device_does_not_have_are_left_out_with_the_reason(modules: Any, tmp_path: Path) -> None:
    onnx.save(residual_model(), tmp_path / "model.onnx")
    find_reason = modules("engines").Device("CPU:NONE", 1).find_reason
    assert "CPU_KERNELS" in find_reason(tmp_path / "model.onnx")
    assert modules("engines").find_reason("CPU", tmp_path / "model.onnx") is None


def test_timing_begins_when_the_engine_says_that_it_is_ready(modules: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engines, states, runs = modules("engines"), iter([False, False, True]), []
    session = engines.Session(lambda inputs: runs.append(inputs) or [], lambda: next(states))
    assert engines.wait_until_ready(session, {}, warm=60.0) > 0
    assert list(states) == []
    # An engine that does not tell runs for a while instead.
    runs.clear()
    assert engines.wait_until_ready(engines.Session(session.run), {}, warm=0.01) is None
    assert runs
    monkeypatch.setattr(engines, "LONGEST_WAIT", 0.0)
    with pytest.raises(TimeoutError, match="kernels were not ready after 0 s"):
        engines.wait_until_ready(engines.Session(session.run, lambda: False), {}, warm=60.0)


def test_failed_engine_is_shown_and_is_in_no_ratio(modules: Any) -> None:
    found = {"median": 1.0, "import": 1.0, "load": 1.0, "first": 1.0, "peak": None, "float64": 1e-7, "differences": {}}
    row = {"model": "a", "batch": 1, "threads": 1, "engines": {"CPU": found, "onnxruntime": {"error": "OSError: no room"}}}
    shared = {"mode": "models", "machine": "m", "command": "c", "cleared": [], "skipped": {}}
    shown = modules("tables").render({**shared, "rows": [row]})
    assert "Failed: a of batch 1, threads 1, onnxruntime: OSError: no room." in shown
    assert "| a     | 1     | 1       | 1.00 | failed      |" in shown
    # The table of ratios is there and has no row.
    after = shown.partition("Time of the other engine / time of ours.")[2].strip().splitlines()
    assert after[0] == "| ours | other | where | rows | geometric mean | median | worst |"
    assert after[2] == ""


def test_difference_is_that_of_the_output_that_is_furthest_off(modules: Any, tmp_path: Path) -> None:
    def difference(*pairs: tuple[list[float], list[float]]) -> float:
        for side, name in enumerate(("ours", "theirs")):
            np.savez(tmp_path / f"{name}.npz", *(np.array(pair[side], np.float32) for pair in pairs))
        found = modules("children").find_difference(tmp_path / "ours.npz", tmp_path / "theirs.npz")
        assert isinstance(found, float)
        return found

    assert difference(([1.0, -7.5], [1.0, -8.0]), ([4.0], [4.0])) == 0.5 / 8
    assert difference(([0.25], [0.0])) == 0.25
    infinite = float("inf")
    assert difference(([infinite, 1.0], [infinite, 2.0])) == 0.5
    assert difference(([float("nan")], [1.0])) == infinite
    assert modules("children").find_difference(tmp_path / "ours.npz", tmp_path / "none.npz") is None


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_busy_neighbour_runs_meanwhile_and_not_afterwards(modules: Any) -> None:
    def list_children() -> set[str]:
        children = (path.read_text() for path in Path(f"/proc/{os.getpid()}/task").glob("*/children"))
        return {child for line in children for child in line.split()}

    before = list_children()
    with modules("children").run_busy_neighbour():
        (neighbour,) = list_children() - before
    assert neighbour not in list_children()
    assert not Path(f"/proc/{neighbour}").exists()
