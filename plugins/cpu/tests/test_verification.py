"""CPU_VERIFY: the first run of a plan is computed twice, a wrong plan is not used again. Machine code is real, faults are planted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

pytest.importorskip("llvmlite", reason="machine code needs llvmlite")

import hetero_cpu.executable as executable_module
from hetero_cpu.executable import CpuExecutable
from hetero_cpu.machine import compiler
from hetero_cpu.machine.compiler import find_width
from hetero_cpu.open import making
from hetero_cpu.stored.blob_network import BlobNetwork

from hetero_core import Core
from hetero_core.contract import RunContext
from hetero_core.errors import InferenceError, RequestCancelledError, WrongPlanWarning

if not find_width():
    pytest.skip("no machine code for this processor", allow_module_level=True)

PATIENCE = 120.0
TEXT = """
<ir_version: 8, opset_import: ["": 17]>
mix (float[rows, 40] x, float[40, 40] z) => (float[rows, 40] y) { p = Softmax (x) q = Softmax (z) y = MatMul (p, q) }
"""


def make_model(rows: int | None = 8) -> Any:
    """Returns the product of two softmaxes, which have to lie in the arena at the same time."""
    return onnx.parser.parse_model(TEXT.replace("rows", "rows" if rows is None else str(rows)))


def make_inputs(rows: int = 8, seed: int = 0) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {
        "x": random.standard_normal((rows, 40)).astype(np.float32),
        "z": 3 * random.standard_normal((40, 40)).astype(np.float32),
    }


def compute(inputs: dict[str, Any]) -> Any:
    """The formula in float64."""
    p, q = (np.exp(inputs[name].astype(np.float64)) for name in "xz")
    return (p / p.sum(axis=1, keepdims=True)) @ (q / q.sum(axis=1, keepdims=True))


def check(answer: Any, inputs: dict[str, Any]) -> None:
    np.testing.assert_allclose(answer, compute(inputs), rtol=1e-4, atol=1e-6)


@pytest.fixture(autouse=True)
def no_marks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No plan is stored or noted as verified; kernels are found where they were."""
    compiler._open_folder()
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture(scope="module")
def kernels() -> None:
    """The kernels of the model are compiled, for known sizes and for open ones."""
    with Core() as core:
        core.load_network(make_model(), "CPU", {"CPU_KERNELS": "JIT"})
        core.load_network(make_model(None), "CPU", {"CPU_KERNELS": "JIT"}).infer(make_inputs())


@pytest.fixture
def core(kernels: None) -> Iterator[Core]:
    with Core() as core:
        yield core


@pytest.fixture
def fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans of machine code have both inputs, over which the softmaxes are written, at one place."""
    build_plan: Callable[..., Any] = executable_module.build_plan

    def build_wrong_plan(*arguments: Any, **options: Any) -> Any:
        plan = build_plan(*arguments, **options)
        if options.get("provider") != "JIT":
            return plan
        return replace(plan, offsets={**plan.offsets, "x": plan.offsets["z"]})

    monkeypatch.setattr(executable_module, "build_plan", build_wrong_plan)
    monkeypatch.setattr(making, "build_plan", build_wrong_plan)


def read_metrics(network: Any) -> tuple[int, bool]:
    assert (network.get_metric("CPU_VERIFY_SECONDS") > 0) == bool(
        network.get_metric("CPU_VERIFIED_PLANS") or network.get_metric("CPU_REFUTED")
    )
    return network.get_metric("CPU_VERIFIED_PLANS"), network.get_metric("CPU_REFUTED")


@pytest.mark.usefixtures("fault")
def test_planted_fault_is_wrong_where_nobody_verifies(core: Core) -> None:
    network = core.load_network(make_model(), "CPU", {"CPU_VERIFY": "NO"})
    assert network.get_metric("CPU_NATIVE_STEPS") == 3
    assert np.abs(network.infer(make_inputs())["y"] - compute(make_inputs())).max() > 1e-3


@pytest.mark.usefixtures("fault")
@pytest.mark.parametrize("config", [{}, {"CPU_KERNELS": "JIT", "CPU_VERIFY": "YES"}], ids=["AUTO", "JIT"])
@pytest.mark.parametrize("rows", [8, None], ids=["known-sizes", "open-sizes"])
def test_wrong_plan_is_left_with_a_warning_and_all_answers_are_right(core: Core, config: dict[str, str], rows: int | None) -> None:
    network = core.load_network(make_model(rows), "CPU", config)
    with pytest.warns(WrongPlanWarning) as warned:
        check(network.infer(make_inputs())["y"], make_inputs())
    text = str(warned[0].message)
    assert text.startswith("network 'mix' on CPU: a plan gave another answer than the toolkit: output 'y': expected 0.")
    assert "of 320 elements are off by more than 0.0001 of its scale, at most by" in text
    assert "`hetero reduce MODEL.onnx -d TEMPLATE -d CPU -c CPU_KERNELS=JIT -o SMALL.onnx`" in text
    assert "hetero-core 0." in text
    assert "llvmlite 0." in text
    for seed in range(3):
        check(network.infer(make_inputs(seed=seed))["y"], make_inputs(seed=seed))
    if rows is None:
        check(network.infer(make_inputs(5))["y"], make_inputs(5))
    assert read_metrics(network) == (0, True)
    with pytest.warns(WrongPlanWarning):
        # It is not noted as right.
        core.load_network(make_model(rows), "CPU", config).infer(make_inputs())


@pytest.fixture
def no_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No kernel is stored, and none is in the process."""
    monkeypatch.setattr(compiler.COMPILER, "_addresses", {})
    compiler._open_folder.cache_clear()
    yield
    compiler._open_folder.cache_clear()


