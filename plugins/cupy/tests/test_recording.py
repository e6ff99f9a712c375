"""Recorded runs: which are recorded, that each signature is recorded once, and that a replay computes from new inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hetero_tests.fake_runtime import FakeRuntime

from hetero_core import Core, Network, RunContext

ON = {"GPU_GRAPHS": True}
STILL = "g (float[N] x) => (float[N] y) { a = Exp (x) b = Neg (a) y = Add (b, a) }"


def make_runner(loaded: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Returns the state of one request, and a function that runs it with one host array."""
    executable = loaded.executable
    context = RunContext(executable.create_state())

    def run(x: Any) -> Any:
        (output,) = executable.run((executable.card.from_host(x),), context)
        return executable.card.to_host(output)

    return context.state, run


def test_each_signature_is_recorded_once_and_replayed_with_new_inputs(
    core: Core, read: Callable[..., Network], runtime: FakeRuntime
) -> None:
    state, run = make_runner(core.load_network(read(STILL), "GPU", ON))
    for count, signatures in ((4, 1), (4, 1), (3, 2), (4, 2), (3, 2)):
        x = np.random.default_rng(count).normal(size=count).astype(np.float32)
        for scale in (1, 2):
            np.testing.assert_allclose(run(x * scale), np.zeros(count), atol=1e-6)
            np.testing.assert_allclose(run(x * scale + 1), np.zeros(count), atol=1e-6)
        assert state.recordings.count == signatures


def test_replay_reads_its_own_inputs(core: Core, read: Callable[..., Network]) -> None:
    _, run = make_runner(core.load_network(read("g (float[N] x) => (float[N] y) { a = Neg (x) y = Abs (a) }"), "GPU", ON))
    for value in (1, -2, 3, -4):
        np.testing.assert_array_equal(run(np.full(3, value, np.float32)), np.full(3, abs(value)))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("g (float[N] x) => (int64[1,M] y) { a = Relu (x) y = NonZero (a) }", "the number of elements is read"),
        ("g (float[N] x) => (int64[1] y) { y = Shape (x) }", "a shape is written"),
        (
            """g (float[N] x) => (float[N] y) <int64 zero = {0}> { m = ReduceMax <keepdims = 0> (x) c = Less (m, m)
               y = If (c) <then_branch = t () => (float[N] p) { p = Neg (x) }, else_branch = e () => (float[N] q) { q = Abs (x) }> }""",
            "a condition is read",
        ),
    ],
)
def test_run_that_crosses_is_never_recorded(core: Core, read: Callable[..., Network], text: str, reason: str) -> None:
    state, run = make_runner(core.load_network(read(text), "GPU", ON))
    x = np.array([1, 0, 2], np.float32)
    first = run(x)
    np.testing.assert_array_equal(run(x), first)
    assert state.recordings.count == 0, reason


def test_nothing_is_recorded_unless_asked_for(core: Core, read: Callable[..., Network]) -> None:
    state, run = make_runner(core.load_network(read(STILL), "GPU"))
    run(np.ones(3, np.float32))
    assert state.recordings is None


def test_requests_do_not_share_recordings(core: Core, read: Callable[..., Network]) -> None:
    loaded = core.load_network(read("g (float[2] x) => (float[2] y) { a = Neg (x) y = Abs (a) }"), "GPU", ON)
    first, second = loaded.create_infer_request(), loaded.create_infer_request()
    for value in (1, 2, 3):
        kept = first.infer({"x": np.full(2, value, np.float32)})["y"]
        second.infer({"x": np.full(2, 10 * value, np.float32)})
        assert kept.tolist() == [value, value]
