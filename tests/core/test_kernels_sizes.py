"""Estimated bytes of results: the rules against onnx's own cases, and operators with results larger than any memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx.parser
import pytest

from hetero_core.errors import InvalidNetworkError, MemoryLimitError
from hetero_core.kernels.program import compile_program
from hetero_core.kernels.registry import find_kernel
from hetero_core.kernels.sizes import estimate_bytes
from hetero_core.limits import RunLimits
from hetero_core.network.graph import Network, Node
from hetero_core.network.reader import read_network
from hetero_core.testing.backend_cases import iterate_backend_cases

Case = tuple[str, Node, list[Any], list[Any]]


def count_bytes(values: Any) -> int:
    if isinstance(values, list):
        return sum(count_bytes(value) for value in values)
    return 0 if values is None else int(np.asarray(values).nbytes)


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return list(read_cases())


def read_cases() -> Iterator[Case]:
    """Yields the official single-node cases: name, node, inputs, expected outputs."""
    for case in iterate_backend_cases(kinds=["node"]):
        try:
            network = read_network(case.model)
        except InvalidNetworkError:
            continue
        if len(network.nodes) != 1:
            continue
        (node,) = network.nodes
        constants = {name: constant.array for name, constant in network.initializers.items()}
        for inputs, outputs in case.runs:
            values = {**constants, **{spec.name: value for spec, value in zip(network.inputs, inputs, strict=True)}}
            yield case.name, node, [values.get(name) if name else None for name in node.inputs], list(outputs)


def declares_bytes(node: Node) -> bool:
    record = find_kernel(node)
    return record is not None and record.count_bytes is not None


def test_estimates_are_at_least_the_first_output(cases: list[Case]) -> None:
    estimates = [(name, node, estimate_bytes(node, inputs), count_bytes(outputs[0])) for name, node, inputs, outputs in cases]
    wrong = [
        (name, estimate, actual)
        for name, node, estimate, actual in estimates
        if estimate < actual and (estimate or declares_bytes(node))
    ]
    assert wrong == []
    assert sum(declares_bytes(node) for _, node, _, _ in estimates) > 100
    assert sum(estimate > 0 and not declares_bytes(node) for _, node, estimate, _ in estimates) > 600


def test_estimates_are_at_most_twice_the_values_of_a_run(cases: list[Case]) -> None:
    # RoiAlign is estimated by its samples, four or more per output; 200 bytes are for texts and lists.
    wrong = [
        (name, estimate_bytes(node, inputs), count_bytes(inputs), count_bytes(outputs))
        for name, node, inputs, outputs in cases
        if estimate_bytes(node, inputs)
        > (8 if node.op_type.endswith("Integer") or node.op_type.startswith("QLinear") else 2)
        * max(count_bytes(inputs), count_bytes(outputs))
        + 200
        and node.op_type != "RoiAlign"
    ]
    assert wrong == []


def read(text: str, opset: int = 22) -> Network:
    return read_network(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]> {text}'))


BIG = 2**40
X = np.ones((1, 1, 2, 2), np.float32)
SIZE = "g (int64[N] s, float[1,1,2,2] x) => (y) { [grow] "
# Text, the values of s, opset: a few bytes of input ask for far more than 2^40 bytes of output.
GROWING = {
    "Expand": ("y = Expand (x, s)", [BIG, 1, 1, 1], 22),
    "Tile": ("y = Tile (x, s)", [BIG, 1, 1, BIG], 22),
    "ConstantOfShape": ("y = ConstantOfShape (s)", [BIG, 2**22], 22),
    "Range": (
        "one = Constant <value_int = 1> () zero = Constant <value_int = 0> () t = Squeeze (s) y = Range (zero, t, one)",
        [2**62],
        22,
    ),
    "OneHot": ("v = Constant <value_floats = [0.0, 1.0]> () y = OneHot (s, s, v)", [BIG], 22),
    "Pad": ("y = Pad (x, s)", [0, 0, 0, 0, 0, 0, BIG, BIG], 22),
    "CenterCropPad": ("y = CenterCropPad (x, s)", [1, 1, BIG, 2], 22),
    "Resize": ("y = Resize (x, , , s)", [1, 1, BIG, 2], 22),
    "RandomNormal": ("y = RandomNormal <shape = [1099511627776, 2]> ()", [], 22),
    "ConvTranspose": (
        "w = Constant <value = float[1,1,1,1] {1.0}> () y = ConvTranspose <strides = [1099511627776, 1]> (x, w)",
        [],
        22,
    ),
    "MaxUnpool": (
        "i = Constant <value = int64[1,1,2,2] {0,1,2,3}> () y = MaxUnpool <kernel_shape = [1, 1], strides = [1099511627776, 1]> (x, i)",
        [],
        22,
    ),
    "Conv": ("w = Constant <value = float[1,1,1,1] {1.0}> () y = Conv <pads = [0, 0, 1099511627776, 0]> (x, w)", [], 22),
    "Col2Im": ("b = Constant <value_ints = [1, 1]> () f = Reshape <allowzero = 0> (x, k) y = Col2Im (f, s, b)", [BIG, 2], 22),
    "AffineGrid": ("t = Constant <value = float[1,2,3] {1,0,0,0,1,0}> () y = AffineGrid (t, s)", [1, 1, BIG, 2], 22),
    "RoiAlign": (
        "r = Constant <value = float[1,4] {0,0,1,1}> () b = Constant <value_ints = [0]> () "
        "y = RoiAlign <output_height = 1099511627776> (x, r, b)",
        [],
        22,
    ),
    "DFT": ("n = Squeeze (s) a = Constant <value_int = 2> () y = DFT (x, n, a)", [BIG], 22),
    "HannWindow": ("n = Squeeze (s) y = HannWindow (n)", [BIG], 22),
    "Gather": (
        "b = Constant <value_ints = [1048576]> () z = ConstantOfShape <value = int64[1] {0}> (b) "
        "e = Constant <value_ints = [1, 1048576]> () w = ConstantOfShape (e) y = Gather (w, z)",
        [],
        22,
    ),
    "Add": (
        "b = Constant <value_ints = [1048576, 1]> () p = ConstantOfShape (b) e = Constant <value_ints = [1, 1048576]> () "
        "q = ConstantOfShape (e) y = Add (p, q)",
        [],
        22,
    ),
    "MatMul": (
        "b = Constant <value_ints = [1048576, 1]> () p = ConstantOfShape (b) e = Constant <value_ints = [1, 1048576]> () "
        "q = ConstantOfShape (e) y = MatMul (p, q)",
        [],
        22,
    ),
    "Einsum": (
        'b = Constant <value_ints = [1048576]> () p = ConstantOfShape (b) y = Einsum <equation = "i,j->ij"> (p, p)',
        [],
        22,
    ),
}


@pytest.mark.parametrize("name", GROWING)
def test_operator_with_a_too_large_result_is_refused(name: str) -> None:
    nodes, sizes, opset = GROWING[name]
    text = f"g (int64[N] s, float[1,1,2,2] x) => (y) <int64[3] k = {{1, 1, 4}}> {{ {nodes} }}"
    program = compile_program(read(text, opset))
    limits = RunLimits("network 'g' on X", memory_limit=10**8)
    operator = name.partition("-")[0]
    with pytest.raises(
        MemoryLimitError, match=rf"network 'g' on X: node '.*' \({operator}-\d+\) needs \d{{12,}} bytes, beside \d+ that are"
    ) as caught:
        program.run((np.array(sizes, np.int64), X), limits=limits)
    assert "MEMORY_LIMIT is 100000000. Raise the limit, or give smaller inputs" in str(caught.value)
    assert isinstance(caught.value, MemoryError)


def test_rule_leaves_inputs_that_do_not_fit_to_the_kernel() -> None:
    program = compile_program(read("g (float[N] x, int64[M] s) => (y) { [tile] y = Tile (x, s) }"))
    for limits in (None, RunLimits("X", memory_limit=10**6)):
        with pytest.raises(ValueError, match="negative"):
            program.run((np.ones(2, np.float32), np.array([-1], np.int64)), limits=limits)


@pytest.mark.parametrize(
    ("operator", "shapes", "expected"),
    [
        ("FusedMatMul", [(2**20, 1), (1, 2**20)], 2**42),
        ("GatherND", [(2, 2**20), (2**20, 1)], 2**42),
        ("GridSample", [(1, 1, 2, 2), (1, 2**20, 2**20, 2)], 2**42),
    ],
)
def test_bytes_of_contrib_operators_follow_from_shapes(operator: str, shapes: list[Any], expected: int) -> None:
    names = tuple(f"x{index}" for index in range(len(shapes)))
    node = Node("node", operator, names, ("y",), "com.microsoft")
    dtypes = [np.float32, np.int64 if operator == "GatherND" else np.float32]
    # Views of a single element have the shape but need no memory.
    inputs = [np.broadcast_to(np.zeros((), dtype), shape) for dtype, shape in zip(dtypes, shapes, strict=True)]
    assert estimate_bytes(node, inputs) == expected


class ForeignDtype:
    """An element type of another library that NumPy does not know."""

    def __str__(self) -> str:
        return "torch.float32"


class ForeignArray:
    """An array of another library with only the attributes that the estimate reads."""

    dtype = ForeignDtype()

    def __init__(self, *shape: int) -> None:
        self.shape = shape


def test_bytes_of_foreign_arrays_follow_from_the_type_name() -> None:
    node = Node("node", "Add", ("x0", "x1"), ("y",), "", 14, 14)
    assert estimate_bytes(node, [ForeignArray(10**6, 1), ForeignArray(1, 10**6)]) == 4 * 10**12