def wait_until_ready(network: Any) -> None:
    tick = threading.Event()
    for _ in range(int(PATIENCE / 0.01)):
        if network.get_metric("CPU_KERNELS_READY"):
            return
        tick.wait(0.01)
    pytest.fail("the kernels were not compiled")


@pytest.mark.usefixtures("fault")
def test_plan_that_takes_over_is_verified_in_its_first_run(core: Core, no_kernels: None) -> None:
    network = core.load_network(make_model(), "CPU")
    check(network.infer(make_inputs())["y"], make_inputs())
    wait_until_ready(network)
    assert network.get_metric("CPU_NATIVE_STEPS") == 3
    assert read_metrics(network) == (0, False)
    with pytest.warns(WrongPlanWarning, match="output 'y'"):
        check(network.infer(make_inputs(seed=1))["y"], make_inputs(seed=1))
    check(network.infer(make_inputs(seed=2))["y"], make_inputs(seed=2))


@pytest.mark.parametrize(
    ("config", "plans"),
    [
        ({}, 1),
        ({"CPU_VERIFY": "YES"}, 1),
        ({"CPU_VERIFY": "NO"}, 0),
        ({"CPU_KERNELS": "JIT"}, 0),
        ({"CPU_KERNELS": "JIT", "CPU_VERIFY": "YES"}, 1),
        ({"CPU_KERNELS": "NUMPY"}, 0),
        ({"CPU_KERNELS": "NUMPY", "CPU_VERIFY": "YES"}, 1),
        ({"MEMORY_LIMIT": 1 << 30}, 0),
        ({"MEMORY_LIMIT": 1 << 30, "CPU_VERIFY": "YES"}, 1),
        ({"DEADLINE": 1000.0}, 0),
        ({"CPU_KERNELS": "JIT", "DEADLINE": 1000.0, "CPU_VERIFY": "YES"}, 1),
    ],
    ids=lambda value: (
        "-".join(f"{key}={word}" for key, word in value.items()) or "default" if isinstance(value, dict) else str(value)
    ),
)
def test_plans_are_verified_where_the_key_says_so(core: Core, config: dict[str, Any], plans: int) -> None:
    network = core.load_network(make_model(), "CPU", config)
    for seed in range(2):
        check(network.infer(make_inputs(seed=seed))["y"], make_inputs(seed=seed))
    assert read_metrics(network) == (plans, False)


def test_each_plan_is_verified_once_whatever_sizes_it_serves(core: Core) -> None:
    network = core.load_network(make_model(None), "CPU", {"CPU_KERNELS": "JIT", "CPU_VERIFY": "YES"})
    for rows in (3, 4, 3, *range(20, 40), 3):
        check(network.infer(make_inputs(rows))["y"], make_inputs(rows))
    verified, is_refuted = read_metrics(network)
    made = network.get_metric("CPU_PLANS")[0]
    assert not is_refuted
    # 22 sets of sizes, and plans for classes of them.
    assert verified == made <= 6


