"""The pause of Python's search for cyclic garbage: what it keeps, and that reading and loading search no more for more nodes."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from functools import partial
from itertools import pairwise

import pytest
from onnx import TensorProto, helper

from hetero_core import Core, cyclic_garbage
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


class _Link:
    """Garbage that only a search finds: it refers to itself."""

    def __init__(self) -> None:
        self.itself = self


def make_objects(count: int) -> list[list[int]]:
    return [[index] for index in range(count)]


def count_searches(searches: list[str], phase: str, _: object) -> None:
    searches.append(phase)


@pytest.fixture(name="searches")
def watch_searches() -> Iterator[list[str]]:
    gc.collect()
    searches: list[str] = []
    watch = partial(count_searches, searches)
    gc.callbacks.append(watch)
    yield searches
    gc.callbacks.remove(watch)


def test_end_of_a_long_pause_searches_through_nothing_that_was_made_in_it(searches: list[str]) -> None:
    with pause_cycle_collection():
        objects = make_objects(100_000)
    more = make_objects(100)
    assert (len(objects), len(more), searches, gc.get_freeze_count()) == (100_000, 100, [], 0)


def test_garbage_of_a_long_pause_is_found_by_a_search_through_all() -> None:
    with pause_cycle_collection():
        watched = weakref.ref(_Link())
        objects = make_objects(100_000)
    gc.collect()
    assert (watched(), len(objects)) == (None, 100_000)


def test_pauses_with_many_objects_begin_a_search_through_all_of_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cyclic_garbage, "_MOST_AGED", 250_000)
    gc.collect()
    with pause_cycle_collection():
        watched = weakref.ref(_Link())
        objects = make_objects(100_000)
    assert watched() is not None
    for _ in range(3):
        with pause_cycle_collection():
            objects += make_objects(100_000)
    assert watched() is None


def test_pause_leaves_frozen_objects_frozen() -> None:
    gc.freeze()
    frozen = gc.get_freeze_count()
    try:
        with pause_cycle_collection():
            objects = make_objects(100_000)
        # Reference counts go on: what is frozen may be freed, but nothing is added.
        assert (len(objects), 0 < gc.get_freeze_count() <= frozen) == (100_000, True)
    finally:
        gc.unfreeze()


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
