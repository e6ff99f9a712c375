"""Bodies that run often get plans of machine code; the answers are those of exact arithmetic on integers."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import onnx.parser
import pytest

from hetero_core import Core
from hetero_core.errors import RequestCancelledError

JIT = {"CPU_KERNELS": "JIT", "INFERENCE_NUM_THREADS": "1"}
TRIPS = 120
TURNING = """turning (float[3] a0, float[3] b0, float[3] m, int64 count) => (float[3] a, float[3] b, float[n, 3] seen)
<bool yes = {1}>
{ a, b, seen = Loop <body = step (int64 i, bool go, float[3] x, float[3] y) => (bool on, float[3] p, float[3] q, float[3] s) {
  on = Identity (go) p = Identity (y) q = Sub (m, x) f = Cast <to = 1> (i) s = Add (q, f) }> (count, yes, a0, b0) }"""
UNTIL = """until (float[2, 4] x, float[2, 4] step, float limit) => (float[2, 4] y, int64 trips)
<bool yes = {1}, int64 zero = {0}, int64 one = {1}>
{ y, trips = Loop <body = b (int64 i, bool go, float[2, 4] v, int64 n) => (bool on, float[2, 4] w, int64 m) {
  w = Add (v, step) m = Add (n, one) h = ReduceMax <keepdims = 0> (w) on = Less (h, limit) }> (, yes, x, zero) }"""
GROWING = """growing (float[2, 1] x, int64 count) => (float[2, n] y)
<bool yes = {1}, float[2, 1] two = {1, 2}>
{ y = Loop <body = b (int64 i, bool go, float[2, k] v) => (bool on, float[2, l] w) {
  on = Identity (go) f = Cast <to = 1> (i) e = Mul (two, f) w = Concat <axis = 1> (v, e) }> (count, yes, x) }"""
SCANNING = """scanning (float[2, 4] start, float[t, 2, 4] x) => (float[2, 4] y, float[t, 2, 4] seen)
{ y, seen = Scan <num_scan_inputs = 1, body = b (float[2, 4] v, float[2, 4] row) => (float[2, 4] w, float[2, 4] s) {
  w = Add (v, row) s = Sub (w, start) }> (start, x) }"""


ADDING = " ".join(f"a{index + 1} = Add (a{index}, x)" for index in range(8))
BRANCHING = f"""branching (float[2, 4] x, bool choice) => (float[2, 4] y)
{{ y = If <then_branch = t () => (float[2, 4] a8) {{ a0 = Neg (x) {ADDING} }},
  else_branch = e () => (float[2, 4] b) {{ b = Abs (x) }}> (choice) }}"""


def load(core: Core, text: str) -> Any:
    return core.load_network(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}'), "CPU", JIT)


def draw(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(-9, 9, shape).astype(np.float32)


def test_states_change_places_and_captured_values_between_runs(core: Core) -> None:
    network = load(core, TURNING)
    for middle, count in ((97, TRIPS), (89, TRIPS), (83, 1), (79, 0), (97, TRIPS)):
        a, b, m = draw(3), draw(3, seed=1), np.full(3, middle, np.float32)
        answer = network.infer({"a0": a, "b0": b, "m": m, "count": np.array(count)})
        seen = []
        for trip in range(count):
            a, b = b, m - a
            seen.append(b + trip)
        np.testing.assert_array_equal(answer["a"], a)
        np.testing.assert_array_equal(answer["b"], b)
        np.testing.assert_array_equal(answer["seen"], np.reshape(seen, (count, 3)))
    assert network.get_metric("CPU_PLANS")[0] == 2


def test_condition_ends_trips(core: Core) -> None:
    network, x, step = load(core, UNTIL), draw(2, 4), np.ones((2, 4), np.float32)
    for limit in (200, 100, 150):
        answer = network.infer({"x": x, "step": step, "limit": np.float32(limit)})
        assert answer["trips"] == limit - x.max()
        np.testing.assert_array_equal(answer["y"], x + answer["trips"])
    assert network.get_metric("CPU_PLANS")[0] == 2


def test_state_that_grows(core: Core) -> None:
    network = load(core, GROWING)
    for count in (TRIPS, 5, TRIPS + 7):
        y = network.infer({"x": draw(2, 1), "count": np.array(count)})["y"]
        np.testing.assert_array_equal(y, np.hstack([draw(2, 1), np.outer([1, 2], range(count))]))
    assert network.get_metric("CPU_PLANS")[0] > 1


def test_scan_of_rows(core: Core) -> None:
    network = load(core, SCANNING)
    for seed, length in enumerate((TRIPS, TRIPS, 1, 3)):
        start, x = draw(2, 4, seed=seed), draw(length, 2, 4, seed=9 + seed)
        answer = network.infer({"start": start, "x": x})
        np.testing.assert_array_equal(answer["seen"], x.cumsum(axis=0))
        np.testing.assert_array_equal(answer["y"], start + x.sum(axis=0))


def test_branch_of_many_nodes_has_a_plan(core: Core) -> None:
    network = load(core, BRANCHING)
    for seed, choice in enumerate((True, True, False, True, False)):
        x = draw(2, 4, seed=seed)
        y = network.infer({"x": x, "choice": np.array(choice)})["y"]
        np.testing.assert_array_equal(y, 7 * x if choice else abs(x))
    assert network.get_metric("CPU_PLANS")[0] == 2


def test_threads_run_a_body_at_once(core: Core) -> None:
    network, answers = load(core, UNTIL), dict[int, Any]()
    feeds = {"step": np.ones((2, 4), np.float32), "limit": np.float32(400)}
    network.infer({"x": draw(2, 4), **feeds})

    def run(seed: int) -> None:
        for _ in range(5):
            answers[seed] = network.infer({"x": draw(2, 4, seed=seed), **feeds})["y"]

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed, y in answers.items():
        x = draw(2, 4, seed=seed)
        np.testing.assert_array_equal(y, x + (400 - x.max()))
    assert len(answers) == 4


def test_trips_without_end_are_cancelled(core: Core) -> None:
    network, feeds = load(core, UNTIL), {"x": draw(2, 4), "limit": np.float32(300)}
    for _ in range(2):
        network.infer({**feeds, "step": np.ones((2, 4), np.float32)})
    request = network.create_infer_request()
    request.start_async({**feeds, "step": np.zeros((2, 4), np.float32)})
    assert not request.wait(0.2)
    request.cancel()
    with pytest.raises(RequestCancelledError):
        request.wait()
    assert network.infer({**feeds, "step": np.ones((2, 4), np.float32)})["trips"] == 300 - feeds["x"].max()