CHILD = """
import json, sys, time
import numpy as np
import onnx
from hetero_core import Core
with Core() as core, np.load(sys.argv[2]) as inputs:
    network = core.load_network(sys.argv[1], "CPU", {"INFERENCE_NUM_THREADS": 2})
    network.infer(dict(inputs))
    end = time.monotonic() + 120
    while not network.get_metric("CPU_KERNELS_READY") and time.monotonic() < end:
        time.sleep(0.01)
    network.infer(dict(inputs))
    names = ("CPU_NATIVE_STEPS", "CPU_VERIFIED_PLANS", "CPU_VERIFY_SECONDS", "CPU_REFUTED")
    print(json.dumps([network.get_metric(name) for name in names]))
"""


def test_process_after_one_that_has_verified_computes_nothing_twice(tmp_path: Path) -> None:
    onnx.save(make_model(), tmp_path / "x.onnx")
    np.savez(tmp_path / "x.npz", **make_inputs())
    seen = []
    for _ in range(2):
        command = [sys.executable, "-c", CHILD, str(tmp_path / "x.onnx"), str(tmp_path / "x.npz")]
        done = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, check=False, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        seen.append(json.loads(done.stdout))
    (steps, plans, seconds, refuted), second = seen
    assert (steps, plans, refuted) == (3, 1, False)
    assert seconds > 0
    assert second == [3, 0, 0.0, False]


@pytest.mark.parametrize("kernels", ["AUTO", "JIT"])
@pytest.mark.parametrize("runs", [0, 1], ids=["exported-before-a-run", "exported-after-a-run"])
def test_plan_beside_a_blob_is_verified_once(core: Core, tmp_path: Path, kernels: str, runs: int) -> None:
    loaded = core.load_network(make_model(), "CPU", {"CPU_KERNELS": kernels})
    for _ in range(runs):
        loaded.infer(make_inputs())
    loaded.export_network(tmp_path / "x.blob")
    is_verified = kernels == "AUTO" and runs
    for plans in (0 if is_verified else 1, 0):
        imported = core.import_network(tmp_path / "x.blob", "CPU", {"CPU_VERIFY": "YES"})
        assert isinstance(imported.executable.source, BlobNetwork)
        for seed in range(2):
            check(imported.infer(make_inputs(seed=seed))["y"], make_inputs(seed=seed))
        assert read_metrics(imported) == (plans, False)


@pytest.mark.usefixtures("fault")
def test_wrong_plan_beside_a_blob_is_left_with_a_warning(core: Core, tmp_path: Path) -> None:
    core.load_network(make_model(), "CPU").export_network(tmp_path / "x.blob")
    for _ in range(2):
        imported = core.import_network(tmp_path / "x.blob", "CPU")
        assert isinstance(imported.executable.source, BlobNetwork)
        with pytest.warns(WrongPlanWarning, match="network 'mix' on CPU: .* output 'y': expected"):
            check(imported.infer(make_inputs())["y"], make_inputs())
        check(imported.infer(make_inputs(seed=1))["y"], make_inputs(seed=1))
        assert read_metrics(imported) == (0, True)
    skipped = core.import_network(tmp_path / "x.blob", "CPU", {"CPU_VERIFY": "NO"})
    assert np.abs(skipped.infer(make_inputs())["y"] - compute(make_inputs())).max() > 1e-3


@pytest.mark.usefixtures("fault")
def test_runs_at_the_same_time_are_all_right(core: Core) -> None:
    network = core.load_network(make_model(), "CPU")
    barrier, answers = threading.Barrier(4), dict[int, Any]()

    def run(seed: int) -> None:
        barrier.wait(PATIENCE)
        answers[seed] = network.infer(make_inputs(seed=seed))["y"]

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
    assert {entry.category for entry in warned} == {WrongPlanWarning}
    assert sorted(answers) == [0, 1, 2, 3]
    for seed, answer in answers.items():
        check(answer, make_inputs(seed=seed))


@pytest.mark.parametrize("is_wrong", [False, True], ids=["right", "wrong"])
def test_outputs_that_the_caller_has_set_are_filled(core: Core, request: pytest.FixtureRequest, is_wrong: bool) -> None:
    if is_wrong:
        request.getfixturevalue("fault")
    network = core.load_network(make_model(), "CPU")
    infer_request, y = network.create_infer_request(), np.zeros((8, 40), np.float32)
    infer_request.set_tensor("y", y)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        infer_request.infer(make_inputs())
    check(y, make_inputs())
    assert [entry.category for entry in warned] == [WrongPlanWarning] * is_wrong


