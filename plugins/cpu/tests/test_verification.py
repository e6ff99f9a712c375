"""CPU_VERIFY=YES: the first run of a plan is computed twice, a wrong plan is not used again. Machine code is real, faults are planted."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

pytest.importorskip("llvmlite", reason="machine code needs llvmlite")

from hetero_cpu.executable import CpuExecutable
from hetero_cpu.machine import compiler
from hetero_cpu.machine.compiler import find_width
from hetero_cpu.plan import open_plan as making
from hetero_cpu.plan import planner
from hetero_cpu.run.plans import Verifier, is_random

from hetero_core import Core
from hetero_core.contract import RunContext
from hetero_core.errors import InferenceError, RequestCancelledError, WrongPlanWarning
from hetero_core.kernels.program import compile_program
from hetero_core.network.reader import read_network

if not find_width():
    pytest.skip("no machine code for this processor", allow_module_level=True)

PATIENCE = 120.0
YES = {"CPU_VERIFY": "YES"}
TEXT = """
<ir_version: 8, opset_import: ["": 17]>
mix (float[rows, 40] x, float[40, 40] z) => (float[rows, 40] y) { p = Softmax (x) q = Softmax (z) y = MatMul (p, q) }
"""


def make_model(rows: int | None = 8) -> Any:
    """Returns the product of two softmaxes, which must both be in the arena at the same time."""
    return onnx.parser.parse_model(TEXT.replace("rows", "rows" if rows is None else str(rows)))


def make_inputs(rows: int = 8, seed: int = 0) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {
        "x": random.standard_normal((rows, 40)).astype(np.float32),
        "z": 3 * random.standard_normal((40, 40)).astype(np.float32),
    }


def compute(inputs: dict[str, Any]) -> Any:
    """Returns the product by its formula in float64."""
    p, q = (np.exp(inputs[name].astype(np.float64)) for name in "xz")
    return (p / p.sum(axis=1, keepdims=True)) @ (q / q.sum(axis=1, keepdims=True))


def check(answer: Any, inputs: dict[str, Any]) -> None:
    np.testing.assert_allclose(answer, compute(inputs), rtol=1e-4, atol=1e-6)


@pytest.fixture(autouse=True)
def empty_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Begins with an empty private store."""
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture(scope="module")
def kernels() -> None:
    """Compiles the kernels of the model, for fixed and for open sizes."""
    with Core() as core:
        core.load_network(make_model(), "CPU", {"CPU_KERNELS": "JIT"})
        core.load_network(make_model(None), "CPU", {"CPU_KERNELS": "JIT"}).infer(make_inputs())


@pytest.fixture
def core(kernels: None) -> Iterator[Core]:
    with Core() as core:
        yield core


@pytest.fixture
def fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes plans of machine code place both inputs, which the softmaxes overwrite, at the same offset."""
    build_plan: Callable[..., Any] = planner.build_plan

    def build_wrong_plan(*arguments: Any, **options: Any) -> Any:
        plan = build_plan(*arguments, **options)
        return replace(plan, offsets={**plan.offsets, "x": plan.offsets["z"]})

    monkeypatch.setattr(planner, "build_plan", build_wrong_plan)
    monkeypatch.setattr(making, "build_plan", build_wrong_plan)


def read_metrics(network: Any) -> tuple[int, bool]:
    assert (network.get_metric("CPU_VERIFY_SECONDS") > 0) == bool(
        network.get_metric("CPU_VERIFIED_PLANS") or network.get_metric("CPU_REFUTED")
    )
    return network.get_metric("CPU_VERIFIED_PLANS"), network.get_metric("CPU_REFUTED")


@pytest.mark.usefixtures("fault")
@pytest.mark.parametrize("config", [{}, {"CPU_VERIFY": "NO"}, {"CPU_VERIFY": "AUTO"}])
def test_planted_fault_is_wrong_unless_verified(core: Core, config: dict[str, str]) -> None:
    network = core.load_network(make_model(), "CPU", config)
    assert network.get_metric("CPU_NATIVE_STEPS") == 3
    assert np.abs(network.infer(make_inputs())["y"] - compute(make_inputs())).max() > 1e-3


@pytest.mark.usefixtures("fault")
@pytest.mark.parametrize("config", [YES, {"CPU_KERNELS": "JIT", **YES}], ids=["AUTO", "JIT"])
@pytest.mark.parametrize("rows", [8, None], ids=["known-sizes", "open-sizes"])
def test_wrong_plan_is_dropped_with_a_warning(core: Core, config: dict[str, str], rows: int | None) -> None:
    network = core.load_network(make_model(rows), "CPU", config)
    if rows is None and config == YES:
        check(network.infer(make_inputs())["y"], make_inputs())
        wait_until_ready(network)
    with pytest.warns(WrongPlanWarning) as warned:
        check(network.infer(make_inputs())["y"], make_inputs())
    text = str(warned[0].message)
    assert text.startswith("network 'mix' on CPU: a plan gave another answer than the toolkit: output 'y': expected 0.")
    assert "of 320 elements differ by more than 0.0001 of the largest expected value" in text
    assert "`hetero reduce MODEL.onnx -d TEMPLATE -d CPU -c CPU_KERNELS=JIT -o SMALL.onnx`" in text
    assert text.endswith("the output of `hetero doctor`")
    for seed in range(3):
        check(network.infer(make_inputs(seed=seed))["y"], make_inputs(seed=seed))
    if rows is None:
        check(network.infer(make_inputs(5))["y"], make_inputs(5))
    assert read_metrics(network) == (0, True)


@pytest.fixture
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty kernel cache, on disk and in the process."""
    monkeypatch.setattr(compiler.COMPILER, "_addresses", {})


