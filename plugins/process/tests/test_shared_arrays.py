"""Inputs in shared memory: the device reads them in place, for any change to them between two runs."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest
from hetero_process import create_shared_array

from hetero_core import Core
from hetero_core.errors import DeviceCrashedError
from hetero_core.runtime.executable import ExecutableNetwork

ROWS, COLUMNS = 40, 1000
NBYTES = 4 * ROWS * COLUMNS
SUM = onnx.parser.parse_model(
    f'<ir_version: 8, opset_import: ["": 17]> g (float[N,{COLUMNS}] x, float[N,{COLUMNS}] z) => (float[N,{COLUMNS}] y) {{ y = Add (x, z) }}'
)


@pytest.fixture(scope="module")
def network() -> Iterator[ExecutableNetwork]:
    with Core() as core:
        yield core.load_network(SUM, "PROCESS:CPU")


def fill(seed: int, array: Any) -> Any:
    array[...] = np.random.default_rng(seed).standard_normal(array.shape)
    return array


def find_child() -> int:
    """Returns the process id of the latest child."""
    children = (int(pid) for tasks in Path("/proc/self/task").glob("*/children") for pid in tasks.read_text().split())
    return max(pid for pid in children if b"hetero_process.child" in Path(f"/proc/{pid}/cmdline").read_bytes())


def count_descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def count_maps(pid: int) -> int:
    return Path(f"/proc/{pid}/maps").read_text().count("memfd:hetero")


def test_only_arrays_outside_shared_memory_are_copied(network: ExecutableNetwork) -> None:
    shared, plain = fill(0, create_shared_array((ROWS, COLUMNS))), fill(1, np.empty((ROWS, COLUMNS), np.float32))
    request = network.create_infer_request()
    copied = []
    for x, z in [(plain, plain), (shared, plain), (shared, shared), (plain, shared)]:
        for _ in range(2):
            before = network.get_metric("PROCESS_COPIED_BYTES")
            np.testing.assert_array_equal(request.infer({"x": x, "z": z})["y"], x + z)
        copied.append(network.get_metric("PROCESS_COPIED_BYTES") - before)
    outputs = copied[2]  # a device with open sizes has no preset outputs
    assert outputs == NBYTES
    assert [nbytes - outputs for nbytes in copied] == [2 * NBYTES, NBYTES, 0, NBYTES]


def test_profile_has_the_copies_and_their_bytes() -> None:
    shared, plain = fill(0, create_shared_array((ROWS, COLUMNS))), fill(1, np.empty((ROWS, COLUMNS), np.float32))
    with Core() as core:
        request = core.load_network(SUM, "PROCESS:CPU", {"PERF_COUNT": "YES"}).create_infer_request()
        for x, expected in ((plain, 2 * NBYTES), (shared, NBYTES)):
            request.infer({"x": x, "z": plain})
            copies = {entry.node: entry for entry in request.perf_counts if entry.operator == "transfer"}
            assert (copies["inputs"].nbytes, copies["outputs"].nbytes) == (expected, NBYTES)
            assert copies["inputs"].source == "host"
            assert copies["outputs"].targets == ("host",)


def test_new_content_views_and_other_arrays_are_seen(network: ExecutableNetwork) -> None:
    whole = create_shared_array((3 * ROWS, COLUMNS))
    separate = create_shared_array((ROWS, COLUMNS))
    request = network.create_infer_request()
    for seed in range(6):
        fill(seed, whole)
        fill(seed + 9, separate)
        pairs = [
            (whole[:ROWS], separate),
            (whole[ROWS : 2 * ROWS], whole[2 * ROWS :]),
            (whole[::3], separate),  # not contiguous
            (whole.reshape(3, ROWS, COLUMNS)[seed % 3], separate),
            (np.asfortranarray(separate), separate),
        ]
        for x, z in pairs:
            np.testing.assert_array_equal(request.infer({"x": x, "z": z})["y"], x + z)


def test_arrays_that_come_and_go_leave_nothing(network: ExecutableNetwork, small_heap: None) -> None:
    request, pid = network.create_infer_request(), find_child()
    plain = fill(1, np.empty((ROWS, COLUMNS), np.float32))
    seen = []
    for seed in range(60):
        shared = fill(seed, create_shared_array((ROWS, COLUMNS)))
        np.testing.assert_array_equal(request.infer({"x": shared, "z": plain})["y"], shared + plain)
        del shared
        gc.collect()
        seen.append((count_descriptors(os.getpid()), count_descriptors(pid), count_maps(os.getpid()), count_maps(pid)))
    assert max(seen[20:]) <= max(seen[2:20])
    request.infer({"x": plain, "z": plain})
    assert count_maps(pid) < seen[-1][3]


def test_one_array_serves_many_requests_at_once(network: ExecutableNetwork) -> None:
    shared = fill(0, create_shared_array((ROWS, COLUMNS)))

    def run(seed: int) -> bool:
        request, own = network.create_infer_request(), fill(seed, create_shared_array((ROWS, COLUMNS)))
        return all(np.array_equal(request.infer({"x": shared, "z": own})["y"], shared + own) for _ in range(20))

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(run, range(12)))


def test_a_child_that_is_started_again_is_given_the_array_again(network: ExecutableNetwork) -> None:
    shared = fill(0, create_shared_array((ROWS, COLUMNS)))
    request = network.create_infer_request()
    request.infer({"x": shared, "z": shared})
    os.kill(find_child(), 9)
    with pytest.raises(DeviceCrashedError, match="SIGKILL"):
        request.infer({"x": shared, "z": shared})
    np.testing.assert_array_equal(request.infer({"x": shared, "z": shared})["y"], shared + shared)


@pytest.mark.parametrize("shape", [(), 0, (0, 4), 3, (2, 3, 4)])
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "complex128"])
def test_shared_array_is_an_ordinary_array(shape: Any, dtype: str) -> None:
    array = create_shared_array(shape, dtype)
    assert (array.shape, array.dtype) == (np.empty(shape).shape, np.dtype(dtype))
    assert array.flags.writeable
    assert not array.any()


def test_texts_are_refused() -> None:
    with pytest.raises(TypeError, match="a shared array holds numbers; got elements of type <U3"):
        create_shared_array(2, "U3")
