"""TORCH: memory, constants, its table against the toolkit's, refusals, and divisions that trap on processors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import onnx.parser
import pytest
import torch
from hetero_torch.arrays import to_array, to_tensor
from hetero_torch.device import TorchDevice
from hetero_torch.installation import open_torch
from hetero_torch.table import read_table

from hetero_core import Core
from hetero_core.core import ExecutableNetwork
from hetero_core.errors import MemoryLimitError
from hetero_core.kernels.registry import read_table as read_toolkit

Load = Callable[..., ExecutableNetwork]
CPU = torch.device("cpu")


@pytest.fixture
def core() -> Iterator[Core]:
    with Core() as opened:
        yield opened


@pytest.fixture
def load(core: Core) -> Load:
    def load_text(text: str, config: dict[str, Any] | None = None, opset: int = 18) -> ExecutableNetwork:
        model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {text}')
        return core.load_network(model, "TORCH", config)

    return load_text


@pytest.mark.parametrize("dtype", [np.float32, np.int64, bool, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_array_is_a_tensor_of_the_same_memory_and_back(dtype: Any, shape: tuple[int, ...]) -> None:
    array = np.ones(shape, dtype)
    back = to_array(to_tensor(array, CPU))
    assert (back.dtype, back.shape) == (array.dtype, shape)
    assert not array.size or back.__array_interface__["data"][0] == array.__array_interface__["data"][0]


def test_read_only_array_becomes_a_tensor_without_a_warning(core: Core) -> None:
    core.get_metric("TORCH", "AVAILABLE_DEVICES")  # creates the device
    array = np.ones(2, np.float32)
    array.flags.writeable = False
    assert to_tensor(array, CPU).tolist() == [1, 1]


def test_processor_is_the_first_id_and_shares_host_memory(core: Core, load: Load) -> None:
    assert core.get_metric("TORCH", "AVAILABLE_DEVICES")[0] == "CPU"
    network = load("g (float[N] x) => (float[N] y) { y = Neg (x) }")
    assert [spec.memory for spec in (*network.executable.inputs, *network.executable.outputs)] == ["host", "host"]


def test_arithmetic_on_shapes_gives_the_shape(load: Load) -> None:
    network = load(
        "g (float[N,M] x) => (float[K] y) <int64[1] one = {-1}> "
        "{ s = Shape (x) p = ReduceProd <keepdims = 1> (s) r = Max (p, p) y = Reshape (x, r) }"
    )
    for shape in ((2, 3), (4, 1), (2, 3)):
        x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        np.testing.assert_array_equal(network.infer({"x": x})["y"], x.reshape(-1))


def test_shape_that_follows_from_elements_is_found_in_each_run(load: Load) -> None:
    network = load("g (float[N] x) => (int64[1] count, int64[1,M] y) { y = NonZero (x) c = Size (y) o = Shape (c) count = Expand (c, one) }"
                   .replace("float[N] x) =>", "float[N] x, int64[1] one) =>"))  # fmt: skip
    ones = np.ones(1, np.int64)
    for x in ([0, 1, 2], [0, 0, 0], [5, 0, 0]):
        outputs = network.infer({"x": np.array(x, np.float32), "one": ones})
        assert outputs["count"].tolist() == [np.count_nonzero(x)]
        assert outputs["y"].tolist() == [np.flatnonzero(x).tolist()]


def test_output_that_is_a_constant_is_its_readers_own(load: Load) -> None:
    network = load(
        "g (float[2] x) => (float[2] y, float[2] a, float[2] b) <float[2] c = {1, 2}> { y = Neg (x) a = Identity (c) b = Add (c, c) }"
    )
    for _ in range(3):
        outputs = network.infer({"x": np.zeros(2, np.float32)})
        assert (outputs["a"].tolist(), outputs["b"].tolist()) == ([1, 2], [2, 4])
        outputs["a"][:], outputs["b"][:] = 7, 7


def test_dequantized_weights_are_computed_at_load(load: Load) -> None:
    network = load(
        "g (float[N,2] x) => (float[N,2] y) <int8[2,2] q = {1, 2, 3, 4}, float scale = {0.5}> "
        "{ w = DequantizeLinear (q, scale) y = MatMul (x, w) }"
    )
    for count in (1, 2, 1, 2):
        x = np.ones((count, 2), np.float32)
        assert network.infer({"x": x})["y"].tolist() == [[2.0, 3.0]] * count
    executable: Any = network.executable
    assert [step.node.op_type for step in executable._program.steps] == ["MatMul"]


def test_halves_are_summed_in_float32_and_rounded_once(load: Load) -> None:
    network = load("g (float16[N] x) => (float16[1] y) { y = ReduceSum <keepdims = 1> (x) }")
    x = np.full(4096, 0.1, np.float16)
    assert network.infer({"x": x})["y"][0] == np.float16(x.astype(np.float64).sum())


@pytest.mark.parametrize("bits", [32, 64])
def test_division_that_a_processor_traps_is_computed(load: Load, bits: int) -> None:
    lowest = -(2 ** (bits - 1))
    network = load(f"g (int{bits}[N] a, int{bits}[N] b) => (int{bits}[N] q, int{bits}[N] r) {{ q = Div (a, b) r = Mod (a, b) }}")
    a, b = (np.array(values, f"int{bits}") for values in ([lowest, 7, -7, 7, 5], [-1, 0, 2, -2, -1]))
    outputs = network.infer({"a": a, "b": b})
    # The least integer has no opposite and stays itself; a division by 0 is 0, as with CPU.
    assert outputs["q"].tolist() == [lowest, 0, -3, -3, -5]
    assert outputs["r"].tolist() == [0, 0, 1, -1, 0]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("g (double[2] x) => (float16[2] y) { [n] y = Cast <to = 10> (x) }", "PyTorch rounds twice from float64 to float16"),
        ("g (string[2] x) => (string[2] y) { [n] y = Identity (x) }", "has dtype string"),
        (
            "g (int32[2,2] x) => (int32[2,2] y) { [n] y = MatMul (x, x) }",
            "has dtype int32; implemented: bfloat16, float16, float32",
        ),
        (
            "g (float[1,1,4] x, float[1,1,3] w) => (float[1,1,N] y) "
            "{ [n] y = ConvTranspose <strides = [2], output_padding = [2]> (x, w) }",
            "output_padding [2] of ConvTranspose-11 is not less than its strides or dilations",
        ),
        (
            "g (float[1,1,4] x, float[1,1,3] w) => (float[1,1,N] y) { [n] y = ConvTranspose <pads = [-1, 0]> (x, w) }",
            "pads [-1, 0] of ConvTranspose-11 are negative",
        ),
        (
            "g (float[1,1,4] x) => (float[1,1,2] y, int64[1,1,2] z) { [n] y, z = MaxPool <kernel_shape = [3]> (x) }",
            "MaxPool-12 has 2 outputs; implemented: 1",
        ),
    ],
)
def test_operators_of_other_meaning_are_refused(core: Core, text: str, reason: str) -> None:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> {text}')
    refused = core.query_network(model, "TORCH").refused
    assert reason in refused["n"]


def test_operator_without_a_function_runs_the_toolkit(core: Core, load: Load) -> None:
    text = "g (float[N] x) => (float[N] y, int64[N] i) { z = Neg (x) k = Shape (z) y, i = TopK (z, k) }"
    outputs = load(text).infer({"x": np.array([3, 1, 2], np.float32)})
    assert (outputs["y"].tolist(), outputs["i"].tolist()) == ([-1, -2, -3], [1, 2, 0])
    core.register_plugin("APART", TorchDevice("APART", open_torch(), shares_memory=False))
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> {text}')
    (reason,) = core.query_network(model, "APART").refused.values()
    assert reason == "there is no function of PyTorch for TopK-11; HETERO:TORCH,CPU runs it on CPU"


def test_memory_limit_is_asked_before_a_result_is_made(load: Load) -> None:
    network = load("g (float[N,1] x, float[1,M] y) => (float[N,M] z) { [big] z = Add (x, y) }", {"MEMORY_LIMIT": 1 << 20})
    with pytest.raises(MemoryLimitError, match="'big'"):
        network.infer({"x": np.zeros((10**6, 1), np.float32), "y": np.zeros((1, 10**6), np.float32)})


def _list_claims() -> list[tuple[str, int]]:
    own = read_table()
    claimed = [(op_type, since) for domain, op_type, since in read_toolkit() if not domain]
    return [(op_type, since) for op_type, since in claimed if (op_type, since) in own or (op_type, 0) in own]


@pytest.mark.parametrize(("op_type", "since"), _list_claims())
def test_function_has_attributes_and_defaults_of_the_toolkit(op_type: str, since: int) -> None:
    kernel, own = read_toolkit()["", op_type, since], read_table()
    entry = own.get((op_type, since)) or own[op_type, 0]
    expected = {name: default for name, default in kernel.attributes.items() if name not in kernel.unread}
    try:
        parameters = inspect.signature(entry.function).parameters.values()
    except ValueError:
        parameters = {}.values()  # a built-in function of PyTorch, without attributes
    if any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters):
        return
    refused = {"output_shape"} if op_type == "ConvTranspose" else set()
    defaults = {each.name: each.default for each in parameters if each.kind == each.KEYWORD_ONLY or each.name in expected}
    assert expected.keys() - defaults.keys() <= refused
    for name, default in defaults.items():
        if name in expected and default is not inspect.Parameter.empty:
            assert default == expected[name], name