def wait_until_ready(network: Any) -> None:
    tick = threading.Event()
    for _ in range(int(PATIENCE / 0.01)):
        if network.get_metric("CPU_KERNELS_READY"):
            return
        tick.wait(0.01)
    pytest.fail("the kernels were not compiled")


@pytest.mark.usefixtures("fault")
def test_plan_that_takes_over_is_verified_in_its_first_run(core: Core, no_kernels: None) -> None:
    network = core.load_network(make_model(), "CPU", YES)
    check(network.infer(make_inputs())["y"], make_inputs())
    wait_until_ready(network)
    assert network.get_metric("CPU_NATIVE_STEPS") == 3
    # The toolkit's answer is not verified.
    assert read_metrics(network) == (0, False)
    with pytest.warns(WrongPlanWarning, match="output 'y'"):
        check(network.infer(make_inputs(seed=1))["y"], make_inputs(seed=1))
    check(network.infer(make_inputs(seed=2))["y"], make_inputs(seed=2))


@pytest.mark.parametrize(
    ("config", "plans"),
    [
        ({}, 0),
        ({"CPU_VERIFY": "YES"}, 1),
        ({"CPU_VERIFY": "NO"}, 0),
        ({"CPU_VERIFY": "AUTO"}, 0),
        ({"CPU_KERNELS": "JIT", "CPU_VERIFY": "YES"}, 1),
        ({"CPU_KERNELS": "NUMPY", "CPU_VERIFY": "YES"}, 0),
        ({"MEMORY_LIMIT": 1 << 30, "CPU_VERIFY": "YES"}, 1),
        ({"CPU_KERNELS": "JIT", "DEADLINE": 1000.0, "CPU_VERIFY": "YES"}, 1),
    ],
    ids=lambda value: (
        "-".join(f"{key}={word}" for key, word in value.items()) or "default" if isinstance(value, dict) else str(value)
    ),
)
def test_plans_are_verified_as_the_key_says(core: Core, config: dict[str, Any], plans: int) -> None:
    network = core.load_network(make_model(), "CPU", config)
    for seed in range(2):
        check(network.infer(make_inputs(seed=seed))["y"], make_inputs(seed=seed))
    assert read_metrics(network) == (plans, False)


def test_each_plan_is_verified_once_for_all_its_sizes(core: Core) -> None:
    network = core.load_network(make_model(None), "CPU", {"CPU_KERNELS": "JIT", **YES})
    for rows in (3, 4, 3, *range(20, 40), 3):
        check(network.infer(make_inputs(rows))["y"], make_inputs(rows))
    verified, is_refuted = read_metrics(network)
    plans = network.get_metric("CPU_PLANS")[0]
    assert not is_refuted
    # 22 sets of sizes, and plans for classes of them.
    assert verified == plans <= 6


@pytest.mark.usefixtures("fault")
def test_runs_at_the_same_time_are_all_right(core: Core) -> None:
    network = core.load_network(make_model(), "CPU", YES)
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


