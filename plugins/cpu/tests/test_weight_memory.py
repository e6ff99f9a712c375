"""Packed weights in memory: many lie side by side on large pages; memory is freed with its last array, never shared by networks."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
from hetero_cpu.operators.weights import LazyArray, PackedWeights, allocate_floats

COUNT = 60_000
"""Float32 numbers of an array: 240 kB, so that seventeen are little in all and the ones behind them are not."""


def copy(array: np.ndarray) -> np.ndarray:
    packed = allocate_floats(array.size)
    packed[...] = array
    return packed


def promise(weights: PackedWeights, count: int, size: int = COUNT) -> list[LazyArray]:
    return [weights.pack_lazily((np.full(size, number, np.float32),), ("copy",), copy) for number in range(count)]


@pytest.mark.parametrize("workers", [1, 2, 8])
def test_packed_arrays_are_right_aligned_and_disjoint(workers: int) -> None:
    weights = PackedWeights()
    promised = promise(weights, 120)
    weights.pack_all(workers)
    for number, later in enumerate(promised):
        assert (later.get() == number).all()
        assert later.get().ctypes.data % 64 == 0
    spans = sorted((later.get().ctypes.data, later.get().nbytes) for later in promised)
    assert all(begin + nbytes <= following for (begin, nbytes), (following, _) in pairwise(spans))


def test_many_lie_side_by_side_and_few_by_themselves() -> None:
    weights = PackedWeights()
    arrays = [later.get() for later in promise(weights, 60)]
    bases = [id(array.base) for array in arrays]
    assert len(set(bases[:16])) == 16
    assert len(set(bases[20:60])) == 1


@pytest.mark.parametrize("size", [100, 2_000_000])
def test_small_and_large_arrays_lie_by_themselves(size: int) -> None:
    weights = PackedWeights()
    for later in promise(weights, 20):
        later.get()
    alone = [weights.pack((np.full(size, number, np.float32),), ("alone",), copy) for number in range(3)]
    assert all(array.base.nbytes <= array.nbytes + 64 for array in alone)


def test_outside_of_packing_memory_belongs_to_the_array_alone() -> None:
    weights = PackedWeights()
    for later in promise(weights, 30):
        later.get()
    assert allocate_floats(COUNT).base.nbytes == COUNT * 4 + 64


def test_a_packer_that_fails_leaves_nothing_in_use() -> None:
    weights = PackedWeights()
    for later in promise(weights, 30):
        later.get()

    def fail(array: np.ndarray) -> np.ndarray:
        raise MemoryError("no room")

    with pytest.raises(MemoryError, match="no room"):
        weights.pack((np.zeros(3, np.float32),), ("fail",), fail)
    assert allocate_floats(COUNT).base.nbytes == COUNT * 4 + 64


def test_memory_goes_with_the_last_array_that_lies_in_it() -> None:
    weights = PackedWeights()
    last = [later.get() for later in promise(weights, 60)][-1]
    memory = weakref.ref(last.base)
    del weights
    gc.collect()
    assert memory() is not None
    assert (last == 59).all()
    del last
    gc.collect()
    assert memory() is None


def test_networks_that_pack_at_the_same_time_share_no_memory() -> None:
    def pack(count: int) -> list[np.ndarray]:
        weights = PackedWeights()
        return [later.get() for later in promise(weights, count)]

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(pack, (60, 61))
    assert not {id(array.base) for array in first} & {id(array.base) for array in second}
    for arrays in (first, second):
        assert all((array == number).all() for number, array in enumerate(arrays))
