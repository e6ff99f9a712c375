"""The nodes that CPU's plan leaves to the toolkit although they take most of a run."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import onnx.parser
import pytest
from hetero_cpu.plan.plan import Foreign, estimate_seconds

from hetero_core import Core
from hetero_core.contract import is_candidate
from hetero_core.network.graph import Node
from hetero_core.network.types import TensorType

HEAD = '<ir_version: 8, opset_import: ["": 17]>'
HEAVY = "g (int32[512,512] x, float[8] f) => (int32[512,512] y, float[8] z) { [heavy] y = MatMul (x, x) [light] z = Relu (f) }"
OPEN = HEAVY.replace("512,512", "n,n")
LIGHT = HEAVY.replace("512,512", "4,4")
FLOAT = HEAVY.replace("int32", "float")


def list_foreign(loaded: Any) -> set[str]:
    """Returns the names of the nodes that the plan of a network leaves to the toolkit."""
    (plan,) = loaded.executable._plans
    return {step.node.name for step in plan.plan.steps if isinstance(step.work, Foreign)}


@pytest.mark.parametrize(("text", "size"), [(HEAVY, 512), (OPEN, 512), (OPEN, 4), (LIGHT, 4), (FLOAT, 512)])
def test_slow_nodes_are_heavy_steps_of_the_toolkit(text: str, size: int, caplog: pytest.LogCaptureFixture) -> None:
    dtype = np.float32 if "float[512" in text else np.int32
    with Core() as core, caplog.at_level(logging.WARNING):
        loaded = core.load_network(onnx.parser.parse_model(HEAD + text), "CPU", {"CPU_KERNELS": "JIT"})
        loaded.infer({"x": np.ones((size, size), dtype), "f": np.ones(8, np.float32)})
        slow = loaded.get_metric("SLOW_NODES")
        foreign = list_foreign(loaded)
    is_slow = "heavy" in foreign and size == 512
    assert slow == (("heavy",) if is_slow else ())
    assert ("no machine code for 'heavy' (MatMul" in caplog.text) is is_slow


def test_candidate_of_auto_gives_no_advice(caplog: pytest.LogCaptureFixture) -> None:
    token = is_candidate.set(True)
    try:
        with Core() as core:
            loaded = core.load_network(onnx.parser.parse_model(HEAD + HEAVY), "CPU", {"CPU_KERNELS": "JIT"})
            loaded.infer({"x": np.ones((512, 512), np.int32), "f": np.ones(8, np.float32)})
    finally:
        is_candidate.reset(token)
    assert "no machine code for" not in caplog.text


@pytest.mark.parametrize(
    ("operator", "shapes", "expected"),
    [
        ("MatMul", {"x": (4, 8), "w": (8, 5), "y": (4, 5)}, 160),
        ("Gemm", {"x": (8, 4), "w": (8, 5), "y": (4, 5)}, 160),
        ("Conv", {"x": (1, 6, 9, 9), "w": (4, 3, 3, 3), "y": (1, 4, 7, 7)}, 4 * 49 * 27),
        ("ConvTranspose", {"x": (1, 6, 9, 9), "w": (6, 3, 2, 2), "y": (1, 3, 10, 10)}, 486 * 12),
        ("Relu", {"x": (7, 3), "y": (7, 3)}, 2100),
        ("MatMul", {}, 0),
    ],
)
def test_work_of_a_node(operator: str, shapes: dict[str, tuple[int, ...]], expected: int) -> None:
    reads = tuple(name for name in shapes if name != "y")
    node = Node("node", operator, reads, ("y",), attributes={"transA": 1} if operator == "Gemm" else {})
    types = {name: TensorType("float32", shape) for name, shape in shapes.items()}
    assert estimate_seconds(node, types, 1, 100) == expected


def test_types_that_folded_constants_tell_give_steps() -> None:
    """Inference at the load cannot follow the root, so it knows the shape of the indices only once they are folded."""
    text = """g (float[6] x) => (float[2,3] z) {
        roots = Sqrt (squares) shape = Cast <to = 7> (roots) table = Reshape (numbers, shape) y = Gather (x, table) z = Neg (y)
    }"""
    model = onnx.parser.parse_model(HEAD + text)
    constants = {"squares": np.array([4, 9], np.float32), "numbers": np.array([5, 4, 3, 2, 1, 0])}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in constants.items())
    x = np.arange(6, dtype=np.float32)
    with Core() as core:
        loaded = core.load_network(model, "CPU", {"CPU_KERNELS": "JIT"})
        assert np.array_equal(loaded.infer({"x": x})["z"], -x[::-1].reshape(2, 3))
        assert list_foreign(loaded) == set()


def test_sizes_that_follow_from_sizes_many_times_give_steps() -> None:
    """Each size follows from the one before by floats, which inference at the load does not follow."""
    layers = [
        f"s{k} = Shape (x{k}) f{k} = Cast <to = 1> (s{k}) r{k} = Sqrt (f{k}) q{k} = Mul (r{k}, r{k}) e{k} = Round (q{k}) "
        f"i{k} = Cast <to = 7> (e{k}) y{k} = Reshape (x{k}, i{k}) x{k + 1} = Relu (y{k})"
        for k in range(9)
    ]
    model = onnx.parser.parse_model(HEAD + f"g (float[6,4] x0) => (float[6,4] x9) {{ {' '.join(layers)} }}")
    x = np.arange(24, dtype=np.float32).reshape(6, 4) - 9
    with Core() as core:
        loaded = core.load_network(model, "CPU", {"CPU_KERNELS": "JIT"})
        assert np.array_equal(loaded.infer({"x0": x})["x9"], np.maximum(x, 0))
        assert list_foreign(loaded) == set()
