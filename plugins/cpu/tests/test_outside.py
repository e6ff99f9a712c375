"""Inputs read from the caller's arrays, and outputs written directly to the caller's memory: only the time shows the difference."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx.parser
import pytest
from hetero_cpu.machine import memory
from hetero_cpu.machine.memory import OutputMemory

from hetero_core import Core
from hetero_core.contract import CancelToken, RunContext
from hetero_core.remote.host import HostSession

# 128 KiB: large enough not to be copied.
ROWS, COLUMNS = 128, 256
SHAPE = f"{ROWS},{COLUMNS}"


@pytest.fixture
def core(kernels: str) -> Iterator[Core]:
    with Core() as opened:
        opened.set_config({"CPU_KERNELS": kernels, "INFERENCE_NUM_THREADS": 2}, "CPU")
        yield opened


@pytest.fixture
def native_core(kernels: str, core: Core) -> Core:
    if kernels == "NUMPY":
        pytest.skip("the toolkit makes its own outputs")
    return core


def parse(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}')


def draw_array(seed: int, *shape: int) -> Any:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def find_address(array: Any) -> int:
    return int(array.ctypes.data)


RELU = parse(f"g (float[{SHAPE}] x) => (float[{SHAPE}] y) {{ y = Relu(x) }}")
CACHE = parse("""g (float[1,4,64,64] past, float[1,4,1,64] new) => (float[1,4,65,64] present, float[1,4,65,64] twice) {
    present = Concat<axis=2>(past, new)
    twice = Add(present, present)
}""")


def run_cache(past: Any, new: Any) -> dict[str, Any]:
    present = np.concatenate([past, new], axis=2)
    return {"present": present, "twice": present + present}


def test_step_in_place_does_not_overwrite_the_callers_array(core: Core) -> None:
    x = draw_array(0, ROWS, COLUMNS)
    before = x.copy()
    x.flags.writeable = False
    answer = core.load_network(RELU, "CPU").infer({"x": x})["y"]
    assert np.array_equal(x, before)
    assert np.array_equal(answer, np.maximum(before, 0))


def test_each_run_reads_the_arrays_that_it_is_given(core: Core) -> None:
    request = core.load_network(CACHE, "CPU").create_infer_request()
    for seed in range(4):
        inputs = {"past": draw_array(seed, 1, 4, 64, 64), "new": draw_array(seed + 9, 1, 4, 1, 64)}
        answers = request.infer(inputs)
        for name, expected in run_cache(**inputs).items():
            assert np.array_equal(answers[name], expected)


def test_results_that_are_held_survive_later_runs(core: Core) -> None:
    request = core.load_network(RELU, "CPU").create_infer_request()
    arrays = [draw_array(seed, ROWS, COLUMNS) for seed in range(6)]
    held = [request.infer({"x": x})["y"] for x in arrays]
    for x, y in zip(arrays, held, strict=True):
        assert np.array_equal(y, np.maximum(x, 0))


def test_a_view_of_a_result_is_enough_to_hold_it(core: Core) -> None:
    request = core.load_network(RELU, "CPU").create_infer_request()
    arrays = [draw_array(seed, ROWS, COLUMNS) for seed in range(6)]
    held = [memoryview(request.infer({"x": x})["y"].T[3:5].reshape(2, 8, -1)[:, 1]) for x in arrays]
    for x, part in zip(arrays, held, strict=True):
        assert np.array_equal(part, np.maximum(x, 0).T[3:5].reshape(2, 8, -1)[:, 1])


def test_a_result_may_be_the_next_input(core: Core) -> None:
    request = core.load_network(RELU, "CPU").create_infer_request()
    x = draw_array(3, ROWS, COLUMNS)
    y = request.infer({"x": x})["y"]
    for _ in range(4):
        y = request.infer({"x": y})["y"]
    assert np.array_equal(y, np.maximum(x, 0))


def test_a_result_belongs_to_the_caller_who_may_write_into_it(core: Core) -> None:
    request = core.load_network(RELU, "CPU").create_infer_request()
    x = draw_array(4, ROWS, COLUMNS)
    first = request.infer({"x": x})["y"]
    first[...] = 7
    assert np.array_equal(request.infer({"x": x})["y"], np.maximum(x, 0))
    assert np.all(first == 7)


def test_dropped_output_memory_is_reused(native_core: Core) -> None:
    request = native_core.load_network(RELU, "CPU").create_infer_request()
    x = draw_array(5, ROWS, COLUMNS)
    addresses = {find_address(request.infer({"x": x})["y"]) for _ in range(8)}
    # A single address is in use until the request releases the previous output.
    assert len(addresses) <= 2


@pytest.mark.parametrize("unfit", ["unaligned", "strided", "reversed"])
def test_inputs_that_lie_otherwise_are_copied(core: Core, unfit: str) -> None:
    x = draw_array(6, ROWS, COLUMNS)
    if unfit == "unaligned":
        memory = np.zeros(x.nbytes + 1, np.uint8)
        fed = memory[1:].view(np.float32).reshape(x.shape)
        fed[...] = x
    elif unfit == "strided":
        wide = np.zeros((ROWS, COLUMNS, 2), np.float32)
        wide[..., 0] = x
        fed = wide[..., 0]
    else:
        fed = x[::-1].copy()[::-1]
    assert np.array_equal(core.load_network(RELU, "CPU").infer({"x": fed})["y"], np.maximum(x, 0))


def test_arrays_set_for_outputs_are_filled_beside_others(core: Core) -> None:
    request = core.load_network(CACHE, "CPU").create_infer_request()
    inputs = {"past": draw_array(7, 1, 4, 64, 64), "new": draw_array(8, 1, 4, 1, 64)}
    mine = np.zeros((1, 4, 65, 64), np.float32)
    request.set_tensor("twice", mine)
    answers = request.infer(inputs)
    expected = run_cache(**inputs)
    assert answers["twice"] is mine
    assert np.array_equal(mine, expected["twice"])
    assert np.array_equal(answers["present"], expected["present"])


class Uncopied(np.ndarray):
    """An array that counts copies into it."""

    copies = 0

    def __setitem__(self, place: Any, value: Any) -> None:
        self.copies += 1
        super().__setitem__(place, value)


@pytest.mark.parametrize(("owns_outputs", "copies"), [(True, 0), (False, 1)])
def test_only_outputs_of_the_run_are_computed_in_preset_arrays(native_core: Core, *, owns_outputs: bool, copies: int) -> None:
    network = native_core.load_network(CACHE, "CPU")
    inputs = draw_array(7, 1, 4, 64, 64), draw_array(8, 1, 4, 1, 64)
    mine = np.zeros((1, 4, 65, 64), np.float32).view(Uncopied)
    context = RunContext(network.create_state(), outputs=[None, mine])
    context.owns_outputs = owns_outputs
    present, twice = network.run_host(inputs, context)
    expected = run_cache(*inputs)
    assert twice is mine
    assert np.array_equal(mine, expected["twice"])
    assert np.array_equal(present, expected["present"])
    assert mine.copies == copies


def test_host_computes_in_memory_of_the_other_process(native_core: Core) -> None:
    session = HostSession(native_core.load_network(RELU, "CPU"))
    x, mine = draw_array(4, ROWS, COLUMNS), np.zeros((ROWS, COLUMNS), np.float32).view(Uncopied)
    for sign in (1, -1, -1):
        outputs, _ = session.run((sign * x,), [mine], CancelToken(), measures=False)
        assert outputs[0] is mine
        assert np.array_equal(mine, np.maximum(sign * x, 0))
    assert mine.copies == 0


def test_an_owned_array_that_does_not_lie_in_order_is_filled(native_core: Core) -> None:
    network = native_core.load_network(RELU, "CPU")
    x, mine = draw_array(3, ROWS, COLUMNS), np.zeros((COLUMNS, ROWS), np.float32).T
    context = RunContext(network.create_state(), outputs=[mine])
    context.owns_outputs = True
    assert network.run_host((x,), context)[0] is mine
    assert np.array_equal(mine, np.maximum(x, 0))


def test_an_array_may_be_set_for_an_output_and_given_as_an_input(core: Core) -> None:
    model = parse(f"g (float[{SHAPE}] x) => (float[{SHAPE}] y) {{ t = ReduceSum<keepdims=1>(x)  y = Add(x, t) }}")
    request = core.load_network(model, "CPU").create_infer_request()
    x = np.ones((ROWS, COLUMNS), np.float32)
    request.set_tensor("y", x)
    assert np.all(request.infer({"x": x})["y"] == 1 + ROWS * COLUMNS)


@pytest.mark.parametrize(
    ("body", "outputs"),
    [
        ("y = Identity(x)", ["y"]),
        ("y = Relu(x)  shape = Constant<value_ints=[-1]>()  z = Reshape(y, shape)", ["y", "z"]),
        ("y = Relu(x)  shape = Constant<value_ints=[-1]>()  z = Reshape(y, shape)", ["z"]),
        ("y = Relu(x)  z = Transpose<perm=[1, 0]>(y)", ["y", "z"]),
        ("y = Relu(x)  z = CumSum(y, axis)", ["y", "z"]),
        ("z = CumSum(x, axis)  y = Relu(x)", ["y", "z"]),
        ("half = Constant<value_ints=[64, 64]>()  y, z = Split<axis=0>(x, half)", ["y", "z"]),
        ("half = Constant<value_ints=[64, 64]>()  y, t = Split<axis=0>(x, half)  z = Relu(t)", ["y", "z"]),
        ("y = Concat<axis=0>(x, x)  z = Exp(x)", ["y", "z"]),
    ],
)
def test_outputs_with_aliases_or_from_functions_are_right(native_core: Core, body: str, outputs: list[str]) -> None:
    returned = ", ".join(f"float[n] {name}" for name in outputs)
    model = parse(f"g (float[{SHAPE}] x) => ({returned}) <int64 axis = {{0}}> {{ {body} }}")
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    x = abs(draw_array(9, ROWS, COLUMNS))
    request = native_core.load_network(model, "CPU").create_infer_request()
    request.infer({"x": x})
    answers = request.infer({"x": x})
    halves = {"y": x[:64], "z": x[64:]}
    expected = {
        "Split": halves,
        "CumSum": {"y": x, "z": np.cumsum(x, axis=0)},
        "Transpose": {"y": x, "z": x.T},
        "Concat": {"y": np.concatenate([x, x]), "z": np.exp(x)},
    }
    expected_arrays = next((arrays for operator, arrays in expected.items() if operator in body), {"y": x, "z": x.reshape(-1)})
    for name in outputs:
        assert answers[name].shape == expected_arrays[name].shape
        np.testing.assert_allclose(answers[name], expected_arrays[name], rtol=2e-5)
        assert not np.shares_memory(answers[name], x)
    if len(outputs) > 1:
        assert not np.shares_memory(answers["y"], answers["z"])


def test_indices_are_read_from_a_private_copy(native_core: Core) -> None:
    """Indices are checked once and then used as addresses."""
    model = parse("g (float[64,64] x, int64[16384] i) => (float[16384,64] y) { y = Gather(x, i) }")
    loaded = native_core.load_network(model, "CPU")
    x, i = draw_array(10, 64, 64), np.arange(16384) % 64
    assert np.array_equal(loaded.infer({"x": x, "i": i})["y"], x[i])
    with pytest.raises(Exception, match="out of bounds"):
        loaded.infer({"x": x, "i": i + 1})


def test_output_memory_is_reused_once_it_has_no_view() -> None:
    memory = OutputMemory(np.dtype(np.float32))
    first, address = memory.take((320, 8))
    assert address == find_address(first)
    assert address % 64 == 0
    assert first.shape == (320, 8)
    part = first[3:, ::2].T
    del first
    second, second_address = memory.take((320, 8))
    assert second_address != address
    assert not np.shares_memory(second, part)
    del part
    gc.collect()
    assert memory.take((8, 320))[1] == address


def test_no_more_memory_is_kept_than_two_outputs_need() -> None:
    tracemalloc.start()
    try:
        memory = OutputMemory(np.dtype(np.float32))
        before = tracemalloc.get_traced_memory()[0]
        held = [memory.take((1 << 18,))[0] for _ in range(5)]
        assert tracemalloc.get_traced_memory()[0] - before > 5 << 20
        held.clear()
        gc.collect()
        assert 0 < tracemalloc.get_traced_memory()[0] - before < 3 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("model", [RELU, CACHE], ids=["relu", "cache"])
def test_imported_plan_reads_and_writes_the_callers_arrays(native_core: Core, tmp_path: Path, model: onnx.ModelProto) -> None:
    loaded = native_core.load_network(model, "CPU")
    loaded.export_network(tmp_path / "x.blob")
    imported = native_core.import_network(tmp_path / "x.blob", "CPU")
    runs = []
    for seed in range(3):
        inputs = {spec.name: draw_array(seed, *spec.shape) for spec in imported.inputs}
        runs.append((inputs, imported.infer(inputs)))
    # Inputs in a layout that machine code cannot read are copied.
    turned = {name: np.asfortranarray(array) for name, array in runs[0][0].items()}
    runs.append((turned, imported.infer(turned)))
    for inputs, answers in runs:
        expected = {"y": np.maximum(inputs["x"], 0)} if model is RELU else run_cache(inputs["past"], inputs["new"])
        for name, value in expected.items():
            assert np.array_equal(answers[name], value)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.bool_, ml_dtypes.bfloat16, ml_dtypes.int4])
@pytest.mark.parametrize("change", ["none", "read-only", "empty", "turned", "part"])
def test_address_is_that_of_the_first_element(dtype: type, change: str) -> None:
    array: Any = np.zeros((3, 4), dtype)
    if change == "read-only":
        array.flags.writeable = False
    array = {"empty": array[:0], "turned": array.T, "part": array[1:]}.get(change, array)
    assert memory.find_address(array) == find_address(array)