@pytest.mark.parametrize("is_wrong", [False, True], ids=["right", "wrong"])
def test_output_over_an_input_is_right_and_no_fault(core: Core, request: pytest.FixtureRequest, is_wrong: bool) -> None:
    if is_wrong:
        request.getfixturevalue("fault")
    executable = core.load_network(make_model(), "CPU").executable
    assert isinstance(executable, CpuExecutable)
    inputs = make_inputs()
    x, z = inputs["x"].copy(), inputs["z"]
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        (y,) = executable.run((x, z), RunContext(outputs=[x]))
    check(y, inputs)
    assert [entry.category for entry in warned] == [WrongPlanWarning] * is_wrong


STATEFUL = """
<ir_version: 8, opset_import: ["": 17]>
count (float[4, 40] x, float[4, 40] before) => (float[4, 40] y, float[4, 40] after) {
    s = Softmax (x)
    after = Add (before, s)
    y = Mul (after, s)
}
"""


def test_state_advances_once(core: Core) -> None:
    network = core.read_network(onnx.parser.parse_model(STATEFUL)).with_state({"after": "before"})
    request = core.load_network(network, "CPU", {"CPU_KERNELS": "JIT", "CPU_VERIFY": "YES"}).create_infer_request()
    x = make_inputs(4)["x"]
    s = np.exp(x.astype(np.float64))
    s /= s.sum(axis=1, keepdims=True)
    for step in (1, 2, 3):
        answer = request.infer({"x": x})["y"]
        np.testing.assert_allclose(answer, step * s * s, rtol=1e-4, atol=1e-7)
        np.testing.assert_allclose(request.states["before"].value, step * s, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("operator", ["RandomNormalLike (x)", "Bernoulli (x)"])
def test_network_with_random_operators_is_not_compared(core: Core, operator: str) -> None:
    text = TEXT.replace("rows", "8").replace("y = MatMul (p, q)", f"m = MatMul (p, q) r = {operator} y = Add (m, r)")
    inputs = make_inputs()
    inputs["x"] = np.abs(np.sin(inputs["x"]))
    network = core.load_network(onnx.parser.parse_model(text), "CPU", {"CPU_KERNELS": "JIT", "CPU_VERIFY": "YES"})
    for _ in range(2):
        network.infer(inputs)
    assert read_metrics(network) == (0, False)


def test_cancelled_run_leaves_the_plan_to_be_verified(core: Core) -> None:
    network = core.load_network(make_model(), "CPU")
    executable = network.executable
    context = RunContext()
    context.token.is_set = True
    with pytest.raises(RequestCancelledError):
        executable.run(tuple(make_inputs().values()), context)
    assert read_metrics(network) == (0, False)
    check(network.infer(make_inputs())["y"], make_inputs())
    assert read_metrics(network) == (1, False)


def test_profile_of_a_run_that_is_computed_twice_has_each_node_once(core: Core) -> None:
    network = core.load_network(make_model(), "CPU", {"PERF_COUNT": True})
    request = network.create_infer_request()
    profiles = []
    for _ in range(2):
        request.infer(make_inputs())
        profiles.append([entry.node for entry in request.perf_counts])
    assert read_metrics(network) == (1, False)
    assert profiles[0] == profiles[1]
    assert len(profiles[0]) == 3


def test_error_of_the_inputs_is_the_plans_own_and_no_fault(core: Core) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
        pick (float[9, 40] x, int64[2] i) => (float[2, 40] y) { s = Softmax (x) y = Gather (s, i) }"""
    network = core.load_network(onnx.parser.parse_model(text), "CPU", {"CPU_KERNELS": "JIT", "CPU_VERIFY": "YES"})
    x = make_inputs(9)["x"]
    with pytest.raises(InferenceError, match="out of bounds"):
        network.infer({"x": x, "i": np.array([0, 9])})
    assert not network.get_metric("CPU_REFUTED")
    network.infer({"x": x, "i": np.array([0, -9])})
    assert read_metrics(network) == (1, False)


def test_run_after_the_load_that_filled_the_cache_counts_for_the_entry(core: Core, tmp_path: Path) -> None:
    config = {"CACHE_DIR": str(tmp_path / "cache")}
    for plans, is_hit in ((1, False), (0, True)):
        network = core.load_network(make_model(), "CPU", config)
        assert network.get_metric("LOADED_FROM_CACHE") == is_hit
        check(network.infer(make_inputs())["y"], make_inputs())
        assert read_metrics(network) == (plans, False)
