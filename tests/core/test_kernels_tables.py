"""A device's own kernel table: its queries and runs follow the declarations of the table."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest

from hetero_core.errors import MemoryLimitError, UnsupportedNodesError
from hetero_core.kernels.program import compile_program
from hetero_core.kernels.registry import FLOATS, INT64, TOOLKIT, find_refusals, kernel, read_table
from hetero_core.kernels.tables import KernelTable
from hetero_core.limits import RunLimits
from hetero_core.network.graph import Network
from hetero_core.network.reader import read_network

TABLE = KernelTable()
BESIDE = KernelTable(base=TOOLKIT)


@kernel("Relu", since=(13, 14), dtypes=FLOATS, largest=16, table=TABLE)
def relu(xp: Any, x: Any) -> Any:
    return xp.maximum(x, 0)


@kernel("Softmax", since=(13,), dtypes=frozenset({"float32"}), choices={"axis": (-1,)}, table=TABLE)
def softmax(xp: Any, x: Any, *, axis: int = -1) -> Any:
    powers = xp.exp(x - x.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


@kernel("Tile", since=(13,), dtypes=(FLOATS, INT64), host=(1,), count_bytes=lambda x, n: x.nbytes * int(np.prod(n)), table=TABLE)
def tile(xp: Any, x: Any, counts: Any) -> Any:
    return xp.tile(x, counts)


@kernel("If", since=(21,), dtypes=frozenset({"bool"}), bodies=("then_branch", "else_branch"), outputs=None, table=TABLE)
def choose(xp: Any, condition: Any, *, then_branch: Any, else_branch: Any) -> Any:
    return then_branch() if condition else else_branch()


@kernel("Neg", since=(6, 13), dtypes=FLOATS, table=BESIDE)
def negate_twice(xp: Any, x: Any) -> Any:
    return x * 2


def read(nodes: str, opset: int = 21, border: str = "(float[2,2] x) => (float[2,2] y)") -> Network:
    return read_network(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]> g {border} {{ {nodes} }}'))


def refuse(network: Network, table: KernelTable = TABLE) -> str:
    return " | ".join(find_refusals(network, table=table).values())


@pytest.mark.parametrize(
    ("network", "reason"),
    [
        (read("y = Relu (x)"), ""),
        (read("y = Tanh (x)"), "operator Tanh has no kernel"),
        (read("y = Softmax (x)", 11), "Softmax-11 has no kernel; there are kernels for version 13"),
        (read("y = Softmax <axis = 0> (x)"), "attribute 'axis' of Softmax-13 is 0; implemented: -1"),
        (read("y = Tile (x, x)"), "input 'x' of Tile-13 has dtype float32; implemented: int64"),
        (
            read("y = Relu (x)", border="(int32[2] x) => (int32[2] y)"),
            "input 'x' of Relu-14 has dtype int32; implemented: bfloat16, float16, float32, float64",
        ),
        (read("y = Relu (x)", border="(float[5] x) => (float[5] y)"), "value 'x' of Relu-14 has 20 bytes; implemented: 16 at most"),
        (
            read("y = If <then_branch = t () => (float[2,2] a) { [inner] a = Tanh (x) }, "
                 "else_branch = e () => (float[2,2] b) { b = Relu (x) }> (c)", border="(bool c, float[2,2] x) => (float[2,2] y)"),
            "node 'inner' in then_branch of If-21: operator Tanh has no kernel",
        ),
    ],
)  # fmt: skip
def test_refusals_follow_from_the_declarations(network: Network, reason: str) -> None:
    assert refuse(network) == reason


def test_open_size_is_refused_by_the_run() -> None:
    program = compile_program(read("[cut] y = Relu (x)", border="(float[N] x) => (float[N] y)"), table=TABLE)
    assert program.run((np.array([-1, 2], np.float32),))[0].tolist() == [0, 2]
    with pytest.raises(
        UnsupportedNodesError, match="cannot run node 'cut': value 'x' of Relu-14 has 20 bytes; implemented: 16 at most"
    ):
        program.run((np.ones(5, np.float32),))


def test_memory_estimate_comes_from_the_kernel_that_runs() -> None:
    program = compile_program(read("y = Tile (x, n)", border="(float[2] x, int64[1] n) => (float[N] y)"), table=TABLE)
    x = np.ones(2, np.float32)
    assert program.run((x, np.array([3])), limits=RunLimits("X", memory_limit=100))[0].tolist() == [1] * 6
    with pytest.raises(MemoryLimitError, match=str(2**43)):
        program.run((x, np.array([2**40])), limits=RunLimits("X", memory_limit=100))


def test_base_table_runs_the_missing_operators() -> None:
    network = read("a = Tanh (x) y = Neg (a)")
    x = np.array([[1, -2], [3, 4]], np.float32)
    assert find_refusals(network, table=BESIDE) == {}
    np.testing.assert_allclose(compile_program(network, table=BESIDE).run((x,))[0], 2 * np.tanh(x.astype(np.float64)), rtol=1e-6)
    np.testing.assert_allclose(compile_program(network).run((x,))[0], -np.tanh(x.astype(np.float64)), rtol=1e-6)
    assert read_table()["", "Neg", 13].function is not negate_twice
    assert BESIDE.read().keys() == read_table().keys()
    assert refuse(read("y = Softmax (x)", 1), TABLE) == "Softmax-1 has no kernel; there are kernels for version 13"


def test_second_kernel_for_a_version_is_an_assertion_error() -> None:
    with pytest.raises(AssertionError, match="two kernels for Relu-14"):
        kernel("Relu", since=(14,), dtypes=FLOATS, table=TABLE)(relu)


def test_preparation_of_a_query_serves_the_program() -> None:
    table, preparations = KernelTable(), []

    def prepare(xp: Any, input_types: Any, *, alpha: float = 0.01) -> float:
        preparations.append(input_types)
        return alpha

    @kernel("LeakyRelu", since=(16,), dtypes=FLOATS, prepare=prepare, table=table)
    def leak(xp: Any, x: Any, *, prepared: float) -> Any:
        return xp.where(x < 0, x * prepared, x)

    network = read("y = LeakyRelu <alpha = 0.5> (x)")
    assert not find_refusals(network, table=table)
    (y,) = compile_program(network, table=table).run((np.float32([[-2, 2], [4, -4]]),))
    assert y.tolist() == [[-1, 2], [4, -2]]
    assert len(preparations) == 1
    # The program has taken it.
    compile_program(network, table=table)
    assert len(preparations) == 2
