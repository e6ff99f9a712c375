"""What is planned and bound once for groups that are alike: it is what each of them would have got alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import pytest

pytest.importorskip("llvmlite", reason="machine code is made by llvmlite")

from hetero_cpu.executable import CpuExecutable
from hetero_cpu.machine.calls import NativeCall
from hetero_cpu.machine.memory import allocate_arena
from hetero_cpu.operators.recipe import Bind, Recipe
from hetero_cpu.plan.plan import ExecutionPlan
from hetero_cpu.run.instance import AlikeCalls, lay_arrays

from hetero_core import Core

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(4)
WEIGHTS = {"w": RNG.standard_normal((8, 8), np.float32), "k": RNG.standard_normal((16, 16, 3, 3), np.float32) / 12}


def read(body: str, inputs: str, version: int = 17) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {version}]> g ({inputs}) => (float[?] y) {{ {body} }}')
    outputs = model.graph.output[0].type.tensor_type
    outputs.ClearField("shape")
    read_values = {value for node in model.graph.node for value in node.input}
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name) for name, array in WEIGHTS.items() if name in read_values
    )
    return model


def relu(x: Array) -> Array:
    return np.maximum(x, 0)


def leak(x: Array, alpha: float) -> Array:
    return np.where(x < 0, x * np.float32(alpha), x)


def test_groups_that_differ_in_an_attribute_are_told_apart() -> None:
    body = "a = LeakyRelu<alpha=0.5>(x) b = MatMul(a, w) c = LeakyRelu<alpha=0.25>(b) d = MatMul(c, w) y = LeakyRelu<alpha=0.5>(d)"
    x = RNG.standard_normal((3, 8), np.float32)
    w = WEIGHTS["w"]
    expected = leak(leak(leak(x, 0.5) @ w, 0.25) @ w, 0.5)
    for kernels in ("NUMPY", "JIT"):
        with Core() as core:
            network = core.load_network(read(body, "float[3,8] x"), "CPU", {"CPU_KERNELS": kernels})
            np.testing.assert_allclose(network.infer({"x": x})["y"], expected, rtol=1e-5, atol=1e-5)


def test_zeros_of_either_sign_are_other_attributes() -> None:
    # Bounds of Clip were attributes up to version 6.
    model = read("a = Clip<max=0.0>(x) b = Clip<max=-0.0>(x) y = Concat<axis=0>(a, b)", "float[2] x", 10)
    with Core() as core:
        network = core.load_network(model, "CPU", {"CPU_KERNELS": "JIT"})
        signs = np.signbit(network.infer({"x": np.array([3, 4], np.float32)})["y"])
    assert signs.tolist() == [False, False, True, True]


def test_names_that_repeat_otherwise_are_another_group() -> None:
    body = "a = MatMul(x, w) b = Mul(a, x) c = MatMul(b, w) d = Mul(c, c) e = MatMul(d, w) y = Mul(e, d)"
    x = RNG.standard_normal((3, 8), np.float32) / 4
    w = WEIGHTS["w"]
    b = (x @ w) * x
    d = (b @ w) ** 2
    with Core() as core:
        network = core.load_network(read(body, "float[3,8] x"), "CPU", {"CPU_KERNELS": "JIT"})
        np.testing.assert_allclose(network.infer({"x": x})["y"], (d @ w) * d, rtol=1e-4, atol=1e-5)


def make_plan(model: onnx.ModelProto, inputs: dict[str, Array]) -> ExecutionPlan:
    with Core() as core:
        network = core.load_network(model, "CPU", {"CPU_KERNELS": "JIT"})
        network.infer(inputs)
        executable = network.executable
        assert isinstance(executable, CpuExecutable)
        found = executable.find_native_plan()
        assert found is not None
        return found[1]


ROWS = " ".join(
    f"m{i} = MatMul(v{i}, w) n{i} = Relu(m{i}) s{i} = Softmax<axis=-1>(n{i}) t{i} = Transpose<perm=[1,0]>(s{i}) "
    f"u{i} = Transpose<perm=[1,0]>(t{i}) v{i + 1} = Add(u{i}, v{i})"
    for i in range(4)
)
IMAGES = " ".join(
    f"c{i} = Conv<pads=[1,1,1,1]>(v{i}, k) r{i} = Relu(c{i}) p{i} = MaxPool<kernel_shape=[3,3],pads=[1,1,1,1]>(r{i}) "
    f"v{i + 1} = Add(p{i}, v{i})"
    for i in range(4)
)


@pytest.mark.parametrize(
    ("body", "inputs", "shape"),
    [
        (f"v0 = Neg(x) {ROWS} y = Neg(v4)", "float[8,8] x", (8, 8)),
        (f"v0 = Conv<pads=[1,1,1,1]>(x, k) {IMAGES} y = Concat<axis=1>(v4, v3)", "float[1,16,9,7] x", (1, 16, 9, 7)),
    ],
)
def test_calls_of_alike_steps_have_the_numbers_that_binding_each_gives(body: str, inputs: str, shape: Sequence[int]) -> None:
    plan = make_plan(read(body, inputs), {"x": RNG.standard_normal(shape, np.float32)})
    memory = allocate_arena(plan.arena_bytes)
    arrays = lay_arrays(plan, memory)
    alike = AlikeCalls()
    counted: dict[Bind, Bind] = {}
    bound = 0

    def count(bind: Bind) -> Bind:
        def call(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> Sequence[Any]:
            nonlocal bound
            bound += 1
            return bind(reads, writes, scratch)

        return counted.setdefault(bind, call)

    for step in plan.steps:
        recipe = step.work
        assert isinstance(recipe, Recipe)
        if not recipe.kernels:
            continue  # NumPy's are functions
        scratch = memory[step.scratch_offset : step.scratch_offset + recipe.scratch]
        reads, writes = [arrays[value] for value in recipe.reads], [arrays[value] for value in step.writes]
        repeated = alike.bind(replace(recipe, bind=count(recipe.bind)), reads, writes, scratch)
        for call, alone in zip(repeated, recipe.bind(reads, writes, scratch), strict=True):
            assert isinstance(call, NativeCall)
            assert isinstance(alone, NativeCall)
            assert (call.kernel, call.chunks) == (alone.kernel, alone.chunks)
            for number, expected in zip(call.numbers, alone.numbers, strict=True):
                # An array that a bind makes for itself lies elsewhere in each call.
                assert number == expected or not _is_in_plan(expected, arrays, memory)
    assert bound < plan.native_count


def _is_in_plan(number: object, arrays: dict[str, Array], memory: Array) -> bool:
    owner = getattr(number, "array", None)
    return owner is None or np.may_share_memory(owner, memory) or any(owner is array for array in arrays.values())
