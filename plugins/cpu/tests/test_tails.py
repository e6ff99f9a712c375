"""The nodes behind sizes that numbers decide get plans of machine code; the answers are those of exact arithmetic on integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest

from hetero_core import Core
from hetero_core.contract import CancelToken, RunContext
from hetero_core.errors import RequestCancelledError

pytest.importorskip("llvmlite")

SPEAKING = """<ir_version: 8, opset_import: ["": 17]>
speaking (float[batch, 4] x) => (float[batch, n, 3] y, float[n, 4] rows, float[batch, 4] z)
<int64 zero = {0}, int64 one = {1}, float none = {0}, float step = {1},
 int64[1] axis = {1}, float[4] scale = {1, 2, 3, 4}, float[1] half = {2},
 float[4, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}>
{
  z = Relu (x)
  length = ReduceMax <keepdims = 0> (z)
  n = Cast <to = 7> (length)
  [range] places = Range (zero, n, one)
  [first] begins = Cast <to = 1> (places)
  count = Size (places)
  limit = Cast <to = 1> (count)
  steps = Range (none, limit, step)
  floats = Max (begins, steps)
  columns = Unsqueeze (floats, axis)
  a = Mul (columns, scale)
  rows = Neg (a)
  b = Add (rows, half)
  c = Unsqueeze (z, axis)
  d = Add (b, c)
  e = MatMul (d, w)
  y = Abs (e)
}"""
LENGTHS = (5, 9, 9, 17, 3, 40)


def speak(x: Any) -> tuple[Any, Any, Any]:
    z = np.maximum(x, 0)
    rows = -np.arange(int(z.max()))[:, None] * np.arange(1, 5)
    y = np.abs((rows + 2 + z[:, None]) @ np.arange(1, 13).reshape(4, 3))
    return y, rows, z


def load(core: Core, kernels: str = "JIT") -> Any:
    return core.load_network(onnx.parser.parse_model(SPEAKING), "CPU", {"CPU_KERNELS": kernels, "INFERENCE_NUM_THREADS": "1"})


def draw(length: int, batch: int = 1) -> Any:
    x = np.random.default_rng(length).integers(-9, length, (batch, 4)).astype(np.float32)
    x[0, 1] = length
    return x


@pytest.mark.parametrize("batch", [1, 3])
def test_values_of_predicted_lengths_have_one_plan(core: Core, batch: int) -> None:
    network = load(core)
    for length in LENGTHS:
        answer = network.infer({"x": draw(length, batch)})
        for name, expected in zip(("y", "rows", "z"), speak(draw(length, batch)), strict=True):
            np.testing.assert_array_equal(answer[name], expected, err_msg=f"{name} of {length}")
    assert 2 <= network.get_metric("CPU_PLANS")[0] <= 3
    assert network.get_metric("SLOW_NODES") == ()
    branch = next(step for step in network.executable.executed_nodes() if step.operator == "If")
    assert "first" in branch.origins
    assert "range" not in branch.origins


def test_always_new_sizes_of_input_and_prediction_have_two_plans(core: Core) -> None:
    network = load(core)
    for length, batch in zip((5, 9, 17, 3, 40, 23, 31), (2, 3, 5, 4, 6, 7, 8), strict=True):
        np.testing.assert_array_equal(network.infer({"x": draw(length, batch)})["y"], speak(draw(length, batch))[0])
    assert network.get_metric("CPU_PLANS")[0] == 2


def test_a_batch_that_changes_behind_other_lengths_of_one_batch(core: Core) -> None:
    network = load(core)
    for length, batch in zip((5, 9, 17, 3, 40, 23, 23, 6), (3, 3, 3, 5, 1, 7, 7, 3), strict=True):
        np.testing.assert_array_equal(network.infer({"x": draw(length, batch)})["y"], speak(draw(length, batch))[0])


def test_condition_that_follows_from_sizes_is_known_behind_a_prediction(core: Core) -> None:
    condition = """
  sizes = Shape (x)
  none_of_it = Sub (sizes, sizes)
  first_size = Slice (none_of_it, axis_0, axis)
  flag = Cast <to = 9> (first_size)
  y = If (flag) <then_branch = t () => (float[a, b, 3] u) { u = Neg (e) }, else_branch = f () => (float[c, d, 3] v) { v = Abs (e) }>"""
    text = SPEAKING.replace("float[batch, 4] x", "float[batch, width] x").replace("  y = Abs (e)", condition)
    text = text.replace("int64[1] axis = {1}", "int64[1] axis = {1}, int64[1] axis_0 = {0}")
    network = core.load_network(onnx.parser.parse_model(text), "CPU", {"CPU_KERNELS": "JIT", "INFERENCE_NUM_THREADS": "1"})
    for length, batch in zip((5, 9, 9, 9, 17, 3), (2, 3, 3, 3, 5, 4), strict=True):
        np.testing.assert_array_equal(network.infer({"x": draw(length, batch)})["y"], speak(draw(length, batch))[0])


def test_a_length_of_zero_and_a_length_again(core: Core) -> None:
    network = load(core)
    for length in (7, 7, 7, 0, 1, 7):
        np.testing.assert_array_equal(network.infer({"x": draw(length)})["y"], speak(draw(length))[0])


class Counting(CancelToken):
    """Is set from a question on."""

    def __init__(self, last: float = np.inf) -> None:
        self.last, self.count = last, 0

    @property
    def is_set(self) -> bool:  # type: ignore[override]  # a flag that is never written
        self.count += 1
        return self.count >= self.last


def test_a_run_ends_behind_a_predicted_length_if_it_is_cancelled(core: Core) -> None:
    executable = load(core).executable
    for length in LENGTHS:
        executable.run((draw(length),), RunContext(token=(token := Counting())))
    with pytest.raises(RequestCancelledError, match=r"cancelled before node 'first"):
        executable.run((draw(9),), RunContext(token=Counting(token.count)))