@pytest.mark.filterwarnings("ignore::hetero_core.errors.WrongPlanWarning")
@pytest.mark.usefixtures("fault")
def test_run_that_had_found_a_plan_before_it_was_refuted_is_right(core: Core) -> None:
    network, inputs = core.load_network(make_model(), "CPU", YES), make_inputs()
    executable = network.executable
    assert isinstance(executable, CpuExecutable)
    plan_of_other_run = executable._only_plan
    network.infer(inputs)
    (y,) = executable._run_plan(plan_of_other_run, tuple(inputs.values()), RunContext())
    check(y, inputs)


@pytest.mark.parametrize("is_wrong", [False, True], ids=["right", "wrong"])
def test_outputs_that_the_caller_has_set_are_filled(core: Core, request: pytest.FixtureRequest, is_wrong: bool) -> None:
    if is_wrong:
        request.getfixturevalue("fault")
    network = core.load_network(make_model(), "CPU", YES)
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
    executable = core.load_network(make_model(), "CPU", YES).executable
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
    request = core.load_network(network, "CPU", {"CPU_KERNELS": "JIT", **YES}).create_infer_request()
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
    network = core.load_network(onnx.parser.parse_model(text), "CPU", {"CPU_KERNELS": "JIT", **YES})
    for _ in range(2):
        network.infer(inputs)
    assert read_metrics(network) == (0, False)


def test_cancelled_run_leaves_the_plan_to_be_verified(core: Core) -> None:
    network = core.load_network(make_model(), "CPU", YES)
    executable = network.executable
    context = RunContext()
    context.token.is_set = True
    with pytest.raises(RequestCancelledError):
        executable.run(tuple(make_inputs().values()), context)
    assert read_metrics(network) == (0, False)
    check(network.infer(make_inputs())["y"], make_inputs())
    assert read_metrics(network) == (1, False)


def test_profile_of_a_verified_run_has_each_node_once(core: Core) -> None:
    network = core.load_network(make_model(), "CPU", {"PERF_COUNT": True, **YES})
    request = network.create_infer_request()
    profiles = []
    for _ in range(2):
        request.infer(make_inputs())
        profiles.append([entry.node for entry in request.perf_counts])
    assert read_metrics(network) == (1, False)
    assert profiles[0] == profiles[1]
    assert len(profiles[0]) == 3


def test_error_of_the_inputs_is_no_fault(core: Core) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
        pick (float[9, 40] x, int64[2] i) => (float[2, 40] y) { s = Softmax (x) y = Gather (s, i) }"""
    network = core.load_network(onnx.parser.parse_model(text), "CPU", {"CPU_KERNELS": "JIT", **YES})
    x = make_inputs(9)["x"]
    with pytest.raises(InferenceError, match="out of bounds"):
        network.infer({"x": x, "i": np.array([0, 9])})
    assert not network.get_metric("CPU_REFUTED")
    network.infer({"x": x, "i": np.array([0, -9])})
    assert read_metrics(network) == (1, False)


GATHER = """<ir_version: 8, opset_import: ["": 17]>
g (float[2] x, int64[1] i) => (float[1] y) { y = Gather (x, i) }"""


def verify(run_plan: Callable[[], Any]) -> tuple[Verifier, Any]:
    """Returns the verifier of a plan of GATHER for x = (1, 2), and its answer."""
    network = read_network(onnx.parser.parse_model(GATHER))
    verifier, inputs = Verifier(network), (np.array([1, 2], np.float32), np.array([1]))
    return verifier, verifier.run(inputs, RunContext(), run_plan, compile_program(network))


@pytest.mark.parametrize(("answer", "is_right"), [(2.0001, True), (2.001, False), (np.nan, False), (np.inf, False)])
def test_answers_agree_within_the_tolerance_of_float32(answer: float, is_right: bool) -> None:
    with nullcontext() if is_right else pytest.warns(WrongPlanWarning, match="output 'y': expected 2.0"):
        verifier, outputs = verify(lambda: (np.array([answer], np.float32),))
    assert (verifier.plans, verifier.has_refuted) == (int(is_right), not is_right)
    assert outputs[0] == (np.float32(answer) if is_right else 2)


def test_random_operator_in_a_body_is_found() -> None:
    text = """<ir_version: 8, opset_import: ["": 19]>
    g (bool c, float[2] x) => (float[2] y) {
        y = If (c) <then_branch = a () => (float[2] s) { s = RandomNormalLike (x) }, else_branch = b () => (float[2] t) { t = Neg (x) }>
    }"""
    for operator, expected in (("RandomNormalLike", True), ("Abs", False)):
        model = onnx.parser.parse_model(text.replace("RandomNormalLike", operator))
        assert is_random(compile_program(read_network(model))) == expected
