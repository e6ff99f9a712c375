"""The pause of Python's search for cyclic garbage: what it keeps, and that reading and loading search no more for more nodes."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from itertools import pairwise

import pytest
from onnx import TensorProto, helper

from hetero_core import Core
from hetero_core.cyclic_garbage import pause_cycle_collection

NODES = 3000


@pytest.fixture(name="core")
def open_core() -> Iterator[Core]:
    with Core() as core:
        yield core


def make_chain(count: int) -> bytes:
    values = ["x", *(f"v{i}" for i in range(count))]
    nodes = [helper.make_node("Neg", [before], [after]) for before, after in pairwise(values)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in (values[0], values[-1])]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:])
    model: bytes = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    return model


def test_pause_ends_with_its_block_also_when_that_fails() -> None:
    @pause_cycle_collection()
    def fail() -> None:
        assert not gc.isenabled()
        raise KeyError("planned")

    with pytest.raises(KeyError, match="planned"):
        fail()
    assert gc.isenabled()


def test_pause_inside_another_leaves_the_outer_one() -> None:
    with pause_cycle_collection():
        with pause_cycle_collection():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_loading_a_long_chain_starts_a_handful_of_searches(core: Core) -> None:
    core.load_network(make_chain(2), "CPU", {"CPU_KERNELS": "NUMPY"})  # imports what is imported once
    model, searches = make_chain(NODES), 0

    def count(phase: str, _: object) -> None:
        nonlocal searches
        searches += phase == "start"

    gc.callbacks.append(count)
    try:
        core.load_network(model, "CPU", {"CPU_KERNELS": "NUMPY"})
    finally:
        gc.callbacks.remove(count)
    # Each node makes a dozen objects, so that 700 of them set off 50 searches and more without the pause.
    assert searches <= 10
